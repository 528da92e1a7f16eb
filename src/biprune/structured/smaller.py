"""Operations that name a size, or whose result depends on one, for the sizes that are left."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from biprune.structured.runs import Kept, Step
from biprune.structured.trace import op_name

if TYPE_CHECKING:
    from biprune.structured.graph import _Smaller


aten = torch.ops.aten
_SPLITS = ("split", "chunk", "split_with_sizes", "tensor_split", "unsafe_split", "unsafe_chunk")


def resized(own: Step, before: Sequence[int], kept: Kept, after: Any) -> Step:
    """A step on what is left of a tensor of shape `before`, which should give `after`.

    Raises:
        ValueError: The sizes cannot be said.
    """
    if own.name in ("view", "reshape", "_unsafe_view", "view_copy"):
        return _replaced(own, aten.reshape.default, _sizes(own.rest[0], own, after))
    if own.name in ("expand", "broadcast_to"):
        return _replaced(own, own.target, _sizes(own.rest[0], own, after))
    if own.name in ("view_as", "reshape_as"):
        return _replaced(own, aten.reshape.default, _sizes(None, own, after))
    if own.name == "unflatten":
        return _unflatten(own, before, after)
    if own.name in ("slice", "narrow"):
        return _slice(own, before, kept)
    dim = _dim(own, before)
    if own.name == "select" and dim in kept:
        place = int((kept[dim] < own.rest[1] % before[dim]).sum())
        return _replaced(own, own.target, dim, place)
    if own.name in _SPLITS and dim in kept:
        pairs = zip(after, own.shape, strict=True)
        counts = [len(each[dim]) if dim in each else shape[dim] for each, shape in pairs]
        return _replaced(own, aten.split_with_sizes.default, counts, dim)
    return own


def _replaced(own: Step, target: Any, *rest: Any) -> Step:
    return replace(own, target=target, rest=rest, kwargs={})


def _dim(own: Step, before: Sequence[int]) -> int:
    place = {"select": 0, "unbind": 0}.get(own.name, 1)
    given = own.rest[place] if len(own.rest) > place else own.kwargs.get("dim", 0)
    return given % len(before) if isinstance(given, int) else 0


def _sizes(given: Any, own: Step, kept: Kept) -> list[Any]:
    """Sizes as arguments: numbers where the graph has numbers, and one to be found at the call."""
    found = []
    for dim, size in enumerate(own.shape):
        said = -1 if given is None or len(given) != len(own.shape) else given[dim]
        if own.static[dim]:
            found.append(len(kept[dim]) if dim in kept else size)
        else:
            found.append(-1 if dim in kept else said)
    if own.name != "expand" and found.count(-1) > 1:
        raise ValueError("two sizes that depend on the input change")
    return found


def _unflatten(own: Step, before: Sequence[int], kept: Kept) -> Step:
    dim, sizes = own.rest
    dim %= len(before)
    said = [len(kept[d]) if d in kept else size for d, size in enumerate(sizes, start=dim)]
    return _replaced(own, own.target, dim, said)


def _slice(own: Step, before: Sequence[int], kept: Kept) -> Step:
    dim, start, end, step = [*own.rest, *[0, None, None, 1][len(own.rest) :]]
    dim %= len(before)
    if dim not in kept:
        return own
    if own.name == "narrow":
        chosen = range(start % before[dim], start % before[dim] + end)
    else:
        chosen = range(before[dim])[slice(start, end, step)]
    places = _places(kept[dim], chosen, before[dim])
    if chosen.step == 1:
        first = int((kept[dim] < chosen.start).sum())
        return _replaced(own, aten.slice.Tensor, dim, first, first + len(places))
    return _replaced(own, aten.index_select.default, dim, places)


def _places(kept: Tensor, chosen: Sequence[int], size: int) -> Tensor:
    """Where the chosen indices that are left lie among all that are left."""
    place = torch.full((size,), -1)
    place[kept] = torch.arange(len(kept))
    places = place[torch.tensor(list(chosen), dtype=torch.long)]
    return places[places >= 0]


Write = Callable[["_Smaller", fx.Node], fx.Node | None]
SMALLER: dict[str, Write] = {}


def smaller(*names: str) -> Callable[[Write], Write]:
    """Register how these operations are written; None means as they were."""

    def register(function: Write) -> Write:
        for name in names:
            SMALLER[name] = function
        return function

    return register


def _with(on: _Smaller, node: fx.Node, place: int, value: Any) -> fx.Node:
    """A copy of a node with another argument."""
    copied = on._copy(node)
    copied.update_arg(place, fx.map_arg(value, lambda n: on.env.get(n, n)))
    return copied


def _args(node: fx.Node) -> list[Any]:
    return list(node.args)


def _named(node: fx.Node, name: str, default: Any = None) -> Any:
    """An argument by name, wherever it stands."""
    target: Any = node.target
    names = [argument.name for argument in target._schema.arguments]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    return given.get(name, default)


@smaller("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
@smaller("convolution")
def conv(on: _Smaller, node: fx.Node) -> fx.Node | None:
    """As many groups as are left."""
    groups = _named(node, "groups", 1)
    if groups == 1:
        return None
    x, weight = _args(node)[:2]
    name = op_name(node)
    transposed = "transpose" in name or (name == "convolution" and bool(node.args[6]))
    ndim = len(on.labels.traced.results[weight].shape) - 2
    channels = on.count(node if transposed else x, -1 - ndim)
    left = channels // on.count(weight, 1)
    return _with(on, node, 8 if name == "convolution" else 6, left)


@smaller("group_norm")
def group_norm(on: _Smaller, node: fx.Node) -> fx.Node | None:
    """As many groups as are left; one group of all as a layer norm."""
    x, groups = _args(node)[:2]
    share = on.share(x, 1)
    if groups > 1:
        return _with(on, node, 1, round(groups * share))
    ndim = len(on.labels.traced.results[x].shape)
    if share == 1:
        return None
    view = [-1, *[1] * (ndim - 2)]
    affine = [_named(node, name) for name in ("weight", "bias")]
    shaped = [a if a is None else on.call(aten.reshape.default, on.env[a], view) for a in affine]
    return full_width(
        on, on.env[x], list(range(1, ndim)), share, _named(node, "eps", 1e-5), *shaped
    )


@smaller("layer_norm")
def layer_norm(on: _Smaller, node: fx.Node) -> fx.Node | None:
    """Statistics of the full width, of which what is gone is zero."""
    x, shape = _args(node)[:2]
    ndim = len(on.labels.traced.results[x].shape)
    dims = list(range(ndim - len(shape), ndim))
    share = on.share(x, *dims)
    if share == 1:
        return None
    affine = [_named(node, name) for name in ("weight", "bias")]
    own = [a if a is None else on.env[a] for a in affine]
    return full_width(on, on.env[x], dims, share, _named(node, "eps", 1e-5), *own)


def full_width(
    on: _Smaller, x: fx.Node, dims: list[int], share: float, eps: float, weight: Any, bias: Any
) -> fx.Node:
    """With f = n / N: mu = f mean(x); v = f mean((x - mu)^2) + (1 - f) mu^2."""
    mean = on.call(aten.mul.Tensor, on.call(aten.mean.dim, x, dims, True), share)
    centred = on.call(aten.sub.Tensor, x, mean)
    spread = on.call(aten.mean.dim, on.call(aten.square.default, centred), dims, True)
    spread = on.call(aten.mul.Tensor, spread, share)
    rest = on.call(aten.mul.Tensor, on.call(aten.square.default, mean), 1 - share)
    variance = on.call(aten.add.Tensor, on.call(aten.add.Tensor, spread, rest), eps)
    return _affine(on, on.call(aten.mul.Tensor, centred, _rsqrt(on, variance)), weight, bias)


def _rsqrt(on: _Smaller, x: fx.Node) -> fx.Node:
    return on.call(aten.rsqrt.default, x)


def _affine(on: _Smaller, x: fx.Node, weight: Any, bias: Any) -> fx.Node:
    if weight is not None:
        x = on.call(aten.mul.Tensor, x, weight)
    return x if bias is None else on.call(aten.add.Tensor, x, bias)


@smaller("rms_norm")
def rms_norm(on: _Smaller, node: fx.Node) -> fx.Node | None:
    """The mean square of the full width: with f = n / N, rms_norm(sqrt(f) x) / sqrt(f)."""
    x, shape = _args(node)[:2]
    ndim = len(on.labels.traced.results[x].shape)
    dims = list(range(ndim - len(shape), ndim))
    share = on.share(x, *dims)
    if share == 1:
        return None
    scaled = on.call(aten.mul.Tensor, on.env[x], math.sqrt(share))
    own = [on.count(x, dim) for dim in dims]
    normed = _with(on, node, 1, own)
    normed.update_arg(0, scaled)
    return on.call(aten.div.Tensor, normed, math.sqrt(share))


@smaller("mean")
def mean(on: _Smaller, node: fx.Node) -> fx.Node | None:
    """The mean over all, of which what is gone is zero."""
    x = _args(node)[0]
    ndim = len(on.labels.traced.results[x].shape)
    dims = _named(node, "dim") or list(range(ndim))
    share = on.share(x, *(d % ndim for d in dims))
    return None if share == 1 else on.call(aten.mul.Tensor, on._copy(node), share)


@smaller("scaled_dot_product_attention")
def attention(on: _Smaller, node: fx.Node) -> fx.Node:
    """The scale that it had; and of keys and values that queries share those that they read."""
    query, *shared = _args(node)[:3]
    shape = on.labels.traced.results[query].shape
    dim = len(shape) - 3
    heads = on.kept(query).get(dim)
    own = {}
    for each in shared if node.kwargs.get("enable_gqa") and heads is not None else ():
        whole = on.labels.traced.results[each].shape[dim]
        if on.count(each, dim) == whole > 1:
            read = on.constant(heads // (shape[dim] // whole))
            own[each] = on.call(aten.index_select.default, on.env[each], dim, read)
    copied = on.graph.node_copy(node, lambda n: own.get(n) or on.operand(node, n))
    if node.kwargs.get("scale") is None and on.count(query, -1) < shape[-1]:
        copied.kwargs = {**copied.kwargs, "scale": 1 / math.sqrt(shape[-1])}
    return copied


@smaller("constant_pad_nd", "pad")
def pad(on: _Smaller, node: fx.Node) -> fx.Node | None:
    """As much padding as is left of it."""
    x, padding = _args(node)[:2]
    shape = on.labels.traced.results[node].shape
    before = on.labels.traced.results[x].shape
    found = list(padding)
    for place in range(len(found) // 2):
        dim = len(shape) - 1 - place
        if dim in on.kept(node):
            kept = on.kept(node)[dim]
            lead = on.labels.traced.results.get(found[2 * place], found[2 * place])
            found[2 * place] = int((kept < lead).sum())
            found[2 * place + 1] = int((kept >= lead + before[dim]).sum())
    return _with(on, node, 1, found)


@smaller("zeros", "ones", "full", "empty", "new_zeros", "new_ones", "new_full", "new_empty")
def made(on: _Smaller, node: fx.Node) -> fx.Node | None:
    """A tensor of the size that is left."""
    name = op_name(node)
    place = int(name.startswith("new_"))
    sizes = list(_args(node)[place])
    for dim, kept in on.kept(node).items():
        sizes[dim] = len(kept)
    return _with(on, node, place, sizes)


@smaller("copy")
def copy(on: _Smaller, node: fx.Node) -> fx.Node | None:
    """What is written; it alone has a derivative."""
    x, source = _args(node)[:2]
    shapes = [on.labels.traced.results[n].shape for n in (x, source)]
    return on.env[source] if shapes[0] == shapes[1] else None
