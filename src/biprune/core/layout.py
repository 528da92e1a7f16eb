"""How convolution weights lie in memory."""

from __future__ import annotations

import torch
from torch import nn

# On CPUs torch 2.13 writes past the gradient of a strided pointwise convolution in channels_last
# with fewer inputs than a vector register holds, and crashes sooner or later.
SAFE_INPUTS = 8


def lay_out_(model: nn.Module, *, channels_last: bool) -> None:
    """Lay the weights of 2-d convolutions out as the faster kernels want them, or as usual.

    Where those kernels are not safe the usual layout is taken for the whole model. The values are
    the same in either.
    """
    convs = [m for m in model.modules() if isinstance(m, nn.Conv2d) and "weight" in m._parameters]
    if not all(_is_safe(conv) for conv in convs):
        channels_last = False
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    for conv in convs:
        conv.weight.data = conv.weight.data.contiguous(memory_format=memory_format)


def is_channels_last(model: nn.Module) -> bool:
    """Whether a weight lies in memory with its channels last; of 1 x 1 kernels one cannot tell."""
    return any(
        parameter.ndim == 4
        and not parameter.is_contiguous()
        and parameter.is_contiguous(memory_format=torch.channels_last)
        for parameter in model.parameters()
    )


def _is_safe(conv: nn.Conv2d) -> bool:
    is_pointwise = all(size == 1 for size in conv.kernel_size)
    is_strided = any(stride > 1 for stride in conv.stride)
    return not (is_pointwise and is_strided) or conv.in_channels >= SAFE_INPUTS
