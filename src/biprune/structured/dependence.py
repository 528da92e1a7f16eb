"""What in a forward depends on the input: followed as NaN through every operation.

A forward on some inputs cannot show that a number is the same for all: a rectifier may be shut on
these and open on others. So inputs are NaN here, and whatever an input can change is NaN in turn,
number by number; what is left are constants. The operations themselves carry most of it. Where
they would lose it (comparisons, `nan_to_num`, integers) or spread it too far (zero times NaN is
zero here, because the inputs that NaN stands for are finite) it is put right; the outputs of an
operation that is not known depend on all that it reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Operations that carry NaN by themselves, and only where it belongs.
_MOVING = (
    *("cat", "stack", "copy_", "_to_copy", "clone", "fill_", "zero_", "_unsafe_view"),
    *("repeat", "roll", "flip", "index", "index_select", "gather"),
    *("pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "native_channel_shuffle"),
    *("constant_pad_nd", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d"),
    *("replication_pad1d", "replication_pad2d", "replication_pad3d"),
    *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"),
)
_REDUCING = (  # one NaN among the numbers makes the result NaN
    *("sum", "mean", "var", "amax", "amin", "linalg_vector_norm", "_softmax", "_log_softmax"),
    *("glu", "upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d"),
    *("upsample_trilinear3d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
    *("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training"),
    *("cudnn_batch_norm", "native_group_norm", "native_layer_norm"),
    *("avg_pool1d", "avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d"),
    *("max_pool2d_with_indices", "max_pool3d_with_indices"),
    *("adaptive_max_pool2d", "adaptive_max_pool3d"),
)
_CARRYING = frozenset((*_MOVING, *_REDUCING))
_ELEMENTWISE = frozenset(("hardswish", "hardswish_", "_prelu_kernel"))  # not tagged as such
# Products: where the two factors are among the arguments, and what is added to them if anything.
_PRODUCTS: dict[str, tuple[int, int, int | None]] = {
    "convolution": (0, 1, 2),
    "addmm": (1, 2, 0),
    "mm": (0, 1, None),
    "bmm": (0, 1, None),
    "mul": (0, 1, None),
}


class UndecidedError(Exception):
    """The forward asked for a number that depends on the input."""


class Dependence(TorchDispatchMode):
    """While it is entered, floats that depend on `inputs` are NaN, and others as they always are.

    Numbers drawn at random count as dependent. Raises `UndecidedError` where the course of the
    forward, or whether a tensor is empty, depends on the inputs.
    """

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()
        # What is no float cannot be NaN: it depends as a whole, with all views of its storage. The
        # tensors are kept, so that no storage is used twice.
        self._dependent: dict[int, Tensor] = {}
        self.inputs = tuple(torch.full_like(t, torch.nan) if _floats(t) else t for t in inputs)
        for tensor in self.inputs:
            self._note(tensor)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        read = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        marks = [tensor.isnan() for tensor in read if _floats(tensor)]
        marks = [mark for mark in marks if bool(mark.any())]
        whole = any(_storage(t) in self._dependent for t in read if not _floats(t))
        whole |= torch.Tag.nondeterministic_seeded in func.tags
        if not marks and not whole:
            return func(*args, **kwargs)
        if not whole and name in _PRODUCTS and _is_product(name, args):
            return _multiplied(func, args, kwargs)
        result = func(*args, **kwargs)
        elementwise = name in _ELEMENTWISE or torch.Tag.pointwise in func.tags
        whole |= not (elementwise or func.is_view or name in _CARRYING)
        written = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        if not any(tensor.numel() for tensor in written):
            raise UndecidedError(f"{name} of numbers that depend on the input")
        for tensor in written:
            if not _floats(tensor):
                self._note(tensor)
            elif whole:
                tensor.fill_(torch.nan)
            elif elementwise:
                for mark in marks:
                    tensor.masked_fill_(mark.expand(tensor.shape), torch.nan)
        return result

    def _note(self, tensor: Tensor) -> None:
        if not _floats(tensor):
            self._dependent[_storage(tensor)] = tensor


def _is_product(name: str, args: tuple[Any, ...]) -> bool:
    one, other, _ = _PRODUCTS[name]
    return all(isinstance(args[place], Tensor) and _floats(args[place]) for place in (one, other))


def _multiplied(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """A product in which zero times NaN is zero."""
    one, other, added = _PRODUCTS[func.overloadpacket.__name__]
    places = [one, other] + [p for p in (added,) if p is not None and args[p] is not None]

    def product(values: Mapping[int, Tensor], **options: Any) -> Tensor:
        return func(*(values.get(place, arg) for place, arg in enumerate(args)), **options)

    result = product({place: args[place].nan_to_num(nan=0.0) for place in places}, **kwargs)
    # How many terms of each sum depend: those in which one factor does and the other is not zero.
    marks = {place: args[place].isnan().float() for place in places}
    for factor in (one, other):
        terms = product({**marks, factor: args[factor].ne(0).float()})
        # Whole numbers, but some ways to convolve round them.
        result.masked_fill_(terms > 0.5, torch.nan)
    return result


def _floats(tensor: Tensor) -> bool:
    return tensor.is_floating_point()


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
