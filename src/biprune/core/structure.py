"""What one prunable unit is.

A structure is data: `weight` makes every entry a unit; `filter` and `channel` make a unit of every
slice of a convolution along its output or input dimension; under `n:m` weights compete in blocks of
m. Units that span several tensors are in `groups`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor

from biprune.core.checks import check_choice

if TYPE_CHECKING:
    from biprune.core.groups import Groups

Scope = Literal["global", "layer"]


def num_kept(sparsity: float, total: int) -> int:
    """How many of `total` units stay: Python's round((1 - sparsity) * total)."""
    return round((1 - sparsity) * total)


def share_out(total: int, sizes: Sequence[int], at_least: int) -> list[int]:
    """Divide `total` among layers in proportion to their `sizes` (Webster's method).

    The n-th unit of a layer has the priority size / (2 n - 1). Units are given by priority, to the
    earlier layer first among equals, once every layer has `at_least` so many. No layer gains when
    the total falls, as some would if quotas were rounded by their remainders: so pruned units stay
    pruned.

    >>> share_out(11, [16, 32, 64], at_least=1)
    [2, 3, 6]
    """
    counts = [max(ceil(total * size / sum(sizes) - 0.5), at_least) for size in sizes]
    layers = range(len(sizes))
    while sum(counts) < total:
        counts[max(layers, key=lambda i: (sizes[i] / (2 * counts[i] + 1), -i))] += 1
    while sum(counts) > total:
        movable = [i for i in layers if counts[i] > at_least]
        counts[min(movable, key=lambda i: (sizes[i] / (2 * counts[i] - 1), -i))] -= 1
    return counts


@dataclass(frozen=True)
class Structure:
    """What a unit is, and how units compete.

    Attributes:
        name: As users know it.
        unit: What a unit is, in words.
        dim: Units are slices of a tensor along this dimension; None: they are single weights.
        scope: "global" ranks all units of the model together; "layer" prunes the same fraction of
            every layer, as the paper does for filters and channels.
        spans_tensors: Whether a unit lies in several tensors. Which ones depends on the model.
    """

    name: str
    unit: str
    dim: int | None
    scope: Scope
    spans_tensors: bool = False

    @property
    def has_single_weights(self) -> bool:
        """Whether a unit is one weight."""
        return self.dim is None and not self.spans_tensors

    @property
    def is_one_ranking(self) -> bool:
        """Whether all weights of the model compete with one another, each for itself."""
        return self.has_single_weights and self.scope == "global" and self.block is None

    @property
    def block(self) -> int | None:
        """How many weights in a row compete among themselves, if not all of a layer do."""
        return None

    @property
    def sparsity(self) -> float | None:
        """The removed fraction, if the structure fixes it."""
        return None

    @property
    def coupled(self) -> Groups | None:
        """The structure with its groups, if its units span several tensors."""
        return None

    @property
    def settings(self) -> dict[str, Any]:
        """What tells this structure from others on the same model, ready for JSON."""
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

    def scored(self, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Tensors that learned scores are shaped like: here the `values` of the weights."""
        return values

    def pool_scored(self, scores: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Score of each unit, from scores shaped as `scored` says."""
        return self.pool(scores)

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

    def num_wanted(self, sparsity: float, total: int) -> int:
        """How many of `total` units stay."""
        return num_kept(sparsity, total)

    def check_reachable(
        self, sparsity: float, sizes: Mapping[str, int], *, allow_empty: bool
    ) -> None:
        """Refuse a sparsity that keeps fewer units than there are layers."""
        num_units = sum(sizes.values())
        total = num_kept(sparsity, num_units)
        if not allow_empty and total < len(sizes):
            raise ValueError(
                f"`sparsity` {sparsity:g} keeps {total} of {num_units} {self.name} units, too few "
                f"for one in each of {len(sizes)} layers. Lower it, leave layers out with "
                "`exclude`, or pass allow_empty=True."
            )

    def check_kept(self, counts: Sequence[int], total: int, sparsity: float) -> None:
        """Raise if a method kept `counts` of all `total` units and not what was asked for."""
        if (kept := sum(counts)) != (wanted := self.num_wanted(sparsity, total)):
            raise RuntimeError(f"The method kept {kept} units where {wanted} were asked for.")

    def counts(
        self, units: Mapping[str, Tensor], sparsity: float, *, at_least: int
    ) -> Sequence[int] | None:
        """How many of its `units` each layer keeps; None if that is left to their scores."""
        if self.scope == "global":
            return None
        sizes = [len(scores) for scores in units.values()]
        return share_out(num_kept(sparsity, sum(sizes)), sizes, at_least)

    def _entries(self, values: Tensor) -> Tensor:
        return values.flatten()

    def _slices(self, values: Tensor) -> Tensor:
        assert self.dim is not None
        return values.movedim(self.dim, 0).flatten(1)


@dataclass(frozen=True)
class Blocks(Structure):
    """The structure n:m: of every m weights in a row along the input dimension n are kept.

    Units are weights, block after block. The final `sparsity` is 1 - n / m; on the way there a
    method may keep more of each block.
    """

    kept: int = 2
    size: int = 4

    @property
    def block(self) -> int:
        """m."""
        return self.size

    @property
    def sparsity(self) -> float:
        """1 - n / m."""
        return 1 - self.kept / self.size

    def num_wanted(self, sparsity: float, total: int) -> int:
        """The same number of each block."""
        return total // self.size * num_kept(sparsity, self.size)

    def check_reachable(
        self, sparsity: float, sizes: Mapping[str, int], *, allow_empty: bool
    ) -> None:
        """Refuse nothing: every block keeps its share."""

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
    "group": Structure(
        "group",
        "filters of several layers that can only be removed together",
        dim=None,
        scope="layer",
        spans_tensors=True,
    ),
}
UNITS = {
    **{name: structure.unit for name, structure in STRUCTURES.items()},
    "n:m": "one weight of m in a row along the input, of which n are kept, such as 2:4",
}


def get_structure(name: str, scope: Scope | None = None) -> Structure:
    """Look a structure up by name; `scope` overrides how its units compete.

    The structure "group" comes without its groups, which depend on the model: see
    `structured.find`.

    Raises:
        ValueError: There is no such structure or scope.
    """
    structure = blocks(name) or STRUCTURES.get(name)
    if structure is None:
        raise ValueError(f"Unknown structure {name!r}. Structures: {', '.join(UNITS)}.")
    if scope is None:
        return structure
    check_choice("scope", scope, get_args(Scope))
    return replace(structure, scope=scope)


def blocks(name: str) -> Blocks | None:
    """The structure that a name such as "2:4" stands for, or None for other names."""
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
