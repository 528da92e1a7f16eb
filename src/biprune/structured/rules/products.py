"""Products: contractions of any kind, convolutions, embeddings, attention."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from biprune.structured.atoms import Carried, Plane, along, spread, varies
from biprune.structured.labels import (
    CONVOLUTIONS,
    FIXED,
    Labels,
    Planes,
    Product,
    line_of,
    rule,
)
from biprune.structured.rules.moving import repeated_heads
from biprune.structured.rules.pointwise import tied
from biprune.structured.trace import argument, op_name

SPACE = "a convolution runs along it"
NOT_ZERO = "what it gives when masked is not zero, and is added up without weights"
Letters = Sequence[Hashable]
Lines = dict[Hashable, tuple[Tensor, bool]]  # by letter; whether masked ones give zero


def contract(
    on: Labels,
    factors: Sequence[tuple[Carried, Letters]],
    result: Letters,
    bias: tuple[Carried, Letters] | None = None,
) -> Lines:
    """Tie the factors of a sum of products letter by letter; the lines of the result's letters.

    Letters that the result does not have are summed over: there some factor must be zero where
    units are masked.
    """
    lines = [(on.lines(factor), factor, letters) for factor, letters in factors]
    pairs = [pair for f, letters in factors for pair in zip(letters, f.shape, strict=True)]
    sizes = {letter: size for letter, size in pairs if size > 1}
    found: Lines = {}
    for letter in sizes:
        line = _tied_along(on, lines, letter)
        role = "filter" if letter in result else "input"
        for factor, letters in factors:
            if letter in letters:
                on.mark(factor, list(letters).index(letter), role)
        if line is None:
            continue
        if letter in result:
            found[letter] = line
        elif not line[1]:
            on.atoms.freeze(line[0], NOT_ZERO)
    if sum(not factor.constant for factor, _ in factors) > 1:
        grows_with = [on.atoms.find(labels) for labels, _ in found.values()]
        grows_with += [
            along(plane.labels, dim)
            for own, _, letters in lines
            for dim, plane in own.items()
            if letters[dim] not in result
        ]
        before = on.products.get(on.node, Product(0, []))
        macs = before.macs + math.prod(sizes.values())
        on.products[on.node] = Product(macs, [*before.lines, *grows_with])
    return found if bias is None else _biased(on, found, *bias)


def _dims(tensor: Carried, letters: Letters, letter: Hashable) -> list[int]:
    """The dimensions of more than one index that go by a letter."""
    return [d for d, own in enumerate(letters) if own == letter and tensor.shape[d] > 1]


def _tied_along(
    on: Labels, lines: Sequence[tuple[dict[int, Plane], Carried, Letters]], letter: Hashable
) -> tuple[Tensor, bool] | None:
    """Tie all factors that have a letter; None if one of them is fixed there."""
    places = [(own, d) for own, factor, letters in lines for d in _dims(factor, letters, letter)]
    if not on.meet(*(line_of(own, dim) for own, dim in places)):
        return None
    own, dim = places[0]
    return along(own[dim].labels, dim), any(own[dim].zero for own, dim in places)


def _biased(on: Labels, found: Lines, bias: Carried, letters: Letters) -> Lines:
    """What is added has to be zero as well."""
    own = on.lines(bias)
    after: Lines = {}
    for letter, (labels, zero) in found.items():
        dims = _dims(bias, letters, letter)
        if not dims:
            after[letter] = labels, False
        elif on.meet(labels, line_of(own, dims[0])):
            after[letter] = labels, zero and own[dims[0]].zero
    for dim, plane in own.items():
        if letters[dim] not in found:
            on.atoms.freeze(plane.labels, FIXED)
    return after


def _planes(found: Lines, letters: Letters, shape: Sequence[int]) -> Planes:
    """Lines by letter as planes over a result of these letters."""
    known = [(dim, *found[letter]) for dim, letter in enumerate(letters) if letter in found]
    return tuple(Plane(spread(line, dim, shape), zero) for dim, line, zero in known)


@rule("linear")
def linear(on: Labels, x: Carried, weight: Carried, bias: Carried | None = None) -> Planes:
    """x[.., i] w[o, i] + b[o]."""
    lead = list(range(len(x.shape) - 1))
    result = [*lead, "o"] if len(weight.shape) == 2 else lead
    added = None if bias is None else (bias, ["o"])
    factors = [(x, [*lead, "i"]), (weight, ["o", "i"][-len(weight.shape) :])]
    return _planes(contract(on, factors, result, added), result, on.shape)


@rule("matmul", "mm", "bmm", "mv", "dot", "linalg_matmul", "inner", "vdot")
def matmul(on: Labels, one: Carried, other: Carried, added: Carried | None = None) -> Planes:
    """a[.., i, k] b[.., k, j], broadcast over what comes first."""
    batch = max(len(one.shape) - 2, len(other.shape) - 2, 0)
    row = ["i"] if len(one.shape) > 1 else []
    column = ["j"] if len(other.shape) > 1 else []
    first, second = (
        list(range(batch - max(len(tensor.shape) - 2, 0), batch)) for tensor in (one, other)
    )
    result: list[Hashable] = [*range(batch), *row, *column]
    factors = [(one, [*first, *row, "k"]), (other, [*second, "k", *column])]
    bias = None if added is None else (added, result[len(result) - len(added.shape) :])
    return _planes(contract(on, factors, result, bias), result, on.shape)


@rule("addmm", "baddbmm", "addbmm", "addmv")
def addmm(on: Labels, added: Carried, one: Carried, other: Carried, **kwargs: Any) -> Planes:
    """The same with something added to it."""
    return matmul(on, one, other, added)


@rule("einsum")
def einsum(on: Labels, equation: str, tensors: list[Carried], **kwargs: Any) -> Planes:
    """Letters as they are written; an ellipsis stands for as many as it takes."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    pairs = list(zip(left.split(","), tensors, strict=True))
    widest = max(len(t.shape) - len(name.replace("...", "")) for name, t in pairs)

    def letters(name: str, ndim: int) -> list[Hashable]:
        if "..." not in name:
            return list(name)
        before, after = name.split("...")
        dots = ndim - len(before) - len(after)
        return [*before, *range(widest - dots, widest), *after]

    factors = [(tensor, letters(name, len(tensor.shape))) for name, tensor in pairs]
    if arrow:
        result = letters(right, len(on.shape))
    else:
        every = [letter for _, own in factors for letter in own]
        dots = dict.fromkeys(letter for letter in every if isinstance(letter, int))
        once = [letter for letter in every if isinstance(letter, str) and every.count(letter) == 1]
        result = [*dots, *sorted(once)]
    return _planes(contract(on, factors, result), result, on.shape)


@rule(*CONVOLUTIONS)
def conv(
    on: Labels, x: Carried, weight: Carried, bias: Carried | None = None, *_: Any, **__: Any
) -> Planes:
    """out[o] = sum over c of w[o, c] x[c] + b[o]; a transposed one has w[c, o].

    A grouped one loses whole groups, or the same channel of every group: whichever leaves it more
    units.
    """
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


@rule("embedding")
def embedding(on: Labels, weight: Carried, index: Carried, *args: Any, **kwargs: Any) -> Planes:
    """Rows are picked by number and stay; columns are what it writes."""
    kept = on.without(weight, [0], "it is picked from by index")
    on.mark(weight, 1, "filter")
    lines = [(along(on.one_dim(plane.labels), 1), plane.zero) for plane in kept]
    return tuple(Plane(spread(line, len(on.shape) - 1, on.shape), zero) for line, zero in lines)


@rule("scaled_dot_product_attention")
def attention(
    on: Labels,
    query: Carried,
    key: Carried,
    value: Carried,
    mask: Carried | None = None,
    *args: Any,
    **kwargs: Any,
) -> Planes:
    """softmax(q k' + mask) v, by its two products; see `matmul`."""
    mask = kwargs.get("attn_mask", mask)
    if kwargs.get("enable_gqa"):
        key, value = (_repeated(on, t, query.shape[-3]) for t in (key, value))
    lead = list(range(len(query.shape) - 2))
    scores = [*lead, "i", "j"]
    shape = (*query.shape[:-1], key.shape[-2])
    found = contract(on, [(query, [*lead, "i", "d"]), (key, [*lead, "j", "d"])], scores)
    for letter in ("i", "j"):
        if letter in found:
            on.atoms.freeze(found.pop(letter)[0], "softmax is over all of it")
    planes = list(_planes(found, scores, shape))
    if mask is not None:
        both = tied(on, [Carried(shape, query.dtype, tuple(planes)), mask], shape).values()
        planes = [Plane(on.atoms.settled(same[0].labels), False) for same in both if 0 in same]
        planes = [plane for plane in planes if varies(plane.labels)]
    weights = Carried(shape, query.dtype, tuple(Plane(p.labels, False) for p in planes))
    result = [*lead, "i", "e"]
    factors = [(weights, scores), (replace(value, constant=False), [*lead, "j", "e"])]
    return _planes(contract(on, factors, result), result, on.shape)


def _repeated(on: Labels, tensor: Carried, heads: int) -> Carried:
    """Keys or values as kernels repeat them, for as many heads as there are queries."""
    shape = (*tensor.shape[:-3], heads, *tensor.shape[-2:])
    planes = repeated_heads(on, tensor, heads // tensor.shape[-3], len(shape) - 3)
    return replace(tensor, shape=shape, planes=planes)
