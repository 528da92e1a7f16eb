"""Coupled groups: the slices of many tensors that can only be removed together.

A unit of a group is, say, channel 3 of a residual stream: a filter of every convolution that writes
it, with bias and norm, and a slice of every convolution that reads it. One mask zeroes all of them,
so that what is masked can be taken away. Which slices are coupled is data, found in `structured/`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from biprune.core.budget import cost_model, counts_within, smallest_counts
from biprune.core.documents import from_plain
from biprune.core.structure import Scope, Structure

Role = Literal["filter", "input", "other"]
Measure = Literal["units", "macs", "params"]


@dataclass(frozen=True, eq=False)
class Slice:
    """Where the units of a group lie in one parameter.

    Attributes:
        tensor: The parameter's name.
        dim: The dimension that units are slices along.
        places: Indices along `dim`, units x entries: unit i lies at `places[i]`.
        role: A unit is written by a "filter", read by an "input", or passed on by something
            "other": a bias, or the weight or bias of a norm.
        gated: Whether the gradient of a unit's gate is summed over this slice. Each producer of a
            unit has one such place, which its output is linear in: the weight and bias of the norm
            that follows, else its filter and bias; for a head, the columns that read it.
    """

    tensor: str
    dim: int
    places: Tensor
    role: Role
    gated: bool = False

    def of(self, values: Tensor) -> Tensor:
        """The entries of each unit: units x entries."""
        rows = values.movedim(self.dim, 0)[self.places.flatten().to(values.device)]
        return rows.reshape(len(self.places), -1)

    def along(self, units: Tensor, length: int) -> Tensor:
        """The value of the unit at each of `length` places along `dim`, or one where there is none.

        Differentiable.
        """
        places = self.places.to(units.device)
        each = units.repeat_interleave(places.shape[1])
        return units.new_ones(length).index_put((places.flatten(),), each)

    def spread(self, units: Tensor, shape: Sequence[int]) -> Tensor:
        """`along` as a view that broadcasts to a tensor of `shape`."""
        view = [1] * len(shape)
        view[self.dim] = -1
        return self.along(units, shape[self.dim]).view(view)

    def to_json(self) -> dict[str, Any]:
        """As plain data. Of places in a row it has the first, and how many units and entries."""
        start, each = int(self.places[0, 0]), self.places.shape[1]
        run = torch.arange(start, start + self.places.numel()).view_as(self.places)
        in_a_row = torch.equal(run, self.places)
        places = [start, len(self.places), each] if in_a_row else self.places.tolist()
        where = {"tensor": self.tensor, "dim": self.dim, "places": places, "in_a_row": in_a_row}
        return {**where, "role": self.role, "gated": self.gated}

    @staticmethod
    def from_json(data: Mapping[str, Any], shapes: Mapping[str, Sequence[int]]) -> Slice:
        """The slice that `to_json` wrote; a ValueError if it does not lie in one of `shapes`."""
        tensor, dim, places = data["tensor"], data["dim"], data["places"]
        length = shapes[tensor][dim]
        if data["in_a_row"]:
            start, units, each = places
            if min(start, units - 1, each - 1) < 0 or start + units * each > length:
                raise ValueError(f"a group lies beyond {tensor!r}")  # before it takes memory
            places = torch.arange(start, start + units * each).view(units, each)
        else:
            places = torch.tensor(places, dtype=torch.long)
        if places.ndim != 2 or not places.numel() or not 0 <= places.min() <= places.max() < length:
            raise ValueError(f"a group lies beyond {tensor!r}")
        return Slice(tensor, dim, places, data["role"], data["gated"])


@dataclass(frozen=True, eq=False)
class Group:
    """Units that are coupled in the same way, named after the first weight that writes them.

    `title` says what they are in words, such as "layers.2.mlp width: 256 units".
    """

    name: str
    slices: tuple[Slice, ...]
    title: str = ""

    @property
    def size(self) -> int:
        """How many units there are."""
        return len(self.slices[0].places)

    @property
    def filters(self) -> list[Slice]:
        """The slices that write the units."""
        return [part for part in self.slices if part.role == "filter"]

    @property
    def gates(self) -> list[Slice]:
        """The slices over which the gradient of a unit is summed."""
        return [part for part in self.slices if part.gated]


@dataclass(frozen=True, eq=False)
class Groups(Structure):
    """The structure "group": a unit is one unit of a coupled group.

    Attributes:
        groups: The coupled groups.
        shapes: Of all parameters, by name, in model order.
        macs: Multiply-adds that each parameter takes part in.
        products: Multiply-adds of activations with one another, by the name of the group that they
            grow with; "" has those that grow with none.
        measure: What `sparsity` is the removed fraction of: of the units, or of the multiply-adds
            or parameters of the whole model.
        round_to: How many units of a group stay is a multiple of this, unless all of them stay.
    """

    groups: tuple[Group, ...] = field(default=(), repr=False)
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict, repr=False)
    macs: Mapping[str, int] = field(default_factory=dict, repr=False)
    products: Mapping[str, int] = field(default_factory=dict, repr=False)
    measure: Measure = "units"
    round_to: int = 1
    spans_tensors: bool = True

    def __eq__(self, other: object) -> bool:
        return self is other  # the fields of `Structure` do not tell two models' groups apart

    def __hash__(self) -> int:
        return id(self)

    @property
    def coupled(self) -> Groups:
        """Itself."""
        return self

    @property
    def is_budgeted(self) -> bool:
        """Whether it takes a search to tell how many units stay: by their cost, or rounded."""
        return self.measure != "units" or self.round_to > 1

    @property
    def settings(self) -> dict[str, Any]:
        """Name, scope, and what `sparsity` is measured in."""
        return {**super().settings, "measure": self.measure, "round_to": self.round_to}

    @property
    def tensors(self) -> list[str]:
        """The parameters that hold units, in model order."""
        held = {part.tensor for group in self.groups for part in group.slices}
        return [name for name in self.shapes if name in held]

    def pool(self, scores: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Score of each unit: the L2 norm of max(score, 0) over a filter of the unit.

        Its square is the mean over the layers that write the unit, so that a stream does not rank
        higher just because many layers write it.
        """
        return {group.name: _mean_norm(group, scores) for group in self.groups}

    def scored(self, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Tensors that learned scores are shaped like: one score for each unit."""
        return self.pool(values)

    def pool_scored(self, scores: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Learned scores are those of units already."""
        return scores

    def add_up(self, products: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The sum over each unit's filters."""
        return {g.name: _sum(g.filters, products) for g in self.groups}

    def add_up_gates(self, products: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The sum over the gated slices of each unit, for groups that have products there."""
        reached = (g for g in self.groups if any(part.tensor in products for part in g.gates))
        return {group.name: _sum(group.gates, products) for group in reached}

    def expand(
        self, units: Mapping[str, Tensor], weights: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Weight masks: an entry is kept if all units that it belongs to are."""
        device = next(iter(units.values())).device
        masks = {n: torch.ones(weights[n].shape, dtype=torch.bool, device=device) for n in weights}
        for group in self.groups:
            for part in group.slices:
                masks[part.tensor] &= part.spread(units[group.name], masks[part.tensor].shape)
        return masks

    def num_units(self, weights: Mapping[str, Tensor]) -> dict[str, int]:
        """How many units each group holds."""
        del weights
        return {group.name: group.size for group in self.groups}

    def kept_units(self, masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Which units keep something of each of their slices."""
        found = {}
        for group in self.groups:
            kept = [part.of(masks[part.tensor]).any(dim=1) for part in group.slices]
            found[group.name] = torch.stack(kept).all(dim=0)
        return found

    def check_reachable(
        self, sparsity: float, sizes: Mapping[str, int], *, allow_empty: bool
    ) -> None:
        """Refuse a budget that the fewest units would exceed."""
        if not self.is_budgeted:
            return super().check_reachable(sparsity, sizes, allow_empty=allow_empty)
        cost, fewest = cost_model(self), smallest_counts(self)
        if (least := cost(fewest) / cost.dense) > 1 - sparsity:
            rounding = f" (`round_to` is {self.round_to})" if self.round_to > 1 else ""
            raise ValueError(
                f"The model cannot be pruned to {1 - sparsity:g} of its {self.measure}: the fewest "
                f"units allowed, {sum(fewest)} of {sum(sizes.values())}, leave {least:.3g}"
                f"{rounding}. Ask for more."
            )

    def check_kept(self, counts: Sequence[int], total: int, sparsity: float) -> None:
        """Raise if a method exceeded the budget, or kept another number of units."""
        if not self.is_budgeted:
            return super().check_kept(counts, total, sparsity)
        cost = cost_model(self)
        if cost(counts) > (1 - sparsity) * cost.dense * (1 + 1e-6):
            raise RuntimeError(f"More than {1 - sparsity:g} of the {self.measure} were kept.")

    def counts(
        self, units: Mapping[str, Tensor], sparsity: float, *, at_least: int
    ) -> Sequence[int] | None:
        """As many units as a budget can pay for, if there is one; else as of any structure."""
        if self.is_budgeted:
            return counts_within(units, sparsity, self)
        return super().counts(units, sparsity, at_least=at_least)

    def to_json(self) -> dict[str, Any]:
        """As plain data; see `from_json`."""
        return {
            "groups": [
                {"name": g.name, "title": g.title, "slices": [part.to_json() for part in g.slices]}
                for g in self.groups
            ],
            **{name: getattr(self, name) for name in _SETTINGS},
            "shapes": {name: list(shape) for name, shape in self.shapes.items()},
        }

    @staticmethod
    def from_json(
        data: Mapping[str, Any], scope: Scope, masked: Mapping[str, Sequence[int]]
    ) -> Groups:
        """The structure that `to_json` wrote; `masked` has the shapes of tensors it may name."""
        groups = tuple(
            Group(
                name=each["name"],
                slices=tuple(Slice.from_json(part, masked) for part in each["slices"]),
                title=str(each.get("title", "")),  # missing in older files
            )
            for each in data["groups"]
        )
        if not groups or any(len({len(s.places) for s in each.slices}) != 1 for each in groups):
            raise ValueError("the slices of a group do not hold the same units")
        rest = {name: from_plain(kind, data[name]) for name, kind in _SETTINGS.items()}
        return Groups(*GROUP, scope=scope, groups=groups, **rest)


_SETTINGS: dict[str, Any] = {
    "shapes": Mapping[str, Sequence[int]],
    "macs": Mapping[str, int],
    "products": Mapping[str, int],
    "measure": Measure,
    "round_to": int,
}
GROUP = ("group", "a set of coupled filters", None)


def _mean_norm(group: Group, scores: Mapping[str, Tensor]) -> Tensor:
    squares = [part.of(scores[part.tensor]).clamp(min=0).square().sum(1) for part in group.filters]
    return torch.stack(squares).mean(dim=0).sqrt()


def _sum(slices: Sequence[Slice], products: Mapping[str, Tensor]) -> Tensor:
    sums = [part.of(products[part.tensor]).sum(1) for part in slices if part.tensor in products]
    return torch.stack(sums).sum(dim=0)
