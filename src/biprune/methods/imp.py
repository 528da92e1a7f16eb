"""IMP: iterative magnitude pruning, the lottery ticket method.

Frankle and Carbin, The Lottery Ticket Hypothesis, ICLR 2019. Rewinding is from Frankle et al., ICML
2020. The settings are those of Ma et al., NeurIPS 2021, as given in the BiP paper.

    repeat: remove the smallest 20 % of the remaining weights, by |theta| after training;
            go back to the weights of early training; train again under the mask

Where this differs from the code of Ma et al.:

1. Every round prunes the network of the last epoch, not that of the best epoch on test data.
2. No layer is left out or clipped.
3. It rewinds as the BiP paper does: to the whole state after epoch 8 of 160, with a new optimizer
   and the whole schedule.

Filters and channels are ours: each round removes the same fraction of every layer, by L2 norm.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from biprune.core.checks import check_whole
from biprune.core.masks import Masks
from biprune.core.selection import check_sparsity
from biprune.methods.base import Outcome, Start, Target, TrainingMethod, magnitudes, retrain_
from biprune.training.loop import Cost
from biprune.training.setup import Record, Setup


@dataclass(frozen=True)
class IMP(TrainingMethod):
    """Prune a fifth of what is left, rewind and retrain, until the target is reached.

    Args:
        epochs: The epochs of each round.
        rate: The fraction of the remaining units that a round removes.
        rounds: Reach the target in this many equal steps instead.
        stops: Sparsities on the way to hit exactly. The ticket holds every round, so one deep run
            fills a whole curve.
        rewind: Whether to rewind; if not, rounds go on from the trained weights.
        rewind_epoch: The epoch of the dense run to rewind to. 0 means the initial weights, None
            5 % of the run.
    """

    name: ClassVar[str] = "imp"
    summary: ClassVar[str] = "iterative magnitude, rewound and retrained each round"
    citation: ClassVar[str] = "Frankle and Carbin, ICLR 2019"
    has_rounds: ClassVar[bool] = True

    rate: float = 0.2
    rounds: int | None = None
    stops: tuple[float, ...] = ()
    rewind: bool = True
    rewind_epoch: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.rate < 1:
            raise ValueError(f"`rate` must be in (0, 1), got {self.rate:g}.")
        if self.rounds is not None:
            check_whole("rounds", self.rounds, at_least=1)
            if self.stops:
                raise ValueError("`rounds` and `stops` cannot both be given: choose one.")
        if not isinstance(self.stops, (tuple, list)):
            raise TypeError(f"`stops` must be a tuple of sparsities, got {self.stops!r}.")
        for stop in self.stops:
            check_sparsity(stop)
        if self.rewind_epoch is not None and not self.rewind:
            raise ValueError("`rewind_epoch` is given, but `rewind` is False.")

    def covering(self, sparsities: Iterable[float], below: float) -> Self:
        """Return the method with a stop at each of `sparsities`, unless `rounds` is set."""
        if self.rounds is not None:
            return self
        stops = {stop for stop in (*sparsities, *self.stops) if stop < below}
        return replace(self, stops=tuple(sorted(stops)))

    def data_passes(self, sparsity: float) -> float:
        """Return the epochs of all rounds."""
        return self.epochs * len(list(self.ladder(sparsity)))

    def ladder(self, sparsity: float) -> Iterator[float]:
        """Yield the sparsity of each round.

        A round stops at a requested sparsity that it would pass. It also goes on to one that keeps
        at most 1 % less than the round would: 74 % is round six, not a seventh round.
        """
        if self.rounds is not None:
            factor = (1 - sparsity) ** (1 / self.rounds)
            yield from (1 - factor**n for n in range(1, self.rounds))
            yield sparsity
            return
        kept = 1.0
        for stop in sorted({stop for stop in self.stops if stop < sparsity} | {sparsity}):
            while kept * (1 - self.rate) > (1 - stop) * 1.01:
                kept *= 1 - self.rate
                yield 1 - kept
            kept = 1 - stop
            yield stop

    def run(self, start: Start, setup: Setup, target: Target) -> Outcome:
        """Prune, rewind and retrain, round by round."""
        if self.rewind:
            start.check_rewind(self.rewind_epoch)
        masks: Masks | None = None
        history: list[Record] = []
        rounds: list[Outcome] = []
        cost = Cost()
        for number, sparsity in enumerate(self.ladder(target.sparsity), start=1):
            scores = surviving_magnitudes(target.weights(start.model), masks)
            masks = target.select(scores, sparsity)
            note = start.rewind_(self.rewind_epoch) if self.rewind else "kept the trained weights"
            trained = retrain_(
                start.model, masks, self.recipe(), setup, note, stage=f"round-{number}"
            )
            history, cost = [*history, *trained.history], cost + trained.cost
            model = copy.deepcopy(start.model)  # the next round changes the original
            rounds.append(Outcome(model, masks, history, cost, sparsity))
        return replace(rounds[-1], rounds=rounds[:-1])


def surviving_magnitudes(
    weights: Mapping[str, nn.Parameter], masks: Masks | None
) -> dict[str, Tensor]:
    """Return |theta|, or -inf where already pruned, so that pruned weights stay pruned."""
    scores = magnitudes(weights)
    if masks is not None:
        for name, score in scores.items():
            score.masked_fill_(~masks[name], -torch.inf)
    return scores
