"""Convolutions.

A grouped one loses whole groups, or the same channel of every group: whichever leaves it more
units.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from biprune.structured.atoms import Carried, Plane, along, spread
from biprune.structured.labels import FIXED, Labels, Planes, rule
from biprune.structured.trace import argument, op_name

SPACE = "a convolution runs along it"


@rule("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
@rule("convolution")
def conv(
    on: Labels, x: Carried, weight: Carried, bias: Carried | None = None, *_: Any, **__: Any
) -> Planes:
    """out[o] = sum over c of w[o, c] x[c] + b[o]; a transposed one has w[c, o]."""
    groups = argument(on.node, "groups")
    transposed = "transpose" in op_name(on.node) or bool(argument(on.node, "transposed"))
    into, out = (0, 1) if transposed else (1, 0)
    channel = len(x.shape) - len(weight.shape) + 1
    read, own = on.lines(x), on.lines(weight)
    for lines, before, channels in ((read, channel, (channel,)), (own, 0, (0, 1))):
        for dim, plane in lines.items():
            if dim >= before and dim not in channels:
                on.atoms.freeze(plane.labels, SPACE)
    line, rows, columns = _line(read, channel), _line(own, 0), _line(own, 1)
    each = x.shape[channel] // groups
    if groups > 1 and groups >= each:
        on.mark(weight, 0, "filter")
        count = weight.shape[1] if transposed else weight.shape[0] // groups
        written = _whole_groups(on, line, rows, columns, groups, count)
    else:
        on.mark(weight, into, "input")
        on.mark(weight, out, "filter")
        line = _of_one_group(on, line, groups)
        if transposed:
            _meet(on, line, _of_one_group(on, rows, groups), each)
            written = None if columns is None else columns.repeat(groups)
        else:
            _meet(on, line, columns, each)
            _of_one_group(on, rows, groups)
            written = None if rows is None else on.atoms.find(rows)
    zero = written is not None and (bias is None or _meet_bias(on, written, bias))
    found = [
        Plane(spread(along(plane.labels, dim), dim, on.shape), plane.zero and bias is None)
        for dim, plane in read.items()
        if dim < channel
    ]
    if written is not None:
        found.append(Plane(spread(written, channel, on.shape), zero))
    elif bias is not None:
        on.freeze([bias], FIXED)
    return tuple(found)


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
    """Tie what is written with the bias; whether that is zero where it is masked."""
    lines = on.lines(bias)
    if 0 in lines:
        on.atoms.tie(written, along(lines[0].labels, 0))
        return lines[0].zero
    on.atoms.freeze(written, FIXED)
    return False


def _whole_groups(
    on: Labels,
    line: Tensor | None,
    rows: Tensor | None,
    columns: Tensor | None,
    groups: int,
    count: int,
) -> Tensor | None:
    """Tie all of each group, of which `count` channels are written."""
    if columns is not None:
        on.atoms.freeze(columns, "it lies within a group of a convolution")
    if line is None or rows is None:
        for known in (line, rows):
            if known is not None:
                on.atoms.freeze(known, FIXED)
        return None
    by_group = line.view(groups, -1)
    on.atoms.tie(by_group, by_group[:, :1])
    on.atoms.tie(rows.view(groups, -1), by_group[:, :1])
    return on.atoms.find(by_group[:, :1].expand(-1, count).reshape(-1))


def _of_one_group(on: Labels, line: Tensor | None, groups: int) -> Tensor | None:
    """Tie the same channel of every group; the line of the first group."""
    if line is None:
        return None
    by_group = line.view(groups, -1)
    on.atoms.tie(by_group, by_group[:1])
    return by_group[0]
