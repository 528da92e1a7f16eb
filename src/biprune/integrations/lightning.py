"""A callback for Lightning's Trainer (extra `lightning`). Fabric needs none: `biprune.attach`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from biprune.integrations import needs_extra
from biprune.integrations.attaching import AttachingCallback

with needs_extra("lightning"):
    from lightning.pytorch import Callback, LightningModule, Trainer


class PruningCallback(AttachingCallback, Callback):
    """Prunes the module while Lightning's Trainer trains it; the module stays as it is.

    Checkpoints carry the pruner, and `fit(..., ckpt_path=...)` goes on bit for bit. `sparsity`,
    `flips` and `overlap` are logged every `log_every_n_steps`. A second `fit` of the same module
    trains on under the mask of the first.

        callback = PruningCallback(sparsity=0.9)
        Trainer(max_epochs=10, callbacks=[callback]).fit(module, loader)
        ticket = callback.ticket()

    Args:
        sparsity: The fraction of units to remove; n:m says it by itself.
        steps: How many steps of the optimizer the ramp is laid out for; by default the Trainer's
            estimate. Where several optimizers hold prunable weights a step is one of each.
        stay_attached: Whether the pruner stays on the optimizers after `fit`.
        **settings: The others of `biprune.attach`.

    Raises:
        ValueError: When training begins: the checkpoint has no pruner in it, the Trainer does not
            know how long it will train, or what `attach` raises.
    """

    _saved: Mapping[str, Any] | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach to the optimizers, or go on from the checkpoint that was loaded."""
        saved, self._saved = self._saved, None
        if saved is None and trainer.ckpt_path:
            raise ValueError(
                "There is no pruner in the checkpoint to resume from: it was saved without this "
                "callback, or with `save_weights_only=True`. To prune from its weights, load them "
                "into the module and fit without `ckpt_path`."
            )
        steps = trainer.estimated_stepping_batches
        is_known = math.isfinite(steps) and steps > 0
        if not is_known and self._steps is None and saved is None:
            raise ValueError(
                "The Trainer does not know how many steps it will take. Give it `max_epochs` or "
                "`max_steps`, or give `steps` to the callback."
            )
        self._begin(pl_module, trainer.optimizers, int(steps) if is_known else 0, saved)
        self._global_step = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        """Log how the mask moved, in the steps that the Trainer logs."""
        del args, kwargs
        has_stepped = trainer.global_step != self._global_step
        self._global_step = trainer.global_step
        if has_stepped and trainer._logger_connector.should_update_logs:
            pl_module.log_dict(self._metrics())

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Detach."""
        del trainer, pl_module
        self._end()

    def state_dict(self) -> dict[str, Any]:
        """The pruner's state, for the Trainer's checkpoints."""
        return {} if self._pruner is None else self._pruner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep it until training begins; the optimizers are not there yet."""
        self._saved = state_dict
