"""The training loop: it seeds, saves checkpoints, reports progress and drives any algorithm."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from biprune.core.files import claimed
from biprune.training.batches import (
    Batch,
    MicroBatches,
    described,
    device_of,
    evaluation_mode,
    loss_of,
    take,
    tensors_in,
    to_device,
)
from biprune.training.checkpoint import Checkpoint, State, check_readable, copy_state, digest
from biprune.training.schedule import Moment
from biprune.training.seeding import derive_seed, forked_rng, seed_all
from biprune.training.setup import Event, Record, Setup


@dataclass(frozen=True)
class Cost:
    """What training took, without evaluation. A pass is one batch, forward or backward."""

    seconds: float = 0.0
    forward_passes: int = 0
    backward_passes: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.seconds + other.seconds,
            self.forward_passes + other.forward_passes,
            self.backward_passes + other.backward_passes,
        )


class Backward(Protocol):
    """Runs one counted forward and backward pass."""

    def __call__(self, batch: Batch, /, *, upper: bool = False) -> Tensor:
        """Clear the gradients, run a batch forward and backward, and return its loss.

        With `upper`, use the loss of the upper level.
        """
        ...


class Algorithm(ABC):
    """A training algorithm, which `fit` drives one iteration at a time."""

    @property
    @abstractmethod
    def settings(self) -> Mapping[str, Any]:
        """What a checkpoint must agree on to be resumed."""

    def groups(self, batches: Iterable[Batch], steps: int) -> Iterator[Sequence[Batch]]:
        """Yield the batches of each of an epoch's `steps` iterations; by default one batch."""
        return ((batch,) for batch in take(batches, steps))

    @abstractmethod
    def step(self, backward: Backward, group: Sequence[Batch], now: Moment) -> float:
        """Run one iteration and return the mean loss of its passes.

        It reads the loss from the device only once. A loss that is not finite ends the run.
        """

    @abstractmethod
    def record(self) -> Record:
        """Return the algorithm's part of an epoch's record."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return all that the next epoch needs besides the model."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""


@dataclass
class Fit:
    """What a run leaves besides the trained model, and what its checkpoint carries."""

    history: list[Record] = field(default_factory=list)
    cost: Cost = field(default_factory=Cost)
    states: dict[int, State] = field(default_factory=dict)


def fit(
    model: nn.Module,
    algorithm: Algorithm,
    setup: Setup,
    *,
    epochs: int,
    stage: str,
    keep_epochs: Collection[int] = (),
) -> Fit:
    """Run `algorithm` on `model` in place, with as many iterations per epoch as there are batches.

    Every epoch starts from generators seeded by (seed, epoch), so a resumed run repeats the
    uninterrupted one bit for bit. `stage` names this part of the run in history, progress and
    checkpoint. The states of `keep_epochs` are kept; 0 is before the first.

    Raises:
        FloatingPointError: The loss, a gradient or a weight is not finite. The checkpoint still
            holds the last good state.
    """
    keep = sorted(set(keep_epochs))
    passes = Passes(model, setup)
    alone = nullcontext() if setup.checkpoint is None else claimed(setup.checkpoint)
    with forked_rng(*setup.loaders), alone:
        length = {"epochs": epochs, "steps": setup.steps_per_epoch, "rewind_epochs": keep}
        checkpoint = _open_checkpoint(model, algorithm, setup, stage, length)
        run = _resume(checkpoint, model, algorithm) or Fit()
        if not run.history and 0 in keep:
            run.states[0] = copy_state(model.state_dict())
        for epoch in range(len(run.history), epochs):
            seed_all(derive_seed(setup.seed, epoch), *setup.loaders)
            train_mode_(model)
            started, losses = time.perf_counter(), []
            steps = setup.steps_until(epoch + 1) - setup.steps_until(epoch)
            for step, group in enumerate(algorithm.groups(setup.stream, steps)):
                try:
                    loss = algorithm.step(passes, group, Moment(epoch, step, epochs, steps))
                except FloatingPointError:  # raised for scores that cannot be ranked
                    what = "The gradients became infinite or NaN"
                    raise _diverged(what, stage, epoch, step, checkpoint) from None
                if not math.isfinite(loss):
                    what = f"The loss became {loss}"
                    raise _diverged(what, stage, epoch, step, checkpoint)
                losses.append(loss)
                if setup.progress and step + 1 < steps:
                    setup.progress(Event(stage, epoch, epochs, step + 1, steps, loss))
            if not _is_finite(model, algorithm):
                what = "The weights became infinite or NaN"
                raise _diverged(what, stage, epoch, steps - 1, checkpoint)
            seconds = time.perf_counter() - started
            run.cost += Cost(seconds, *passes.take_counts())

            record: Record = {"stage": stage, "epoch": epoch + 1, "loss": sum(losses) / len(losses)}
            if setup.validate:
                with evaluation_mode(model), torch.no_grad():
                    record["accuracy"] = _number(setup.validate(model))
            record |= {**algorithm.record(), "seconds": seconds}
            run.history.append(record)
            if epoch + 1 in keep:
                run.states[epoch + 1] = copy_state(model.state_dict())
            if checkpoint:
                _save(checkpoint, run, model, algorithm)
            if setup.progress:
                setup.progress(Event(stage, epoch, epochs, steps, steps, losses[-1], record))
    return run


def _number(validated: object) -> float:
    try:
        return float(validated)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):
        raise TypeError(f"`validate` must return a number, got {described(validated)}.") from None


class Passes:
    """Runs and counts forward and backward passes under the options of the setup."""

    def __init__(self, model: nn.Module, setup: Setup) -> None:
        self._model = model
        self._runner = torch.compile(model) if setup.compile else model
        self._losses = {False: setup.loss, True: setup.upper_loss or setup.loss}
        self._device = device_of(model)
        self._autocast = setup.autocast
        self._count = 0

    def __call__(self, batch: Batch, /, *, upper: bool = False) -> Tensor:
        """Run one batch, see `Backward`; the gradients are left in the model."""
        self._model.zero_grad(set_to_none=True)
        parts = batch if isinstance(batch, MicroBatches) else (batch,)
        losses = [self._one(part, len(parts), upper) for part in parts]
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def _one(self, batch: Batch, parts: int, upper: bool) -> Tensor:
        """Run one of the `parts` passes of a gradient; return its share of their mean loss."""
        # bfloat16 has the range of float32, so no loss scale is needed.
        with torch.autocast(self._device.type, torch.bfloat16) if self._autocast else nullcontext():
            moved = to_device(batch, self._device)
            loss = loss_of(self._losses[upper], self._runner, moved)  # pyright: ignore[reportArgumentType]
        loss = loss if parts == 1 else loss / parts
        loss.backward()
        self._count += 1
        return loss.detach()

    def take_counts(self) -> tuple[int, int]:
        """Return the (forward, backward) passes since the last call."""
        count, self._count = self._count, 0
        return count, count


def _open_checkpoint(
    model: nn.Module, algorithm: Algorithm, setup: Setup, stage: str, length: Mapping[str, Any]
) -> Checkpoint | None:
    if setup.checkpoint is None:
        return None
    settings = {**length, **setup.settings, **algorithm.settings}
    check_readable(model.state_dict())
    start = digest([model.state_dict(), algorithm.state_dict()])
    return Checkpoint(setup.checkpoint, stage, settings, start)


def train_mode_(model: nn.Module) -> None:
    """Set training mode, except for norms with frozen parameters: they keep their statistics."""
    model.train()
    for module in model.modules():
        held = list(module.parameters(recurse=False))
        if isinstance(module, _NormBase) and held and not any(p.requires_grad for p in held):
            module.eval()


def _is_finite(model: nn.Module, algorithm: Algorithm) -> bool:
    """Whether all parameters are finite, and all that the algorithm holds.

    theta may be NaN beneath a pruned weight. Buffers may be infinite, like causal masks.
    """
    held = (*model.parameters(), *tensors_in(algorithm.state_dict()))
    numbers = (t for t in held if t.is_floating_point() or t.is_complex())
    return all(bool(tensor.isfinite().all()) for tensor in numbers)


def _save(checkpoint: Checkpoint, run: Fit, model: nn.Module, algorithm: Algorithm) -> None:
    checkpoint.save(
        {
            "model": model.state_dict(),
            "algorithm": algorithm.state_dict(),
            "history": run.history,
            "cost": asdict(run.cost),
            "states": run.states,
        }
    )


def _resume(checkpoint: Checkpoint | None, model: nn.Module, algorithm: Algorithm) -> Fit | None:
    def take(saved: dict[str, Any]) -> Fit:
        model.load_state_dict(saved["model"])
        algorithm.load_state_dict(saved["algorithm"])
        return Fit(list(saved["history"]), Cost(**saved["cost"]), dict(saved["states"]))

    return checkpoint.resume(take) if checkpoint else None


def _diverged(
    what: str, stage: str, epoch: int, step: int, checkpoint: Checkpoint | None
) -> FloatingPointError:
    text = f"{what} at step {step + 1} of epoch {epoch + 1} ({stage})."
    if checkpoint and epoch > 0:
        text += f" The state after epoch {epoch} is kept in {str(checkpoint.path)!r}."
    return FloatingPointError(
        f"{text} Lower the learning rate, or look at the data and the loss function."
    )
