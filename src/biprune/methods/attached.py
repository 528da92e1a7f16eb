"""Masks that move while an optimizer of the user's trains the weights.

Between steps the weights p hold z = m * theta, so that every gradient is taken at z, and the
optimizer steps z itself: it proposes, the mask decides. What it makes of a kept weight is theta;
what it makes of a pruned one is dropped. After each step

    theta <- p where kept, as it was where pruned
    m     <- exactly k of what the rule ranks by, k along a cubic ramp
    p     <- theta where kept, +0.0 elsewhere

Rules that learn scores are in `scored`.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from copy import copy
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from biprune.core.checks import check_part, check_positive, check_rate, check_whole
from biprune.core.layout import is_dense, side_by_side, views_like
from biprune.core.masked import where_kept
from biprune.core.masks import Masks
from biprune.methods.base import Target, mask_record
from biprune.training.loop import Record
from biprune.training.schedule import draws_mask, end_of_ramp, gradual_sparsity
from biprune.training.step_hooks import Stepped

RECORDS = 100  # in the history of a run, about
logger = logging.getLogger(__name__)
Values = Mapping[str, Tensor]


class Rule(ABC):
    """theta beside the weights, and a mask that moves with every step until `steps` are over.

    The sparsity rises from `initial_sparsity` along a cubic curve over the first `ramp` of them.
    Masks of units of many weights, and of rules that say so, are fixed when it has risen. The first
    mask is that of magnitudes.
    """

    name: ClassVar[str]
    defaults: ClassVar[dict[str, float]] = {"ramp": 0.6, "initial_sparsity": 0.0}
    settles: ClassVar[bool] = False
    numbers: ClassVar[tuple[str, ...]] = ("step", "history")  # what a state holds beside tensors

    def __init__(self, model: nn.Module, target: Target, steps: int, **settings: float) -> None:
        check_whole("steps", steps, at_least=1)
        if unknown := sorted(settings.keys() - self.defaults.keys()):
            raise TypeError(
                f"`{self.name}` has no setting {unknown[0]!r}. Its settings: "
                f"{', '.join(self.defaults)}."
            )
        self.settings = {**self.defaults, **settings}
        for name, value in self.settings.items():
            {"ramp": check_part, "gamma": check_positive}.get(name, check_rate)(name, value)
        if (begin := self.settings.get("initial_sparsity", 0.0)) > target.sparsity:
            raise ValueError(
                f"`initial_sparsity` {begin:g} is above the sparsity to reach, {target.sparsity:g}."
            )
        self.steps, self.step = steps, 0
        self._is_over = False
        self.history: list[Record] = []
        self.weights = target.weights(model)
        values = {name: weight.detach() for name, weight in self.weights.items()}
        dense = {n: v if is_dense(v) else v.contiguous() for n, v in values.items()}
        self.theta = side_by_side(dense)
        dtypes = {weight.dtype for weight in self.weights.values()}
        self._dtype = torch.float64 if torch.float64 in dtypes else torch.float32  # of scores
        self.target, self._rows = target, target.scored_rows(model, dead=False)
        self._structure = target.structure
        self._select = target.selector(self.weights)
        self._prepare()
        self.masks = self._select(self._magnitudes(self._work()), self.sparsity)
        self.write(self.weights)

    @property
    def sparsity(self) -> float:
        """What the mask is selected by after the steps so far."""
        ramp, begin = self.settings["ramp"], self.settings["initial_sparsity"]
        if self.step >= end_of_ramp(ramp, self.steps):
            return self.target.sparsity
        rise = self.target.sparsity - begin
        return begin + gradual_sparsity(rise, self.step / self.steps, ramp)

    @property
    def withholds_gradients(self) -> bool:
        """Whether the optimizer's next step must leave the weights alone."""
        return False

    def take(self, names: Iterable[str]) -> None:
        """theta <- p where kept, as it was where pruned."""
        for name in names:
            weight, theta = self.weights[name], self.theta[name]
            if (weight.dtype, weight.device) != (theta.dtype, theta.device):
                raise ValueError(
                    f"{name!r} was {theta.dtype} on {theta.device} and is {weight.dtype} on "
                    f"{weight.device} now. Convert and move the model first, then attach."
                )
            torch.where(self.masks[name], weight, theta, out=theta)

    def write(self, names: Iterable[str]) -> None:
        """p <- theta where kept, +0.0 elsewhere."""
        for name in names:
            where_kept(self.masks[name], self.theta[name], out=self.weights[name])

    def learn(self, stepped: Mapping[str, Stepped]) -> None:
        """Move the mask by theta and the gradients in the weights, which are not written yet."""
        if self.step == self.steps:
            self._tell_once_over()
            return
        work = self._work()
        if not self._move_scores(stepped, work):
            self._refuse_lost_weights()
            return
        self.step += 1
        if self._draws():
            before, self.masks = self.masks, self._select(self._ranked(work), self.sparsity)
            if self.step % max(1, self.steps // RECORDS) == 0:
                self.history.append({"step": self.step, **mask_record(self.masks, before)})

    def state_dict(self) -> dict[str, Any]:
        """Tensors, numbers and strings: theta, the mask, and where the run is."""
        return {
            **self._kind,
            "masks": dict(self.masks),
            **self._tensors(),
            **{name: copy(getattr(self, name)) for name in self.numbers},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`; the weights are written."""
        own = self.state_dict()
        if missing := sorted(own.keys() - state.keys()):
            raise ValueError(f"The state is none of a pruner by {self.name}: no {missing[0]!r}.")
        for part, value in self._kind.items():
            if state[part] != value:
                raise ValueError(
                    f"The state is of a run with the {part} {state[part]!r}, this one has "
                    f"{value!r}. Attach as it was."
                )
        for part in ("masks", *self._tensors()):
            if _shapes(state[part]) != _shapes(own[part]):
                raise ValueError(f"The state is of other weights than the model's: see {part!r}.")
        for part, tensors in self._tensors().items():
            for name, tensor in tensors.items():
                tensor.copy_(state[part][name])
        for name in self.numbers:
            setattr(self, name, copy(state[name]))
        device = next(iter(self.theta.values())).device
        self.masks = Masks(state["masks"], self.masks.structure).to(device)
        self.write(self.weights)

    @property
    def _kind(self) -> dict[str, Any]:
        """What a state must share to mean the same."""
        return {
            "method": self.name,
            "steps": self.steps,
            "settings": self.settings,
            "target": self.target.settings,
        }

    def _prepare(self) -> None:  # noqa: B027 (most rules have something, not all)
        """Make what a rule has beside theta."""

    def _tensors(self) -> dict[str, Values]:
        """What a state holds of tensors, but for the mask."""
        return {"theta": self.theta}

    def _move_scores(self, stepped: Mapping[str, Stepped], work: Values) -> bool:
        """False, and nothing is changed, if the gradients are not finite."""
        del stepped, work
        return True

    @abstractmethod
    def _ranked(self, work: Values) -> Values:
        """What the mask is chosen by, in the memory of `work` where that will do."""

    def _draws(self) -> bool:
        settles = self.settles or not self._structure.has_single_weights
        end = end_of_ramp(self.settings["ramp"], self.steps)
        return draws_mask(self.step, every=1, ramp_end=end, settles=settles)

    def _work(self) -> Values:
        """Memory like theta's for a step: products first, then what is ranked."""
        first = next(iter(self.theta.values()))
        size = sum(theta.numel() for theta in self.theta.values())
        return views_like(self.theta, first.new_empty(size, dtype=self._dtype))

    def _magnitudes(self, work: Values) -> Values:
        """|theta|, or its norm over the units of groups."""
        for name, theta in self.theta.items():
            torch.abs(theta.to(self._dtype), out=work[name])
        return self._structure.scored(work)

    def _tell_once_over(self) -> None:
        if not self._is_over:
            logger.warning("All %d `steps` are taken: the mask is fixed from now on.", self.steps)
        self._is_over = True

    def _refuse_lost_weights(self) -> None:
        if not all(bool(theta.isfinite().all()) for theta in self.theta.values()):
            raise FloatingPointError(
                f"After {self.step} steps the weights are not finite. Lower the learning rate, or "
                "look at the data and the loss function."
            )


class GMPRule(Rule):
    """Gradual magnitude pruning: the mask is that of |theta|, fixed when the ramp is over."""

    name = "gmp"
    settles = True

    def _ranked(self, work: Values) -> Values:
        return self._magnitudes(work)


def _shapes(tensors: Values) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}
