"""Norms, sums and other reductions, pooling, and tensors that are made anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from biprune.structured.atoms import Carried, Plane, along, spread, varies
from biprune.structured.labels import Labels, Planes
from biprune.structured.rules.pointwise import FIXED, NOT_FINITE
from biprune.structured.rules.products import NOT_ZERO
from biprune.structured.rules.table import dims_of, over, rule, shape_of, without
from biprune.structured.trace import op_name

OVER_ALL = "it runs through a norm whose statistics are over all of it"


@rule("batch_norm", "_native_batch_norm_legit_no_training", "cudnn_batch_norm")
@rule("native_batch_norm", "_batch_norm_impl_index")
def batch_norm(on: Labels, x: Carried, *tensors: Any, **kwargs: Any) -> Planes | list[Planes]:
    """Weight, bias and statistics go with dimension 1; zero times x plus zero is zero."""
    weight, bias, *statistics = [t if isinstance(t, Carried) else None for t in tensors[:4]]
    planes = _by_channel(on, x, [weight, bias, *statistics], weight is not None)
    given = on.traced.results[on.node]
    return [planes, *[()] * (len(given) - 1)] if isinstance(given, list) else planes


@rule("instance_norm")
def instance_norm(
    on: Labels, x: Carried, weight: Any, bias: Any, mean: Any, var: Any, *args: Any
) -> Planes:
    """The same; without weights zeros stay zeros, whose mean is zero."""
    own = bool(args and args[0])  # statistics of the sample at hand
    line = on.lines(x).get(1)
    zero = weight is not None or bool(own and line is not None and line.zero)
    return _by_channel(on, x, [weight, bias, mean, var], zero)


def _by_channel(on: Labels, x: Carried, tensors: Sequence[Carried | None], zero: bool) -> Planes:
    known = [tensor for tensor in tensors if tensor is not None]
    lines = on.lines(x)
    for dim, plane in lines.items():
        if dim > 1:
            on.atoms.freeze(plane.labels, "a norm runs along it")
    passed = [Plane(plane.labels, False) for dim, plane in lines.items() if dim == 0]
    if 1 not in lines:
        on.freeze(known, FIXED)
        return tuple(passed)
    line = along(lines[1].labels, 1)
    for tensor in known:
        own = on.lines(tensor)
        if 0 in own:
            on.atoms.tie(line, along(own[0].labels, 0))
        else:
            on.atoms.freeze(line, FIXED)
    return (*passed, Plane(spread(line, 1, x.shape), zero))


@rule("layer_norm", "rms_norm", "native_layer_norm")
def layer_norm(
    on: Labels, x: Carried, shape: Sequence[int], weight: Any = None, bias: Any = None, *args: Any
) -> Planes | list[Planes]:
    """Statistics are over the last dimensions: exact where masked units are zero, in a graph."""
    bias = bias if isinstance(bias, Carried) else None
    lead = len(x.shape) - len(shape)
    planes = normed(on, x, range(lead, len(x.shape)), weight, bias)
    given = on.traced.results[on.node]
    return [planes, *[()] * (len(given) - 1)] if isinstance(given, list) else planes


def normed(on: Labels, x: Carried, dims: Sequence[int], weight: Any, bias: Any) -> Planes:
    """A norm over `dims`, with weight and bias along them."""
    affine = [t for t in (weight, bias) if isinstance(t, Carried)]
    lines = on.lines(x)
    found = [Plane(p.labels, p.zero and bias is None) for d, p in lines.items() if d not in dims]
    own = [(on.lines(tensor), len(dims) - len(tensor.shape)) for tensor in affine]
    for dim in dims:
        line = lines.get(dim)
        theirs = [o.get(dim - dims[0] - shift) for o, shift in own]
        known = [plane for plane in theirs if plane is not None]
        if line is None or len(known) < len(theirs):
            for plane in (line, *known):
                if plane is not None:
                    on.atoms.freeze(plane.labels, FIXED)
            continue
        labels = along(line.labels, dim)
        if not on.streams or not line.zero:
            on.atoms.freeze(labels, NOT_ZERO if on.streams else OVER_ALL)
        else:
            on.normed.append(labels)
        for plane in known:
            on.atoms.tie(labels, along(plane.labels, varies(plane.labels)[0]))
        found.append(Plane(spread(labels, dim, x.shape), weight is not None))
    return tuple(found)


@rule("group_norm", "native_group_norm")
def group_norm(
    on: Labels, x: Carried, groups: int, weight: Any = None, bias: Any = None, *args: Any
) -> Planes:
    """A group of channels is a unit; one group of all is a norm over all."""
    channels = x.shape[1]
    known = [t for t in (weight, bias) if isinstance(t, Carried)]
    if groups == 1:
        return normed(on, x, range(1, len(x.shape)), *_stretched(known, len(x.shape) - 1))
    lines = on.lines(x)
    if 1 in lines:
        line = along(lines[1].labels, 1).view(groups, channels // groups)
        on.atoms.tie(line, line[:, :1])
    return _by_channel(on, x, known, bool(known))


def _stretched(tensors: list[Carried], ndim: int) -> list[Carried | None]:
    """Weight and bias of channels as they broadcast to all that is normed."""
    found: list[Carried | None] = []
    for tensor in tensors:
        shape = (*tensor.shape, *[1] * (ndim - 1))
        planes = tuple(Plane(p.labels.reshape(shape), p.zero) for p in tensor.planes)
        found.append(Carried(shape, tensor.dtype, planes, tensor.constant))
    return [*found, None, None][:2]


@rule("_weight_norm")
def weight_norm(on: Labels, v: Carried, g: Carried, dim: int = 0) -> Planes:
    """g v / |v|, with a norm for each index along `dim`: of zeros it is no number."""
    on.mark(v, dim % len(v.shape), "filter")
    on.freeze([g], NOT_FINITE)
    return tuple(without(on, v, [dim % len(v.shape)], NOT_FINITE))


@rule("sum", "linalg_vector_norm", "norm", "nansum")
def summed(on: Labels, x: Carried, *args: Any, **kwargs: Any) -> Planes:
    """Zeros add nothing; whatever else masked units give is missed."""
    dims = _reduced(on, x, args, kwargs)
    return _reduce(on, x, dims, allowed=True)


@rule("mean")
def mean(on: Labels, x: Carried, *args: Any, **kwargs: Any) -> Planes:
    """The same, and the number of all units is what it divides by: exact in a graph only."""
    return _reduce(on, x, _reduced(on, x, args, kwargs), allowed=on.streams)


def _reduced(on: Labels, x: Carried, args: Any, kwargs: Any) -> tuple[int, ...]:
    schema = on.node.target._schema.arguments
    names = [argument.name for argument in schema][1:]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    return dims_of(given.get("dim"), len(x.shape))


def _reduce(on: Labels, x: Carried, dims: Sequence[int], *, allowed: bool) -> Planes:
    lines = on.lines(x)
    for dim in dims:
        line = lines.pop(dim, None)
        if line is not None and not (allowed and line.zero):
            on.atoms.freeze(line.labels, NOT_ZERO if allowed else "its mean is over all of it")
        elif line is not None and on.streams and op_name(on.node) == "mean":
            on.normed.append(line.labels)
    return _left(on, x, dims, lines)


def _left(on: Labels, x: Carried, dims: Sequence[int], lines: dict[int, Plane]) -> Planes:
    """What varies along other dimensions, with or without those that are gone."""
    shape = shape_of(on)
    keepdim = len(shape) == len(x.shape)
    found = []
    for dim, plane in lines.items():
        place = dim if keepdim else dim - sum(d < dim for d in dims)
        found.append(Plane(spread(along(plane.labels, dim), place, shape), plane.zero))
    return tuple(found)


@rule("amax", "amin", "max", "min", "var", "std", "argmax", "argmin", "prod", "any", "all")
@rule("logsumexp", "median", "mode", "var_mean", "std_mean", "topk", "sort", "argsort")
@rule("kthvalue")
def over_all(on: Labels, x: Carried, *args: Any, **kwargs: Any) -> Planes | list[Planes]:
    """Whatever is compared or measured together cannot lose a part."""
    if args and isinstance(args[0], Carried):
        from biprune.structured.rules.pointwise import pointwise

        return pointwise(on, x, *args, **kwargs)
    schema = [a.name for a in on.node.target._schema.arguments][1:]
    given = {**dict(zip(schema, args, strict=False)), **kwargs}
    dim = given.get("dim", -1 if {"topk", "sort", "argsort"} & {op_name(on.node)} else None)
    dims = dims_of(dim, len(x.shape))
    kept = without(on, x, dims, f"{op_name(on.node)} is over all of it", zero=False)
    results = on.traced.results[on.node]
    first = results[0].shape if isinstance(results, list) else results.shape
    planes = []
    for plane in kept:
        labels = plane.labels
        if len(first) == len(x.shape):
            planes += over([plane], first)
        else:
            for d in sorted(dims, reverse=True):
                labels = labels.select(d, 0)
            planes.append(Plane(labels, False))
    if isinstance(results, list):
        return [tuple(planes) for _ in results]
    return tuple(planes)


@rule("softmax", "_softmax", "log_softmax", "_log_softmax", "cumsum", "cumprod", "logcumsumexp")
@rule("softmin", "_safe_softmax", "cummax", "tril", "triu")
def along_it(on: Labels, x: Carried, dim: int = -1, *args: Any, **kwargs: Any) -> Planes:
    """What is measured against its neighbours along a dimension cannot lose a part of it."""
    dims = [-2, -1] if op_name(on.node) in ("tril", "triu") else [dim]
    zero = op_name(on.node) in ("cumsum", "tril", "triu")
    dims = dims_of(dims, len(x.shape))
    return tuple(without(on, x, dims, f"{op_name(on.node)} is over all of it", zero=zero))


POOLS = (
    *("avg_pool", "max_pool", "adaptive_avg_pool", "adaptive_max_pool", "lp_pool"),
    *("_adaptive_avg_pool",),
)
UPSAMPLES = ("nearest", "linear", "bilinear", "bicubic", "trilinear", "_nearest_exact")


@rule(*(f"{name}{n}d" for name in POOLS for n in (1, 2, 3)))
@rule(*(f"max_pool{n}d_with_indices" for n in (2, 3)))
@rule(*(f"upsample_{name}{n}d" for name in UPSAMPLES for n in (1, 2, 3)))
@rule(*(f"_upsample_{name}_aa" for name in ("bilinear2d", "bicubic2d")))
@rule("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "grid_sampler_2d", "grid_sampler")
@rule("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
def pool(on: Labels, x: Carried, *args: Any, **kwargs: Any) -> Planes | list[Planes]:
    """Space is pooled or stretched; channels pass, and zeros stay zeros."""
    given = on.traced.results[on.node]
    shape = (given[0] if isinstance(given, list) else given).shape
    rank = next((int(c) for c in reversed(op_name(on.node)) if c.isdigit()), 2)
    space = range(len(x.shape) - rank, len(x.shape))
    planes = over(without(on, x, space, "it is pooled along"), shape)
    return [planes, *[()] * (len(given) - 1)] if isinstance(given, list) else planes


@rule("zeros", "ones", "full", "empty", "new_zeros", "new_ones", "new_full", "new_empty")
def made(on: Labels, *args: Any, **kwargs: Any) -> Planes:
    """A constant tensor can be made of any size: free atoms along every dimension."""
    shape = shape_of(on)
    zero = op_name(on.node).endswith("zeros")
    return tuple(
        Plane(spread(on.atoms.of((on.node, dim), size), dim, shape), zero)
        for dim, size in enumerate(shape)
        if size > 1 and isinstance(size, int)
    )


@rule("zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like")
def made_like(on: Labels, x: Carried, *args: Any, **kwargs: Any) -> Planes:
    """The same of the shape of another tensor, which it follows."""
    return tuple(Plane(plane.labels, op_name(on.node) == "zeros_like") for plane in x.planes)


@rule("arange", "scalar_tensor", "linspace", "eye", "sym_size", "sym_numel", "_local_scalar_dense")
@rule("item", "is_same_size", "rand", "randn", "dim", "numel", "size", "tril_indices")
def nothing(on: Labels, *args: Any, **kwargs: Any) -> Planes:
    """Nothing that could be cut."""
    return ()
