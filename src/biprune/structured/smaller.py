"""Operations that compute, as they are written on what is left of their operands.

Only those are here that name a size, or whose result depends on one. `Smaller` copies the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from biprune.structured.atoms import dims_of
from biprune.structured.labels import CONVOLUTIONS
from biprune.structured.trace import argument, op_name

if TYPE_CHECKING:
    from biprune.structured.graph import Smaller

aten = torch.ops.aten
Write = Callable[["Smaller", fx.Node], fx.Node | None]
SMALLER: dict[str, Write] = {}


def smaller(*names: str) -> Callable[[Write], Write]:
    """Register how these operations are written; None means as they were."""

    def register(function: Write) -> Write:
        SMALLER.update(dict.fromkeys(names, function))
        return function

    return register


@smaller(*CONVOLUTIONS)
def conv(on: Smaller, node: fx.Node) -> fx.Node | None:
    """As many groups as are left."""
    if argument(node, "groups") == 1:
        return None
    x: Any = node.args[0]
    weight: Any = node.args[1]
    transposed = "transpose" in op_name(node) or argument(node, "transposed")
    channel = 1 - len(on.shape(weight))  # counted from the end
    left = on.count(node if transposed else x, channel) // on.count(weight, 1)
    return on.copy(node, {8 if op_name(node) == "convolution" else 6: left})


@smaller("layer_norm", "rms_norm", "group_norm")
def norm(on: Smaller, node: fx.Node) -> fx.Node | None:
    """Statistics of the full width, of which what is gone is zero; as many groups as are left."""
    x: Any = node.args[0]
    name, ndim = op_name(node), len(on.shape(x))
    first = 1 if name == "group_norm" else ndim - len(argument(node, "normalized_shape"))
    dims = list(range(first, ndim))
    share = on.share(x, dims)
    if name == "group_norm" and (groups := argument(node, "num_groups")) > 1:
        return on.copy(node, {1: round(groups * share)})
    if share == 1:
        return None
    if name == "rms_norm":
        # With f = n / N it is rms_norm(sqrt(f) x) / sqrt(f).
        scaled = on.call(aten.mul.Tensor, on.env[x], math.sqrt(share))
        normed = on.copy(node, {1: [on.count(x, dim) for dim in dims]})
        normed.update_arg(0, scaled)
        return on.call(aten.div.Tensor, normed, math.sqrt(share))
    affine = argument(node, "weight"), argument(node, "bias")
    weight, bias = (None if each is None else on.env[each] for each in affine)
    if name == "group_norm":
        view = [-1, *[1] * (ndim - 2)]
        weight, bias = (
            None if each is None else on.call(aten.reshape.default, each, view)
            for each in (weight, bias)
        )
    return _full_width(on, on.env[x], dims, share, argument(node, "eps"), weight, bias)


def _full_width(
    on: Smaller, x: fx.Node, dims: list[int], share: float, eps: float, weight: Any, bias: Any
) -> fx.Node:
    """With f = n / N: mu = f mean(x); v = f mean((x - mu)^2) + (1 - f) mu^2."""
    mean = on.call(aten.mul.Tensor, on.call(aten.mean.dim, x, dims, True), share)
    centred = on.call(aten.sub.Tensor, x, mean)
    spread = on.call(aten.mean.dim, on.call(aten.square.default, centred), dims, True)
    spread = on.call(aten.mul.Tensor, spread, share)
    rest = on.call(aten.mul.Tensor, on.call(aten.square.default, mean), 1 - share)
    variance = on.call(aten.add.Tensor, on.call(aten.add.Tensor, spread, rest), eps)
    found = on.call(aten.mul.Tensor, centred, on.call(aten.rsqrt.default, variance))
    if weight is not None:
        found = on.call(aten.mul.Tensor, found, weight)
    return found if bias is None else on.call(aten.add.Tensor, found, bias)


@smaller("mean")
def mean(on: Smaller, node: fx.Node) -> fx.Node | None:
    """The mean over all, of which what is gone is zero."""
    x: Any = node.args[0]
    share = on.share(x, dims_of(argument(node, "dim"), len(on.shape(x))))
    return None if share == 1 else on.call(aten.mul.Tensor, on.copy(node), share)


@smaller("scaled_dot_product_attention")
def attention(on: Smaller, node: fx.Node) -> fx.Node:
    """The scale stays as it was, and of shared keys and values those stay that are read."""
    query: Any = node.args[0]
    shared: Any = node.args[1:3]
    shape = on.shape(query)
    dim = len(shape) - 3
    heads = on.kept(query).get(dim) if node.kwargs.get("enable_gqa") else None
    own = {}
    for each in shared:
        whole = on.shape(each)[dim]
        if heads is not None and on.count(each, dim) == whole > 1:
            read = on.constant(heads // (shape[dim] // whole))
            own[each] = on.call(aten.index_select.default, on.env[each], dim, read)
    copied = on.graph.node_copy(node, lambda n: own.get(n) or on.operand(node, n))
    if node.kwargs.get("scale") is None and on.count(query, -1) < shape[-1]:
        copied.kwargs = {**copied.kwargs, "scale": 1 / math.sqrt(shape[-1])}
    return copied


@smaller("constant_pad_nd", "pad")
def pad(on: Smaller, node: fx.Node) -> fx.Node | None:
    """As much padding as is left of it."""
    x: Any = node.args[0]
    padding: Any = node.args[1]
    found, ndim = list(padding), len(on.shape(node))
    for dim, kept in on.kept(node).items():
        place = 2 * (ndim - 1 - dim)
        if place < len(found):
            lead = on.labels.traced.results.get(found[place], found[place])
            found[place] = int((kept < lead).sum())
            found[place + 1] = int((kept >= lead + on.shape(x)[dim]).sum())
    return on.copy(node, {1: found})


@smaller("zeros", "ones", "full", "empty", "new_zeros", "new_ones", "new_full", "new_empty")
def made(on: Smaller, node: fx.Node) -> fx.Node | None:
    """A tensor of the size that is left."""
    place = int(op_name(node).startswith("new_"))
    given: Any = node.args[place]
    sizes = list(given)
    for dim, kept in on.kept(node).items():
        sizes[dim] = len(kept)
    return on.copy(node, {place: sizes})


@smaller("copy")
def copy(on: Smaller, node: fx.Node) -> fx.Node | None:
    """What is written, without the copying, which has no derivative."""
    x, source = node.args[:2]
    return on.env[source] if on.shape(x) == on.shape(source) else None  # pyright: ignore
