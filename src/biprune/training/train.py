"""Ordinary training, dense or under a fixed mask."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from biprune.core.masked import mask_gradients_
from biprune.core.masks import Masks
from biprune.core.parameters import parameter_names
from biprune.data import Dataset
from biprune.training.batches import Batch, Loss, device_of
from biprune.training.checkpoint import State, digest
from biprune.training.copying import copy_model
from biprune.training.loop import Algorithm, Backward, Cost, Fit, fit
from biprune.training.optimizers import Descent
from biprune.training.process import check_one_process
from biprune.training.recipes import OptimizerName, Recipe, settings_for
from biprune.training.schedule import Moment, Shape
from biprune.training.setup import (
    Evaluate,
    MakeOptimizer,
    Progress,
    Record,
    Setup,
    check_functions,
    make_setup,
    measured,
)

REWIND_FRACTION = 8 / 160  # the paper rewinds to epoch 8 of 160


class PlainTraining(Algorithm):
    """Ordinary training; under `masks`, pruned weights stay exactly +0.0."""

    def __init__(
        self, model: nn.Module, recipe: Recipe, setup: Setup, masks: Masks | None = None
    ) -> None:
        trainable = {name: p for name, p in parameter_names(model).items() if p.requires_grad}
        self._recipe, self._model = recipe, model
        self._masks = None if masks is None else masks.to(device_of(model))
        self._masked = {name: trainable[name] for name in masks or () if name in trainable}
        # SGD and AdamW never move a zero with a gradient of zero; the user's optimizer might.
        self._may_drift = setup.optimizer is not None
        self._descent = Descent(model, recipe, setup)
        if masks is not None:
            masks.apply_(model)

    @property
    def settings(self) -> Mapping[str, Any]:
        """What a checkpoint must agree on to be resumed."""
        kept = {name: mask.flatten() for name, mask in (self._masks or {}).items()}
        return {**asdict(self._recipe), "masks": digest(kept) if kept else None}

    def step(self, backward: Backward, group: Sequence[Batch], now: Moment) -> float:
        """Run one pass and one optimizer step."""
        self._descent.set_rates(now.done)
        loss = backward(group[0])
        if self._masks is not None:
            mask_gradients_(self._masked, self._masks)
        self._descent.step()
        if self._masks is not None and self._may_drift:
            self._masks.apply_(self._model)
        return loss.item()

    def record(self) -> Record:
        """Return the learning rate of the epoch's last step."""
        return {"lr": self._descent.rate}

    def finish(self) -> None:
        """Copy averaged weights into the model, if there are any."""
        self._descent.finish()
        if self._masks is not None:
            self._masks.apply_(self._model)

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state; the weights are in the model's."""
        return self._descent.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self._descent.load_state_dict(state)


@dataclass
class TrainResult:
    """A trained model with its measurements; `train` returns it.

    Attributes:
        model: The trained model, in eval mode.
        accuracy: What `evaluate` returned, or the test accuracy in percent; None if unknown.
        history: One record per epoch.
        cost: Time and passes of the training.
        states: Saved states by epoch, for rewinding; 0 is before training.
        epochs: The length of the run.
        settings: The settings of the training, and the seed.
    """

    model: nn.Module
    accuracy: float | None
    history: list[Record]
    cost: Cost
    states: dict[int, State] = field(repr=False)
    epochs: int
    settings: dict[str, Any] = field(repr=False)

    @property
    def rewind_epoch(self) -> int:
        """The epoch that methods rewind to by default: 5 % of the run."""
        return default_rewind_epoch(self.epochs)


def default_rewind_epoch(epochs: int) -> int:
    """Return the paper's rewinding epoch, 8 of 160, scaled to a run of `epochs`."""
    return max(1, round(REWIND_FRACTION * epochs))


def train(
    model: nn.Module,
    data: Dataset | Iterable[Batch],
    *,
    epochs: int = 160,
    steps: int | None = None,
    optimizer: OptimizerName | MakeOptimizer | None = None,
    lr: float | None = None,
    momentum: float = 0.9,
    weight_decay: float | None = None,
    schedule: Shape | None = None,
    milestones: tuple[float, ...] = (0.5, 0.75),
    decay: float = 0.1,
    warmup_epochs: float | None = None,
    nesterov: bool = False,
    lr_schedule: Callable[[float], float] | None = None,
    clip_grad: float | None = None,
    accumulate: int = 1,
    ema: float | None = None,
    masks: Masks | None = None,
    seed: int = 0,
    loss: Loss | None = None,
    evaluate: Evaluate | None = None,
    validate: Evaluate | None = None,
    rewind_epochs: Iterable[int] | None = None,
    channels_last: bool | None = None,
    device: torch.device | str | None = None,
    autocast: bool = False,
    compile: bool = False,
    checkpoint: Path | str | None = None,
    progress: Progress | None = None,
) -> TrainResult:
    """Train a copy of `model` and evaluate it once; `model` itself is not changed.

    Args:
        model: Any module.
        data: A Dataset, or any re-iterable of batches such as a DataLoader.
        epochs: Passes over the training data.
        steps: The length in optimizer steps, instead of `epochs`.
        optimizer: "sgd", "adamw", or a function from parameter groups (weights; norms and biases)
            to an optimizer. By default AdamW for transformers and SGD for other models.
        lr: The learning rate; by default 0.1 for SGD and 0.001 for AdamW.
        momentum: The momentum of SGD.
        weight_decay: By default 5e-4 for SGD and 0.05 for AdamW, which spares norms and biases.
        schedule: "step" (the default for SGD), "cosine" (for AdamW) or "constant".
        milestones: For "step": the fractions of the run at which the rate changes.
        decay: For "step": what the rate is multiplied by at each milestone.
        warmup_epochs: Epochs of linear warm-up; by default 0 for SGD and 5 % of the run for AdamW.
        nesterov: Whether SGD uses Nesterov's momentum.
        lr_schedule: Instead of `schedule`: a function from the finished fraction of the run to a
            factor on the rate.
        clip_grad: The largest gradient norm; by default 1 for AdamW, and none for SGD.
        accumulate: How many batches make one gradient.
        ema: The decay of a moving average of the weights, such as 0.999; the average is the result.
        masks: Masks to train under; pruned weights stay exactly zero.
        seed: The seed of all randomness.
        loss: A function of (model, batch); by default the cross-entropy of `model(inputs)`.
        evaluate: A function of the model, called once at the end; by default the test accuracy on
            a Dataset.
        validate: A function of the model, called after every epoch; by default the validation
            accuracy on a Dataset.
        rewind_epochs: Epochs whose states are kept; by default 0 and 5 % of the run.
        channels_last: Whether to use the channels_last memory format; by default only for models
            of our registry.
        device: Where to train; by default where the model is.
        autocast: Whether to run in bfloat16 where that is safe.
        compile: Whether to use `torch.compile`.
        checkpoint: A folder for the state of the run. After an interruption the same call goes on
            from there and ends with the same bits.
        progress: A function called with an `Event` after every step, such as `print`.

    Returns:
        The trained model with its measurements, and its states for rewinding.

    Raises:
        ValueError: An argument is out of range, or arguments contradict each other.
        TypeError: An argument has the wrong type.
        FloatingPointError: The loss, a gradient or a weight became infinite or NaN.

    Example:
        >>> import biprune
        >>> data = biprune.load_data("digits", seed=0)
        >>> model = biprune.create_model("resnet8", num_classes=10, in_channels=1, width=4, seed=0)
        >>> result = biprune.train(model, data, epochs=1, lr=0.05, seed=0)
        >>> result.cost.forward_passes == len(data.train)
        True
    """
    check_one_process("train")
    check_functions(names={"optimizer": optimizer}, evaluate=evaluate, lr_schedule=lr_schedule)
    if not isinstance(model, nn.Module):
        raise TypeError(f"`model` must be a torch.nn.Module, got {type(model).__name__}.")
    if callable(optimizer) and lr is not None:
        raise ValueError("`lr` is set by the optimizer that `optimizer` returns: leave it out.")
    setup = make_setup(
        data,
        loss,
        validate,
        seed=seed,
        optimizer=optimizer if callable(optimizer) else None,
        lr_schedule=lr_schedule,
        clip_grad=clip_grad,
        accumulate=accumulate,
        ema=ema,
        autocast=autocast,
        compile=compile,
        checkpoint=checkpoint,
        progress=progress,
    )
    if steps is not None:
        epochs, setup = setup.paced(steps)
    given = {
        "lr": lr,
        "weight_decay": weight_decay,
        "schedule": schedule,
        "warmup_epochs": warmup_epochs,
    }
    said = {name: value for name, value in given.items() if value is not None}
    recipe = Recipe(
        epochs,
        momentum=momentum,
        milestones=milestones,
        decay=decay,
        nesterov=nesterov,
        **settings_for(optimizer, model, epochs) | said,
    )
    model = copy_model(model, channels_last=channels_last).to(device)
    keep = {0, default_rewind_epoch(epochs)} if rewind_epochs is None else set(rewind_epochs)
    if keep and not 0 <= min(keep) <= max(keep) <= epochs:
        raise ValueError(
            f"`rewind_epochs` must be in [0, {epochs}], the epochs of the run, got {sorted(keep)}."
        )
    run = train_(model, recipe, setup, masks=masks, keep_epochs=keep)
    model.zero_grad(set_to_none=True)
    model.eval()
    return TrainResult(
        model=model,
        accuracy=measured(model, data, evaluate),
        history=run.history,
        cost=run.cost,
        states=run.states,
        epochs=epochs,
        settings={**asdict(recipe), "seed": seed},
    )


def train_(
    model: nn.Module,
    recipe: Recipe,
    setup: Setup,
    *,
    masks: Masks | None = None,
    keep_epochs: Collection[int] = (),
    stage: str = "train",
) -> Fit:
    """Train `model` in place, under `masks` if given."""
    algorithm = PlainTraining(model, recipe, setup, masks)
    run = fit(model, algorithm, setup, epochs=recipe.epochs, stage=stage, keep_epochs=keep_epochs)
    algorithm.finish()
    return run
