"""The two levels of bi-level pruning: what they hold beside a module, and the batches they see."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from math import gcd
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from biprune.core.layout import side_by_side
from biprune.core.masks import Masks
from biprune.core.selection import check_sparsity
from biprune.methods.base import PruningAlgorithm, Target, magnitudes
from biprune.training.batches import Batch, take
from biprune.training.loop import Record, Setup
from biprune.training.schedule import Moment
from biprune.training.sgd import MaskedSGD, make_sgd, set_lr

if TYPE_CHECKING:
    from biprune.methods.bip import BiP

BatchScheme = Literal["different", "reverse", "same"]


class Levels(ABC):
    """theta, scores and the mask they choose, beside an untouched model whose weights hold z.

    Each level has an optimizer, `lower` and `upper`, to which schedulers of torch attach.
    Everything trainable that is not prunable (norms, biases) is trained dense at the lower level.
    Scores are a weight's own, but for coupled groups: there each unit has one, moved by the sum of
    the gradient over what its gate multiplies (see `methods.gates`).

    `sparsity` begins with that of `target` and may be changed between steps; the next selection is
    by it. While `redraws` is False the mask stays as it is.

    Args:
        model: Trained in place.
        target: What is pruned.
        method: The settings.
        scores: What scores begin with, in the shapes of the weights; |theta| by default.
        seed: Of whatever is drawn.
        lower: Further options of `MaskedSGD`.
    """

    def __init__(
        self,
        model: nn.Module,
        target: Target,
        method: BiP,
        *,
        scores: Mapping[str, Tensor] | None = None,
        seed: int = 0,
        **lower: Any,
    ) -> None:
        self.model = model
        self.method = method
        self.seed = seed
        self.sparsity = target.sparsity
        self.redraws = True
        weights = target.weights(model)
        scores = magnitudes(weights) if scores is None else scores
        self._structure = target.structure
        self.scores = side_by_side(self._structure.scored(scores))
        self._select = target.selector(weights)
        masks = self._select(self.scores, self.sparsity)
        self._rows = target.scored_rows(model, dead=method.score_dead_rows)
        options = {"momentum": method.momentum, "nesterov": method.nesterov, **lower}
        self._lower_level = MaskedSGD(
            model, weights, masks, lr=method.lr, weight_decay=method.weight_decay, **options
        )
        self._masked = self._lower_level.masked
        self.lower: torch.optim.Optimizer = self._lower_level.optimizer
        held = self.scores.values()
        device, momentum = next(iter(held)).device, method.momentum
        self.upper: torch.optim.Optimizer
        self.upper = make_sgd(held, device, lr=method.score_lr, momentum=momentum)

    @property
    def sparsity(self) -> float:
        """What the next mask is selected by."""
        return self._sparsity

    @sparsity.setter
    def sparsity(self, value: float) -> None:
        check_sparsity(value)
        self._sparsity = value

    @property
    def theta(self) -> dict[str, Tensor]:
        """The lower level's variable by name; not what the module holds, which is m * theta."""
        return self._masked.theta

    @property
    def masks(self) -> Masks:
        """The mask that the module's weights show now."""
        return self._masked.masks

    @torch.no_grad()
    def implicit_ratio(self) -> float:
        """||(1/gamma) m g g|| / ||theta g|| at the gradients that move the scores (a host sync)."""
        if not self.method.implicit_gradient:
            return 0.0
        implicit, direct = [], []
        gradients = self._masked.gradients()
        self._silence(gradients)
        for name, g in gradients.items():
            implicit.append((self._implicit_mask(name) * g * g).norm())
            direct.append((self.theta[name] * g).norm())
        size = torch.stack(direct).norm() if direct else 0.0
        return float(torch.stack(implicit).norm() / self.method.gamma / size) if size > 0 else 0.0

    def zero_grad(self) -> None:
        """Drop the model's gradients; those of theta and the scores live only within a step."""
        self.model.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """theta, scores, masks and both optimizers; the rest of the model has its own."""
        return {
            **self._lower_level.state_dict(),
            "scores": self.scores,
            "upper": self.upper.state_dict(),
            "sparsity": self.sparsity,
            "redraws": self.redraws,
            **self._kind,
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`; the model's weights are written from theta and masks.

        Raises:
            ValueError: The state is not one of these levels.
        """
        if missing := self.state_dict().keys() - state.keys():
            lacking = ", ".join(map(repr, sorted(missing)))
            raise ValueError(f"The state did not come from `state_dict`: it has no {lacking}.")
        for name, own in self._kind.items():
            if state[name] != own:
                raise ValueError(
                    f"The state belongs to an optimizer with {name}={state[name]!r}; this one has "
                    f"{own!r}, so its scores mean something else. Build it with the same settings."
                )
        self._lower_level.load_state_dict(state)
        for name, score in self.scores.items():
            score.copy_(state["scores"][name])
        self.upper.load_state_dict(state["upper"])
        self.sparsity = state["sparsity"]
        self.redraws = state["redraws"]

    @property
    def _kind(self) -> dict[str, Any]:
        """What two optimizers must share for the state of one to mean the same to the other."""
        return {}

    def _silence(self, gradients: Mapping[str, Tensor]) -> None:
        """Set to 0, in place, the gradients g that must not move scores."""
        if self._rows is not None:
            self._rows.silence_dead_(gradients, self.masks)

    def _upper_gradients(
        self, gradients: dict[str, Tensor], masked: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """dl/dm by name, of g and m * g, in the memory of g; `gradients` is emptied on the way."""
        self._silence(gradients)
        return {n: self._upper_gradient(n, gradients.pop(n), masked[n]) for n in list(gradients)}

    @abstractmethod
    def _upper_gradient(self, name: str, g: Tensor, masked: Tensor) -> Tensor:
        """dl/dm of one tensor, of g and m * g, in the memory of g."""

    @abstractmethod
    def _implicit_mask(self, name: str) -> Tensor:
        """The m of the implicit term."""

    def _move_scores(self, gradients: dict[str, Tensor]) -> None:
        """Step the scores by dl/dm, whose memory is free afterwards: `gradients` is emptied."""
        if groups := self._structure.coupled:
            gradients = groups.add_up_gates(gradients)
        for name in list(gradients):
            self.scores[name].grad = gradients.pop(name)
        self.upper.step()
        for held in (self._masked.weights, self.scores):
            for tensor in held.values():
                tensor.grad = None

    def _select_masks(self) -> None:
        if self.redraws:
            self._masked.masks = self._select(self._ranked(), self.sparsity)

    def _ranked(self) -> dict[str, Tensor]:
        """What the mask is chosen by."""
        return self.scores


class LevelsAlgorithm(PruningAlgorithm):
    """Two levels in `fit`: their batches, learning rates and records."""

    def __init__(self, method: BiP, model: nn.Module, setup: Setup, target: Target) -> None:
        super().__init__(method, target)
        self._method = method
        self._target = target
        begin = replace(target, sparsity=self._sparsity(0.0))
        self.levels = method.levels(model, begin, method, seed=setup.seed)
        self._lower_rate = self._upper_rate = method.recipe().lr_schedule()
        self._implicit_ratio = 0.0

    @property
    def masks(self) -> Masks:
        """Those that the model shows now."""
        return self.levels.masks

    def groups(self, batches: Iterable[Batch], steps: int) -> Iterator[Sequence[Batch]]:
        """`lower_steps` batches for theta and one for the mask, `steps` times."""
        return level_batches(batches, steps, self._method.lower_steps, self._method.batches)

    def record(self) -> Record:
        """Learning rates, how the mask moved in this epoch, and how much the implicit term was."""
        return {
            "lr": self.levels.lower.param_groups[0]["lr"],
            "score_lr": self.levels.upper.param_groups[0]["lr"],
            **super().record(),
            "implicit_ratio": self._implicit_ratio,
        }

    def state_dict(self) -> dict[str, Any]:
        """The levels' own; an epoch needs no more."""
        return self.levels.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        self.levels.load_state_dict(state)

    def _sparsity(self, done: float) -> float:
        """What the mask is selected by after a fraction `done` of the run."""
        del done
        return self._target.sparsity

    def _set_rates(self, now: Moment) -> None:
        set_lr(self.levels.lower, self._method.lr * self._lower_rate.factor(now.done))
        set_lr(self.levels.upper, self._method.score_lr * self._upper_rate.factor(now.done))

    def _note_ratio(self, now: Moment) -> None:
        if now.ends_epoch:
            self._implicit_ratio = self.levels.implicit_ratio()


def level_batches(
    batches: Iterable[Batch], steps: int, lower_steps: int, scheme: BatchScheme
) -> Iterator[Sequence[Batch]]:
    """`lower_steps` batches for theta and one for the mask, `steps` times.

    "different" draws all of them from one stream. "reverse" gives the upper level the epoch's
    batches in reverse order, and holds them in memory. "same" repeats the lower level's last.
    Loaders are passed over one time after the other, never two at once: those with persistent
    workers have a single iterator.
    """
    if scheme == "different":
        return rotated(batches, steps, lower_steps + 1)
    if scheme == "same":
        return ((*group, group[-1]) for group in rotated(batches, steps, lower_steps))
    first_pass = list(take(batches, steps))
    lower = chain(first_pass, take(batches, steps * (lower_steps - 1)))
    return zip(*[lower] * lower_steps, reversed(first_pass), strict=True)


def rotated(batches: Iterable[Batch], steps: int, roles: int) -> Iterator[Sequence[Batch]]:
    """`steps` groups of `roles` batches, which swap their roles whenever the groups repeat.

    A loader that keeps its order repeats them after lcm(steps, roles) batches, and would show some
    batches to one role alone.
    """
    stream = take(batches, steps * roles)
    for number, group in enumerate(zip(*[stream] * roles, strict=True)):
        turn = number * gcd(steps, roles) // steps
        yield (*group[turn:], *group[:turn])
