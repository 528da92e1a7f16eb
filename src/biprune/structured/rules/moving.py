"""Operations that move data and compute nothing: they are run on the labels themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from biprune.structured.atoms import Carried, Plane, along, spread, varies
from biprune.structured.labels import TWO_KINDS, Labels, Planes
from biprune.structured.rules.table import dims_of, operator, rule, shape_of, stretched, without
from biprune.structured.trace import op_name

SAME = (
    *("clone", "contiguous", "alias", "detach", "lift_fresh", "lift_fresh_copy", "to", "_to_copy"),
    *("type_as", "dropout", "feature_dropout", "alpha_dropout", "native_dropout", "_to_cpu"),
    *("positive", "view_as_real_copy", "_conj", "resolve_conj", "resolve_neg", "float", "double"),
)
COPYING = ("expand", "broadcast_to", "repeat_interleave", "flatten")
MOVING = (
    *("permute", "transpose", "t", "numpy_T", "movedim", "moveaxis", "swapaxes", "swapdims", "mT"),
    *("slice", "select", "narrow", "unsqueeze", "squeeze", "diagonal"),
    *("split", "split_with_sizes", "chunk", "tensor_split", "unbind", "unsafe_split"),
    *("unsafe_chunk", "unsafe_split_with_sizes", "hsplit", "vsplit", "repeat", "tile", "flip"),
    *("pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "unfold"),
    *("unflatten", "fliplr", "flipud", "atleast_2d", "atleast_3d"),
)

RESHAPES = ("view", "reshape", "_unsafe_view", "view_copy", "_reshape_alias")
LIKE = ("expand_as", "view_as", "reshape_as")


@rule(*SAME)
def same(on: Labels, x: Carried, *args: Any, **kwargs: Any) -> Planes | list[Planes]:
    """The result is what it was, element for element."""
    if isinstance(on.traced.results[on.node], list):
        return [x.planes, ()]
    return x.planes


@rule(*MOVING)
def moved(on: Labels, x: Carried, *args: Any, **kwargs: Any) -> Planes | list[Planes]:
    """The operation, run on each plane."""
    name = op_name(on.node)
    results = [operator(name)(plane.labels, *args, **kwargs) for plane in x.planes]
    return _with_bits(on, x, results)


@rule(*RESHAPES)
def reshaped(on: Labels, x: Carried, *args: Any, **kwargs: Any) -> Planes | list[Planes]:
    """The same with strides of their own, which a view may not fit."""
    shape = shape_of(on)
    return on.without_copies(tuple(Plane(p.labels.reshape(shape), p.zero) for p in x.planes))


@rule("flatten")
def flattened(on: Labels, x: Carried, *args: Any, **kwargs: Any) -> Planes | list[Planes]:
    """The same."""
    return reshaped(on, x)


@rule("expand", "broadcast_to")
def expanded(on: Labels, x: Carried, *args: Any, **kwargs: Any) -> Planes:
    """Copies of one index: as many as are read."""
    shape = shape_of(on)
    lead = len(shape) - len(x.shape)
    static = [isinstance(size, int) for size in on.node.meta["val"].shape]
    new = [d for d, s in enumerate(shape) if s > 1 and (d < lead or x.shape[d - lead] == 1)]
    planes = [Plane(plane.labels.expand(shape), plane.zero) for plane in x.planes]
    return (*planes, *(on.copies(dim, shape) for dim in new if static[dim]))


@rule("repeat_interleave")
def repeated(on: Labels, x: Carried, times: Any, dim: Any = None, **kwargs: Any) -> Planes:
    """Each index several times, one after the other; see `repeated_heads`."""
    if not isinstance(times, int) or dim is None:
        raise ValueError("how often is a number that depends on the input")
    return repeated_heads(on, x, times, dim % len(x.shape))


def repeated_heads(on: Labels, x: Carried, times: int, dim: int) -> Planes:
    """Copies of each index that go with it; of the only one, or of heads, they may go alone."""
    planes = tuple(Plane(p.labels.repeat_interleave(times, dim), p.zero) for p in x.planes)
    shape = (*x.shape[:dim], x.shape[dim] * times, *x.shape[dim + 1 :])
    return on.without_copies((*planes, on.copies(dim, shape))) if times > 1 else planes


@rule("view_as", "reshape_as")
def moved_like(on: Labels, x: Carried, other: Carried) -> Planes | list[Planes]:
    """The same by the shape of another tensor."""
    return _with_bits(on, x, [plane.labels.reshape(other.shape) for plane in x.planes])


@rule("expand_as")
def expand_as(on: Labels, x: Carried, other: Carried) -> Planes:
    """As often as another tensor has indices: along those it goes with the other."""
    lead = len(other.shape) - len(x.shape)
    new = {d for d, s in enumerate(other.shape) if s > 1 and (d < lead or x.shape[d - lead] == 1)}
    planes = [Plane(plane.labels.expand(other.shape), plane.zero) for plane in x.planes]
    for plane in other.planes:
        labels = on.atoms.settled(plane.labels)
        if varies(labels) and new.issuperset(varies(labels)):
            planes.append(Plane(labels, zero=False))
    return tuple(planes)


def _with_bits(on: Labels, x: Carried, results: list[Any]) -> Planes | list[Planes]:
    given = on.traced.results[on.node]
    if not isinstance(given, list):
        return tuple(Plane(r, p.zero) for r, p in zip(results, x.planes, strict=True))
    return [
        tuple(Plane(r[place], p.zero) for r, p in zip(results, x.planes, strict=True))
        for place in range(len(given))
    ]


@rule("copy")
def copied(on: Labels, x: Carried, source: Carried, *args: Any) -> Planes:
    """Written over: what it was before does not matter."""
    return tuple(Plane(plane.labels.expand(x.shape), plane.zero) for plane in source.planes)


@rule("roll")
def roll(on: Labels, x: Carried, shifts: Any, dims: Any = ()) -> Planes:
    """Moves, but by a number of indices that would be another one in a smaller tensor."""
    kept = without(on, x, dims_of(dims, len(x.shape)), "it is shifted along")
    return tuple(kept)


@rule("cat", "concat", "concatenate")
def cat(on: Labels, parts: list[Carried], dim: int = 0) -> Planes:
    """Vectors one after the other; along other dimensions the parts are tied."""
    parts = [part for part in parts if part.shape != (0,)]
    return joined(on, parts, dim % len(shape_of(on)))


@rule("stack")
def stack(on: Labels, parts: list[Carried], dim: int = 0) -> Planes:
    """The same along a new dimension, which has no labels."""
    ndim = len(shape_of(on))
    dim %= ndim
    opened = [
        Carried(
            (*part.shape[:dim], 1, *part.shape[dim:]),
            part.dtype,
            tuple(Plane(plane.labels.unsqueeze(dim), plane.zero) for plane in part.planes),
        )
        for part in parts
    ]
    return joined(on, opened, dim)


def joined(on: Labels, parts: list[Carried], dim: int) -> Planes:
    """Concatenation: planes that vary along `dim` side by side, the others tied across parts."""
    main: list[Plane | None] = []
    other: list[dict[tuple[int, ...], Plane]] = []
    settled = [[Plane(on.atoms.settled(p.labels), p.zero) for p in part.planes] for part in parts]
    apart = [varies(p.labels) for own in settled for p in own if dim not in varies(p.labels)]
    for part, own in zip(parts, settled, strict=True):
        planes = [_without(on, plane, dim, {d for dims in apart for d in dims}) for plane in own]
        across = [p for p in planes if dim in varies(p.labels)]
        if not across and part.shape[dim] == 1:
            across = [p for p in planes if not varies(p.labels)]  # one index, picked out
        for extra in across[1:]:
            on.atoms.freeze(extra.labels, TWO_KINDS)
        main.append(across[0] if across else None)
        rest = [p for p in planes if varies(p.labels) and dim not in varies(p.labels)]
        other.append({varies(p.labels): p for p in rest})
        for plane in rest[1:]:
            if other[-1][varies(plane.labels)] is not plane:
                on.atoms.freeze(plane.labels, TWO_KINDS)
    found = list(tied_across(on, other))
    if any(main):
        found.append(_side_by_side(on, parts, main, dim))
    return tuple(found)


def _without(on: Labels, plane: Plane, dim: int, beside: set[int]) -> Plane:
    """Of (head, index), where the parts beside it know heads alone, heads are what it keeps."""
    dims = varies(plane.labels)
    crosses = dim in dims and beside.intersection(dims)
    return Plane(on.atoms.collapse(plane.labels, [dim]), plane.zero) if crosses else plane


def tied_across(on: Labels, other: list[dict[tuple[int, ...], Plane]]) -> list[Plane]:
    """Planes of parts by what they vary along, each tied to those of the others."""
    shape, found = shape_of(on), []
    for key in {key: None for part in other for key in part}:
        planes = [part[key] for part in other if key in part]
        if len(planes) < len(other):
            for plane in planes:
                on.atoms.freeze(plane.labels, "what it is put beside has a fixed size")
            continue
        lines = [plane.labels[tuple(_only(plane.labels, key))] for plane in planes]
        for line in lines[1:]:
            on.atoms.tie(lines[0], line)
        labels = on.atoms.settled(lines[0])
        view = [size if d in key else 1 for d, size in enumerate(shape)]
        zero = all(plane.zero for plane in planes)
        found.append(Plane(labels.reshape(view).expand(shape), zero))
    return found


def _only(labels: Tensor, dims: tuple[int, ...]) -> list[Any]:
    return [slice(None) if d in dims else 0 for d in range(labels.ndim)]


def _side_by_side(on: Labels, parts: list[Carried], main: list[Plane | None], dim: int) -> Plane:
    labels = []
    for place, (part, plane) in enumerate(zip(parts, main, strict=True)):
        if plane is None:
            line = on.atoms.of((on.node, "fixed", place), part.shape[dim])
            on.atoms.freeze(line, "what it is put beside has a fixed size")
            labels.append(spread(line, dim, part.shape))
        else:
            labels.append(plane.labels)
    zero = all(plane.zero for plane in main if plane is not None)
    return Plane(torch.cat(labels, dim), zero)


@rule("constant_pad_nd", "pad")
def pad(on: Labels, x: Carried, padding: list[int], *args: Any, **kwargs: Any) -> Planes:
    """Zeros around: with atoms of their own where they are put along units."""
    mode = next((a for a in args if isinstance(a, str)), kwargs.get("mode", "constant"))
    numbers = [a for a in [*args, kwargs.get("value")] if isinstance(a, int | float)]
    value, ndim = (numbers[0] if numbers else 0), len(x.shape)
    padded = {ndim - 1 - i: padding[2 * i : 2 * i + 2] for i in range(len(padding) // 2)}
    padded = {dim: amounts for dim, amounts in padded.items() if any(amounts)}
    if mode != "constant" or any(amount < 0 for pair in padded.values() for amount in pair):
        kept = without(on, x, tuple(padded), "it is padded along")
        return tuple(_wider(plane, shape_of(on)) for plane in kept)
    found = []
    for plane in on.settled(x):
        dims = [dim for dim in varies(plane.labels) if dim in padded]
        labels = on.one_dim(plane.labels) if dims else plane.labels
        zero = plane.zero and value == 0
        if dims and (dim := varies(labels)[0]) in padded:
            line = _padded(on, labels, dim, padded[dim])
            found.append(Plane(spread(line, dim, shape_of(on)), zero))
        else:
            found.append(_wider(Plane(labels, zero), shape_of(on)))
    return tuple(found)


def _padded(on: Labels, labels: Tensor, dim: int, amounts: list[int]) -> Tensor:
    own = on.atoms.of((on.node, "padding", dim), sum(amounts))
    before, after = own[: amounts[0]], own[amounts[0] :]
    return torch.cat([before, along(labels, dim), after])


def _wider(plane: Plane, shape: tuple[int, ...]) -> Plane:
    return Plane(stretched(plane.labels, shape), plane.zero)


@rule("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
@rule("replication_pad1d", "replication_pad2d", "replication_pad3d")
def pad_space(on: Labels, x: Carried, padding: list[int]) -> Planes:
    """Copies at the borders: whatever lies along other dimensions passes."""
    dims = [len(x.shape) - 1 - i for i in range(len(padding) // 2)]
    return tuple(_wider(p, shape_of(on)) for p in without(on, x, dims, "it is padded along"))


@rule("slice_scatter", "select_scatter")
def scattered(on: Labels, x: Carried, source: Carried, dim: int = 0, *args: Any) -> Planes:
    """Part of a tensor replaced by another: along other dimensions both are tied."""
    name = op_name(on.node)
    dim %= len(x.shape)
    planes = tuple(
        Plane(p.labels.unsqueeze(dim) if name == "select_scatter" else p.labels, p.zero)
        for p in source.planes
    )
    part = Carried(x.shape, source.dtype, planes)
    whole = Carried(x.shape, x.dtype, tuple(without(on, x, [dim], "part of it is replaced")))
    inner = without(on, part, [dim], "it replaces a part of something")
    return tuple(tied_across(on, [by_dims(on, whole.planes), by_dims(on, inner)]))


def by_dims(on: Labels, planes: Sequence[Plane]) -> dict[tuple[int, ...], Plane]:
    """Planes by what they vary along; of two kinds along the same, neither goes."""
    found: dict[tuple[int, ...], Plane] = {}
    for plane in planes:
        if found.setdefault(varies(plane.labels), plane) is not plane:
            on.atoms.freeze(plane.labels, TWO_KINDS)
            on.atoms.freeze(found[varies(plane.labels)].labels, TWO_KINDS)
    return found


@rule("im2col")
def columns(on: Labels, x: Carried, kernel: list[int], *args: Any) -> Planes:
    """Patches as columns: each channel as many times as a patch has places."""
    space = range(len(x.shape) - 2, len(x.shape))
    dim, shape = len(x.shape) - 3, shape_of(on)
    found = []
    for plane in without(on, x, list(space), "patches are taken along it"):
        line = along(on.one_dim(plane.labels), dim).repeat_interleave(math.prod(kernel))
        found.append(Plane(spread(line, dim, shape), plane.zero))
    return tuple(found)
