"""Multiply-accumulates of a model, by the weight that does them.

The forward runs once and every product of tensors in it is seen as it reaches a kernel, whoever
wrote the call. So modules that are called twice count twice, and functional code counts as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_flop

from biprune.core.parameters import parameter_names, unwrap
from biprune.core.uses import slow_attention
from biprune.structured.calls import Inputs, by_position
from biprune.training.batches import evaluation_mode
from biprune.training.seeding import forked_rng


def count_macs(model: nn.Module, example_input: Inputs) -> dict[str, int]:
    """Multiply-accumulates of one forward for one sample, by weight name, in model order.

    `example_input` is one batch of any size, samples along its first dimension; what is counted is
    divided by that size. Convolutions count the padding. A product of two activations, as there are
    two in attention, counts to the weight that was used last before it: `in_proj_weight` in
    nn.MultiheadAttention. Biases, norms, activations and weights that are not used have no entry.

    Costs a forward in eval mode. Mode, buffers and the caller's random generators are as before.

    >>> count_macs(nn.Sequential(nn.Conv2d(3, 8, 3, padding=1)), torch.zeros(2, 3, 4, 4))
    {'0.weight': 3456}
    """
    counter, samples = _counted(model, example_input)
    counts = {name: flops // (2 * samples) for name, flops in counter.flops.items()}
    return {name: count for name, count in counts.items() if count}


def total_macs(model: nn.Module, example_input: Inputs) -> int:
    """Multiply-accumulates of one forward for one sample; see `count_macs`."""
    return sum(count_macs(model, example_input).values())


def weight_macs(model: nn.Module, example_input: Inputs) -> dict[str, int]:
    """Those of `count_macs` that multiply by a weight."""
    counter, samples = _counted(model, example_input)
    alone = {name: flops - counter.products[name] for name, flops in counter.flops.items()}
    return {name: flops // (2 * samples) for name, flops in alone.items() if flops}


def product_macs(model: nn.Module, example_input: Inputs) -> int:
    """Those of `count_macs` that multiply activations by one another, as attention does."""
    counter, samples = _counted(model, example_input)
    return sum(counter.products.values()) // (2 * samples)


def _counted(model: nn.Module, example_input: Inputs) -> tuple[_Counter, int]:
    """What one forward does, and on how many samples."""
    called, inputs = by_position(unwrap(model), example_input)
    model = called.model
    weights = {name: p for name, p in parameter_names(model).items() if p.ndim >= 2}
    counter = _Counter(weights)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    named = dict(zip(called.names, inputs, strict=True)) if called.names else {}
    args = () if called.names else inputs
    with evaluation_mode(model), slow_attention(), forked_rng(()), torch.no_grad(), counter:
        functional_call(model, buffers, args, named)
    return counter, len(inputs[0])


class _Counter(TorchDispatchMode):
    """Adds up the flops of each operation that has a formula, two to a multiply-accumulate."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.flops = dict.fromkeys(weights, 0)
        self.products = dict.fromkeys(weights, 0)
        self._weights = weights
        self._last: str | None = None

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        formula = _FORMULAS.get(func.overloadpacket)
        if formula is None:
            # Inference tensors bring whole operations such as linear here: look into those.
            with self:
                inner = func.decompose(*args, **kwargs)
            return func(*args, **kwargs) if inner is NotImplemented else inner
        result = func(*args, **kwargs)
        flops, weight = formula(*args, **kwargs, out_val=result), self._weight_among(args)
        self._last = weight or self._last
        if self._last is not None:
            self.flops[self._last] += flops
            if weight is None:
                self.products[self._last] += flops
        return result

    def _weight_among(self, args: tuple[Any, ...]) -> str | None:
        """The weight that an operation multiplies by, or a view of it: the last such argument."""
        for tensor in reversed([arg for arg in args if isinstance(arg, Tensor)]):
            storage, start = _place(tensor)
            for name, weight in self._weights.items():
                own_storage, own_start = _place(weight)
                if storage == own_storage and 0 <= start - own_start < weight.numel():
                    return name
        return None


def _place(tensor: Tensor) -> tuple[int, int]:
    """The storage and where in it a tensor begins; tensors without memory have one as well."""
    return tensor.untyped_storage()._cdata, int(tensor.storage_offset())


def _bilinear_flop(*args: Any, out_val: Tensor, **kwargs: Any) -> int:
    return 2 * prod(out_val.shape[:-1]) * args[1].numel()


# Torch's own formulas, and those of two operations that it has none for.
_FORMULAS: dict[Any, Callable[..., int]] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: sdpa_flop,
    torch.ops.aten._trilinear: _bilinear_flop,
    **flop_registry,
}
