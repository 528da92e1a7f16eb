"""Methods whose mask moves while the weights train, and how `prune` runs them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from biprune.core.checks import check_part, check_whole
from biprune.core.masks import Masks
from biprune.core.selection import check_sparsity
from biprune.methods.attached import Move, Rule
from biprune.methods.base import Outcome, Start, Target, TrainingMethod, mask_record
from biprune.training.batches import Batch, rotated, take
from biprune.training.loop import Algorithm, Backward, fit
from biprune.training.optimizers import Descent
from biprune.training.schedule import Moment
from biprune.training.setup import Record, Setup
from biprune.training.step_hooks import StepHooks


@dataclass(frozen=True)
class MovingMask(TrainingMethod):
    """A method whose mask moves while the weights train: a recipe and a rule for the mask.

    Attributes:
        rule: How the mask moves.
        rule_settings: The fields that the rule reads. The others are the recipe's, which `attach`
            leaves to the user's optimizer.
    """

    rule: ClassVar[type[Rule]]
    rule_settings: ClassVar[tuple[str, ...]] = ()
    retrains: ClassVar[bool] = False

    @property
    def iteration(self) -> tuple[Move, ...]:
        """What the optimizer moves in each step of an iteration; the last one moves the scores."""
        return ("z",)

    @property
    def steps_per_iteration(self) -> int:
        """How many steps make one iteration."""
        return len(self.iteration)

    @property
    def learns_dead_rows(self) -> bool:
        """Whether the scores of dead rows are learned too; only some methods have this setting."""
        return self.settings.get("score_dead_rows", False)

    @property
    def theta_decay(self) -> float | None:
        """The decay of the prunable weights; None means `weight_decay`."""
        return None

    def groups(self, batches: Iterable[Batch], steps: int) -> Iterator[Sequence[Batch]]:
        """Yield the batches of each of an epoch's `steps` iterations."""
        return rotated(batches, steps, self.steps_per_iteration)

    def sparsity_at(self, step: int, steps: int, target: float) -> float:
        """Return the sparsity to select by after `step` of `steps`."""
        del step, steps
        return target

    def draws_at(self, step: int, steps: int, *, settles: bool) -> bool:
        """Return whether to draw a mask at the end of `step`, which counts from 1.

        With `settles`, none is drawn once the target is reached.
        """
        del steps, settles
        return step % self.steps_per_iteration == 0

    def data_passes(self, sparsity: float) -> float:
        """Return the epochs times the steps of an iteration, whatever the sparsity."""
        del sparsity
        return self.epochs * self.steps_per_iteration

    def run(self, start: Start, setup: Setup, target: Target) -> Outcome:
        """Train the weights while the mask moves."""
        algorithm = MaskTraining(self, start.model, setup, target)
        run = fit(start.model, algorithm, setup, epochs=self.epochs, stage=self.name)
        return Outcome(start.model, algorithm.finish(), run.history, run.cost)


@dataclass(frozen=True)
class GradualMethod(MovingMask):
    """A method that raises the sparsity along a cubic curve over the first `ramp` of the run.

    A mask is drawn every `mask_every` iterations, and when the ramp ends.
    """

    rule_settings: ClassVar[tuple[str, ...]] = ("ramp", "initial_sparsity", "mask_every")

    ramp: float = 0.6
    initial_sparsity: float = 0.0
    mask_every: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_part("ramp", self.ramp)
        check_sparsity(self.initial_sparsity, "initial_sparsity")
        check_whole("mask_every", self.mask_every, at_least=1)

    def sparsity_at(self, step: int, steps: int, target: float) -> float:
        """Return begin + (target - begin) * (1 - (1 - t / ramp)^3); after the ramp, the target."""
        begin = self.initial_sparsity
        if begin > target:
            raise ValueError(
                f"`initial_sparsity` {begin:g} is above the sparsity to reach, {target:g}."
            )
        if step >= self._ramp_end(steps):
            return target
        remaining = 1 - step / steps / self.ramp
        return begin + (target - begin) * (1 - remaining**3)

    def draws_at(self, step: int, steps: int, *, settles: bool) -> bool:
        """Return True every `mask_every` iterations and at the end of the ramp."""
        end = self._ramp_end(steps)
        is_due = step % (self.mask_every * self.steps_per_iteration) == 0
        return step == end or (is_due and not (settles and step > end))

    def _ramp_end(self, steps: int) -> int:
        return max(1, round(self.ramp * steps))


class MaskTraining(Algorithm):
    """Runs a rule in the loop of `prune`, by the hooks that `attach` uses."""

    def __init__(self, method: MovingMask, model: nn.Module, setup: Setup, target: Target) -> None:
        self._method, self._model, self._target = method, model, target
        steps = setup.steps_until(method.epochs) * method.steps_per_iteration
        with torch.no_grad():
            self.rule = method.rule(model, target, method, steps)
        self._upper = setup.upper_stream
        weights = self.rule.weights
        self._descent = Descent(model, method.recipe(), setup, weights.values(), method.theta_decay)
        self._hooks = StepHooks(self._descent.optimizers, weights)
        self._hooks.check_held()
        self._hooks.register(self.rule)
        self._masks_before = self.rule.masks

    @property
    def settings(self) -> Mapping[str, Any]:
        """What a checkpoint must agree on to be resumed."""
        return {**self._method.settings, **self._target.settings}

    def groups(self, batches: Iterable[Batch], steps: int) -> Iterator[Sequence[Batch]]:
        """Yield the method's batches; the upper level takes its own data if it has any."""
        if self._upper is None:
            return self._method.groups(batches, steps)
        lower = rotated(batches, steps, self._method.steps_per_iteration - 1)
        upper = self._upper
        if isinstance(upper, Sequence):  # the next epoch goes on where this one ends
            begin = self.rule.step // self._method.steps_per_iteration % len(upper)
            upper = [*upper[begin:], *upper[:begin]]
        upper = take(upper, steps)
        return ((*group, own) for group, own in zip(lower, upper, strict=True))

    def step(self, backward: Backward, group: Sequence[Batch], now: Moment) -> float:
        """Run a pass and an optimizer step for each batch; the hooks move the mask.

        A loss that is not finite moves nothing, since scores of NaN cannot be ranked.
        """
        if now.step == 0:
            self._masks_before = self.rule.masks
        taken = self.rule.step
        self._descent.set_rates(now.done)
        losses = []
        for batch in group[:-1]:
            losses.append(backward(batch))
            self._descent.step()
        losses.append(backward(group[-1], upper=len(group) > 1))
        loss = torch.stack(losses).mean().item()
        if math.isfinite(loss):
            if now.ends_epoch:
                self.rule.measure()
            self._descent.step()
            if self.rule.step != taken + len(group):  # `attach` would skip this as an overflow
                raise FloatingPointError("The gradients became infinite or NaN.")
        return loss

    def record(self) -> Record:
        """Return the learning rate and how the mask moved in this epoch."""
        moved = mask_record(self.rule.masks, self._masks_before)
        return {"lr": self._descent.rate, **moved, **self.rule.record()}

    def finish(self) -> Masks:
        """Remove the hooks, prune the averaged weights too, and return the last mask."""
        self._hooks.remove()
        self._descent.finish()
        self.rule.masks.apply_(self._model)
        return self.rule.masks

    def state_dict(self) -> dict[str, Any]:
        """Return theta, scores, mask and the optimizer's state."""
        return {
            "rule": self.rule.state_dict(),
            "peaks": dict(self._hooks.peaks),
            **self._descent.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self._descent.load_state_dict(state)
        self._hooks.peaks = dict(state["peaks"])
        self.rule.load_state_dict(state["rule"])
