"""Convolutions. A grouped one loses whole groups, or the same channel of every group: whichever
leaves it more units."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from biprune.structured.atoms import Carried, Plane, along, spread
from biprune.structured.labels import Labels, Planes
from biprune.structured.rules.pointwise import FIXED
from biprune.structured.rules.table import rule, shape_of

SPACE = "a convolution runs along it"


@rule("conv1d", "conv2d", "conv3d")
def conv(
    on: Labels,
    x: Carried,
    weight: Carried,
    bias: Carried | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Planes:
    """out[o] = sum over c of w[o, c] x[c] + b[o]."""
    return convolved(on, x, weight, bias, groups, transposed=False)


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def conv_transpose(
    on: Labels,
    x: Carried,
    weight: Carried,
    bias: Carried | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Planes:
    """The same with the weight's first two dimensions exchanged."""
    return convolved(on, x, weight, bias, groups, transposed=True)


@rule("convolution")
def convolution(
    on: Labels,
    x: Carried,
    weight: Carried,
    bias: Carried | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Planes:
    """Both."""
    return convolved(on, x, weight, bias, groups, transposed=transposed)


def convolved(
    on: Labels, x: Carried, weight: Carried, bias: Carried | None, groups: int, *, transposed: bool
) -> Planes:
    """The line of the output's channels, which lie before the dimensions of space."""
    channel = len(x.shape) - len(weight.shape) + 1
    into, out = (0, 1) if transposed else (1, 0)
    read, own = on.lines(x), on.lines(weight)
    for lines, channels in ((read, (channel,)), (own, (0, 1))):
        for dim, plane in lines.items():
            if dim not in channels and (lines is own or dim > channel):
                on.atoms.freeze(plane.labels, SPACE)
    line = _line(read, channel)
    if groups == 1:
        on.mark(weight, into, "input")
        on.mark(weight, out, "filter")
        _meet(on, line, _line(own, into), x.shape[channel])
        written = _line(own, out)
    else:
        written = _grouped(
            on, line, weight, own, groups, into=into, out=out, channels=x.shape[channel]
        )
    zero = written is not None and (bias is None or _meet_bias(on, written, bias))
    rest = [
        Plane(spread(along(p.labels, d), d, shape_of(on)), p.zero and bias is None)
        for d, p in read.items()
        if d < channel
    ]
    if written is None:
        if bias is not None:
            on.freeze([bias], FIXED)
        return tuple(rest)
    return (*rest, Plane(spread(written, channel, shape_of(on)), zero))


def _line(lines: dict[int, Plane], dim: int) -> Tensor | None:
    return along(lines[dim].labels, dim) if dim in lines else None


def _meet(on: Labels, one: Tensor | None, other: Tensor | None, size: int) -> None:
    """Tie two lines; one without the other is fixed, unless there is one channel only."""
    if one is not None and other is not None:
        on.atoms.tie(one, other)
    elif size > 1:
        for line in (one, other):
            if line is not None:
                on.atoms.freeze(line, FIXED)


def _meet_bias(on: Labels, written: Tensor, bias: Carried) -> bool:
    lines = on.lines(bias)
    if 0 in lines:
        on.atoms.tie(written, along(lines[0].labels, 0))
        return lines[0].zero
    on.atoms.freeze(written, FIXED)
    return False


def _grouped(
    on: Labels,
    line: Tensor | None,
    weight: Carried,
    own: dict[int, Plane],
    groups: int,
    *,
    into: int,
    out: int,
    channels: int,
) -> Tensor | None:
    each = channels // groups
    rows = _line(own, 0)
    inner = _line(own, 1)
    if groups >= each:  # whole groups
        on.mark(weight, 0, "filter")
        if inner is not None:
            on.atoms.freeze(inner, "it lies within a group of a convolution")
        if line is None or rows is None:
            for known in (line, rows):
                if known is not None:
                    on.atoms.freeze(known, FIXED)
            return None
        by_group = line.view(groups, -1)
        on.atoms.tie(by_group, by_group[:, :1])
        rows = rows.view(groups, -1)
        on.atoms.tie(rows, by_group[:, :1])
        written = by_group[:, :1].expand(-1, _written(weight, groups, out))
        return on.atoms.find(written.reshape(-1))
    on.mark(weight, into, "input")
    on.mark(weight, out, "filter")
    folded = None
    if line is not None:
        folded = line.view(groups, -1)
        on.atoms.tie(folded, folded[:1])
        folded = folded[0]
    if into == 1:
        _meet(on, folded, inner, each)
        if rows is None:
            return None
        by_group = rows.view(groups, -1)
        on.atoms.tie(by_group, by_group[:1])
        return on.atoms.find(rows)
    if rows is not None:
        by_group = rows.view(groups, -1)
        on.atoms.tie(by_group, by_group[:1])
        rows = by_group[0]
    _meet(on, folded, rows, each)
    return None if inner is None else inner.repeat(groups)


def _written(weight: Carried, groups: int, out: int) -> int:
    return weight.shape[1] if out == 1 else weight.shape[0] // groups
