"""What one prunable unit is, and which tensors of a model hold such units.

A structure is data: `weight` makes every entry a unit; `filter` and `channel` make a unit of every
slice of a convolution along its output or input dimension; under `n:m` weights compete in blocks of
m. Units that span several tensors are in `groups`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from biprune.checks import check_choice

Scope = Literal["global", "layer"]
Patterns = str | Sequence[str] | None

_NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
_ATTENTION_WEIGHTS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")


@dataclass(frozen=True)
class Structure:
    """What a unit is (`dim` None: one weight; else a slice along it) and how units compete.

    `scope` "global" ranks all units of the model together; "layer" prunes the same fraction of
    every layer, as the paper does for filters and channels.
    """

    name: str
    unit: str
    dim: int | None
    scope: Scope

    @property
    def settings(self) -> dict[str, Any]:
        """What tells this structure from others on the same model, JSON-able."""
        return {"structure": self.name, "scope": self.scope}

    def pool(self, scores: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Score of each unit, flat: the L2 norm of max(score, 0) over the unit.

        A single weight is its own unit and keeps its score, sign included.
        """
        if self.dim is None:
            return {name: self._entries(score) for name, score in scores.items()}
        return {n: self._slices(score.clamp(min=0)).norm(dim=1) for n, score in scores.items()}

    def add_up(self, products: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The sum of a product shaped like the weights over each unit, flat."""
        if self.dim is None:
            return {name: self._entries(product) for name, product in products.items()}
        return {name: self._slices(product).sum(dim=1) for name, product in products.items()}

    def expand(
        self, units: Mapping[str, Tensor], weights: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Tensors shaped like `weights` in which each entry has the value of its unit."""
        return {n: self.expand_one(each, weights[n].shape) for n, each in units.items()}

    def expand_one(self, units: Tensor, shape: torch.Size) -> Tensor:
        """The same for one tensor."""
        if self.dim is None:
            return units.view(shape)
        view = [1] * len(shape)
        view[self.dim] = -1
        return units.view(view).expand(shape).clone()

    def num_units(self, weights: Mapping[str, Tensor]) -> dict[str, int]:
        """How many units each tensor holds."""
        named = weights.items()
        return {n: w.numel() if self.dim is None else w.shape[self.dim] for n, w in named}

    def kept_units(self, masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Which units of weight masks keep at least one weight."""
        if self.dim is None:
            return {name: self._entries(mask) for name, mask in masks.items()}
        return {name: self._slices(mask).any(dim=1) for name, mask in masks.items()}

    def _entries(self, values: Tensor) -> Tensor:
        return values.flatten()

    def _slices(self, values: Tensor) -> Tensor:
        assert self.dim is not None
        return values.movedim(self.dim, 0).flatten(1)


@dataclass(frozen=True)
class Blocks(Structure):
    """The structure n:m: of every m weights in a row along the input dimension n are kept.

    Units are weights, block after block. `sparsity` is 1 - n / m and nothing else in the end; on
    the way to it a method may keep more of each block.
    """

    kept: int = 2
    size: int = 4

    @property
    def sparsity(self) -> float:
        """The removed fraction that the pattern stands for."""
        return 1 - self.kept / self.size

    def expand_one(self, units: Tensor, shape: torch.Size) -> Tensor:
        """Weights back from the order of blocks."""
        moved = [shape[0], *shape[2:], shape[1]]
        return units.view(moved).movedim(-1, 1).contiguous()

    def _entries(self, values: Tensor) -> Tensor:
        return values.movedim(1, -1).flatten()


STRUCTURES = {
    "weight": Structure("weight", "one weight", dim=None, scope="global"),
    "filter": Structure("filter", "an output filter of a convolution", dim=0, scope="layer"),
    "channel": Structure("channel", "an input channel of a convolution", dim=1, scope="layer"),
}
UNITS = {
    **{name: structure.unit for name, structure in STRUCTURES.items()},
    "group": "filters of several layers that can only be removed together",
    "n:m": "one weight of m in a row along the input, of which n are kept, such as 2:4",
}


def get_structure(structure: str | Structure, scope: Scope | None = None) -> Structure:
    """Look a structure up by name; `scope` overrides how its units compete."""
    if isinstance(structure, str):
        structure = blocks(structure) or _by_name(structure)
    if scope is None:
        return structure
    check_choice("scope", scope, get_args(Scope))
    return replace(structure, scope=scope)


def check_structure(name: str, scope: Scope | None = None) -> None:
    """Refuse a name that is no structure; "group" is one, but known only with a model."""
    if name != "group":
        get_structure(name, scope)
    elif scope is not None:
        check_choice("scope", scope, get_args(Scope))


def _by_name(name: str) -> Structure:
    if name == "group":
        raise ValueError(
            "The structure 'group' depends on the model: prune() and BiPOptimizer find its groups."
        )
    if name not in STRUCTURES:
        raise ValueError(f"Unknown structure {name!r}. Structures: {', '.join(UNITS)}.")
    return STRUCTURES[name]


def blocks(name: str) -> Blocks | None:
    """The structure that a name such as "2:4" stands for, or None if it is no such name."""
    if not (match := re.fullmatch(r"(\d+):(\d+)", name)):
        return None
    kept, size = int(match[1]), int(match[2])
    if not 0 < kept < size:
        raise ValueError(
            f"The structure {name!r} would keep {kept} of every {size} weights; it must be n:m "
            "with 0 < n < m."
        )
    unit = f"one weight of {size} in a row along the input, of which {kept} are kept"
    return Blocks(name, unit, dim=None, scope="layer", kept=kept, size=size)


def unwrap(model: nn.Module) -> nn.Module:
    """The user's own module inside `torch.compile`, `DataParallel` or DDP wrappers."""
    while True:
        if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def parameter_names(model: nn.Module) -> dict[str, nn.Parameter]:
    """Every parameter once, by the name the user knows: tied tensors go by their first name."""
    named = unwrap(model).named_parameters()
    return {name.replace("_orig_mod.", ""): parameter for name, parameter in named}


def prunable(
    model: nn.Module,
    structure: Structure,
    *,
    include: Patterns = None,
    exclude: Patterns = None,
) -> dict[str, nn.Parameter]:
    """The tensors whose units may be pruned, in `named_parameters` order.

    By default these are the trainable weights of convolutions, linear layers and attention
    (`weight`), or of convolutions alone (`filter`, `channel`; the latter without the first
    convolution, whose input is the data, and without grouped ones, whose slices are no input
    channels), or those that divide into blocks (`n:m`). Norms, biases and frozen tensors never are.
    `include` replaces that default by the names that match one of its shell-style patterns,
    embeddings among them; `exclude` takes away.
    """
    model = unwrap(model)
    _refuse_parametrized(model, structure, include, exclude)
    candidates = _default_candidates(model, structure)
    parameters = parameter_names(model)
    if include is not None:
        if structure.dim is None:
            candidates = {id(p) for p in parameters.values() if p.ndim >= 2}
            candidates -= {id(p) for p in norm_parameters(model)}
        candidates &= matching(model, include, "include")
    if exclude is not None:
        candidates -= matching(model, exclude, "exclude")

    chosen = {n: p for n, p in parameters.items() if id(p) in candidates and p.requires_grad}
    if isinstance(structure, Blocks):
        reasons = {name: not_in_blocks(model, p, structure) for name, p in chosen.items()}
        chosen = {name: p for name, p in chosen.items() if reasons[name] is None}
        if reasons and not chosen:
            listed = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
            raise ValueError(f"The model has nothing to prune by {structure.name} ({listed}).")
    if not chosen:
        raise ValueError(
            f"The model has nothing to prune by {structure.name}: no trainable "
            f"{'weight of a convolution' if structure.dim is not None else 'weight'} is left after "
            f"`include` (={include!r}) and `exclude` (={exclude!r})."
        )
    return chosen


def _default_candidates(model: nn.Module, structure: Structure) -> set[int]:
    """Ids of the tensors a structure covers by default; a tensor tied to an embedding is one."""
    convs = [m for m in model.modules() if isinstance(m, _ConvNd)]
    if structure.dim is not None:
        convs = [m for m in convs if not isinstance(m, _ConvTransposeNd)]
        if structure.name == "channel":
            convs = [m for m in convs[1:] if m.groups == 1]
        return {id(m.weight) for m in convs}
    ids = {id(m.weight) for m in convs}
    ids |= {id(m.weight) for m in model.modules() if isinstance(m, (nn.Linear, nn.Bilinear))}
    for module in model.modules():
        if isinstance(module, nn.MultiheadAttention):
            ids |= {id(getattr(module, name)) for name in _ATTENTION_WEIGHTS}
    embeddings = (m for m in model.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag)))
    return ids - {id(m.weight) for m in embeddings}


def not_in_blocks(model: nn.Module, weight: nn.Parameter, structure: Blocks) -> str | None:
    """Why a weight has no blocks along its inputs; None if it has."""
    transposed = (m for m in unwrap(model).modules() if isinstance(m, _ConvTransposeNd))
    if any(module.weight is weight for module in transposed):
        return "it is a transposed convolution"
    if weight.shape[1] % structure.size:
        return f"its {weight.shape[1]} inputs do not divide by {structure.size}"
    return None


def norm_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The trainable weights and biases of norms."""
    norms = (m for m in unwrap(model).modules() if isinstance(m, _NORMS))
    return [p for norm in norms for p in norm.parameters() if p.requires_grad]


def _as_list(patterns: Patterns) -> list[str]:
    return [patterns] if isinstance(patterns, str) else list(patterns or ())


def _matches(name: str, pattern: str) -> bool:
    """Whether a pattern covers a name; both `layer1.*` and `layer1` cover the whole of layer1."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")


def matching(model: nn.Module, patterns: Patterns, argument: str) -> set[int]:
    """Ids of the parameters one of whose names matches a pattern; each must match something."""
    named = [
        (name.replace("_orig_mod.", ""), parameter)
        for name, parameter in model.named_parameters(remove_duplicate=False)
    ]
    matched: set[int] = set()
    for pattern in _as_list(patterns):
        hits = {id(parameter) for name, parameter in named if _matches(name, pattern)}
        if not hits:
            raise ValueError(
                f"`{argument}` has the pattern {pattern!r}, which matches no parameter. "
                f"Names look like {', '.join(name for name, _ in named[:3])}."
            )
        matched |= hits
    return matched


def _refuse_parametrized(
    model: nn.Module, structure: Structure, include: Patterns, exclude: Patterns
) -> None:
    """A weight that is computed from other tensors cannot hold z: name it and say what to do."""
    weight_of: dict[type[nn.Module], str] = {_ConvNd: "weight"}
    if structure.dim is None:
        weight_of |= {nn.Linear: "weight", nn.MultiheadAttention: "in_proj_weight"}
    for name, module in model.named_modules():
        weight = next((w for kind, w in weight_of.items() if isinstance(module, kind)), None)
        if weight is None or weight in module._parameters:
            continue
        weight = f"{name}.{weight}"
        is_meant = include is None or any(_matches(weight, p) for p in _as_list(include))
        if is_meant and not any(_matches(weight, p) for p in _as_list(exclude)):
            raise ValueError(
                f"{weight!r} is already parametrized or pruned by another tool. "
                "Remove that first (torch.nn.utils.parametrize.remove_parametrizations, or "
                "torch.nn.utils.prune.remove), or leave the layer out with `exclude`."
            )
