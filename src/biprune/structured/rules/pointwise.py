"""Operations that compute each element from the elements in its place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from biprune.structured.atoms import Carried, Plane, varies
from biprune.structured.labels import AS_A_WHOLE, FIXED, Labels, Planes, rule

NOT_FINITE = "masked, it gives numbers that are not finite"
DRAWS = 8

# Not tagged as pointwise by torch, most because they are made of others that are.
UNTAGGED = (
    *("hardswish", "hardsigmoid", "hardtanh", "relu6", "selu", "celu", "elu", "silu", "mish"),
    *("gelu", "softplus", "softshrink", "hardshrink", "leaky_relu", "log_sigmoid", "rrelu"),
    *("square", "masked_fill", "clamp", "clamp_min", "clamp_max", "clip", "rsub"),
    *("true_divide", "divide", "multiply", "subtract", "negative", "absolute", "fix", "logit"),
    *("special_expit", "special_erf", "special_log1p", "special_expm1", "float_power", "ldexp"),
    *("arctan", "arcsin", "arccos", "arctanh", "threshold", "isfinite", "isnan", "isinf"),
    *("bitwise_not", "logical_not", "xlogy", "special_xlogy", "lerp", "addcmul", "addcdiv"),
    *("nan_to_num", "fill", "frac", "sinc", "special_sinc", "not_equal", "greater", "less"),
    *("__and__", "__or__", "__xor__"),
)
Planed = dict[tuple[int, ...], dict[int, Plane]]  # by dimensions, and by operand


@rule(*UNTAGGED)
def pointwise(on: Labels, *args: Any, **kwargs: Any) -> Planes:
    """Tie what the operands, which are broadcast, bring together, dimension by dimension."""
    operands = [a for a in (*args, *kwargs.values()) if isinstance(a, Carried)]
    found = []
    if len(operands) == 1 and operands[0].shape == on.shape:
        for plane in operands[0].planes:
            zero = _zero(on, args, kwargs, {id(operands[0])} if plane.zero else set())
            if zero is None:
                on.atoms.freeze(plane.labels, NOT_FINITE)
            else:
                found.append(Plane(plane.labels, zero))
        return tuple(found)
    for dims, planes in tied(on, operands, on.shape).items():
        zeros = {id(operands[place]) for place, plane in planes.items() if plane.zero}
        zero = _zero(on, args, kwargs, zeros)
        labels = on.atoms.settled(next(iter(planes.values())).labels)
        if zero is None or varies(labels) != dims:
            on.atoms.freeze(labels, NOT_FINITE if zero is None else AS_A_WHOLE)
        else:
            found.append(Plane(labels, zero))
    return tuple(found)


def tied(on: Labels, operands: Sequence[Carried], shape: tuple[int, ...]) -> Planed:
    """Tie the planes of operands that are broadcast to `shape`.

    Returns:
        The plane of each operand that has one, by the dimensions that planes vary along.
    """
    expanded = [[Plane(p.labels.expand(shape), p.zero) for p in o.planes] for o in operands]
    every = [on.settled(planes) for planes in expanded]
    while True:
        every = [_free_of_fixed(on, planes, every, operands, len(shape)) for planes in every]
        found: Planed = {}
        for place, planes in enumerate(every):
            for plane in planes:
                same = found.setdefault(varies(plane.labels), {})
                same[place] = on.one_kind(plane, same[place]) if place in same else plane
        crossing = [d for d in found if any(set(d) & set(e) for e in found if e != d)]
        if not any(len(dims) > 1 for dims in crossing):
            break
        every = [on.settled(_in_one_dim(on, planes, crossing)) for planes in every]
    for same in found.values():
        first, *others = [plane.labels for plane in same.values()]
        for labels in others:
            on.atoms.tie(*_differing(first, labels))
    return found


def _in_one_dim(
    on: Labels, planes: list[Plane], crossing: Sequence[tuple[int, ...]]
) -> Iterator[Plane]:
    for labels, zero in planes:
        yield Plane(on.one_dim(labels) if varies(labels) in crossing else labels, zero)


def _differing(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Both without what neither varies in: ties cost what differs."""
    for dim, size in enumerate(one.shape):
        if size > 1 and one.stride(dim) == 0 and other.stride(dim) == 0:
            one, other = one.narrow(dim, 0, 1), other.narrow(dim, 0, 1)
    return one, other


def _free_of_fixed(
    on: Labels,
    planes: list[Plane],
    every: list[list[Plane]],
    operands: Sequence[Carried],
    ndim: int,
) -> list[Plane]:
    """Tie or freeze what varies along a dimension that is fixed in another operand."""
    fixed: set[int] = set()
    for other, operand in zip(every, operands, strict=True):
        labelled = {dim for plane in other for dim in varies(plane.labels)}
        lead = ndim - len(operand.shape)
        fixed |= {lead + d for d, size in enumerate(operand.shape) if size > 1} - labelled
    found = []
    for plane in planes:
        inside = [dim for dim in varies(plane.labels) if dim in fixed]
        if len(inside) == len(varies(plane.labels)):
            on.atoms.freeze(plane.labels, FIXED)
        elif inside:
            labels = on.atoms.collapse(plane.labels, inside)
            found += on.settled([Plane(labels, plane.zero)])
        else:
            found.append(plane)
    return found


def _zero(on: Labels, args: Any, kwargs: Any, zeros: set[int]) -> bool | None:
    """Whether the result is 0 where these operands are; None if it is not finite for that.

    Found out by running the operation, with random numbers for the other operands.
    """
    if not zeros:
        return False
    function = on.node.target
    with_zeros = _run(function, args, kwargs, zeros)
    if with_zeros is None:
        return False
    if not bool(with_zeros.isfinite().all()):
        usual = _run(function, args, kwargs, set())
        if usual is None or bool(usual.isfinite().all()):
            return None
    return not bool(with_zeros.any())


def _run(function: Any, args: Any, kwargs: Any, zeros: set[int]) -> Tensor | None:
    generator = torch.Generator().manual_seed(0)

    def drawn(argument: Any) -> Any:
        if not isinstance(argument, Carried):
            return argument
        if id(argument) in zeros:
            return torch.zeros(DRAWS, dtype=argument.dtype)
        numbers = torch.rand(DRAWS, generator=generator) + 0.5
        if argument.dtype.is_floating_point:
            return numbers.to(argument.dtype)
        if argument.dtype == torch.bool:
            return torch.arange(DRAWS) % 2 == 0
        return (torch.arange(DRAWS) % 3 + 1).to(argument.dtype)

    try:
        result = function(*map(drawn, args), **{k: drawn(v) for k, v in kwargs.items()})
    except Exception:  # it does not take such numbers: then nothing is known of its zeros
        return None
    return result if isinstance(result, Tensor) else None


@rule("prelu", "_prelu_kernel")
def prelu(on: Labels, x: Carried, weight: Carried) -> Planes:
    """x or a multiple of it: channels lie along dimension 1."""
    ndim = len(x.shape)
    if weight.shape in ((1,), ()) or ndim < 2 or weight.shape == x.shape:
        on.freeze([weight] if weight.shape != x.shape else [], FIXED)
        return x.planes
    shape = (1, weight.shape[0], *[1] * (ndim - 2)) if len(weight.shape) == 1 else weight.shape
    planes = tuple(Plane(p.labels.reshape(shape), p.zero) for p in weight.planes)
    found = tied(on, [x, Carried(shape, weight.dtype, planes)], x.shape).values()
    own = [same[0] for same in found if 0 in same]
    return tuple(Plane(on.atoms.settled(plane.labels), plane.zero) for plane in own)


@rule("glu")
def glu(on: Labels, x: Carried, dim: int = -1) -> Planes:
    """The halves are tied; zero if both are."""
    found = []
    for plane in x.planes:
        one, other = plane.labels.chunk(2, dim)
        on.atoms.tie(one, other)
        found.append(Plane(on.atoms.settled(one), plane.zero))
    return tuple(found)
