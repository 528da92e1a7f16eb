"""The engine of every method whose mask moves while the weights train.

Between steps the weights p hold z = m * theta, so that every gradient g is taken at z. An optimizer
steps them, the user's own or that of `prune`, and hooks around its step do the rest:

    theta  <- p where kept, as it was where pruned        the optimizer proposes, the mask decides
    scores <- what the rule learns from theta and g
    m      <- exactly k of what the rule ranks
    p      <- theta where kept, +0.0 elsewhere

A rule may instead have the optimizer step theta itself by m * g, as the papers of BiP and of
gradual magnitude pruning do. Then pruned weights decay, and drift by the momentum they have left.
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

# What the optimizer moves in a step: the weights as they are, the weights beneath the mask, or
# nothing, where the step is the mask's alone.
Move = Literal["z", "theta", "nothing"]
RECORDS = 100  # of how the mask moves over a run, about
logger = logging.getLogger(__name__)
Values = Mapping[str, Tensor]


class Rule(ABC):
    """theta beside the weights, and a mask that moves with every step until `steps` are over.

    Masks of filters, channels and groups stay when the target is reached: a unit that came back
    later would not be trained for long. So do those of rules that say so.
    """

    settles: ClassVar[bool] = False
    numbers: ClassVar[tuple[str, ...]] = ("step", "history")  # what a state holds beside tensors

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
        # The memory of z and the gradient, for weights that show the optimizer theta and m * g.
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
        """What the optimizer moves in the next step; after the last one the mask stays."""
        iteration = self.method.iteration
        return iteration[0 if self.step == self.steps else self.step % len(iteration)]

    @property
    def sparsity(self) -> float:
        """What the mask is selected by after the steps so far."""
        return self.method.sparsity_at(self.step, self.steps, self.target.sparsity)

    def prepare(self, names: Iterable[str]) -> bool:
        """Show the optimizer z and g, without g of dead rows; or theta and m * g; or nothing."""
        gradients = self._living_gradients(names)
        self._had_gradients = bool(gradients)
        if self.moves == "z":
            return True
        for name in names:  # what the user has done to it since the last step
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
        """Show z again, in the middle of a step."""
        for name in self.weights:
            self._take(name)
        self._write(self.weights)

    def after_step(self, names: Iterable[str], stepped: Mapping[str, Stepped] | None) -> None:
        """Called by the hooks: the weights of `names` have moved; with `stepped`, all have."""
        if self.moves != "nothing":
            for name in names:
                self._take(name)
        if stepped is not None:
            self._learn(stepped)
            names = self.weights
        self._write(names)

    def measure(self) -> None:  # noqa: B027 (few have something to say)
        """Note what the record of an epoch says of its last gradients, before the step by them."""

    def record(self) -> Record:
        """What the rule adds to the record of an epoch."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Tensors, numbers and strings: theta, the mask, and where the run is."""
        return {
            **self._kind,
            "masks": dict(self.masks),
            **self._tensors(),
            **{name: copy(getattr(self, name)) for name in self.numbers},
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`; the weights are written."""
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
                    "Attach as it was."
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
        """The settings of the rule, and how many steps it has."""
        names = self.method.rule_settings
        return {"steps": self.steps, **{name: getattr(self.method, name) for name in names}}

    @property
    def _kind(self) -> dict[str, Any]:
        """What a state must share to mean the same."""
        return {
            "method": self.method.name,
            "settings": self.settings,
            "target": self.target.settings,
        }

    def _make_scores(self) -> None:  # noqa: B027 (rules by magnitude alone have none)
        """Make what the rule keeps beside theta."""

    def _tensors(self) -> dict[str, Values]:
        """The tensors of a state, masks aside."""
        return {"theta": self.theta}

    @abstractmethod
    def _ranked(self, work: Values) -> Values:
        """What the mask is chosen by, in the memory of `work` where that will do."""

    def _move_scores(self, stepped: Mapping[str, Stepped], work: Values) -> bool:
        """Whether the gradients are finite; if not, nothing is changed."""
        del stepped, work
        return True

    def _take(self, name: str) -> None:
        """theta <- what the weight shows of it."""
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
        """Move the mask by theta and the gradients in the weights, which are not written yet."""
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
        """Memory for one step, laid out like theta: first for products, then for what is ranked."""
        first = next(iter(self.theta.values()))
        size = sum(theta.numel() for theta in self.theta.values())
        return views_like(self.theta, first.new_empty(size, dtype=self._dtype))

    def _magnitudes(self, work: Values) -> Values:
        """|theta|, or of groups its norm over each unit."""
        for name, theta in self.theta.items():
            torch.abs(theta.to(self._dtype), out=work[name])
        return self._structure.scored(work)

    def _gradient(self, name: str) -> Tensor | None:
        return dense_gradient(name, self.weights[name])

    def _living_gradients(self, names: Iterable[str]) -> dict[str, Tensor]:
        """The gradients that there are, with those of dead rows set to 0 in place.

        Otherwise they would fill the optimizer's momentum, for the day that the row comes back.
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
