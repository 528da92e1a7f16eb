"""What one prunable unit is.

A structure is data: `weight` makes every entry a unit; `filter` and `channel` make a unit of every
slice of a convolution along its output or input dimension; under `n:m` weights compete in blocks of
m. Units that span several tensors are in `groups`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from biprune.core.checks import check_choice

Scope = Literal["global", "layer"]


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
    def has_single_weights(self) -> bool:
        """Whether a unit is one weight."""
        return self.dim is None

    @property
    def has_rows(self) -> bool:
        """Whether weights are scored by themselves, so that a row of them can be dead."""
        return True

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


def get_structure(name: str, scope: Scope | None = None) -> Structure:
    """Look a structure up by name; `scope` overrides how its units compete."""
    structure = blocks(name) or _by_name(name)
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
