"""The same architectures with Torch-Pruning: less is asked of it, a forward of the right shape.

`BasePruner` takes 30 % of the channels by the norm of their group. Layers that give an output are
left alone, attention is named with its heads, and afterwards the attributes are set that the
project's own examples set.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from biprune.structured.calls import output_tensors
from zoo_models import Built, Inputs
from zoo_stages import Figures, Report, attempt, called, check, prepare_

RATIO = 0.3
QUERIES = ("qkv", "query", "q_proj", "q_lin", "q", "c_attn", "query_key_value")
OTHERS = ("key", "value", "k_proj", "v_proj", "k_lin", "v_lin", "k", "v")
HEADS = ("num_heads", "num_attention_heads", "n_heads")
FEWER = "num_key_value_heads"


def run(build: Callable[[], Built], report: Report) -> None:
    torch.manual_seed(0)
    model, inputs = build()
    prepare_(model, inputs)
    attempt("peer", report, lambda: peer(model, inputs))


def peer(model: nn.Module, inputs: Inputs) -> Figures:
    # The extra `zoo`; type checking runs without it.
    import torch_pruning as tp  # pyright: ignore[reportMissingImports]

    expected = first_shape(model, inputs)
    count = sum(p.numel() for p in model.parameters())
    heads = heads_of(model)
    pruner = tp.pruner.BasePruner(
        model,
        inputs,
        importance=tp.importance.GroupMagnitudeImportance(),
        pruning_ratio=RATIO,
        ignored_layers=output_layers(model, inputs),
        round_to=max([m.num_heads for m in model.modules() if is_torch_attention(m)], default=None),
        num_heads={layer: number for owner in heads.values() for layer, number in owner.items()},
        output_transform=lambda output: sum(
            t.float().sum() for t in output_tensors(output) if t.is_floating_point()
        ),
    )
    pruner.step()
    left = sum(p.numel() for p in model.parameters())
    check(left < count, "nothing was removed")
    try:
        shape = first_shape(model, inputs)
        attributes = False
    except Exception:  # attributes say the old sizes
        set_sizes_(heads)
        if hasattr(model, "conv_proj"):  # torchvision's vision transformer
            vars(model)["hidden_dim"] = len(model.get_parameter("conv_proj.weight"))
        shape = first_shape(model, inputs)
        attributes = True
    check(shape == expected, f"the output has shape {tuple(shape)}, not {tuple(expected)}")
    return {"parameters": round(left / count, 4), **({"attributes": True} if attributes else {})}


def is_torch_attention(module: nn.Module) -> TypeGuard[nn.MultiheadAttention]:
    """Whether it is torch's own, whose width must stay a multiple of its heads."""
    return isinstance(module, nn.MultiheadAttention)


@torch.no_grad()
def first_shape(model: nn.Module, inputs: Inputs) -> torch.Size:
    return next(iter(output_tensors(called(model.eval(), inputs)))).shape


def output_layers(model: nn.Module, inputs: Inputs) -> list[nn.Module]:
    """The layers whose result is, or is a view of, an output; else the last that ran."""
    ran: list[tuple[nn.Module, int]] = []

    def note(layer: nn.Module, _: Any, result: Any) -> None:
        if isinstance(result, Tensor):
            ran.append((layer, result.untyped_storage().data_ptr()))
            kept.append(result)

    kept: list[Tensor] = []
    kinds = (nn.Linear, nn.modules.conv._ConvNd)
    layers = [module for module in model.modules() if isinstance(module, kinds)]
    handles = [layer.register_forward_hook(note) for layer in layers]
    with torch.no_grad():
        outputs = [*output_tensors(called(model.eval(), inputs))]
    for handle in handles:
        handle.remove()
    places = {output.untyped_storage().data_ptr() for output in outputs}
    found = [layer for layer, place in ran if place in places]
    return found or [layer for layer, _ in ran[-1:]]


def heads_of(model: nn.Module) -> dict[nn.Module, dict[nn.Module, int]]:
    """By module of attention, the layers that give its queries, keys and values, with heads."""
    found: dict[nn.Module, dict[nn.Module, int]] = {}
    for owner in model.modules():
        sources = (vars(owner), getattr(getattr(owner, "config", None), "__dict__", {}))
        counts = [source[n] for source in sources for n in HEADS if type(source.get(n)) is int]
        number = counts[0] if counts else 0
        fewer = next((s[FEWER] for s in sources if type(s.get(FEWER)) is int), number)
        layers = dict(owner.named_children())
        if not number or not any(isinstance(layers.get(n), nn.Linear) for n in QUERIES):
            continue
        named = {layers[n]: number for n in QUERIES if isinstance(layers.get(n), nn.Linear)}
        named |= {layers[n]: fewer for n in OTHERS if isinstance(layers.get(n), nn.Linear)}
        found[owner] = named
    return found


def set_sizes_(heads: dict[nn.Module, dict[nn.Module, int]]) -> None:
    """Set on attention what examples set: the width, and that of a head."""
    for owner, layers in heads.items():
        layer, number = next(iter(layers.items()))
        width = len(layer.get_parameter("weight"))
        is_joint = any(getattr(owner, name, None) is layer for name in ("qkv", "query_key_value"))
        width = width // 3 if is_joint else width
        sizes = {
            **dict.fromkeys(
                ("attention_head_size", "head_dim", "key_value_proj_dim"), width // number
            ),
            **dict.fromkeys(
                ("all_head_size", "inner_dim", "attn_dim", "hidden_size", "dim"), width
            ),
        }
        for name, size in sizes.items():
            if type(getattr(owner, name, None)) is int:
                setattr(owner, name, size)
