"""Norms, sums and other reductions, pooling, and tensors that are made anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from biprune.structured.atoms import Carried, Plane, along, dims_of, over, spread
from biprune.structured.labels import Labels, Planes, line_of, rule
from biprune.structured.rules.pointwise import NOT_FINITE, pointwise
from biprune.structured.rules.products import NOT_ZERO
from biprune.structured.trace import argument, op_name

OVER_ALL = "it runs through a norm whose statistics are over all of it"


@rule("batch_norm", "_native_batch_norm_legit_no_training", "cudnn_batch_norm")
@rule("native_batch_norm", "_batch_norm_impl_index")
def batch_norm(on: Labels, x: Carried, *tensors: Any, **kwargs: Any) -> Planes | list[Planes]:
    """Weight, bias and statistics go with dimension 1; zero times x plus zero is zero."""
    return on.first(_by_channel(on, x, tensors[:4], zero=isinstance(tensors[0], Carried)))


@rule("instance_norm")
def instance_norm(
    on: Labels, x: Carried, weight: Any, bias: Any, mean: Any, var: Any, *args: Any
) -> Planes:
    """The same; without weights zeros stay zeros, whose mean is zero."""
    by_sample = bool(args and args[0])  # statistics of the sample at hand
    line = on.lines(x).get(1)
    zero = weight is not None or bool(by_sample and line is not None and line.zero)
    return _by_channel(on, x, [weight, bias, mean, var], zero)


def _by_channel(on: Labels, x: Carried, tensors: Sequence[Any], zero: bool) -> Planes:
    """A norm of each channel by itself, with tensors along the channels."""
    tensors = [tensor for tensor in tensors if isinstance(tensor, Carried)]
    lines = on.lines(x)
    for dim, plane in lines.items():
        if dim > 1:
            on.atoms.freeze(plane.labels, "a norm runs along it")
    line = line_of(lines, 1)
    for tensor in tensors:
        on.meet(line, line_of(on.lines(tensor), 0))
    passed = [Plane(plane.labels, False) for dim, plane in lines.items() if dim == 0]
    return tuple(passed) if line is None else (*passed, Plane(spread(line, 1, x.shape), zero))


@rule("layer_norm", "rms_norm", "native_layer_norm")
def layer_norm(
    on: Labels, x: Carried, shape: Sequence[int], weight: Any = None, bias: Any = None, *args: Any
) -> Planes | list[Planes]:
    """Statistics are over the last dimensions: exact where masked units are zero, in a graph."""
    bias = bias if isinstance(bias, Carried) else None  # of an RMSNorm it is a number
    lead = len(x.shape) - len(shape)
    return on.first(_over_all(on, x, range(lead, len(x.shape)), weight, bias))


@rule("group_norm", "native_group_norm")
def group_norm(
    on: Labels, x: Carried, groups: int, weight: Any = None, bias: Any = None, *args: Any
) -> Planes:
    """A group of channels is a unit; one group of all is a norm over all."""
    if groups == 1:
        dims = range(1, len(x.shape))
        return _over_all(on, x, dims, *(_stretched(t, len(dims)) for t in (weight, bias)))
    lines = on.lines(x)
    if 1 in lines:
        line = along(lines[1].labels, 1).view(groups, -1)
        on.atoms.tie(line, line[:, :1])
    return _by_channel(on, x, [weight, bias], zero=weight is not None)


def _stretched(tensor: Carried | None, ndim: int) -> Carried | None:
    """Weight or bias of channels as they broadcast to all that is normed."""
    if not isinstance(tensor, Carried):
        return None
    shape = (*tensor.shape, *[1] * (ndim - 1))
    planes = tuple(Plane(p.labels.reshape(shape), p.zero) for p in tensor.planes)
    return Carried(shape, tensor.dtype, planes, tensor.constant)


def _over_all(on: Labels, x: Carried, dims: Sequence[int], weight: Any, bias: Any) -> Planes:
    """A norm over all of `dims`, with weight and bias along them."""
    affine = [tensor for tensor in (weight, bias) if isinstance(tensor, Carried)]
    lines = on.lines(x)
    found = [Plane(p.labels, p.zero and bias is None) for d, p in lines.items() if d not in dims]
    own = [(on.lines(tensor), len(dims) - len(tensor.shape)) for tensor in affine]
    for dim in dims:
        labels = line_of(lines, dim)
        theirs = [line_of(of, dim - dims[0] - shift) for of, shift in own]
        if not on.meet(labels, *theirs) or labels is None:
            continue
        if not on.streams or not lines[dim].zero:
            on.atoms.freeze(labels, NOT_ZERO if on.streams else OVER_ALL)
        else:
            on.normed.append(labels)
        found.append(Plane(spread(labels, dim, x.shape), weight is not None))
    return tuple(found)


@rule("_weight_norm")
def weight_norm(on: Labels, v: Carried, g: Carried, dim: int = 0) -> Planes:
    """g v / |v|, with a norm for each index along `dim`: of zeros it is no number."""
    dim %= len(v.shape)
    on.mark(v, dim, "filter")
    on.freeze([g], NOT_FINITE)
    return tuple(on.without(v, [dim], NOT_FINITE))


@rule("sum", "linalg_vector_norm", "norm", "nansum", "mean")
def summed(on: Labels, x: Carried, *args: Any, **kwargs: Any) -> Planes:
    """Zeros add nothing; whatever else masked units give is missed.

    A mean divides by the number of all units: that is exact in a graph only.
    """
    is_mean = op_name(on.node) == "mean"
    allowed = on.streams or not is_mean
    dims = dims_of(argument(on.node, "dim"), len(x.shape))
    lines = on.lines(x)
    for dim in dims:
        line = lines.pop(dim, None)
        if line is None:
            continue
        if not (allowed and line.zero):
            on.atoms.freeze(line.labels, NOT_ZERO if allowed else "its mean is over all of it")
        elif is_mean:
            on.normed.append(line.labels)
    found = []
    for dim, plane in lines.items():
        kept = len(on.shape) == len(x.shape)
        place = dim if kept else dim - sum(d < dim for d in dims)
        found.append(Plane(spread(along(plane.labels, dim), place, on.shape), plane.zero))
    return tuple(found)


@rule("amax", "amin", "max", "min", "var", "std", "argmax", "argmin", "prod", "any", "all")
@rule("logsumexp", "median", "mode", "var_mean", "std_mean", "topk", "sort", "argsort")
@rule("kthvalue")
def compared(on: Labels, x: Carried, *args: Any, **kwargs: Any) -> Planes | list[Planes]:
    """What is compared or measured together cannot lose a part of it."""
    if args and isinstance(args[0], Carried):  # the larger of two
        return pointwise(on, x, *args, **kwargs)
    dims = dims_of(argument(on.node, "dim"), len(x.shape))
    kept = on.without(x, dims, f"{op_name(on.node)} is over all of it", zero=False)
    shape = (on.given[0] if isinstance(on.given, list) else on.given).shape
    if len(shape) < len(x.shape):
        at = tuple(0 if dim in dims else slice(None) for dim in range(len(x.shape)))
        kept = [Plane(plane.labels[at], plane.zero) for plane in kept]
    planes = over(kept, shape)
    return [planes] * len(on.given) if isinstance(on.given, list) else planes


@rule("softmax", "_softmax", "log_softmax", "_log_softmax", "cumsum", "cumprod", "logcumsumexp")
@rule("softmin", "_safe_softmax", "tril", "triu")
@rule("cummax")  # of its two results nothing is carried on: units stop here as if it were not known
def along_it(on: Labels, x: Carried, dim: int = -1, *args: Any, **kwargs: Any) -> Planes:
    """What is measured against its neighbours along a dimension cannot lose a part of it."""
    name = op_name(on.node)
    dims = dims_of([-2, -1] if name in ("tril", "triu") else dim, len(x.shape))
    zero = name in ("cumsum", "tril", "triu")
    return tuple(on.without(x, dims, f"{name} is over all of it", zero=zero))


POOLS = (
    *("avg_pool", "max_pool", "adaptive_avg_pool", "adaptive_max_pool", "lp_pool"),
    *("_adaptive_avg_pool",),
)
UPSAMPLES = ("nearest", "linear", "bilinear", "bicubic", "trilinear")


@rule(*(f"{name}{n}d" for name in POOLS for n in (1, 2, 3)))
@rule(*(f"max_pool{n}d_with_indices" for n in (2, 3)))
@rule(*(f"upsample_{name}{n}d" for name in UPSAMPLES for n in (1, 2, 3)))
@rule(*(f"_upsample_{name}_aa" for name in ("bilinear2d", "bicubic2d")))
@rule("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "grid_sampler_2d", "grid_sampler")
def pool(on: Labels, x: Carried, *args: Any, **kwargs: Any) -> Planes | list[Planes]:
    """Space is pooled or stretched; channels pass, and zeros stay zeros."""
    shape = (on.given[0] if isinstance(on.given, list) else on.given).shape
    rank = next((int(c) for c in reversed(op_name(on.node)) if c.isdigit()), 2)
    space = range(len(x.shape) - rank, len(x.shape))
    return on.first(over(on.without(x, space, "it is pooled along"), shape))


@rule("zeros", "ones", "full", "empty", "new_zeros", "new_ones", "new_full", "new_empty")
def made(on: Labels, *args: Any, **kwargs: Any) -> Planes:
    """A constant tensor can be made of any size: free atoms along every dimension."""
    zero = op_name(on.node).endswith("zeros")
    return tuple(
        Plane(spread(on.atoms.of((on.node, dim), size), dim, on.shape), zero)
        for dim, size in enumerate(on.shape)
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
