"""Operations that move data and compute nothing: they are run on the labels themselves.

Those that put tensors side by side tie what lies along the other dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from biprune.structured.atoms import Carried, Plane, along, dims_of, over, spread, varies
from biprune.structured.labels import TWO_KINDS, Labels, Planes, rule
from biprune.structured.trace import op_name

BESIDE_FIXED = "what it is put beside has a fixed size"
SAME = (
    *("clone", "contiguous", "alias", "detach", "lift_fresh", "lift_fresh_copy", "to", "_to_copy"),
    *("type_as", "dropout", "feature_dropout", "alpha_dropout", "native_dropout", "_to_cpu"),
    *("positive", "view_as_real_copy", "_conj", "resolve_conj", "resolve_neg", "float", "double"),
)
RESHAPES = ("view", "reshape", "_unsafe_view", "view_copy", "_reshape_alias")


@rule(*SAME, moves=True)
def same(on: Labels, x: Carried, *args: Any, **kwargs: Any) -> Planes | list[Planes]:
    """The result is what it was, element for element."""
    return on.first(x.planes)


@rule("permute", "transpose", "t", "numpy_T", "movedim", "moveaxis", "swapaxes", moves=True)
@rule("swapdims", "mT", "slice", "select", "narrow", "unsqueeze", "squeeze", moves=True)
@rule("diagonal", "split", "split_with_sizes", "chunk", "tensor_split", "unbind", moves=True)
@rule("unsafe_split", "unsafe_chunk", "unsafe_split_with_sizes", "hsplit", "vsplit", moves=True)
@rule("repeat", "tile", "flip", "fliplr", "flipud", "atleast_2d", "atleast_3d", moves=True)
@rule("pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "unfold", "unflatten", moves=True)
def moved(on: Labels, x: Carried, *args: Any, **kwargs: Any) -> Planes | list[Planes]:
    """The operation, run on each plane."""
    run = getattr(torch.ops.aten, op_name(on.node))
    results = [run(plane.labels, *args, **kwargs) for plane in x.planes]
    if not isinstance(on.given, list):
        return _planes(results, x.planes)
    return [_planes([r[place] for r in results], x.planes) for place in range(len(on.given))]


def _planes(labels: Iterable[Tensor], planes: Planes) -> Planes:
    return tuple(Plane(own, plane.zero) for own, plane in zip(labels, planes, strict=True))


@rule(*RESHAPES, "flatten", "view_as", "reshape_as", moves=True)
def reshaped(on: Labels, x: Carried, *args: Any, **kwargs: Any) -> Planes:
    """Reshaped, since labels have strides of their own, which a view may not fit."""
    return on.without_copies(_planes([p.labels.reshape(on.shape) for p in x.planes], x.planes))


@rule("expand", "broadcast_to", moves=True)
def expanded(on: Labels, x: Carried, *args: Any, **kwargs: Any) -> Planes:
    """Copies of one index: as many as are read."""
    static = [isinstance(size, int) for size in on.node.meta["val"].shape]
    new = (dim for dim in _opened(x.shape, on.shape) if static[dim])
    planes = _planes([plane.labels.expand(on.shape) for plane in x.planes], x.planes)
    return (*planes, *(on.copies(dim, on.shape) for dim in new))


@rule("expand_as", moves=True)
def expanded_as(on: Labels, x: Carried, other: Carried) -> Planes:
    """Copies of one index: as many as another tensor has, with which they go."""
    new = _opened(x.shape, other.shape)
    planes = list(_planes([plane.labels.expand(other.shape) for plane in x.planes], x.planes))
    for plane in other.planes:
        labels = on.atoms.settled(plane.labels)
        if varies(labels) and set(varies(labels)) <= set(new):
            planes.append(Plane(labels, zero=False))
    return tuple(planes)


def _opened(before: Sequence[int], after: Sequence[int]) -> list[int]:
    """The dimensions along which an expansion to a shape makes copies."""
    lead = len(after) - len(before)
    return [d for d, s in enumerate(after) if s > 1 and (d < lead or before[d - lead] == 1)]


@rule("repeat_interleave", moves=True)
def repeated(on: Labels, x: Carried, times: Any, dim: Any = None, **kwargs: Any) -> Planes:
    """Each index several times, one after the other; see `repeated_heads`."""
    if not isinstance(times, int) or dim is None:
        raise ValueError("how often is a number that depends on the input")
    return repeated_heads(on, x, times, dim % len(x.shape))


def repeated_heads(on: Labels, x: Carried, times: int, dim: int) -> Planes:
    """Copies of each index, which go with it; copies of the only one, or of heads, may go alone."""
    planes = _planes([p.labels.repeat_interleave(times, dim) for p in x.planes], x.planes)
    shape = (*x.shape[:dim], x.shape[dim] * times, *x.shape[dim + 1 :])
    return on.without_copies((*planes, on.copies(dim, shape))) if times > 1 else planes


@rule("copy")
def copied(on: Labels, x: Carried, source: Carried, *args: Any) -> Planes:
    """Written over: what it was before does not matter."""
    return _planes([plane.labels.expand(x.shape) for plane in source.planes], source.planes)


@rule("roll")
def roll(on: Labels, x: Carried, shifts: Any, dims: Any = ()) -> Planes:
    """Moves, but by a number of indices that would be another one in a smaller tensor."""
    return tuple(on.without(x, dims_of(dims, len(x.shape)), "it is shifted along"))


@rule("cat", "concat", "concatenate")
def cat(on: Labels, parts: list[Carried], dim: int = 0) -> Planes:
    """Labels one after the other; along other dimensions the parts are tied."""
    parts = [part for part in parts if part.shape != (0,)]
    return _joined(on, parts, dim % len(on.shape))


@rule("stack")
def stack(on: Labels, parts: list[Carried], dim: int = 0) -> Planes:
    """The same along a new dimension, which has no labels."""
    dim %= len(on.shape)
    opened = []
    for part in parts:
        planes = _planes([plane.labels.unsqueeze(dim) for plane in part.planes], part.planes)
        opened.append(Carried((*part.shape[:dim], 1, *part.shape[dim:]), part.dtype, planes))
    return _joined(on, opened, dim)


def _joined(on: Labels, parts: list[Carried], dim: int) -> Planes:
    """Concatenation: planes that vary along `dim` side by side, the others tied across parts."""
    main: list[Plane | None] = []
    other: list[dict[tuple[int, ...], Plane]] = []
    settled = [[Plane(on.atoms.settled(p.labels), p.zero) for p in part.planes] for part in parts]
    apart = [varies(p.labels) for own in settled for p in own if dim not in varies(p.labels)]
    beside = {d for dims in apart for d in dims}
    for part, own in zip(parts, settled, strict=True):
        planes = [_by_heads(on, plane, dim, beside) for plane in own]
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
    found = tied_across(on, other)
    return (*found, _side_by_side(on, parts, main, dim)) if any(main) else found


def _by_heads(on: Labels, plane: Plane, dim: int, beside: set[int]) -> Plane:
    """Of (head, index), where the parts beside it know heads alone, heads are what it keeps."""
    dims = varies(plane.labels)
    crosses = dim in dims and beside.intersection(dims)
    return Plane(on.atoms.collapse(plane.labels, [dim]), plane.zero) if crosses else plane


def tied_across(on: Labels, parts: Sequence[dict[tuple[int, ...], Plane]]) -> Planes:
    """Planes of parts by the dimensions that they vary in, each tied to those of the others."""
    found = []
    for dims in dict.fromkeys(dims for part in parts for dims in part):
        planes = [part[dims] for part in parts if dims in part]
        if len(planes) < len(parts):
            for plane in planes:
                on.atoms.freeze(plane.labels, BESIDE_FIXED)
            continue
        lines = [_only(plane.labels, dims) for plane in planes]
        for line in lines[1:]:
            on.atoms.tie(lines[0], line)
        labels = on.atoms.settled(lines[0])
        view = [size if d in dims else 1 for d, size in enumerate(on.shape)]
        zero = all(plane.zero for plane in planes)
        found.append(Plane(labels.reshape(view).expand(on.shape), zero))
    return tuple(found)


def _only(labels: Tensor, dims: tuple[int, ...]) -> Tensor:
    return labels[tuple(slice(None) if d in dims else 0 for d in range(labels.ndim))]


def _side_by_side(on: Labels, parts: list[Carried], main: list[Plane | None], dim: int) -> Plane:
    labels = []
    for place, (part, plane) in enumerate(zip(parts, main, strict=True)):
        if plane is None:
            line = on.atoms.of((on.node, "fixed", place), part.shape[dim])
            on.atoms.freeze(line, BESIDE_FIXED)
            labels.append(spread(line, dim, part.shape))
        else:
            labels.append(plane.labels)
    zero = all(plane.zero for plane in main if plane is not None)
    return Plane(torch.cat(labels, dim), zero)


@rule("constant_pad_nd", "pad")
def pad(on: Labels, x: Carried, padding: list[int], *args: Any, **kwargs: Any) -> Planes:
    """Numbers around: with atoms of their own where they are put along units."""
    mode = next((a for a in args if isinstance(a, str)), kwargs.get("mode", "constant"))
    numbers = [a for a in [*args, kwargs.get("value")] if isinstance(a, int | float)]
    value, ndim = (numbers[0] if numbers else 0), len(x.shape)
    padded = {ndim - 1 - i: padding[2 * i : 2 * i + 2] for i in range(len(padding) // 2)}
    padded = {dim: amounts for dim, amounts in padded.items() if any(amounts)}
    if mode != "constant" or any(amount < 0 for pair in padded.values() for amount in pair):
        return over(on.without(x, tuple(padded), "it is padded along"), on.shape)
    found: list[Plane] = []
    for plane in on.settled(x.planes):
        dims = [dim for dim in varies(plane.labels) if dim in padded]
        labels = on.one_dim(plane.labels) if dims else plane.labels
        zero = plane.zero and value == 0
        if dims and (dim := varies(labels)[0]) in padded:
            before, after = padded[dim]
            own = on.atoms.of((on.node, "padding", dim), before + after)
            line = torch.cat([own[:before], along(labels, dim), own[before:]])
            found.append(Plane(spread(line, dim, on.shape), zero))
        else:
            found += over([Plane(labels, zero)], on.shape)
    return tuple(found)


@rule("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
@rule("replication_pad1d", "replication_pad2d", "replication_pad3d")
def pad_space(on: Labels, x: Carried, padding: list[int]) -> Planes:
    """Copies at the borders: what lies along other dimensions passes."""
    dims = [len(x.shape) - 1 - i for i in range(len(padding) // 2)]
    return over(on.without(x, dims, "it is padded along"), on.shape)


@rule("slice_scatter", "select_scatter")
def scattered(on: Labels, x: Carried, source: Carried, dim: int = 0, *args: Any) -> Planes:
    """Part of a tensor replaced by another: along other dimensions both are tied."""
    dim %= len(x.shape)
    planes = source.planes
    if op_name(on.node) == "select_scatter":
        planes = _planes([plane.labels.unsqueeze(dim) for plane in planes], planes)
    whole = on.without(x, [dim], "part of it is replaced")
    part = Carried(x.shape, source.dtype, planes)
    inner = on.without(part, [dim], "it replaces a part of something")
    return tied_across(on, [by_dims(on, whole), by_dims(on, inner)])


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
    space, dim = range(len(x.shape) - 2, len(x.shape)), len(x.shape) - 3
    found = []
    for plane in on.without(x, space, "patches are taken along it"):
        line = along(on.one_dim(plane.labels), dim).repeat_interleave(math.prod(kernel))
        found.append(Plane(spread(line, dim, on.shape), plane.zero))
    return tuple(found)
