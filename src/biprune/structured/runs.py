"""Moving operations on what is left of a tensor.

Sizes in them become those that are left. Whether the operation on the smaller tensor then gives the
smaller result is not believed but checked: positions of elements are moved both ways and compared.

A box is what is left of a tensor if it is a smaller tensor: some indices along each dimension.
Where what is left in between is no box, a run of moving operations starts at the last box before
it. If the run does no more than pick and permute along one dimension, one selection takes its
place; else it goes behind a selection of what its end takes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx

from biprune.structured.atoms import Carried, along, distinct, spread, squeezed, varies
from biprune.structured.labels import Labels
from biprune.structured.rules import is_moving
from biprune.structured.rules.moving import RESHAPES, SAME

aten = torch.ops.aten
_SPLITS = ("split", "chunk", "split_with_sizes", "tensor_split", "unsafe_split", "unsafe_chunk")

Kept = dict[int, Tensor]  # the indices that are left, along dimensions that lose some


# What is left of a tensor.


def box(labels: Labels, carried: Carried, gone: Tensor) -> Kept | None:
    """What is left of a tensor along each dimension that loses something; None if it is no box."""
    kept: Kept = {}
    for plane in carried.planes:
        settled = labels.atoms.settled(plane.labels)
        own = _factors(~gone[distinct(settled)])
        if own is None:
            return None
        kept = _both(kept, own)
    return kept


def left(tensor: Tensor, kept: Kept) -> Tensor:
    """A tensor, or plane, without what is gone."""
    for dim, index in kept.items():
        tensor = tensor.index_select(dim, index)
    return tensor


def _both(one: Kept, other: Kept) -> Kept:
    """What is left if both take away."""
    kept = dict(one)
    for dim, index in other.items():
        kept[dim] = index[torch.isin(index, kept[dim])] if dim in kept else index
    return kept


def _factors(mask: Tensor) -> Kept | None:
    """The indices along each dimension whose product a mask is; None if it is no product."""
    kept: Kept = {}
    covered = torch.ones_like(mask)
    for dim, size in enumerate(mask.shape):
        others = [d for d in range(mask.ndim) if d != dim]
        used = mask.any(dim=others) if others else mask
        if size > 1 and not bool(used.all()):
            kept[dim] = used.nonzero().flatten()
            covered = covered & spread(used, dim, mask.shape)
    return kept if torch.equal(covered, mask) else None


# Single operations.


@dataclass(frozen=True)
class Step:
    """A moving operation, its arguments behind the first, and what it gives on the example.

    `shape` is a list of shapes where it gives several tensors. `static` says which sizes of its
    result are the same numbers whatever the input.
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

    def with_(self, target: Any, *rest: Any) -> Step:
        """Another operation with other arguments in its place."""
        return replace(self, target=target, rest=rest, kwargs={})


def step(labels: Labels, node: fx.Node) -> Step:
    """What a moving node does."""
    given = labels.traced.results[node]
    shape = [each.shape for each in given] if isinstance(given, list) else given.shape
    static = [isinstance(size, int) for size in getattr(node.meta.get("val"), "shape", ())]
    return Step(node.target, node.args[1:], dict(node.kwargs), shape, static)


def moved_by(labels: Labels, own: Step, numbers: Tensor) -> Any:
    """A moving operation on numbers of ours, with sizes as they are on the example."""

    def concrete(argument: fx.Node) -> Any:
        known = labels.traced.results[argument]
        return known if isinstance(known, int | float) else torch.empty(known.shape)

    rest = fx.map_arg(tuple(own.rest), concrete)
    if own.name in RESHAPES:
        return numbers.reshape(rest[0])
    if own.name in SAME and not isinstance(own.shape, list):
        return numbers
    return own.target(numbers, *rest, **fx.map_arg(dict(own.kwargs), concrete))


def resized(own: Step, before: Sequence[int], kept: Kept, after: Any) -> Step:
    """A step on what is left of a tensor of shape `before`, which should give `after`.

    Raises:
        ValueError: The sizes cannot be said.
    """
    if own.name in RESHAPES:
        return own.with_(aten.reshape.default, _sizes(own.rest[0], own, after))
    if own.name in ("view_as", "reshape_as"):
        return own.with_(aten.reshape.default, _sizes(None, own, after))
    if own.name in ("expand", "broadcast_to"):
        return own.with_(own.target, _sizes(own.rest[0], own, after))
    if own.name == "unflatten":
        dim, sizes = own.rest[0] % len(before), own.rest[1]
        said = [len(after[d]) if d in after else size for d, size in enumerate(sizes, start=dim)]
        return own.with_(own.target, dim, said)
    if own.name in ("slice", "narrow"):
        return _slice(own, before, kept)
    dim = _dim(own, len(before))
    if own.name == "select" and dim in kept:
        return own.with_(own.target, dim, int((kept[dim] < own.rest[1] % before[dim]).sum()))
    if own.name in _SPLITS and dim in kept:
        pairs = zip(after, own.shape, strict=True)
        counts = [len(each[dim]) if dim in each else shape[dim] for each, shape in pairs]
        return own.with_(aten.split_with_sizes.default, counts, dim)
    return own


def _dim(own: Step, ndim: int) -> int:
    place = 0 if own.name in ("select", "unbind") else 1
    given = own.rest[place] if len(own.rest) > place else own.kwargs.get("dim", 0)
    return given % ndim if isinstance(given, int) else 0


def _sizes(given: Any, own: Step, kept: Kept) -> list[Any]:
    """Sizes as arguments: numbers where the graph has numbers, and one to be found at the call."""
    found = []
    for dim, size in enumerate(own.shape):
        said = -1 if given is None or len(given) != len(own.shape) else given[dim]
        if own.static[dim]:
            found.append(len(kept[dim]) if dim in kept else size)
        else:
            found.append(-1 if dim in kept else said)
    if own.name != "expand" and found.count(-1) > 1:
        raise ValueError("two sizes that depend on the input change")
    return found


def _slice(own: Step, before: Sequence[int], kept: Kept) -> Step:
    dim, start, end, stride = [*own.rest, *[0, None, None, 1][len(own.rest) :]]
    dim %= len(before)
    if dim not in kept:
        return own
    if own.name == "narrow":
        chosen = range(start % before[dim], start % before[dim] + end)
    else:
        chosen = range(before[dim])[slice(start, end, stride)]
    places = torch.isin(kept[dim], torch.tensor(chosen, dtype=torch.long)).nonzero().flatten()
    if chosen.step == 1:
        first = int((kept[dim] < chosen.start).sum())
        return own.with_(aten.slice.Tensor, dim, first, first + len(places))
    return own.with_(aten.index_select.default, dim, places)


# Runs of operations.


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
    if several.name == "unbind":
        return own.with_(aten.select.int, _dim(several, len(own.shape) + 1), place)
    dim = _dim(several, len(own.shape))
    start = sum(shape[dim] for shape in several.shape[:place])
    return own.with_(aten.slice.Tensor, dim, start, start + own.shape[dim])


def selection(
    labels: Labels, shape: tuple[int, ...], run: Sequence[Step]
) -> tuple[int, Tensor] | None:
    """The selection that a run amounts to, by dimension and indices; None if it is none."""
    after = run[-1].shape
    if len(after) != len(shape):
        return None
    chosen: tuple[int, Tensor] | None = None
    for dim, size in enumerate(shape):
        if size == 1 and after[dim] == 1:
            continue
        moved = squeezed(_positions(labels, shape, dim, run)[-1])
        if size > 1 and after[dim] > 1 and varies(moved) != (dim,):
            return None
        line = along(moved, dim).expand(after[dim])  # of one index zeros, as many as its copies
        if len(line) == size and torch.equal(line, torch.arange(size)):
            continue
        if chosen is not None:
            return None
        chosen = dim, line
    return chosen


def picked(
    labels: Labels, shape: tuple[int, ...], run: Sequence[Step], kept: Kept, dim: int, after: Kept
) -> tuple[Tensor, list[Kept]] | None:
    """What the end of a run takes of a tensor along `dim`, and what is left of it after each step.

    `kept` is what is left of the tensor, `after` of the result. None if something is no box.
    """
    passed = _positions(labels, shape, dim, run)
    chosen = left(passed[-1], after).unique()
    on_the_way: list[Kept] = [{} for _ in run]
    for each, index in {**kept, dim: chosen}.items():
        for place, moved in enumerate(_positions(labels, shape, each, run)):
            own = _factors(torch.isin(squeezed(moved), index))
            if own is None:
                return None
            on_the_way[place] = _both(on_the_way[place], own)
    return chosen, on_the_way


def _positions(labels: Labels, shape: Sequence[int], dim: int, run: Sequence[Step]) -> list[Any]:
    """Where elements come from along one dimension of a tensor, after each step of a run."""
    moved: Any = spread(torch.arange(shape[dim]), dim, shape)
    return [moved := moved_by(labels, each, moved) for each in run]
