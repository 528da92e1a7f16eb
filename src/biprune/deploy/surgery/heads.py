"""Heads of attention as units: which modules have them, and where they lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from biprune.deploy.surgery.attention import HeadAttention
from biprune.groups import Group, Role, Slice

COUNTS = ("num_heads", "n_heads", "heads", "n_head")  # attributes that say how many heads there are

_LETTERS = {"q": "q", "query": "q", "k": "k", "key": "k", "v": "v", "value": "v"}


@dataclass(frozen=True)
class Heads:
    """An attention module: the tensors that make its heads, and the one that reads them.

    Names of tensors are relative to `module`; `made` says how many of queries, keys and values lie
    one after the other along the first dimension of each, 3 or 1.
    """

    module: nn.Module
    count: int
    head_dim: int
    made: Mapping[str, int]
    read: str

    def places(self, stacked: int) -> Tensor:
        """Where each head lies in a tensor: heads x (stacked * head_dim)."""
        width = self.count * self.head_dim
        one = torch.arange(width).view(self.count, self.head_dim)
        return torch.cat([one + part * width for part in range(stacked)], dim=1)

    def first(self) -> Tensor:
        """The first tensor of `made`: the queries are in it."""
        return _tensor(self.module, next(iter(self.made)))

    def makers(self) -> list[nn.Module]:
        """The modules that own the tensors of `made`."""
        return [self.module.get_submodule(name.rpartition(".")[0]) for name in self.made]

    def group(self, names: Mapping[int, str]) -> Group | None:
        """The heads as a group; None if a tensor is no parameter of the model (`names` by id)."""
        tensors = {name: _tensor(self.module, name) for name in [*self.made, self.read]}
        if not all(id(tensor) in names for tensor in tensors.values()):
            return None
        slices = [
            Slice(names[id(tensors[name])], 0, self.places(stacked), _role(tensors[name]))
            for name, stacked in self.made.items()
        ]
        slices.append(Slice(names[id(tensors[self.read])], 1, self.places(1), "input", gated=True))
        order = list(names.values())
        slices.sort(key=lambda part: order.index(part.tensor))
        return Group(next(p.tensor for p in slices if p.role == "filter"), tuple(slices))


def find_heads(model: nn.Module) -> dict[str, Heads]:
    """The attention modules of a model that are understood, by name."""
    found = {}
    for name, module in model.named_modules():
        heads = _of_torch(module) if is_torchs(module) else _of_user(module)
        if heads is not None and heads.count > 1:
            found[name] = heads
    return found


def is_torchs(module: nn.Module) -> bool:
    """Whether a module runs the code of nn.MultiheadAttention, or ours in its place."""
    return isinstance(module, HeadAttention) or (
        isinstance(module, nn.MultiheadAttention)
        and type(module).forward is nn.MultiheadAttention.forward
    )


def _of_torch(module: nn.Module) -> Heads | None:
    attention: nn.MultiheadAttention = module  # pyright: ignore[reportAssignmentType]
    if getattr(attention, "bias_k", None) is not None or getattr(attention, "add_zero_attn", False):
        return None
    if attention.in_proj_weight is not None:
        made = {"in_proj_weight": 3}
    else:
        made = {f"{letter}_proj_weight": 1 for letter in "qkv"}
    if attention.in_proj_bias is not None:
        made["in_proj_bias"] = 3
    return Heads(attention, attention.num_heads, attention.head_dim, made, "out_proj.weight")


def _of_user(module: nn.Module) -> Heads | None:
    """Heads of a module with a number of heads, layers for q, k and v, and one behind them."""
    counts = [vars(module).get(name) for name in COUNTS]
    count = next((c for c in counts if isinstance(c, int) and not isinstance(c, bool)), None)
    linears = {n: m for n, m in module.named_modules() if isinstance(m, nn.Linear)}
    split = _split(linears) if count else None
    if count is None or split is None:
        return None
    inward, outward = split
    width = linears[outward].in_features
    made_by_each = 3 * width // len(inward)
    if width % count or any(linears[n].out_features != made_by_each for n in inward):
        return None
    names = [f"{n}.weight" for n in inward]
    names += [f"{n}.bias" for n in inward if linears[n].bias is not None]
    made = dict.fromkeys(names, 3 // len(inward))
    return Heads(module, count, width // count, made, f"{outward}.weight")


def _split(linears: Mapping[str, nn.Linear]) -> tuple[list[str], str] | None:
    """Names of the layers before the heads, in the order q, k, v, and of the one behind them."""
    if len(linears) == 2:
        first, second = linears
        if linears[first].out_features == 3 * linears[second].in_features:
            return [first], second
        return None
    if len(linears) != 4:
        return None
    letters = {}
    for name in linears:
        for part in name.replace(".", "_").split("_"):
            if part in _LETTERS:
                letters[_LETTERS[part]] = name
    rest = [name for name in linears if name not in letters.values()]
    if len(letters) != 3 or len(rest) != 1:
        return None
    return [letters[letter] for letter in "qkv"], rest[0]


def _role(tensor: Tensor) -> Role:
    return "filter" if tensor.ndim == 2 else "other"


def _tensor(module: nn.Module, name: str) -> Tensor:
    owner, _, attribute = name.rpartition(".")
    return getattr(module.get_submodule(owner), attribute)
