"""Moving operations on what is left of a tensor.

Whether an operation on the smaller tensor gives the smaller result is not believed but checked: the
positions of elements are moved both ways and compared. Where what is left in between is no box, a
run of moving operations starts at the last box before it: with one selection in its place if it
does no more than pick and permute along one dimension, else behind a selection of what its end
takes from it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from biprune.structured.atoms import Carried, along, distinct, spread, varies
from biprune.structured.labels import Labels
from biprune.structured.rules import is_moving

aten = torch.ops.aten
Kept = dict[int, Tensor]  # the indices that are left, along dimensions that lose some


@dataclass(frozen=True)
class Step:
    """A moving operation, its arguments behind the first, and what it gives on the example.

    `shape` is a list of shapes where it gives several; `static` are the sizes of its result that
    are numbers whatever the input.
    """

    target: Any
    rest: tuple[Any, ...]
    kwargs: dict[str, Any]
    shape: Any
    static: list[bool]

    @property
    def name(self) -> str:
        """The operation's name."""
        return self.target._opname


def step(labels: Labels, node: fx.Node) -> Step:
    """What a moving node does."""
    given = labels.traced.results[node]
    shape = [each.shape for each in given] if isinstance(given, list) else given.shape
    static = [isinstance(size, int) for size in getattr(node.meta.get("val"), "shape", ())]
    return Step(node.target, node.args[1:], dict(node.kwargs), shape, static)


def steps(labels: Labels, run: Sequence[fx.Node]) -> list[Step]:
    """The steps of a run, with one of several results taken as a step of its own."""
    found: list[Step] = []
    for node in run:
        own = step(labels, node)
        if node.target is operator.getitem:
            several, place = found.pop(), int(node.args[1])  # pyright: ignore[reportArgumentType]
            own = _one_of(several, place, own)
        found.append(own)
    return found


def _one_of(several: Step, place: int, own: Step) -> Step:
    """The step that gives one of several results."""
    ndim = len(several.shape[place])
    dims = several.rest[0 if several.name == "unbind" else 1 :]
    dim = int(dims[0] if dims else several.kwargs.get("dim", 0))
    if several.name == "unbind":
        dim %= ndim + 1
        return Step(aten.select.int, (dim, place), {}, own.shape, own.static)
    dim %= ndim
    start = sum(shape[dim] for shape in several.shape[:place])
    end = start + several.shape[place][dim]
    return Step(aten.slice.Tensor, (dim, start, end), {}, own.shape, own.static)


def box(labels: Labels, carried: Carried, gone: Tensor) -> Kept | None:
    """What is left of a tensor along each dimension that loses something; None if it is no box."""
    kept: Kept = {}
    for plane in carried.planes:
        settled = labels.atoms.settled(plane.labels)
        own = factors(~gone[distinct(settled)])
        if own is None:
            return None
        kept = both(kept, own)
    return kept


def both(one: Kept, other: Kept) -> Kept:
    """What is left if both take away."""
    kept = dict(one)
    for dim, index in other.items():
        kept[dim] = index[torch.isin(index, kept[dim])] if dim in kept else index
    return kept


def factors(mask: Tensor) -> Kept | None:
    """The indices along each dimension whose product a mask is; None if it is no product."""
    kept: Kept = {}
    covered = torch.ones_like(mask)
    for dim, size in enumerate(mask.shape):
        others = [d for d in range(mask.ndim) if d != dim]
        used = mask.any(dim=others) if others else mask
        if size > 1 and not bool(used.all()):
            kept[dim] = used.nonzero().flatten()
            view = [1] * mask.ndim
            view[dim] = size
            covered = covered & used.view(view)
    return kept if torch.equal(covered, mask) else None


def left(tensor: Tensor, kept: Kept) -> Tensor:
    """A tensor, or plane, without what is gone."""
    for dim, index in kept.items():
        tensor = tensor.index_select(dim, index)
    return tensor


def chains(
    labels: Labels, node: fx.Node, is_box: Callable[[fx.Node], bool]
) -> Iterator[list[fx.Node]]:
    """The moving operations that lead to a node, from behind each box before them, last first."""
    found = [node]
    while True:
        before = found[0].args[0]
        if not isinstance(before, fx.Node):
            return
        if isinstance(labels.carried.get(before), Carried) and is_box(before):
            yield list(found)
        if before.op != "call_function" or not is_moving(before):
            return
        found.insert(0, before)


def selection(
    labels: Labels, shape: tuple[int, ...], run: Sequence[Step]
) -> tuple[int, Tensor] | None:
    """The dimension and indices whose selection from a tensor of `shape` a run amounts to."""
    after = run[-1].shape
    if len(after) != len(shape):
        return None
    chosen: tuple[int, Tensor] | None = None
    for dim, size in enumerate(shape):
        if size == 1 and after[dim] == 1:
            continue
        moved = _settled(positions(labels, shape, dim, run)[-1])
        if size > 1 and after[dim] > 1 and varies(moved) != (dim,):
            return None
        line = along(moved, dim)  # of a single index zeros, as many as there are copies
        if len(line) == size and torch.equal(line, torch.arange(size)):
            continue
        if chosen is not None:
            return None
        chosen = dim, line
    return chosen


def picked(
    labels: Labels, shape: tuple[int, ...], run: Sequence[Step], kept: Kept, dim: int, after: Kept
) -> tuple[Tensor, list[Kept]] | None:
    """What the end of a run takes along `dim` of a tensor; and what that is on the way.

    `kept` is what is left of the tensor, `after` of the result.
    """
    passed = positions(labels, shape, dim, run)
    chosen = left(passed[-1], after).unique()
    on_the_way: list[Kept] = [{} for _ in run]
    for each, index in {**kept, dim: chosen}.items():
        for place, moved in enumerate(positions(labels, shape, each, run)):
            own = factors(torch.isin(distinct(_settled(moved)), index))
            if own is None:
                return None
            on_the_way[place] = both(on_the_way[place], own)
    return chosen, on_the_way


def positions(labels: Labels, shape: Sequence[int], dim: int, run: Sequence[Step]) -> list[Any]:
    """Where elements come from along one dimension of a tensor, after each step of a run."""
    moved: Any = spread(torch.arange(shape[dim]), dim, shape)
    return [moved := moved_by(labels, each, moved) for each in run]


def _settled(labels: Tensor) -> Tensor:
    """Positions with stride 0 where they do not vary."""
    part = labels
    for dim, size in enumerate(labels.shape):
        if size > 1 and bool((part == part.narrow(dim, 0, 1)).all()):
            part = part.narrow(dim, 0, 1)
    return part.expand(labels.shape)


def moved_by(labels: Labels, own: Step, numbers: Tensor) -> Any:
    """A moving operation on numbers of ours, with sizes as they are on the example."""
    results = labels.traced.results

    def concrete(argument: fx.Node) -> Any:
        known = results[argument]
        return known if isinstance(known, int | float) else torch.empty(known.shape)

    rest = fx.map_arg(tuple(own.rest), concrete)
    kwargs = fx.map_arg(dict(own.kwargs), concrete)
    if own.name in ("view", "_unsafe_view", "_reshape_alias", "view_copy", "reshape"):
        return numbers.reshape(rest[0])
    if own.name in ("to", "_to_copy", "type_as", "dropout", "contiguous", "clone", "detach"):
        return numbers
    return own.target(numbers, *rest, **kwargs)
