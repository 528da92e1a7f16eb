"""Operations that compute each element from the elements in its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from biprune.structured.atoms import Carried, Plane, varies
from biprune.structured.labels import Labels, Planes
from biprune.structured.rules.table import rule, shape_of

FIXED = "what it is combined with has a fixed size"
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


@rule(*UNTAGGED)
def pointwise(on: Labels, *args: Any, **kwargs: Any) -> Planes:
    """Tie what the operands bring together, dimension by dimension."""
    return met(on, [a for a in (*args, *kwargs.values()) if isinstance(a, Carried)], args, kwargs)


def met(on: Labels, operands: Sequence[Carried], args: Any, kwargs: Any) -> Planes:
    """The planes of an elementwise result, which operands are broadcast to."""
    if len(operands) == 1 and operands[0].shape == shape_of(on):
        found = []
        for plane in operands[0].planes:
            bit = _zero(on, args, kwargs, {id(operands[0])} if plane.zero else set())
            if _stays(on, plane, bit):
                found.append(Plane(plane.labels, bool(bit)))
        return tuple(found)
    planes = tied(on, operands, shape_of(on))
    found = []
    for dims, by_operand in planes.items():
        zeros = {id(operands[place]) for place, plane in by_operand.items() if plane.zero}
        plane = next(iter(by_operand.values()))
        bit = _zero(on, args, kwargs, zeros)
        if _stays(on, plane, bit):
            labels = on.atoms.settled(plane.labels)
            if varies(labels) == dims:
                found.append(Plane(labels, bool(zeros) and bool(bit)))
            else:
                on.atoms.freeze(labels, "it can only go as a whole")
    return tuple(found)


def _stays(on: Labels, plane: Plane, bit: bool | None) -> bool:
    if bit is None:
        on.atoms.freeze(plane.labels, NOT_FINITE)
    return bit is not None


def tied(
    on: Labels, operands: Sequence[Carried], shape: tuple[int, ...]
) -> dict[tuple[int, ...], dict[int, Plane]]:
    """Tie the planes of operands that are broadcast to `shape`.

    Returns, by the dimensions that planes vary along, the plane of each operand that has one.
    """
    own = [_expanded(on, operand, shape) for operand in operands]
    while True:
        own = [_free_of_fixed(on, planes, own, operands, shape) for planes in own]
        by_dims: dict[tuple[int, ...], dict[int, Plane]] = {}
        for place, planes in enumerate(own):
            for plane in planes:
                same = by_dims.setdefault(varies(plane.labels), {})
                same[place] = on.one_kind(plane, same[place]) if place in same else plane
        crossing = [d for d in by_dims if any(set(d) & set(e) for e in by_dims if e != d)]
        if not any(len(dims) > 1 for dims in crossing):
            break
        own = [
            [
                Plane(on.one_dim(p.labels), p.zero) if varies(p.labels) in crossing else p
                for p in planes
            ]
            for planes in own
        ]
        own = [_varying(on, planes) for planes in own]
    for same in by_dims.values():
        first, *others = [plane.labels for plane in same.values()]
        for labels in others:
            on.atoms.tie(*_parts(first, labels))
    return by_dims


def _parts(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both without what neither varies in: ties cost what differs."""
    for dim, size in enumerate(one.shape):
        if size > 1 and one.stride(dim) == 0 and other.stride(dim) == 0:
            one, other = one.narrow(dim, 0, 1), other.narrow(dim, 0, 1)
    return one, other


def _varying(on: Labels, planes: list[Plane]) -> list[Plane]:
    found = []
    for plane in planes:
        labels = on.atoms.settled(plane.labels)
        if varies(labels):
            found.append(Plane(labels, plane.zero))
        else:
            on.atoms.freeze(labels, "it can only go as a whole")
    return found


def _expanded(on: Labels, operand: Carried, shape: tuple[int, ...]) -> list[Plane]:
    return _varying(on, [Plane(p.labels.expand(shape), p.zero) for p in operand.planes])


def _free_of_fixed(
    on: Labels,
    planes: list[Plane],
    every: list[list[Plane]],
    operands: Sequence[Carried],
    shape: tuple[int, ...],
) -> list[Plane]:
    """Tie or freeze what varies along a dimension that is fixed in another operand."""
    fixed = set()
    for other, operand in zip(every, operands, strict=True):
        labelled = {dim for plane in other for dim in varies(plane.labels)}
        lead = len(shape) - len(operand.shape)
        present = {lead + d for d, size in enumerate(operand.shape) if size > 1}
        fixed |= present - labelled
    found = []
    for plane in planes:
        inside = [dim for dim in varies(plane.labels) if dim in fixed]
        if len(inside) == len(varies(plane.labels)):
            on.atoms.freeze(plane.labels, FIXED)
        elif inside:
            labels = on.atoms.collapse(plane.labels, inside)
            found += _varying(on, [Plane(labels, plane.zero)])
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


def _run(function: Any, args: Any, kwargs: Any, zeros: set[int]) -> torch.Tensor | None:
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
    return result if isinstance(result, torch.Tensor) else None


@rule("prelu", "_prelu_kernel")
def prelu(on: Labels, x: Carried, weight: Carried) -> Planes:
    """x or a multiple of it: channels lie along dimension 1."""
    ndim = len(x.shape)
    if weight.shape in ((1,), ()) or ndim < 2 or weight.shape == x.shape:
        on.freeze([weight] if weight.shape != x.shape else [], FIXED)
        return tuple(Plane(p.labels, p.zero) for p in x.planes)
    shape = (1, weight.shape[0], *[1] * (ndim - 2)) if len(weight.shape) == 1 else weight.shape
    planes = tuple(Plane(p.labels.reshape(shape), p.zero) for p in weight.planes)
    by_dims = tied(on, [x, Carried(shape, weight.dtype, planes)], x.shape)
    found = []
    for same in by_dims.values():
        if 0 in same:
            found.append(Plane(on.atoms.settled(same[0].labels), same[0].zero))
    return tuple(found)


@rule("glu")
def glu(on: Labels, x: Carried, dim: int = -1) -> Planes:
    """The halves are tied; zero if both are."""
    dim %= len(x.shape)
    found = []
    for plane in x.planes:
        one, other = plane.labels.chunk(2, dim)
        on.atoms.tie(one, other)
        found.append(Plane(on.atoms.settled(one), plane.zero))
    return tuple(found)
