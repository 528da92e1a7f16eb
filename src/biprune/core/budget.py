"""How many units each coupled group keeps, so that the model costs no more than it may.

A parameter of shape d1 x d2 x ... costs c * (k1 / d1) * (k2 / d2) * ... when k of each dimension
are kept, where c is its number of entries, or the multiply-adds that it takes part in. Removing a
unit makes its neighbours cheaper too. So a unit has no price of its own, and counts are searched.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from biprune.core.structure import share_out

if TYPE_CHECKING:
    from biprune.core.groups import Groups, Measure

Counts = list[int]
Dimension = tuple[int, list[tuple[int, int]]]  # its length; for each group, entries of a unit
MEASURES: tuple[Measure, ...] = ("units", "macs", "params")


class CostModel:
    """What a model costs, in the measure of its structure, by how many units each group keeps."""

    def __init__(self, structure: Groups) -> None:
        self._measure = structure.measure
        self._sizes = [group.size for group in structure.groups]
        dims: dict[str, dict[int, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
        for index, group in enumerate(structure.groups):
            for part in group.slices:
                dims[part.tensor][part.dim].append((index, part.places.shape[1]))
        self._tensors: dict[str, tuple[float, list[Dimension]]] = {}
        self._products = [0.0] * len(self._sizes)
        self._fixed = 0.0
        if self._measure == "macs":
            self._products = [structure.products.get(g.name, 0.0) for g in structure.groups]
            self._fixed = float(structure.products.get("", 0.0))
        for name, shape in structure.shapes.items():
            cost = prod(shape) if self._measure == "params" else structure.macs.get(name, 0)
            held = [(shape[dim], groups) for dim, groups in dims[name].items()]
            if held and cost:
                self._tensors[name] = cost, held
            else:
                self._fixed += cost

    def __call__(self, counts: Sequence[int]) -> float:
        """The cost when group i keeps counts[i] units."""
        if self._measure == "units":
            return sum(counts)
        shares = zip(self._products, counts, self._sizes, strict=True)
        products = sum(cost * count / size for cost, count, size in shares)
        return self._fixed + products + sum(self.by_tensor(counts).values())

    def by_tensor(self, counts: Sequence[int]) -> dict[str, float]:
        """The cost of each parameter that holds units."""
        removed = [size - count for size, count in zip(self._sizes, counts, strict=True)]
        found = {}
        for name, (cost, dims) in self._tensors.items():
            for length, groups in dims:
                cost *= 1 - sum(each * removed[index] for index, each in groups) / length
            found[name] = cost
        return found

    @property
    def dense(self) -> float:
        """The cost of the whole model."""
        return self(self._sizes)


def kept_fractions(structure: Groups, counts: Sequence[int]) -> dict[Measure, float]:
    """The kept fractions of the model's units, multiply-adds and parameters."""
    found: dict[Measure, float] = {}
    for measure in MEASURES:
        cost = CostModel(replace(structure, measure=measure))
        found[measure] = cost(counts) / cost.dense
    return found


def unit_costs(structure: Groups) -> dict[str, tuple[int, int]]:
    """Multiply-adds and weights that removing one unit of each group saves, all others kept."""
    sizes = [group.size for group in structure.groups]
    costs = [CostModel(replace(structure, measure=m)) for m in ("macs", "params")]
    found = {}
    for index, group in enumerate(structure.groups):
        without = [size - (place == index) for place, size in enumerate(sizes)]
        macs, weights = (round(cost(sizes) - cost(without)) for cost in costs)
        found[group.name] = macs, weights
    return found


def kept_macs(structure: Groups, counts: Sequence[int]) -> dict[str, float]:
    """Multiply-adds that are left in each weight that holds units."""
    return CostModel(replace(structure, measure="macs")).by_tensor(counts)


cost_model = lru_cache(maxsize=8)(CostModel)  # made once: every step of training asks for it


def smallest_counts(structure: Groups) -> Counts:
    """The fewest units that each group may keep: one step of `round_to`, or all it has."""
    return [min(group.size, structure.round_to) for group in structure.groups]


def counts_within(units: Mapping[str, Tensor], sparsity: float, structure: Groups) -> Counts:
    """How many units of each group a budget of (1 - sparsity) can pay for.

    In the scope "global" units are taken by their score, in the scope "layer" evenly. Those whose
    score is zero or -inf are dead: an earlier round pruned them, and they do not come back. Counts
    of the scope "layer" are remembered, since they depend on no other score.
    """
    living = [torch.count_nonzero((s != 0) & (s != -torch.inf)) for s in units.values()]
    alive = tuple(torch.stack(living).tolist())  # one read, however many groups
    if structure.scope == "layer":
        return list(_even_counts(structure, sparsity, alive))
    flat = torch.cat(list(units.values()))
    sizes = [group.size for group in structure.groups]
    best_first = flat.clone()
    for part in best_first.split(sizes):
        part[part.topk(min(structure.round_to, len(part))).indices] = torch.inf
    ranked = best_first.argsort(descending=True, stable=True)
    owners = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))[ranked.cpu()]

    def leading(total: int) -> Counts:
        return torch.bincount(owners[:total], minlength=len(sizes)).tolist()

    return _fitted(leading, sparsity, structure, alive)


@lru_cache(maxsize=64)
def _even_counts(structure: Groups, sparsity: float, alive: tuple[int, ...]) -> tuple[int, ...]:
    sizes = [group.size for group in structure.groups]

    def even(total: int) -> Counts:
        return share_out(total, sizes, at_least=1)

    return tuple(_fitted(even, sparsity, structure, alive))


def _fitted(
    counts_of: Callable[[int], Counts],
    sparsity: float,
    structure: Groups,
    alive: Sequence[int],
) -> Counts:
    """The largest `counts_of(total)`, rounded, that fits; then any single step that still does."""
    cost, total_units = cost_model(structure), sum(group.size for group in structure.groups)
    fewest = smallest_counts(structure)
    sizes = [max(pair) for pair in zip(alive, fewest, strict=True)]
    limit = (1 - sparsity) * cost.dense * (1 + 1e-9)  # rounding must not exclude the whole

    def rounded(total: int) -> Counts:
        steps = [round(count / structure.round_to) for count in counts_of(total)]
        pairs = zip(steps, sizes, fewest, strict=True)
        return [max(low, min(step * structure.round_to, size)) for step, size, low in pairs]

    totals = range(len(sizes), total_units + 1)
    fitting = bisect_right(totals, limit, key=lambda total: cost(rounded(total)))
    counts = rounded(totals[fitting - 1]) if fitting else fewest
    for index in sorted(range(len(sizes)), key=lambda i: counts[i] / sizes[i]):
        while counts[index] < sizes[index]:
            more = min(counts[index] + structure.round_to, sizes[index])
            trial = [*counts[:index], more, *counts[index + 1 :]]
            if cost(trial) > limit:
                break
            counts = trial
    return counts
