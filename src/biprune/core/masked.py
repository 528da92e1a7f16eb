"""Weights that hold z = m * theta, with theta beside them.

The module itself is untouched: a forward and backward leave g = dl/dz in `weight.grad`, and that is
all that either level of BiP needs. Pruned weights are selected away, never multiplied, so they are
+0.0 exactly (0 * -1 would be -0.0).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from biprune.core.layout import in_memory_order, is_dense, same_layout
from biprune.core.masks import Masks
from biprune.core.parameters import transposed_groups
from biprune.core.ranking import is_host

PIECE = 1 << 18  # entries that fit into the cache several times
_WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class Masked:
    """theta and the mask of some weights, which themselves hold z and are written at once.

    theta is a copy, and never shares storage with the weights.
    """

    def __init__(self, weights: Mapping[str, nn.Parameter], masks: Masks) -> None:
        self.weights = dict(weights)
        self.theta = {name: weight.detach().clone() for name, weight in weights.items()}
        self.set_masks(masks)

    @torch.no_grad()
    def set_masks(self, masks: Masks) -> None:
        """Change m, and z with it: theta where kept, +0.0 elsewhere."""
        self.masks = masks
        for name, weight in self.weights.items():
            where_kept(masks[name], self.theta[name], out=weight.data)

    def gradients(self) -> dict[str, Tensor]:
        """g = dl/dz after a backward, without the weights that the loss did not reach."""
        found = {name: dense_gradient(name, weight) for name, weight in self.weights.items()}
        return {name: gradient for name, gradient in found.items() if gradient is not None}


class Rows:
    """The rows of weights. A row makes one output of a layer, as a filter does.

    Args:
        model: Where transposed convolutions are looked up, whose outputs are not dimension 0.
        outputs: The dimensions of a weight that are outputs, where they are not dimension 0.
    """

    def __init__(
        self, model: nn.Module, outputs: Mapping[str, Sequence[int]] | None = None
    ) -> None:
        self._outputs = dict(outputs or {})
        self._transposed = transposed_groups(model)

    def silence_dead_(self, gradients: Mapping[str, Tensor], masks: Masks) -> None:
        """Set g to 0 in rows without a kept weight, in place, so that their scores stand still.

        Such a row gives a constant. A norm behind it divides by sqrt(eps), so that g is some 300
        times too large, and undoes the row's scale, so that theta * g says nothing of the loss.
        theta does not depend on this g, since m * g is 0.
        """
        for name, gradient in gradients.items():
            rows, inputs = self._split(name, gradient)
            mask, _ = self._split(name, masks[name])
            # torch finds the maximum of bytes some 70 times as fast as `any` of booleans.
            dead = mask.view(torch.uint8).amax(inputs, keepdim=True) == 0
            if is_host(dead) and not dead.any():  # on a device, reading `any` would cost a wait
                continue
            if is_host(dead) and dead.numel() == dead.shape[0]:  # a few rows, not the whole weight
                rows[dead.flatten()] = 0.0
            else:
                rows.masked_fill_(dead, 0.0)

    def _split(self, name: str, weight: Tensor) -> tuple[Tensor, list[int]]:
        """A view of a weight, and those of its dimensions that are not outputs."""
        outputs = self._outputs.get(name, (0,))
        if (groups := self._transposed.get(name)) is not None:
            # Here the inputs of all groups come first, then the outputs of one.
            weight, outputs = weight.unflatten(0, (groups, -1)), (0, 2)
        return weight, [dim for dim in range(weight.ndim) if dim not in outputs]


def dense_gradient(name: str, weight: nn.Parameter) -> Tensor | None:
    """The gradient in a weight, if there is one.

    Raises:
        ValueError: The gradient is sparse; the message has the `name`.
    """
    if weight.grad is not None and weight.grad.is_sparse:
        raise ValueError(
            f"The gradient of {name!r} is sparse, and only weights with dense gradients can be "
            "pruned. Build the embedding with sparse=False, or leave it out with `exclude`."
        )
    return weight.grad


def where_kept(mask: Tensor, values: Tensor, out: Tensor, pruned: Tensor | None = None) -> None:
    """m * values into `out`; where m is 0, +0.0 or the entry of `pruned`.

    `out` may be one of the others. torch.where is not vectorized on CPUs. On the bits of numbers
    that lie alike, (values ^ pruned) & -m ^ pruned takes half its time, by pieces that stay in the
    cache.
    """
    others = (out,) if pruned is None else (out, pruned)
    alike = all(other.dtype == values.dtype and same_layout(other, values) for other in others)
    small = values.numel() < PIECE // 8
    if small or not (alike and is_host(values) and is_dense(values) and same_layout(mask, values)):
        torch.where(mask, values, values.new_zeros(()) if pruned is None else pruned, out=out)
        return
    word = _WORDS[values.element_size()]
    flat = [in_memory_order(t, values).split(PIECE) for t in (mask, values, *others)]
    ones, scratch = torch.empty((2, PIECE), dtype=word)
    for kept, value, into, *other in zip(*flat, strict=True):
        bits = ones[: len(kept)].copy_(kept.view(torch.int8)).neg_()
        if not other:
            torch.bitwise_and(value.view(word), bits, out=into.view(word))
            continue
        difference = scratch[: len(kept)]
        torch.bitwise_xor(value.view(word), other[0].view(word), out=difference)
        difference.bitwise_and_(bits)
        torch.bitwise_xor(other[0].view(word), difference, out=into.view(word))


def masked_in(memory: Tensor | None, m: Tensor, g: Tensor) -> Tensor:
    """m * g for a boolean m, in `memory` if that has the type of g; its content is lost.

    The memory of z will do, since a step writes z anew anyway.
    """
    if memory is None or memory.dtype != g.dtype:
        return torch.where(m, g, 0.0)
    where_kept(m, g, out=memory)
    return memory


@torch.no_grad()
def mask_gradients_(weights: Mapping[str, nn.Parameter], masks: Masks) -> None:
    """Zero the gradient of pruned weights, so that a zero without momentum stays +0.0."""
    for name, weight in weights.items():
        if weight.grad is not None:
            where_kept(masks[name], weight.grad, out=weight.grad)
