"""Coupled groups: the slices of many tensors that can only be removed together.

A unit of a group is, say, channel 3 of a residual stream: a filter of every convolution that writes
it, with bias and norm, and a slice of every convolution that reads it. All of them are zero under
one mask, so that what is masked is what can be taken away. Who is coupled with whom comes in as
data, from `structured/`.
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
    """Where the units of a group lie in one parameter: unit i at `places[i]` along `dim`.

    The role says what the unit does there: it is written by a "filter", read by an "input", or
    passed on by something "other" (a bias, a norm's weight or bias). `gated` are the slices that
    the unit's output is linear in, taken at one point for each producer: the norm's weight and bias
    where one follows, else filter and bias; for a head the columns that read it.
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
        """The value of its unit for each of the `length` places along `dim`; one where there is
        none. Differentiable."""
        places = self.places.to(units.device)
        each = units.repeat_interleave(places.shape[1])
        return units.new_ones(length).index_put((places.flatten(),), each)

    def spread(self, units: Tensor, shape: Sequence[int]) -> Tensor:
        """`along` as a view that broadcasts to a tensor of `shape`."""
        view = [1] * len(shape)
        view[self.dim] = -1
        return self.along(units, shape[self.dim]).view(view)

    def to_json(self) -> dict[str, Any]:
        """As plain data; places that follow one another as where they start and how many each."""
        start, each = int(self.places[0, 0]), self.places.shape[1]
        run = torch.arange(start, start + self.places.numel()).view_as(self.places)
        in_a_row = torch.equal(run, self.places)
        places = [start, len(self.places), each] if in_a_row else self.places.tolist()
        return {
            "tensor": self.tensor,
            "dim": self.dim,
            "places": places,
            "in_a_row": in_a_row,
            "role": self.role,
            "gated": self.gated,
        }

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
    """Units that are coupled in the same way; `name` is that of the first weight that writes it.

    `title` says what they are in words: "layers.2.mlp width: 256 units".
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

    `measure` is what `sparsity` is the removed fraction of: of the units, or of the multiply-adds
    or parameters of the whole model, which `macs` and `shapes` give by parameter name; `products`
    are multiply-adds of activations by one another, by the group that they grow with (of none: "").
    The kept units of a group are a multiple of `round_to` where they are not all of them.
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
        """Whether counts of units follow from what they cost, or from rounding them."""
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
        """L2 norm of max(score, 0) over a unit's filters, in the mean square of its writers.

        The mean, so that a stream which many layers write is not above the others for that alone.
        """
        return {group.name: _mean_norm(group, scores) for group in self.groups}

    def scored(self, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Scores are one a unit."""
        return self.pool(values)

    def pool_scored(self, scores: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """As they are."""
        return scores

    def add_up(self, products: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The sum over each unit's filters."""
        return {g.name: _sum(g.filters, products) for g in self.groups}

    def add_up_gates(self, products: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The sum over what each unit's gate multiplies, where there are products of it."""
        reached = (g for g in self.groups if any(part.tensor in products for part in g.gates))
        return {group.name: _sum(group.gates, products) for group in reached}

    def expand(
        self, units: Mapping[str, Tensor], weights: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Weight masks: an entry is kept if every unit that it belongs to is."""
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
        """Which units of weight masks keep something of every slice that they own."""
        return {
            group.name: torch.stack(
                [part.of(masks[part.tensor]).any(dim=1) for part in group.slices]
            ).all(dim=0)
            for group in self.groups
        }

    def check_reachable(
        self, sparsity: float, sizes: Mapping[str, int], *, allow_empty: bool
    ) -> None:
        """Refuse what the fewest units cost more than, under a budget."""
        if not self.is_budgeted:
            return super().check_reachable(sparsity, sizes, allow_empty=allow_empty)
        cost, fewest = cost_model(self), smallest_counts(self)
        if (least := cost(fewest) / cost.dense) > 1 - sparsity:
            rounding = f" (`round_to` is {self.round_to})" if self.round_to > 1 else ""
            raise ValueError(
                f"The model cannot be pruned to {1 - sparsity:g} of its {self.measure}: with "
                f"{sum(fewest)} of {sum(sizes.values())} units, the fewest allowed, {least:.3g} is "
                f"left{rounding}. Ask for more."
            )

    def check_kept(self, counts: Sequence[int], total: int, sparsity: float) -> None:
        """A budget is kept, or the number of units."""
        if not self.is_budgeted:
            return super().check_kept(counts, total, sparsity)
        cost = cost_model(self)
        if cost(counts) > (1 - sparsity) * cost.dense * (1 + 1e-6):
            raise RuntimeError(f"More than {1 - sparsity:g} of the {self.measure} were kept.")

    def counts(
        self, units: Mapping[str, Tensor], sparsity: float, *, at_least: int
    ) -> Sequence[int] | None:
        """What a budget can pay for, if there is one; else as any structure."""
        if self.is_budgeted:
            return counts_within(units, sparsity, self)
        return super().counts(units, sparsity, at_least=at_least)

    def to_json(self) -> dict[str, Any]:
        """As plain data; see `from_json`."""
        return {
            "groups": [
                {
                    "name": group.name,
                    "title": group.title,
                    "slices": [part.to_json() for part in group.slices],
                }
                for group in self.groups
            ],
            "shapes": {name: list(shape) for name, shape in self.shapes.items()},
            "macs": dict(self.macs),
            "products": dict(self.products),
            "measure": self.measure,
            "round_to": self.round_to,
        }

    @staticmethod
    def from_json(
        data: Mapping[str, Any], scope: Scope, masked: Mapping[str, Sequence[int]]
    ) -> Groups:
        """The structure that `to_json` wrote, of the `masked` tensors, whose shapes are known."""
        groups = tuple(
            Group(
                each["name"],
                tuple(Slice.from_json(part, masked) for part in each["slices"]),
                str(each.get("title", "")),  # older files lack it
            )
            for each in data["groups"]
        )
        if not groups or any(len({len(s.places) for s in each.slices}) != 1 for each in groups):
            raise ValueError("the slices of a group are not of the same units")
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
