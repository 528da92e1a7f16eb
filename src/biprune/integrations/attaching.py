"""What the callbacks share: a pruner from where a trainer's run begins to where it ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from biprune.core.masks import Masks
from biprune.pruning.attach import Pruner, attach
from biprune.pruning.ticket import Ticket
from biprune.training.step_hooks import Optimizers


class AttachingCallback:
    """A callback that prunes the trainer's model while the trainer trains it.

    Args:
        sparsity: The fraction of units to remove; n:m says it by itself.
        steps: How many steps of the optimizer the ramp is laid out for. By default those of the
            trainer's run.
        stay_attached: Whether the pruner stays on the optimizer when the run has ended.
        **settings: The others of `biprune.attach`: `method`, `structure`, `scope`, `budget`,
            `include`, `exclude`, `example_input`, and those of the method.
    """

    def __init__(
        self,
        sparsity: float | None = None,
        *,
        steps: int | None = None,
        stay_attached: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__()
        self._settings = {"sparsity": sparsity, **settings}
        self._steps = steps
        self._stay_attached = stay_attached
        self._pruner: Pruner | None = None
        self._has_ended = False

    @property
    def pruner(self) -> Pruner:
        """The pruner of the latest run; it stays here when it is detached."""
        if self._pruner is None:
            raise ValueError("No pruner yet: the callback attaches one when training begins.")
        return self._pruner

    def ticket(self) -> Ticket:
        """What `pruner.ticket()` returns: a copy of the pruned model, with its masks."""
        return self.pruner.ticket()

    def _begin(
        self, model: nn.Module, optimizers: Optimizers, steps: int, saved: Mapping[str, Any] | None
    ) -> None:
        """Attach; go on from `saved`, or from a run before that has left the model pruned."""
        if (before := self._pruner) is not None:
            before.detach()
            if saved is None and self._has_ended and before.model is model:
                saved = _left_by(before)
        if self._steps is not None:
            steps = self._steps
        elif saved is not None:
            steps = saved["settings"]["steps"]
        self._has_ended = False
        self._pruner = attach(model, optimizers, steps=steps, **self._settings)
        if saved is not None:
            self._pruner.load_state_dict(saved)
        self._logged = self._pruner.masks

    def _end(self) -> None:
        self._has_ended = True
        if not self._stay_attached:
            self.pruner.detach()

    def _metrics(self) -> dict[str, float]:
        """Sparsity now; the share of the mask that has flipped since the last call; their overlap.

        They are those of `Masks`.
        """
        masks, before = self.pruner.masks, self._logged
        self._logged = masks
        return {
            "sparsity": masks.sparsity,
            "flips": masks.flip_rate(before),
            "overlap": masks.overlap(before),
        }


@torch.no_grad()
def _left_by(pruner: Pruner) -> dict[str, Any] | None:
    """The state of a pruner with the weights that its model has now; None if it is not pruned."""
    masks: Masks = pruner.masks
    weights = masks.weights_in(pruner.model)
    if any(bool(torch.any(weight[~masks[name]])) for name, weight in weights.items()):
        return None
    for name, theta in pruner.theta.items():
        torch.where(masks[name], weights[name], theta, out=theta)
    return pruner.state_dict()
