"""A model whose weights hold z = m * theta, with theta beside it.

The module itself is untouched: a forward and backward leave g = dl/dz in `weight.grad`, which is
all that either level of BiP needs. Pruned weights are selected away, never multiplied, so they are
+0.0 exactly (0 * -1 would be -0.0).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from biprune.core.masks import Masks
from biprune.core.parameters import transposed_groups
from biprune.core.ranking import is_host


class Masked:
    """theta and the mask of some weights, which themselves hold z.

    theta is a copy and never shares storage with the weights, which are written at once.
    """

    def __init__(self, weights: Mapping[str, nn.Parameter], masks: Masks) -> None:
        self.weights = dict(weights)
        self.theta = {name: weight.detach().clone() for name, weight in weights.items()}
        self.masks = masks
        self.write()

    def set_masks(self, masks: Masks) -> None:
        """Change m, and z with it; theta stays."""
        self.masks = masks
        self.write()

    @torch.no_grad()
    def write(self) -> None:
        """z <- theta where kept, +0.0 elsewhere."""
        for name, weight in self.weights.items():
            where_kept(self.masks[name], self.theta[name], out=weight.data)

    @contextmanager
    def masked_gradients(self) -> Iterator[tuple[dict[str, Tensor], dict[str, Tensor]]]:
        """g, and m * g in the memory of the weights, which hold z again afterwards.

        A step rewrites z anyway, so its memory is free meanwhile: no step allocates a gradient.
        """
        gradients = self.gradients()
        masked = {name: self.weights[name].data for name in gradients}
        try:
            for name, gradient in gradients.items():
                where_kept(self.masks[name], gradient, out=masked[name])
            yield gradients, masked
        finally:  # also when interrupted: a gradient must not be left behind as a weight
            self.write()

    def gradients(self) -> dict[str, Tensor]:
        """g = dl/dz after a backward, without the weights that the loss did not reach."""
        gradients = {}
        for name, weight in self.weights.items():
            if weight.grad is None:
                continue
            if weight.grad.is_sparse:
                raise ValueError(
                    f"The gradient of {name!r} is sparse and cannot be pruned by. Build the "
                    "embedding with sparse=False, or leave it out with `exclude`."
                )
            gradients[name] = weight.grad
        return gradients


class Rows:
    """The rows of weights: a row is what one output of a layer is made of, such as a filter.

    `outputs` names the dimensions of a weight that are outputs, where they are not dimension 0;
    transposed convolutions of `model` are known.
    """

    def __init__(
        self, model: nn.Module, outputs: Mapping[str, Sequence[int]] | None = None
    ) -> None:
        self._outputs = dict(outputs or {})
        self._transposed = transposed_groups(model)

    def silence_dead_(self, gradients: Mapping[str, Tensor], masks: Masks) -> None:
        """Set g to 0 in rows without a kept weight, in place: their scores then stand still.

        Such a row gives a constant. A norm behind it divides by sqrt(eps), so that g is some 300
        times too large, and undoes the row's scale, so that theta * g says nothing of the loss.
        theta does not depend on this g, since m * g is 0.
        """
        for name, gradient in gradients.items():
            rows, inputs = self._split(name, gradient)
            mask, _ = self._split(name, masks[name])
            # Of bytes torch finds the maximum some 70 times as fast as `any` of booleans.
            dead = mask.view(torch.uint8).amax(inputs, keepdim=True) == 0
            if not is_host(dead) or dead.any():  # elsewhere reading would cost a wait
                rows.masked_fill_(dead, 0.0)

    def _split(self, name: str, weight: Tensor) -> tuple[Tensor, list[int]]:
        """A view of a weight, and those of its dimensions that are not outputs."""
        outputs = self._outputs.get(name, (0,))
        if (groups := self._transposed.get(name)) is not None:
            # Here the inputs of all groups come first, then the outputs of one.
            weight, outputs = weight.unflatten(0, (groups, -1)), (0, 2)
        return weight, [dim for dim in range(weight.ndim) if dim not in outputs]


def where_kept(mask: Tensor, values: Tensor, out: Tensor) -> None:
    """m * values into `out`, which may be `values` itself; no memory is taken for it."""
    torch.where(mask, values, values.new_zeros(()), out=out)


def apply_masks_(model: nn.Module, masks: Masks) -> None:
    """Set the pruned weights of `model` to +0.0 in place."""
    masks.apply_(model)


@torch.no_grad()
def mask_gradients_(weights: Mapping[str, nn.Parameter], masks: Masks) -> None:
    """Zero the gradient of pruned weights: with zero weight and momentum they then stay +0.0."""
    for name, weight in weights.items():
        if weight.grad is not None:
            where_kept(masks[name], weight.grad, out=weight.grad)
