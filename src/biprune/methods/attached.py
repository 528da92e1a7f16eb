"""The engine of every method whose mask moves while the weights train.

Between steps the weights p hold z = m * theta, so every gradient g is taken at z. An optimizer, the
user's or the one of `prune`, steps the weights. Hooks around its step do the rest:

    theta  <- p where kept, unchanged where pruned        the optimizer proposes, the mask decides
    scores <- updated by the rule from theta and g
    m      <- exactly k units, ranked by the rule
    p      <- theta where kept, +0.0 elsewhere

A rule may instead let the optimizer step theta itself by m * g, as in the papers of BiP and of
gradual magnitude pruning. Pruned weights then decay and drift with their remaining momentum.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from biprune.core.checks import check_whole
from biprune.core.layout import is_dense, side_by_side, views_like
from biprune.core.masked import dense_gradient, masked_in, where_kept
from biprune.core.masks import Masks
from biprune.methods.base import Target, mask_record
from biprune.training.setup import Record
from biprune.training.step_hooks import Stepped

if TYPE_CHECKING:
    from biprune.methods.moving import MovingMask

# What the optimizer moves in a step: the masked weights, the weights beneath the mask, or nothing
# if the step belongs to the mask.
Move = Literal["z", "theta", "nothing"]
RECORDS = 100  # about how many records of the mask a run leaves
logger = logging.getLogger(__name__)
Values = Mapping[str, Tensor]


class Rule(ABC):
    """Keeps theta beside the weights, and moves the mask at every step until `steps` are over.

    Masks of filters, channels and groups are fixed once the target is reached, because a unit that
    returned later would hardly be trained. A rule with `settles` fixes masks of any structure.
    """

    settles: ClassVar[bool] = False
    numbers: ClassVar[tuple[str, ...]] = ("step", "history")  # what a state holds besides tensors

    def __init__(self, model: nn.Module, target: Target, method: MovingMask, steps: int) -> None:
        check_whole("steps", steps, at_least=1)
        self.method, self.target, self.steps = method, target, steps
        self.step = 0
        self.history: list[Record] = []
        self._is_over = False
        self._had_gradients = False
        self.weights = target.weights(model)
        values = {name: weight.detach() for name, weight in self.weights.items()}
        dense = {n: v if is_dense(v) else v.contiguous() for n, v in values.items()}
        self.theta = side_by_side(dense)
        # While the optimizer sees theta and m * g: the memory of z, and g.
        self._hidden: dict[str, tuple[Tensor, Tensor]] = {}
        dtypes = {weight.dtype for weight in self.weights.values()}
        self._dtype = torch.float64 if torch.float64 in dtypes else torch.float32  # of scores
        self._rows = target.scored_rows(model, dead=method.learns_dead_rows)
        self._structure = target.structure
        self._select = partial(target.select, weights=self.weights)
        self._make_scores()
        self.masks = self._select(self._magnitudes(self._work()), self.sparsity)
        self._write(self.weights)

    @property
    def moves(self) -> Move:
        """What the optimizer moves in the next step."""
        iteration = self.method.iteration
        return iteration[0 if self.step == self.steps else self.step % len(iteration)]

    @property
    def sparsity(self) -> float:
        """The sparsity that the mask should have after the steps so far."""
        return self.method.sparsity_at(self.step, self.steps, self.target.sparsity)

    def prepare(self, names: Iterable[str]) -> bool:
        """Show the optimizer z and g, or theta and m * g; return False if it must move nothing."""
        gradients = self._living_gradients(names)
        self._had_gradients = bool(gradients)
        if self.moves == "z":
            return True
        for name in names:  # the user may have changed it since the last step
            self._take(name)
        if self.moves == "nothing":
            return False
        for name, gradient in gradients.items():
            weight = self.weights[name]
            z, weight.data = weight.data, self.theta[name]
            weight.grad = masked_in(z, self.masks[name], gradient)
            self._hidden[name] = z, gradient
        return True

    def restore(self) -> None:
        """Show z again in the middle of a step."""
        for name in self.weights:
            self._take(name)
        self._write(self.weights)

    def after_step(self, names: Iterable[str], stepped: Mapping[str, Stepped] | None) -> None:
        """Take up the moved weights of `names`; with `stepped`, the whole step is done."""
        if self.moves != "nothing":
            for name in names:
                self._take(name)
        if stepped is not None:
            self._learn(stepped)
            names = self.weights
        self._write(names)

    def measure(self) -> None:  # noqa: B027 (most rules measure nothing)
        """Measure the last gradients of an epoch, before they are used, for its record."""

    def record(self) -> Record:
        """What the rule adds to the record of an epoch."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return theta, the mask, the scores and the position in the run."""
        return {
            **self._kind,
            "masks": dict(self.masks),
            **self._tensors(),
            **{name: copy(getattr(self, name)) for name in self.numbers},
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`; this writes the weights."""
        own = self.state_dict()
        if missing := sorted(own.keys() - state.keys()):
            raise ValueError(
                f"The state was not saved by a pruner of {self.method.name}: it lacks "
                f"{missing[0]!r}."
            )
        for part, value in _flat(self._kind).items():
            if (other := _flat(state).get(part)) != value:
                raise ValueError(
                    f"The state is of a run with the {part} {other!r}, this one has {value!r}. "
                    "Attach with the settings of that run."
                )
        for part in ("masks", *self._tensors()):
            if _shapes(state[part]) != _shapes(own[part]):
                raise ValueError(f"The state is of other weights than the model's: see {part!r}.")
        self.restore()
        for part, tensors in self._tensors().items():
            for name, tensor in tensors.items():
                tensor.copy_(state[part][name])
        for name in self.numbers:
            setattr(self, name, copy(state[name]))
        device = next(iter(self.theta.values())).device
        self.masks = Masks(state["masks"], self.masks.structure).to(device)
        self._write(self.weights)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the rule, and its number of steps."""
        names = self.method.rule_settings
        return {"steps": self.steps, **{name: getattr(self.method, name) for name in names}}

    @property
    def _kind(self) -> dict[str, Any]:
        """What a state must agree on to be loaded."""
        return {
            "method": self.method.name,
            "settings": self.settings,
            "target": self.target.settings,
        }

    def _make_scores(self) -> None:  # noqa: B027 (rules by magnitude have no scores)
        """Create what the rule keeps besides theta."""

    def _tensors(self) -> dict[str, Values]:
        """The tensors of a state except the masks."""
        return {"theta": self.theta}

    @abstractmethod
    def _ranked(self, work: Values) -> Values:
        """Return what the mask is selected by; it may use the memory of `work`."""

    def _move_scores(self, stepped: Mapping[str, Stepped], work: Values) -> bool:
        """Move the scores, unless the gradients are not finite; return whether they are."""
        del stepped, work
        return True

    def _take(self, name: str) -> None:
        """Update theta by what happened to the weight."""
        weight, theta = self.weights[name], self.theta[name]
        if (weight.dtype, weight.device) != (theta.dtype, theta.device):
            raise ValueError(
                f"{name!r} was {theta.dtype} on {theta.device} and is {weight.dtype} on "
                f"{weight.device} now. Convert and move the model first, then attach."
            )
        if name in self._hidden:
            weight.data, weight.grad = self._hidden.pop(name)
        else:
            where_kept(self.masks[name], weight.data, out=theta, pruned=theta)

    def _write(self, names: Iterable[str]) -> None:
        """p <- theta where kept, +0.0 elsewhere."""
        for name in names:
            where_kept(self.masks[name], self.theta[name], out=self.weights[name].data)

    def _learn(self, stepped: Mapping[str, Stepped]) -> None:
        """Move scores and mask by theta and the gradients; the weights are written later."""
        if self.step == self.steps:
            self._tell_once_over()
            return
        work = self._work()
        if not self._move_scores(stepped, work):
            self._refuse_lost_weights()
            return
        self.step += 1
        settles = self.settles or not self._structure.has_single_weights
        if self.method.draws_at(self.step, self.steps, settles=settles):
            before, self.masks = self.masks, self._select(self._ranked(work), self.sparsity)
            if self.step % max(1, self.steps // RECORDS) == 0:
                self.history.append({"step": self.step, **mask_record(self.masks, before)})

    def _work(self) -> Values:
        """Memory for one step, laid out like theta: for gradients first, for the ranking next."""
        first = next(iter(self.theta.values()))
        size = sum(theta.numel() for theta in self.theta.values())
        return views_like(self.theta, first.new_empty(size, dtype=self._dtype))

    def _magnitudes(self, work: Values) -> Values:
        """|theta|; for groups, its norm over each unit."""
        for name, theta in self.theta.items():
            torch.abs(theta.to(self._dtype), out=work[name])
        return self._structure.scored(work)

    def _gradient(self, name: str) -> Tensor | None:
        return dense_gradient(name, self.weights[name])

    def _living_gradients(self, names: Iterable[str]) -> dict[str, Tensor]:
        """The existing gradients, zeroed in place for dead rows.

        Otherwise they would build up momentum that hits the row when it returns.
        """
        found = {name: gradient for name in names if (gradient := self._gradient(name)) is not None}
        if self._rows is not None:
            self._rows.silence_dead_(found, self.masks)
        return found

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


def _flat(kind: Mapping[str, Any]) -> dict[str, Any]:
    return {"method": kind["method"], **kind["settings"], **kind["target"]}


def _shapes(tensors: Values) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}
