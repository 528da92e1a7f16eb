"""Convolutions.

A grouped one loses whole groups, or the same channel of every group: whichever leaves it more
units.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from biprune.structured.atoms import Carried, Plane, along, spread
from biprune.structured.labels import CONVOLUTIONS, Labels, Planes, line_of, rule
from biprune.structured.trace import argument, op_name

SPACE = "a convolution runs along it"


@rule(*CONVOLUTIONS)
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
    line, rows, columns = line_of(read, channel), line_of(own, 0), line_of(own, 1)
    if groups > 1 and groups >= x.shape[channel] // groups:
        on.mark(weight, 0, "filter")
        count = weight.shape[1] if transposed else weight.shape[0] // groups
        written = _whole_groups(on, line, rows, columns, groups, count)
    else:
        on.mark(weight, into, "input")
        on.mark(weight, out, "filter")
        line = _of_one_group(on, line, groups)
        if transposed:
            on.meet(line, _of_one_group(on, rows, groups))
            written = None if columns is None else columns.repeat(groups)
        else:
            on.meet(line, columns)
            _of_one_group(on, rows, groups)
            written = None if rows is None else on.atoms.find(rows)
    found = [
        Plane(spread(along(plane.labels, dim), dim, on.shape), plane.zero and bias is None)
        for dim, plane in read.items()
        if dim < channel
    ]
    zero = True
    if bias is not None:
        added = on.lines(bias)
        zero = on.meet(written, line_of(added, 0)) and added[0].zero
    if written is not None:
        found.append(Plane(spread(written, channel, on.shape), zero))
    return tuple(found)


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
        on.meet(line, rows)
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
