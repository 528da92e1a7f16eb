"""Plain SGD, dense or under a fixed mask: `train` and what it returns."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.loss import _Loss

from biprune.core.checks import check_positive, check_rate, check_whole
from biprune.core.masked import apply_masks_, mask_gradients_
from biprune.core.masks import Masks
from biprune.core.parameters import parameter_names
from biprune.data import Dataset
from biprune.training.batches import (
    Batch,
    Loss,
    accuracy,
    classification_loss,
    device_of,
    evaluation_mode,
)
from biprune.training.checkpoint import State, digest
from biprune.training.copying import copy_model
from biprune.training.loop import Algorithm, Backward, Cost, Event, Fit, Record, Setup, fit
from biprune.training.process import check_one_process
from biprune.training.schedule import LRSchedule, Moment, Shape
from biprune.training.sgd import make_sgd, set_lr

logger = logging.getLogger(__name__)
_CALLED_WITH = {
    "loss": "(model, batch)",
    "evaluate": "the model",
    "validate": "the model",
    "progress": "an `Event`",
}
REWIND_FRACTION = 8 / 160  # the paper rewinds to epoch 8 of 160
Evaluate = Callable[[nn.Module], float]


@dataclass(frozen=True)
class Recipe:
    """Settings of one SGD training; the defaults are the paper's for retraining (160 epochs).

    `milestones` are fractions of the run; `warmup_epochs` of linear warm-up come out of `epochs`.
    """

    epochs: int = 160
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    schedule: Shape = "step"
    milestones: tuple[float, ...] = (0.5, 0.75)
    decay: float = 0.1
    warmup_epochs: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        check_whole("epochs", self.epochs, at_least=1)
        check_positive("lr", self.lr)
        check_rate("momentum", self.momentum)
        check_rate("weight_decay", self.weight_decay)
        if not 0 <= self.warmup_epochs <= self.epochs:
            raise ValueError(
                f"`warmup_epochs` must be in [0, {self.epochs}], the epochs of the run, got "
                f"{self.warmup_epochs:g}."
            )
        self.lr_schedule()

    def lr_schedule(self) -> LRSchedule:
        """The factor on `lr` over the run."""
        warmup = self.warmup_epochs / self.epochs
        return LRSchedule(self.schedule, tuple(self.milestones), self.decay, warmup)


class PlainSGD(Algorithm):
    """The algorithm of ordinary training; under `masks`, pruned weights stay +0.0 exactly."""

    def __init__(self, model: nn.Module, recipe: Recipe, masks: Masks | None = None) -> None:
        trainable = {name: p for name, p in parameter_names(model).items() if p.requires_grad}
        self._recipe = recipe
        self._schedule = recipe.lr_schedule()
        self._masks = None if masks is None else masks.to(device_of(model))
        self._masked = {name: trainable[name] for name in masks or () if name in trainable}
        self._optimizer = make_sgd(
            trainable.values(),
            device_of(model),
            lr=recipe.lr,
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
            nesterov=recipe.nesterov,
        )
        if masks is not None:
            apply_masks_(model, masks)

    @property
    def settings(self) -> Mapping[str, Any]:
        """What a checkpoint must share to be resumed."""
        kept = {name: mask.flatten() for name, mask in (self._masks or {}).items()}
        return {**asdict(self._recipe), "masks": digest(kept) if kept else None}

    def step(self, backward: Backward, group: Sequence[Batch], now: Moment) -> float:
        """One SGD step."""
        set_lr(self._optimizer, self._recipe.lr * self._schedule.factor(now.done))
        loss = backward(group[0])
        if self._masks is not None:
            mask_gradients_(self._masked, self._masks)
        self._optimizer.step()
        return loss.item()

    def record(self) -> Record:
        """The learning rate of the epoch's last step."""
        return {"lr": self._optimizer.param_groups[0]["lr"]}

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state; weights are the model's own."""
        return self._optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        self._optimizer.load_state_dict(state)


@dataclass
class TrainResult:
    """A trained model, with its states at some epochs (0: before training) for rewinding.

    `accuracy` is on test, in percent, read once; None if there was nothing to evaluate on.
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
        """The epoch that methods rewind to by default: 5 % of the run, as 8 of the paper's 160."""
        return default_rewind_epoch(self.epochs)


def default_rewind_epoch(epochs: int) -> int:
    """The paper's rewinding point, epoch 8 of 160, scaled to a run of `epochs`."""
    return max(1, round(REWIND_FRACTION * epochs))


def check_functions(**given: object) -> None:
    """Refuse what cannot be called before a run, not at its end."""
    for name, function in given.items():
        if function is not None and not callable(function):
            raise TypeError(
                f"`{name}` must be a function, got {type(function).__name__}. It is called with "
                f"{_CALLED_WITH[name]}."
            )
        if isinstance(function, _Loss):
            raise TypeError(
                f"`{name}` is called with {_CALLED_WITH[name]}, and {type(function).__name__} "
                "takes outputs and labels: pass a function that calls both, such as "
                "lambda model, batch: criterion(model(batch[0]), batch[1])."
            )


def make_setup(
    data: Dataset | Iterable[Batch],
    loss: Loss | None,
    validate: Evaluate | None,
    **options: Any,
) -> Setup:
    """The setup of a run on `data`, with its own validation split where there is one."""
    loss = loss or classification_loss
    if isinstance(data, Dataset):
        if validate is None and (val := data.val) is not None:
            validate = lambda model: accuracy(model, val)  # noqa: E731
        return Setup(data.train, loss, validate, data=data.options, **options)
    if not isinstance(data, Iterable):
        raise TypeError(
            f"`data` must be a Dataset or something that yields batches, got {type(data).__name__}."
        )
    return Setup(data, loss, validate, **options)


def measured(
    model: nn.Module, data: Dataset | Iterable[Batch], evaluate: Evaluate | None
) -> float | None:
    """What `evaluate` says of the model, or its accuracy on a Dataset's test split.

    Whatever mode it leaves, the model's is as before. A run is not lost because `evaluate` returns
    no number.
    """
    if evaluate is None:
        return accuracy(model, data.test) if isinstance(data, Dataset) else None
    with evaluation_mode(model), torch.no_grad():
        value = evaluate(model)
    try:
        return float(value)
    except (TypeError, ValueError):
        logger.warning("`evaluate` must return a number, got %r; it is left out.", value)
        return None


def train(
    model: nn.Module,
    data: Dataset | Iterable[Batch],
    *,
    epochs: int = 160,
    lr: float = 0.1,
    momentum: float = 0.9,
    weight_decay: float = 5e-4,
    schedule: Shape = "step",
    milestones: tuple[float, ...] = (0.5, 0.75),
    decay: float = 0.1,
    warmup_epochs: float = 0.0,
    nesterov: bool = False,
    masks: Masks | None = None,
    seed: int = 0,
    loss: Loss | None = None,
    evaluate: Evaluate | None = None,
    validate: Evaluate | None = None,
    rewind_epochs: Iterable[int] | None = None,
    channels_last: bool | None = None,
    autocast: bool = False,
    compile: bool = False,
    checkpoint: Path | str | None = None,
    progress: Callable[[Event], None] | None = None,
) -> TrainResult:
    """Train a copy of `model` by SGD and test it once; `model` itself is not changed.

    `data` is a Dataset or any re-iterable of batches; `loss(model, batch)` returns a scalar
    (default: cross-entropy of `model(inputs)` and labels). `evaluate(model)` is called once at the
    end, `validate(model)` after every epoch; a Dataset brings both. `milestones` are fractions of
    the run. Under `masks` the pruned weights stay exactly zero. The states after `rewind_epochs`
    are kept (default: before training, and 5 % into it). `channels_last` lays convolutions out for
    speed (default: models of our registry). With `checkpoint=FOLDER` the run can be stopped at any
    time: the same call continues it and ends with the same bits. `progress` hears an `Event` of
    every step; `progress=print` shows what is in one.

    >>> import biprune
    >>> data = biprune.load_data("digits", seed=0)
    >>> model = biprune.create_model("resnet8", num_classes=10, in_channels=1, width=4, seed=0)
    >>> result = biprune.train(model, data, epochs=1, lr=0.05, seed=0)
    >>> result.cost.forward_passes == len(data.train)
    True
    """
    check_one_process("train")
    check_functions(loss=loss, evaluate=evaluate, validate=validate, progress=progress)
    recipe = Recipe(
        epochs, lr, momentum, weight_decay, schedule, milestones, decay, warmup_epochs, nesterov
    )
    setup = make_setup(
        data,
        loss,
        validate,
        seed=seed,
        autocast=autocast,
        compile=compile,
        checkpoint=checkpoint,
        progress=progress,
    )
    if not isinstance(model, nn.Module):
        raise TypeError(f"`model` must be a torch.nn.Module, got {type(model).__name__}.")
    model = copy_model(model, channels_last=channels_last)
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
    """Train `model` in place."""
    algorithm = PlainSGD(model, recipe, masks)
    return fit(model, algorithm, setup, epochs=recipe.epochs, stage=stage, keep_epochs=keep_epochs)
