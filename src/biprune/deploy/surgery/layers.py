"""What one channel of a layer owns, and how a layer is mended when its tensors are cut.

A grouped convolution can lose whole groups, or the same position of every group; it loses what
leaves it more units. Depthwise ones lose groups, which are single channels there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from biprune.groups import Role

Side = Literal["in", "out"]


class Entry(NamedTuple):
    """An index along a dimension of a layer's parameter."""

    attribute: str
    dim: int
    place: int
    role: Role


def loses_groups(conv: _ConvNd) -> bool:
    """Whether a grouped convolution loses whole groups, and not positions within them."""
    return conv.groups > 1 and conv.groups >= conv.in_channels // conv.groups


def filter_dim(layer: _ConvNd | nn.Linear) -> int:
    """The dimension of a layer's weight along which its filters lie."""
    return int(isinstance(layer, _ConvNd) and layer.transposed and not loses_groups(layer))


def entries(layer: nn.Module, side: Side, channel: int) -> list[Entry]:
    """What a channel at the input or output of a layer owns in the layer's parameters."""
    if isinstance(layer, _ConvNd):
        return _conv_entries(layer, side, channel)
    if isinstance(layer, nn.Linear):
        if side == "in":
            return [Entry("weight", 1, channel, "input")]
        return [Entry("weight", 0, channel, "filter"), Entry("bias", 0, channel, "other")]
    if isinstance(layer, nn.PReLU):
        return [Entry("weight", 0, channel, "other")] if layer.num_parameters > 1 else []
    if isinstance(layer, nn.LayerNorm):
        last = len(layer.normalized_shape) - 1
        return [Entry(name, last, channel, "other") for name in ("weight", "bias")]
    if isinstance(layer, nn.Embedding):
        return [Entry("weight", 1, channel, "other")]
    if isinstance(layer, _NormBase | nn.GroupNorm):
        return [Entry(name, 0, channel, "other") for name in ("weight", "bias")]
    return []


def _conv_entries(conv: _ConvNd, side: Side, channel: int) -> list[Entry]:
    bias = Entry("bias", 0, channel, "other")
    if loses_groups(conv):
        if side == "in":
            return [Entry("weight", 0, channel, "filter")] if conv.transposed else []
        return [bias] if conv.transposed else [Entry("weight", 0, channel, "filter"), bias]
    if conv.transposed:
        if side == "in":
            return [Entry("weight", 0, channel, "input")]
        return [Entry("weight", 1, channel % (conv.out_channels // conv.groups), "filter"), bias]
    if side == "in":
        return [Entry("weight", 1, channel % (conv.in_channels // conv.groups), "input")]
    return [Entry("weight", 0, channel, "filter"), bias]


def tied(layer: nn.Module) -> list[list[tuple[Side, int]]]:
    """Channels of a layer that can only go together."""
    if isinstance(layer, nn.GroupNorm):  # its statistics are over all channels of a group
        return [
            [("in", int(c)) for c in part] for part in _parts(layer.num_channels, layer.num_groups)
        ]
    if not isinstance(layer, _ConvNd) or layer.groups == 1:
        return []
    ins, outs = _parts(layer.in_channels, layer.groups), _parts(layer.out_channels, layer.groups)
    if loses_groups(layer):
        pairs = zip(ins, outs, strict=True)
        return [_sided("in", one) + _sided("out", other) for one, other in pairs]
    return [_sided("in", one) for one in ins.T] + [_sided("out", one) for one in outs.T]


def _parts(channels: int, groups: int) -> Tensor:
    return torch.arange(channels).view(groups, -1)


def _sided(side: Side, channels: Tensor) -> list[tuple[Side, int]]:
    return [(side, int(channel)) for channel in channels]


def mend(layer: nn.Module, rows: Mapping[str, Tensor]) -> bool:
    """Make the attributes and buffers of a layer agree with its parameters, which are cut.

    `rows` are the indices that were kept along the first dimension of its parameters, where it was
    cut. False if it is no layer that is known.
    """
    if isinstance(layer, _ConvNd):
        _mend_conv(layer, rows.get("weight"))
    elif isinstance(layer, nn.Linear):
        layer.out_features, layer.in_features = layer.weight.shape
    elif isinstance(layer, _NormBase):
        _mend_norm(layer, rows)
    elif isinstance(layer, nn.GroupNorm):
        kept = next(iter(rows.values()))
        layer.num_groups = _groups_left(kept, layer.num_channels, layer.num_groups)
        layer.num_channels = len(kept)
    elif isinstance(layer, nn.PReLU):
        layer.num_parameters = len(layer.weight)
    else:
        return False
    return True


def _mend_conv(conv: _ConvNd, rows: Tensor | None) -> None:
    if rows is not None and conv.groups > 1:
        channels = conv.in_channels if conv.transposed else conv.out_channels
        conv.groups = _groups_left(rows, channels, conv.groups)
    first, second = conv.weight.shape[:2]
    second *= conv.groups
    conv.in_channels, conv.out_channels = (first, second) if conv.transposed else (second, first)


def _mend_norm(norm: _NormBase, rows: Mapping[str, Tensor]) -> None:
    kept = next(iter(rows.values()))
    norm.num_features = len(kept)
    for name in ("running_mean", "running_var"):
        statistic = getattr(norm, name)
        if statistic is not None:
            setattr(norm, name, statistic[kept.to(statistic.device)])


def _groups_left(kept: Tensor, channels: int, groups: int) -> int:
    """How many groups are left: those that are whole, or all if each lost the same positions."""
    left = torch.zeros(channels, dtype=torch.bool)
    left[kept] = True
    left = left.view(groups, -1)
    if torch.equal(left.any(dim=1), left.all(dim=1)):
        return int(left.any(dim=1).sum())
    if torch.equal(left.any(dim=0), left.all(dim=0)):
        return groups
    raise ValueError(
        f"a layer of {groups} groups can lose whole groups or the same channels of each, "
        f"not all but {kept.tolist()}"
    )
