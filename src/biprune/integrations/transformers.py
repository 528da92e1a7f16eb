"""A callback for `transformers.Trainer` and `Seq2SeqTrainer` (extra `hf`).

The Trainer makes its optimizer in `train()`, loads a checkpoint into it, and only then calls
`on_train_begin`; nor does it tell a callback where a checkpoint is before it is written. So the
pruner's state travels inside the optimizer's, under a key of its own in `state`: torch saves and
loads what is there as it is, and one file has both or neither.

The Trainer loads weights by the names in the file. `save_pretrained` writes those of some models
under older names (ViT), so that they do not arrive; that is refused here, for it would be silent.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from biprune.core.parameters import parameter_names
from biprune.integrations import needs_extra
from biprune.integrations.attaching import AttachingCallback

with needs_extra("hf"):
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

_KEY = "biprune"


class PruningCallback(AttachingCallback, TrainerCallback):
    """Prunes the Trainer's model while it trains; the Trainer and its arguments stay as they are.

    Checkpoints carry the pruner, and `resume_from_checkpoint` goes on bit for bit. Logs of the
    training loss have `sparsity`, `flips` and `overlap` beside it. While the sparsity rises no
    evaluation counts as the best, so that `load_best_model_at_end` and early stopping judge models
    of the full sparsity alone. A second `train()` trains on under the mask of the first.

        callback = PruningCallback(sparsity=0.9)
        trainer = Trainer(model, arguments, train_dataset=data, callbacks=[callback])
        trainer.train()
        ticket = callback.ticket()

    Args:
        sparsity: The fraction of units to remove; n:m says it by itself.
        steps: How many steps of the optimizer the ramp is laid out for; by default `max_steps` of
            the Trainer's state.
        stay_attached: Whether the pruner stays on the optimizer after `train()`.
        **settings: The others of `biprune.attach`.

    Raises:
        ValueError: When training begins: the checkpoint has no pruner in it, or what `attach`
            raises.
    """

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Attach to the optimizer, or go on from the checkpoint that was loaded into it."""
        del control
        if args.load_best_model_at_end and args.save_only_model:
            raise ValueError(
                "`load_best_model_at_end` needs the pruner that belongs to the best model, which "
                "checkpoints with `save_only_model=True` lack. Set one of them to False."
            )
        optimizer: Optimizer = kwargs["optimizer"]
        inner: Optimizer = getattr(optimizer, "optimizer", optimizer)  # Accelerate's has no hooks
        loaded: Any = inner.state  # by parameter, and by our key
        saved = loaded.pop(_KEY, None)
        if state.global_step and saved is None:
            raise _lacks_pruner("the checkpoint to resume from")
        if saved is not None and not _has_arrived(saved, kwargs["model"]):
            raise ValueError(
                "The weights in the checkpoint have not arrived in the model: the Trainer loads by "
                "name, and they have others in the file. Make the model by `from_pretrained` of "
                "the checkpoint, then resume."
            )
        self._begin(kwargs["model"], optimizer, state.max_steps, saved)
        self._saving = inner.register_state_dict_post_hook(self._add_state)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """On the way to the target no model is the best so far."""
        del args, control, kwargs
        if not self.pruner.is_at_target:
            state.best_metric = state.best_global_step = state.best_model_checkpoint = None

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Add how the mask moved to the logs of the training loss."""
        del args, control
        if "loss" in (logs := kwargs["logs"]):
            metrics = self._metrics()
            logs.update(metrics)  # for the callbacks after this one
            state.log_history[-1].update(metrics)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Detach; if the Trainer has loaded its best model, with the mask of that."""
        del control
        self._saving.remove()
        self._end()
        if args.load_best_model_at_end and (best := state.best_model_checkpoint):
            saved = _saved_in(Path(best))
            if not _has_arrived(saved, kwargs["model"]):
                raise ValueError(
                    f"The best model has not arrived: the Trainer loads by name, and the weights "
                    f"have others in the file. Load it by `from_pretrained` of {best!r}."
                )
            self.pruner.load_state_dict(saved)

    def _add_state(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        del optimizer
        state["state"][_KEY] = self.pruner.state_dict()


def _has_arrived(saved: Mapping[str, Any], model: nn.Module) -> bool:
    """Whether the model has the weights that the pruner was saved with."""
    weights, masks = parameter_names(model), saved["masks"]
    return all(
        name in weights
        and torch.equal(weights[name].cpu(), torch.where(masks[name], theta, 0).cpu())
        for name, theta in saved["theta"].items()
    )


def _saved_in(checkpoint: Path) -> dict[str, Any]:
    optimizer = torch.load(checkpoint / "optimizer.pt", map_location="cpu", weights_only=True)
    if _KEY not in optimizer["state"]:
        raise _lacks_pruner(f"{checkpoint.name!r}, the best one,")
    return optimizer["state"][_KEY]


def _lacks_pruner(checkpoint: str) -> ValueError:
    return ValueError(
        f"There is no pruner in {checkpoint}: it was saved without this callback, or with "
        "`save_only_model=True`. To prune from its weights, load them into the model and train "
        "without `resume_from_checkpoint`."
    )
