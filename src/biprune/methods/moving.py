"""Methods whose mask moves while the weights train, in the loop of `prune`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

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
from biprune.training.schedule import Moment, draws_mask, end_of_ramp, gradual_sparsity
from biprune.training.setup import Record, Setup
from biprune.training.step_hooks import StepHooks


@dataclass(frozen=True)
class MovingMask(TrainingMethod):
    """A method whose mask moves while the weights train: a recipe, and a rule for the mask.

    `rule_settings` are the fields that the rule reads. The others are the recipe's, which in a loop
    of the user's own belongs to their optimizer.
    """

    rule: ClassVar[type[Rule]]
    rule_settings: ClassVar[tuple[str, ...]] = ()
    retrains: ClassVar[bool] = False
    starts_from: ClassVar[Literal["dense", "init"]] = "dense"

    @property
    def iteration(self) -> tuple[Move, ...]:
        """What the optimizer moves in each step of an iteration; scores move in the last."""
        return ("z",)

    @property
    def steps_per_iteration(self) -> int:
        """Each with a batch of its own."""
        return len(self.iteration)

    @property
    def learns_dead_rows(self) -> bool:
        """Whether scores of rows without a kept weight are learned too, if a setting says so."""
        return self.settings.get("score_dead_rows", False)

    @property
    def theta_decay(self) -> float | None:
        """The decay of the prunable weights, where it is not `weight_decay`."""
        return None

    def groups(self, batches: Iterable[Batch], steps: int) -> Iterator[Sequence[Batch]]:
        """The batches of each of an epoch's `steps` iterations."""
        return rotated(batches, steps, self.steps_per_iteration)

    def sparsity_at(self, step: int, steps: int, target: float) -> float:
        """What the mask is selected by when `step` of `steps` are taken."""
        del step, steps
        return target

    def draws_at(self, step: int, steps: int, *, settles: bool) -> bool:
        """Whether a mask is drawn at the end of `step`, which counts from 1.

        `settles` says that masks should stay when the target is reached.
        """
        del steps, settles
        return step % self.steps_per_iteration == 0

    def data_passes(self, sparsity: float) -> float:
        """One an epoch for each step of an iteration, whatever the sparsity."""
        del sparsity
        return self.epochs * self.steps_per_iteration

    def run(self, start: Start, setup: Setup, target: Target) -> Outcome:
        """Train while the mask moves."""
        algorithm = MaskTraining(self, start.model, setup, target)
        run = fit(start.model, algorithm, setup, epochs=self.epochs, stage=self.name)
        return Outcome(start.model, algorithm.finish(), run.history, run.cost)


@dataclass(frozen=True)
class GradualMethod(MovingMask):
    """A method that raises the sparsity along a cubic curve over the first `ramp` of the run.

    It begins with `initial_sparsity`. A mask is drawn every `mask_every` iterations, and when the
    ramp ends.
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
        """s(t) = begin + (target - begin) * (1 - (1 - t / ramp)^3), then the target."""
        begin = self.initial_sparsity
        if begin > target:
            raise ValueError(
                f"`initial_sparsity` {begin:g} is above the sparsity to reach, {target:g}."
            )
        if step >= end_of_ramp(self.ramp, steps):
            return target
        return begin + gradual_sparsity(target - begin, step / steps, self.ramp)

    def draws_at(self, step: int, steps: int, *, settles: bool) -> bool:
        """Every `mask_every` steps, and when the ramp ends."""
        end = end_of_ramp(self.ramp, steps)
        every = self.mask_every * self.steps_per_iteration
        return draws_mask(step, every=every, ramp_end=end, settles=settles)


class MaskTraining(Algorithm):
    """A rule in the loop of `prune`: the same hooks on an optimizer of ours."""

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
        """What a checkpoint must share to be resumed."""
        return {**self._method.settings, **self._target.settings}

    def groups(self, batches: Iterable[Batch], steps: int) -> Iterator[Sequence[Batch]]:
        """As the method says; those of the upper level are its own, if it has any."""
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
        """A pass and a step of the optimizer for each batch; the hooks move the mask.

        A loss that is not finite moves nothing: scores of NaN cannot be ranked.
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
            if self.rule.step != taken + len(group):  # which `attach` takes for an overflow
                raise FloatingPointError("The gradients became infinite or NaN.")
        return loss

    def record(self) -> Record:
        """The learning rate, and how the mask moved in this epoch."""
        moved = mask_record(self.rule.masks, self._masks_before)
        return {"lr": self._descent.rate, **moved, **self.rule.record()}

    def finish(self) -> Masks:
        """Take the hooks away; the last mask, which averaged weights get too."""
        self._hooks.remove()
        self._descent.finish()
        self.rule.masks.apply_(self._model)
        return self.rule.masks

    def state_dict(self) -> dict[str, Any]:
        """theta, scores, mask and optimizer."""
        return {
            "rule": self.rule.state_dict(),
            "peaks": dict(self._hooks.peaks),
            **self._descent.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        self._descent.load_state_dict(state)
        self._hooks.peaks = dict(state["peaks"])
        self.rule.load_state_dict(state["rule"])
