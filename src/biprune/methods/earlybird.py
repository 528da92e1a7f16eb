"""EarlyBird: stop looking for a mask as soon as it no longer changes.

You, Li, Xu, Fu, Wang, Chen, Baraniuk, Wang, Lin. Drawing Early-Bird Tickets: Toward More Efficient
Training of Deep Networks. ICLR 2020.

    draw the mask of the target sparsity at every epoch of ordinary training; when it is within 0.1
    of each of the four before it, fix it and go on training under it

It was published for channels: filters are ranked by |gamma| of the BatchNorm behind them, over all
layers (`structure="filter", scope="global", distance="hamming"`), with an L1 penalty on gamma. The
BiP paper runs it unstructured and gives no recipe; we rank weights by magnitude, without a penalty.

Where this differs from the authors' code:

1. The distance is 1 - IoU. The Hamming distance of any two masks that keep 5 % is at most 0.1, so
   theirs would stop at once.
2. The mask before the first epoch does not count, since all gammas are still equal.
3. Training starts from the given initialization (gamma = 1) with a weight decay of 5e-4, like every
   method here. The network is masked, not shrunk.
4. If no mask settles, the one drawn before the last epoch is kept, and the history says so.

Ranking channels, and filters without a BatchNorm behind them, by L2 norm is ours.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from biprune.core.checks import check_choice, check_rate, check_whole
from biprune.core.masks import Masks
from biprune.core.parameters import norm_parameters
from biprune.core.structure import Structure
from biprune.methods.at_init import Scoring
from biprune.methods.base import Outcome, Start, Target, TrainingMethod, magnitudes
from biprune.methods.gates import (
    Gate,
    Gates,
    convolutions,
    following_norms,
    gated_list,
    gated_parameters,
    rows,
)
from biprune.training.batches import Batch, device_of
from biprune.training.loop import Algorithm, Backward, Cost, fit
from biprune.training.schedule import Moment
from biprune.training.seeding import DRAWS, derive_seed, forked_rng, seed_all
from biprune.training.setup import Record, Setup
from biprune.training.train import PlainTraining

Distance = Literal["iou", "hamming"]


@dataclass(frozen=True)
class EarlyBird(TrainingMethod):
    """Train from initialization, fix the first mask that settles, and train on under it.

    Args:
        threshold: The largest distance between masks that have settled.
        memory: How many successive masks are compared; none can settle in fewer epochs.
        distance: "iou" for 1 - IoU, or "hamming".
        penalty: The weight of the L1 penalty on gamma, for filters and groups only.
    """

    name: ClassVar[str] = "earlybird"
    summary: ClassVar[str] = "the first mask that settles early in training"
    citation: ClassVar[str] = "You et al., ICLR 2020"
    starts_from: ClassVar[Literal["dense", "init"]] = "init"
    retrains: ClassVar[bool] = False

    threshold: float = 0.1
    memory: int = 5
    distance: Distance = "iou"
    penalty: float = 1e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("distance", self.distance, get_args(Distance))
        check_whole("memory", self.memory, at_least=2)
        check_rate("threshold", self.threshold)
        check_rate("penalty", self.penalty)

    def run(self, start: Start, setup: Setup, target: Target) -> Outcome:
        """Train once, and find the mask on the way."""
        note = start.rewind_(0)
        scoring = Scoring(start.model, target.weights(start.model), setup)
        gammas = find_gammas(scoring, target.structure)
        algorithm = EarlyBirdAlgorithm(self, start.model, target, gammas, setup)
        run = fit(start.model, algorithm, setup, epochs=self.epochs, stage="earlybird")
        masks, verdict = algorithm.finish()
        notes: list[Record] = [{"stage": "start", "note": note}, {"stage": "end", "note": verdict}]
        cost = Cost(forward_passes=scoring.forward_passes) + run.cost
        return Outcome(start.model, masks, [notes[0], *run.history, notes[1]], cost)


class EarlyBirdAlgorithm(Algorithm):
    """Ordinary training that draws a mask at the start of each epoch."""

    def __init__(
        self,
        method: EarlyBird,
        model: nn.Module,
        target: Target,
        gammas: Gates,
        setup: Setup,
    ) -> None:
        self._method = method
        self._model = model
        self._target = target
        self._gammas, self._setup = gammas, setup
        self._recipe = method.recipe()
        self._training = PlainTraining(model, self._recipe, setup)
        self._drawn: list[Masks] = []
        self._epoch = 0
        self._masks: Masks | None = None
        self._verdict = "no mask settled: the one after the last epoch was kept"
        self._distance = 1.0

    @property
    def settings(self) -> Mapping[str, Any]:
        """What a checkpoint must agree on to be resumed."""
        return {**self._method.settings, **self._target.settings}

    def groups(self, batches: Iterable[Batch], steps: int) -> Iterator[Sequence[Batch]]:
        """Draw this epoch's mask, then yield one batch per step."""
        if self._epoch > 0 and self._masks is None:
            self._look()
        self._epoch += 1
        return self._training.groups(batches, steps)

    def step(self, backward: Backward, group: Sequence[Batch], now: Moment) -> float:
        """Take one step with the penalty on gamma."""

        def penalised(batch: Batch, /, *, upper: bool = False) -> Tensor:
            loss = backward(batch, upper=upper)
            for gamma in gated_list(self._gammas):
                if gamma.grad is not None:
                    gamma.grad.add_(gamma.detach().sign(), alpha=self._method.penalty)
            return loss

        return self._training.step(penalised, group, now)

    def record(self) -> Record:
        """Return the learning rate and the largest distance to earlier masks."""
        return {**self._training.record(), "mask_distance": self._distance}

    def finish(self) -> tuple[Masks, str]:
        """Return the mask and how it was found."""
        self._training.finish()
        if self._masks is None:
            self._masks = self._draw()
            self._masks.apply_(self._model)
        return self._masks, self._verdict

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state, the masks to compare, and the one that was found."""
        return {
            "training": self._training.state_dict(),
            "drawn": [dict(masks) for masks in self._drawn],
            "masks": None if self._masks is None else dict(self._masks),
            "verdict": self._verdict,
            "epoch": self._epoch,
            "distance": self._distance,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        structure, device = self._target.structure, device_of(self._model)
        self._drawn = [Masks(masks, structure).to(device) for masks in state["drawn"]]
        self._epoch, self._distance = state["epoch"], state["distance"]
        if state["masks"] is not None:
            self._freeze(Masks(state["masks"], structure).to(device), state["verdict"])
        self._training.load_state_dict(state["training"])

    def _look(self) -> None:
        """Draw a mask, and fix it if it is close to each of the earlier ones."""
        method = self._method
        masks, before = self._draw(), self._drawn[-(method.memory - 1) :]
        self._drawn = [*before, masks]
        self._distance = farthest(masks, before, method.distance)
        if len(self._drawn) == method.memory and self._distance <= method.threshold:
            self._freeze(masks, f"the mask settled after epoch {self._epoch}")
        elif self._epoch == method.epochs - 1:
            self._freeze(masks, "no mask settled: that of the last epoch's start was kept")

    def _freeze(self, masks: Masks, verdict: str) -> None:
        self._masks, self._verdict = masks, verdict
        # With a new optimizer, as published.
        self._training = PlainTraining(self._model, self._recipe, self._setup, masks)

    @torch.no_grad()
    def _draw(self) -> Masks:
        weights = self._target.weights(self._model)
        pooled = self._target.structure.pool(magnitudes(weights))
        gammas = {name: gates_size(gates) for name, gates in self._gammas.items()}
        return self._target.select_units(weights, pooled | gammas)


def find_gammas(scoring: Scoring, structure: Structure) -> Gates:
    """Return the norm weights that rank each tensor's filters, or each group.

    For filters this takes one forward pass.
    """
    if structure.spans_tensors:
        gammas = group_gammas(scoring, structure)
        _check_comparable(gammas, structure.num_units({}).keys(), structure)
        return gammas
    if structure.dim != 0:
        return {}
    setup = scoring.setup
    with forked_rng(setup.batches):
        seed_all(derive_seed(setup.seed, DRAWS), setup.batches)
        batch = next(scoring.stream())
        norms = following_norms(scoring.model, lambda: scoring.loss(batch))
    behind = {n: norms.get(c) for n, c in convolutions(scoring.model, scoring.weights).items()}
    weights = {name: getattr(norm, "weight", None) for name, norm in behind.items()}
    gammas = {n: [Gate(w, rows(n, w))] for n, w in weights.items() if isinstance(w, nn.Parameter)}
    _check_comparable(gammas, weights.keys(), structure)
    return gammas


def group_gammas(scoring: Scoring, structure: Structure) -> Gates:
    """Return the norm weights among each group's gates; groups without any are left out."""
    norms = {id(p) for p in norm_parameters(scoring.model)}
    gates = gated_parameters(scoring.model, scoring.weights, structure, lambda: None)
    gammas = {
        name: [g for g in held if id(g.parameter) in norms and _is_weight(g)]
        for name, held in gates.items()
    }
    return {name: held for name, held in gammas.items() if held}


def _is_weight(gate: Gate) -> bool:
    return gate.part is not None and gate.part.tensor.endswith("weight")


def gates_size(gates: Sequence[Gate]) -> Tensor:
    """Return the mean of |gamma| over the norms of each unit."""
    sizes = [g.part.of(g.parameter.abs()).mean(dim=1) for g in gates if g.part is not None]
    return torch.stack(sizes).mean(dim=0)


def _check_comparable(gammas: Gates, names: Collection[str], structure: Structure) -> None:
    without = sorted(set(names) - gammas.keys())
    if gammas and without and structure.scope == "global":
        raise ValueError(
            "EarlyBird ranks filters by the BatchNorm behind them, which cannot be compared with "
            f"the L2 norms of filters without one: {', '.join(without)}. Leave them out with "
            '`exclude`, or rank within each layer (scope="layer").'
        )


def farthest(masks: Masks, others: Sequence[Masks], distance: Distance) -> float:
    """Return the largest distance of `masks` to `others`, in [0, 1]; 1 if there are no others."""
    mine, distances = masks.units(), [1.0] if not others else []
    for other in others:
        theirs = other.units()
        differ = int(torch.count_nonzero(mine ^ theirs))
        of = mine.numel() if distance == "hamming" else int(torch.count_nonzero(mine | theirs))
        distances.append(differ / max(of, 1))  # if nothing is kept, nothing differs
    return max(distances)
