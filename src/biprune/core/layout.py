"""How tensors lie in memory: weights as kernels like them, and many tensors side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

# On CPUs torch 2.13 writes past the gradient of a strided pointwise convolution in channels_last
# with fewer inputs than a vector register holds, and crashes sooner or later.
SAFE_INPUTS = 8


def lay_out_(model: nn.Module, *, channels_last: bool) -> None:
    """Lay out the weights of 2-d convolutions in place, channels last or as usual.

    Kernels are faster with channels last. Where they are not safe, the whole model gets the usual
    layout. Values do not change.
    """
    convs = [m for m in model.modules() if isinstance(m, nn.Conv2d) and "weight" in m._parameters]
    if not all(_is_safe(conv) for conv in convs):
        channels_last = False
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    for conv in convs:
        conv.weight.data = conv.weight.data.contiguous(memory_format=memory_format)


def is_channels_last(model: nn.Module) -> bool:
    """Whether a weight has its channels last in memory, which kernels of 1 x 1 do not show."""
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


def is_dense(tensor: Tensor) -> bool:
    """Whether memory holds the entries without gaps, in one of the two usual orders."""
    return tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last)


def same_layout(tensor: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one shape are laid out alike; dimensions of size 1 do not count."""
    strides = zip(tensor.shape, tensor.stride(), other.stride(), strict=True)
    return all(mine == theirs for size, mine, theirs in strides if size > 1)


def side_by_side(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies in one storage, each laid out as it was, so that `flattened` is a view of them all.

    Tensors of several types, or that are not dense, get a storage each.
    """
    kinds = {(tensor.dtype, tensor.device) for tensor in tensors.values()}
    if len(kinds) > 1 or not all(is_dense(tensor) for tensor in tensors.values()):
        return {name: tensor.clone() for name, tensor in tensors.items()}
    return views_like(tensors, _joined(tensors.values()))


def flattened(tensors: Sequence[Tensor]) -> Tensor:
    """Dense tensors in one dimension, in memory order: a view if they lie side by side."""
    first, end = tensors[0], tensors[0].storage_offset()
    for tensor in tensors:
        same = tensor.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not same or tensor.storage_offset() != end:
            return _joined(tensors)
        end += tensor.numel()
    return first.as_strided((end - first.storage_offset(),), (1,))


def in_memory_order(tensor: Tensor, like: Tensor) -> Tensor:
    """A tensor in one dimension, in the memory order of a dense `like`; a view if laid out so."""
    if not same_layout(tensor, like):
        tensor = torch.empty_like(like).copy_(tensor)
    return tensor.as_strided((tensor.numel(),), (1,))


def _joined(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([in_memory_order(tensor, tensor) for tensor in tensors])


def logical_places(places: Tensor, tensor: Tensor) -> Tensor:
    """Places in the logical order of a dense tensor, from places in its memory."""
    logical, size = torch.zeros_like(places), tensor.numel()
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        size //= length
        logical += places // stride % length * size
    return logical


def views_like(tensors: Mapping[str, Tensor], flat: Tensor) -> dict[str, Tensor]:
    """Views of `flat`, one after the other, in the shapes and layouts of `tensors`."""
    parts = flat.split([tensor.numel() for tensor in tensors.values()])
    return {
        name: part.as_strided(tensor.shape, tensor.stride())
        for (name, tensor), part in zip(tensors.items(), parts, strict=True)
    }
