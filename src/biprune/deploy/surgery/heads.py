"""Heads of attention as units: where they lie, and what becomes of a module that loses some."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from biprune.deploy.coupling.random_weights import randomize_
from biprune.deploy.outputs import difference, outputs
from biprune.deploy.surgery.attention import HeadAttention, SelfAttention
from biprune.groups import Group, Role, Slice

Usual = Literal["plain", "causal"]

_COUNTS = ("num_heads", "n_heads", "heads", "n_head")
_WIDTHS = ("inner_dim", "attn_dim", "all_head_size")  # attributes that say heads * head_dim
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
        known = isinstance(module, nn.MultiheadAttention | HeadAttention)
        heads = _of_torch(module) if known else _of_user(module)
        if heads is not None and heads.count > 1:
            found[name] = heads
    return found


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
    counts = [vars(module).get(name) for name in _COUNTS]
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


def usual_attention(heads: Heads) -> Usual | None:
    """Which of the usual self-attentions the module is, if it is one.

    Tried on a copy with random weights, before anything is cut, so that it depends on nothing but
    the module's code.
    """
    if isinstance(heads.module, nn.MultiheadAttention | HeadAttention):
        return None
    module = copy.deepcopy(heads.module).float().cpu().eval()
    randomize_(module, seed=0)
    width = heads.first().shape[1]
    x = torch.randn(2, 5, width, generator=torch.Generator().manual_seed(0))
    for usual in get_args(Usual):
        rebuilt = _rebuilt(replace(heads, module=module), usual)
        try:
            expected, found = outputs(module, (x,), seed=0), outputs(rebuilt, (x,), seed=0)
        except Exception:  # whatever a forward of the user's raises
            return None
        if difference(expected, found) < 1e-4:
            return usual
    return None


def _rebuilt(heads: Heads, usual: Usual) -> SelfAttention:
    inward = [n.removesuffix(".weight") for n in heads.made if n.endswith(".weight")]
    outward = heads.read.split(".")[0]
    return SelfAttention(heads.module, inward, outward, heads.head_dim, usual == "causal")


def without_heads(heads: Heads, rows: Tensor, usual: Usual | None) -> nn.Module:
    """The module for the heads that `rows` of its first tensor are; its tensors are cut already.

    Torch's own and the usual self-attention are put together anew, others changed in place.
    """
    kept = _kept_heads(heads, rows)
    module = heads.module
    if isinstance(module, nn.MultiheadAttention | HeadAttention):
        return HeadAttention(module, kept)
    if usual is not None:
        return _rebuilt(heads, usual)
    for name, value in vars(module).items():
        if name in _COUNTS:
            vars(module)[name] = len(kept)
        elif name in _WIDTHS and value == heads.count * heads.head_dim:
            vars(module)[name] = len(kept) * heads.head_dim
    return module


def _kept_heads(heads: Heads, rows: Tensor) -> list[int]:
    name, stacked = next(iter(heads.made.items()))
    places = heads.places(stacked)
    kept = [head for head in range(heads.count) if bool(torch.isin(places[head], rows).all())]
    if not torch.equal(places[kept].flatten().sort().values, rows):
        raise ValueError(f"{name!r} can only lose whole heads.")
    return kept


def _role(tensor: Tensor) -> Role:
    return "filter" if tensor.ndim == 2 else "other"


def _tensor(module: nn.Module, name: str) -> Tensor:
    owner, _, attribute = name.rpartition(".")
    return getattr(module.get_submodule(owner), attribute)
