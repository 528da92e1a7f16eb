"""The options of a run, and checks of the user's data and functions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import ceil
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.loss import _Loss
from torch.optim import Optimizer

from biprune.core.checks import check_whole
from biprune.data import Dataset
from biprune.training.batches import (
    Accumulated,
    Batch,
    Loss,
    accuracy,
    classification_loss,
    count_batches,
    evaluation_mode,
)
from biprune.training.seeding import forked_rng

logger = logging.getLogger(__name__)
Record = dict[str, Any]  # one epoch's numbers, JSON-able
Evaluate = Callable[[nn.Module], float]
MakeOptimizer = Callable[[list[dict[str, Any]]], Optimizer | Sequence[Optimizer]]
_WHEREABOUTS = ("root", "verify")  # data options that do not change the batches
_CALLED_WITH = {
    "loss": "(model, batch)",
    "evaluate": "the model",
    "validate": "the model",
    "progress": "an `Event`",
    "optimizer": "parameter groups",
    "upper_loss": "(model, batch)",
    "lr_schedule": "the finished fraction of the run",
}


@dataclass(frozen=True)
class Event:
    """Progress: one finished step of a run.

    Attributes:
        stage: The part of the run, such as "train".
        epoch: The epoch, from 0.
        epochs: How many epochs the stage has.
        step: The finished steps of this epoch, from 1.
        steps: How many steps the epoch has.
        loss: The loss of the step.
        record: The epoch's record for the history, after its last step.
    """

    stage: str
    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float
    record: Record | None = None


Progress = Callable[[Event], None]


@dataclass(frozen=True)
class Setup:
    """The data, loss and options of a run: everything but the algorithm.

    Most fields are arguments of `prune`.

    Args:
        batches: The training data.
        data: How a named dataset was loaded.
        optimizer: A function from parameter groups to an optimizer, which replaces the recipe's.
        lr_schedule: A function from the finished fraction of the run to a factor on the rate, which
            replaces the recipe's.
        pace: Steps per epoch, if they differ from the batches of the data.
        upper_loss: The loss of the upper level, if it differs.
        upper_batches: The data of the upper level, if it differs.
    """

    batches: Iterable[Batch]
    loss: Loss
    validate: Evaluate | None = None
    seed: int = 0
    autocast: bool = False
    compile: bool = False
    checkpoint: Path | str | None = None
    progress: Progress | None = None
    data: dict[str, Any] | None = None
    optimizer: MakeOptimizer | None = None
    lr_schedule: Callable[[float], float] | None = None
    clip_grad: float | None = None
    accumulate: int = 1
    ema: float | None = None
    pace: Fraction | None = None
    upper_loss: Loss | None = None
    upper_batches: Iterable[Batch] | None = None

    def __post_init__(self) -> None:
        check_whole("accumulate", self.accumulate, at_least=1)
        if self.clip_grad is not None and not self.clip_grad > 0:
            raise ValueError(f"`clip_grad` must be positive, got {self.clip_grad!r}.")
        if self.ema is not None and not 0 < self.ema < 1:
            raise ValueError(f"`ema` must be in (0, 1), such as 0.999, got {self.ema!r}.")

    @property
    def stream(self) -> Iterable[Batch]:
        """The batches of the steps, grouped if gradients are accumulated."""
        return self._accumulated(self.batches)

    @property
    def upper_stream(self) -> Iterable[Batch] | None:
        """The batches of the upper level's steps, if it has its own data."""
        return None if self.upper_batches is None else self._accumulated(self.upper_batches)

    @property
    def loaders(self) -> list[Iterable[Batch]]:
        """All sources of batches."""
        return [self.batches, *([] if self.upper_batches is None else [self.upper_batches])]

    def _accumulated(self, batches: Iterable[Batch]) -> Iterable[Batch]:
        return batches if self.accumulate == 1 else Accumulated(batches, self.accumulate)

    @cached_property
    def steps_per_epoch(self) -> int:
        """The steps of one pass over the data; counted once, since that may take a pass."""
        with forked_rng(self.batches):
            count = count_batches(self.batches)
        if count < self.accumulate:
            raise ValueError(
                f"`accumulate` {self.accumulate} is more than the {count} batches of `data`."
            )
        return count // self.accumulate

    def paced(self, steps: int, each: int = 1) -> tuple[int, Setup]:
        """Return epochs and setup for a run of `steps` steps, `each` of them per iteration."""
        check_whole("steps", steps, at_least=1)
        if steps % each:
            raise ValueError(
                f"`steps` must be a multiple of {each}, the steps of an iteration, got {steps}."
            )
        iterations = steps // each
        epochs = ceil(iterations / self.steps_per_epoch)
        return epochs, replace(self, pace=Fraction(iterations, epochs))

    def steps_until(self, epoch: int) -> int:
        """Return the iterations in the first `epoch` epochs."""
        return int((self.pace or self.steps_per_epoch) * epoch)

    @property
    def settings(self) -> dict[str, Any]:
        """What a checkpoint must agree on to be resumed."""
        data = {n: v for n, v in (self.data or {}).items() if n not in _WHEREABOUTS} or None
        plain = ("seed", "autocast", "compile", "clip_grad", "accumulate", "ema")
        pace = None if self.pace is None else f"{self.pace}"
        return {**{name: getattr(self, name) for name in plain}, "pace": pace, "data": data}


def check_functions(*, names: Mapping[str, object] | None = None, **given: object) -> None:
    """Raise a TypeError for arguments that are not functions; those in `names` may be strings."""
    given |= {name: value for name, value in (names or {}).items() if not isinstance(value, str)}
    for name, function in given.items():
        if function is not None and not callable(function):
            what = "a name or a function" if name in (names or {}) else "a function"
            raise TypeError(
                f"`{name}` must be {what}, got {type(function).__name__}. It is called with "
                f"{_CALLED_WITH[name]}."
            )
        if isinstance(function, _Loss):
            raise TypeError(
                f"`{name}` is called with {_CALLED_WITH[name]}, but {type(function).__name__} "
                "takes outputs and labels: pass a function that calls both, such as "
                "lambda model, batch: criterion(model(batch[0]), batch[1])."
            )


def make_setup(
    data: Dataset | Iterable[Batch],
    loss: Loss | None,
    validate: Evaluate | None,
    **options: Any,
) -> Setup:
    """Return the setup of a run on `data`; a Dataset brings its own validation split."""
    functions = {"loss": loss, "validate": validate, "progress": options.get("progress")}
    check_functions(**functions, optimizer=options.get("optimizer"))
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
    """Return what `evaluate` says of the model, or its accuracy on a Dataset's test split.

    If `evaluate` returns no number, this only logs a warning, so that the run is not lost.
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
