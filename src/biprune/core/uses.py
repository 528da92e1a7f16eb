"""Which parameters are weights, judging by what one run of the model does with them.

The class of a layer says little: transformers' `Conv1D`, a module of the user's own and `F.linear`
on a bare parameter all multiply by a weight. So every operation of one run is watched beneath
autograd, where products and convolutions are a handful of kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from biprune.core.parameters import parameter_names

# Of each product the places of its operands, and which dimensions of an operand are outputs.
_PRODUCTS = {
    "mm": {0: (0,), 1: (1,)},
    "addmm": {1: (0,), 2: (1,)},
    "bmm": {0: (0, 1), 1: (0, 2)},
    "baddbmm": {1: (0, 1), 2: (0, 2)},
    "mv": {0: (0,)},
    "addmv": {1: (0,)},
    "linear": {1: (0,)},
    "convolution": {1: (0,)},
    "_grouped_mm": {1: (0, 2)},
}
_IS_TRANSPOSED = 6  # the place of this argument of a convolution
_COPIES = ("_to_copy", "clone", "contiguous", "to")
_PICKS = ("index", "index_select")  # of a stack of matrices, such as experts


class _Origin(NamedTuple):
    """The parameter whose values some memory holds, and its dimension by the stride there."""

    name: str
    dims: dict[int, int]


class _Watch(TorchDispatchMode):
    """Notes the parameters that products read, through views and copies of them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.weights: dict[str, tuple[int, ...]] = {}
        self.looked_up: set[str] = set()
        self._copies: list[Tensor] = []  # kept alive, so that no address is used twice
        self._origins: dict[int, _Origin] = {}
        for name, parameter in parameter_names(model).items():
            self._remember(parameter, _Origin(name, _dims_by_stride(parameter)))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        operation = func.overloadpacket.__name__
        for place, outputs in _PRODUCTS.get(operation, {}).items():
            if (origin := self._origin(args[place])) is None:
                continue
            if operation == "convolution" and args[_IS_TRANSPOSED]:
                outputs = (1,)
            strides = [args[place].stride(dim) for dim in outputs]
            dims = {origin.dims[stride] for stride in strides if stride in origin.dims}
            self.weights.setdefault(origin.name, tuple(sorted(dims)))
        if operation.startswith("embedding") and (origin := self._origin(args[0])) is not None:
            self.looked_up.add(origin.name)
        is_pick = operation in _PICKS and args[0].ndim > 2 and result.ndim == args[0].ndim
        is_copy = operation in _COPIES or is_pick
        if is_copy and (origin := self._origin(args[0])) is not None:
            strides = zip(args[0].stride(), result.stride(), strict=True)
            dims = {own: origin.dims[old] for old, own in strides if old in origin.dims}
            self._copies.append(result)
            self._remember(result, _Origin(origin.name, dims))
        return result

    def _origin(self, value: object) -> _Origin | None:
        return self._origins.get(_address(value)) if isinstance(value, Tensor) else None

    def _remember(self, tensor: Tensor, origin: _Origin) -> None:
        self._origins.setdefault(_address(tensor), origin)


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _dims_by_stride(tensor: Tensor) -> dict[int, int]:
    """The dimension for each stride: the first of equal ones, without those of size 1."""
    sized = [dim for dim, size in enumerate(tensor.shape) if size > 1]
    return {tensor.stride(dim): dim for dim in reversed(sized)}


def product_weights(model: nn.Module, run: Callable[[], object]) -> dict[str, tuple[int, ...]]:
    """The parameters that a product or convolution reads while the model runs.

    Those that an embedding looks up are left out; a classifier may share them.

    Args:
        model: Whose parameters.
        run: A call that runs `model`.

    Returns:
        The output dimensions of each, by name.
    """
    with slow_attention(), torch.enable_grad(), _Watch(model) as watch:
        run()
    return {name: dim for name, dim in watch.weights.items() if name not in watch.looked_up}


@contextmanager
def slow_attention() -> Iterator[None]:
    """Switch off the kernel that runs a whole encoder layer in eval mode and hides its products."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
