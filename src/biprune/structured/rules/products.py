"""Products: contractions of any kind, attention, embeddings; see `convolutions` for these."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import torch

from biprune.structured.atoms import Carried, Plane, along, spread, varies
from biprune.structured.labels import Labels, Planes, Product
from biprune.structured.rules.moving import repeated_heads
from biprune.structured.rules.pointwise import FIXED, tied
from biprune.structured.rules.table import rule, shape_of, without

NOT_ZERO = "what it gives when masked is not zero, and is added up without weights"
Letters = Sequence[Hashable]
Line = tuple[torch.Tensor, bool]  # labels along a letter, and whether masked ones give zero


def contract(
    on: Labels,
    factors: Sequence[tuple[Carried, Letters]],
    result: Letters,
    bias: tuple[Carried, Letters] | None = None,
) -> dict[Hashable, Line]:
    """Tie the factors of a sum of products letter by letter; the lines of the result's letters.

    Letters that the result does not have are summed over: there some factor must be zero where
    units are masked.
    """
    lines = [(on.lines(factor), factor, letters) for factor, letters in factors]
    pairs = [pair for f, letters in factors for pair in zip(letters, f.shape, strict=True)]
    sizes = {letter: size for letter, size in pairs if size > 1}
    found: dict[Hashable, Line] = {}
    for letter in sizes:
        line = _letter(on, lines, letter)
        for _, factor, letters in lines:
            if letter in letters:
                on.mark(factor, list(letters).index(letter), _role(letter, result))
        if line is None:
            continue
        if letter in result:
            found[letter] = line
        elif not line[1]:
            on.atoms.freeze(line[0], NOT_ZERO)
    if sum(not factor.constant for factor, _ in factors) > 1:
        labels = [on.atoms.find(line[0]) for line in found.values()]
        labels += [
            along(plane.labels, dim)
            for own, _, letters in lines
            for dim, plane in own.items()
            if letters[dim] not in result
        ]
        _count(on, math.prod(sizes.values()), labels)
    return found if bias is None else _biased(on, found, *bias)


def _dims(tensor: Carried, letters: Letters, letter: Hashable) -> list[int]:
    """The dimensions of more than one index that go by a letter."""
    return [d for d, own in enumerate(letters) if own == letter and tensor.shape[d] > 1]


def _role(letter: Hashable, result: Letters) -> Any:
    return "filter" if letter in result else "input"


def _letter(
    on: Labels, lines: Sequence[tuple[dict[int, Plane], Carried, Letters]], letter: Hashable
) -> Line | None:
    """Tie all factors that have a letter; None if one of them is fixed there."""
    there: list[Plane] = []
    fixed = False
    for own, factor, letters in lines:
        dims = _dims(factor, letters, letter)
        for dim in dims:
            if dim in own:
                there.append(Plane(along(own[dim].labels, dim), own[dim].zero))
            else:
                fixed = True
    for plane in there:
        if fixed:
            on.atoms.freeze(plane.labels, FIXED)
        else:
            on.atoms.tie(there[0].labels, plane.labels)
    if fixed or not there:
        return None
    return there[0].labels, any(plane.zero for plane in there)


def _biased(
    on: Labels, found: dict[Hashable, Line], bias: Carried, letters: Letters
) -> dict[Hashable, Line]:
    """What is added has to be zero as well."""
    own = on.lines(bias)
    after: dict[Hashable, Line] = {}
    for letter, (labels, zero) in found.items():
        dims = _dims(bias, letters, letter)
        if not dims:
            after[letter] = labels, False
        elif dims[0] in own:
            plane = own[dims[0]]
            on.atoms.tie(labels, along(plane.labels, dims[0]))
            after[letter] = labels, zero and plane.zero
        else:
            on.atoms.freeze(labels, FIXED)
    for dim, plane in own.items():
        if letters[dim] not in found:
            on.atoms.freeze(plane.labels, FIXED)
    return after


def _count(on: Labels, macs: int, labels: list[torch.Tensor]) -> None:
    before = on.products.get(on.node, Product(0, []))
    on.products[on.node] = Product(before.macs + macs, [*before.lines, *labels])


def planes_of(found: dict[Hashable, Line], letters: Letters, shape: Sequence[int]) -> Planes:
    """Lines by letter as planes over a result of these letters."""
    return tuple(
        Plane(spread(found[letter][0], dim, shape), found[letter][1])
        for dim, letter in enumerate(letters)
        if letter in found
    )


def _finish(on: Labels, found: dict[Hashable, Line], letters: Letters) -> Planes:
    return planes_of(found, letters, shape_of(on))


@rule("linear")
def linear(on: Labels, x: Carried, weight: Carried, bias: Carried | None = None) -> Planes:
    """x[.., i] w[o, i] + b[o]."""
    lead = list(range(len(x.shape) - 1))
    result = [*lead, "o"] if len(weight.shape) == 2 else lead
    added = None if bias is None else (bias, ["o"])
    factors = [(x, [*lead, "i"]), (weight, ["o", "i"][-len(weight.shape) :])]
    return _finish(on, contract(on, factors, result, added), result)


@rule("matmul", "mm", "bmm", "mv", "dot", "linalg_matmul", "inner", "vdot")
def matmul(on: Labels, one: Carried, other: Carried) -> Planes:
    """a[.., i, k] b[.., k, j], broadcast over what comes first."""
    first, second, result = _matmul_letters(one, other)
    return _finish(on, contract(on, [(one, first), (other, second)], result), result)


def _matmul_letters(one: Carried, other: Carried) -> tuple[list[Any], list[Any], list[Any]]:
    batch = max(len(one.shape) - 2, len(other.shape) - 2, 0)

    def lead(tensor: Carried) -> list[Any]:
        own = max(len(tensor.shape) - 2, 0)
        return list(range(batch - own, batch))

    first = [*lead(one), *(["i"] if len(one.shape) > 1 else []), "k"]
    second = [*lead(other), "k", *(["j"] if len(other.shape) > 1 else [])]
    result = [*range(batch), *(first[-2:-1] if len(one.shape) > 1 else [])]
    return first, second, [*result, *(["j"] if len(other.shape) > 1 else [])]


@rule("addmm", "baddbmm", "addbmm", "addmv")
def addmm(on: Labels, added: Carried, one: Carried, other: Carried, **kwargs: Any) -> Planes:
    """The same with something added to it."""
    first, second, result = _matmul_letters(one, other)
    letters = result[len(result) - len(added.shape) :]
    found = contract(on, [(one, first), (other, second)], result, (added, letters))
    return _finish(on, found, result)


@rule("einsum")
def einsum(on: Labels, equation: str, tensors: list[Carried], **kwargs: Any) -> Planes:
    """Letters as they are written; an ellipsis stands for as many as it takes."""
    left, _, right = equation.replace(" ", "").partition("->")
    names = left.split(",")
    widest = max(
        len(t.shape) - len(n.replace("...", "")) for n, t in zip(names, tensors, strict=True)
    )

    def letters(name: str, ndim: int) -> list[Any]:
        if "..." not in name:
            return list(name)
        before, after = name.split("...")
        dots = ndim - len(before) - len(after)
        return [*before, *range(widest - dots, widest), *after]

    each = [letters(name, len(t.shape)) for name, t in zip(names, tensors, strict=True)]
    if "->" in equation:
        result = letters(right, len(shape_of(on)))
    else:
        every = [letter for one in each for letter in one]
        dots = dict.fromkeys(letter for letter in every if isinstance(letter, int))
        once = [letter for letter in every if every.count(letter) == 1]
        result = [*dots, *sorted(letter for letter in once if isinstance(letter, str))]
    found = contract(on, list(zip(tensors, each, strict=True)), result)
    return _finish(on, found, result)


@rule("embedding")
def embedding(on: Labels, weight: Carried, index: Carried, *args: Any, **kwargs: Any) -> Planes:
    """Rows are picked by number and stay; columns are what it writes."""
    shape = shape_of(on)
    kept = without(on, weight, [0], "it is picked from by index")
    on.mark(weight, 1, "filter")
    lines = [(along(on.one_dim(p.labels), 1), p.zero) for p in kept]
    return tuple(Plane(spread(line, len(shape) - 1, shape), zero) for line, zero in lines)


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
    weights = Carried(shape, query.dtype, planes_of(found, scores, shape))
    if mask is not None:
        both = tied(on, [weights, mask], shape)
        planes = [Plane(on.atoms.settled(s[0].labels), False) for s in both.values() if 0 in s]
        weights = replace(weights, planes=tuple(p for p in planes if varies(p.labels)))
    weights = replace(
        weights, planes=tuple(Plane(p.labels, False) for p in weights.planes), constant=False
    )
    result = [*lead, "i", "e"]
    factors = [(weights, scores), (replace(value, constant=False), [*lead, "j", "e"])]
    return _finish(on, contract(on, factors, result), result)


def _repeated(on: Labels, tensor: Carried, heads: int) -> Carried:
    times = heads // tensor.shape[-3]
    shape = (*tensor.shape[:-3], heads, *tensor.shape[-2:])
    planes = repeated_heads(on, tensor, times, len(shape) - 3)
    return replace(tensor, shape=shape, planes=planes)
