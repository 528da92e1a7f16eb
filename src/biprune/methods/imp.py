"""IMP: iterative magnitude pruning, the lottery ticket method.

Frankle and Carbin, The Lottery Ticket Hypothesis, ICLR 2019; with rewinding: Frankle et al., ICML
2020; settings of Ma et al., NeurIPS 2021, as the BiP paper has them.

    repeat: remove the smallest 20 % of the weights that are left, by |theta| after training;
            go back to the weights of early training; train again with the mask

Where this differs from the code of Ma et al.: every round prunes the network of the last epoch, not
of the best epoch on test data; no layer is left out or clipped; the rewinding is the paper's (the
state after epoch 8 of 160, BatchNorm included), with a new optimizer and the whole schedule.
Filters and channels are ours: the same fraction of every layer by L2 norm, on the same ladder.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

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
    """Prune a fifth of what is left, rewind, retrain, until the target is reached.

    `epochs` are those of each round. `stops` are sparsities on the way to halt at exactly; the
    ticket carries every round, so one deep run fills a whole curve. `rounds` goes to the target in
    that many equal steps instead. `rewind` False keeps the trained weights; `rewind_epoch` None is
    5 % of the dense run, 0 the initial weights.
    """

    name: ClassVar[str] = "imp"
    summary: ClassVar[str] = "iterative magnitude, rewound and retrained each round"
    citation: ClassVar[str] = "Frankle and Carbin, ICLR 2019"
    starts_from: ClassVar[Literal["dense", "init"]] = "dense"
    retrains: ClassVar[bool] = True
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
        """Stop at each of `sparsities`, unless the rounds are fixed."""
        if self.rounds is not None:
            return self
        stops = {stop for stop in (*sparsities, *self.stops) if stop < below}
        return replace(self, stops=tuple(sorted(stops)))

    def data_passes(self, sparsity: float) -> float:
        """A retraining each round."""
        return self.epochs * len(list(self.ladder(sparsity)))

    def ladder(self, sparsity: float) -> Iterator[float]:
        """The sparsity of each round.

        A round stops short at a requested sparsity, and goes on to it if that takes at most a
        hundredth more than its share: 74 % is round six, not a seventh of its own.
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
        """Prune, rewind, retrain, and again."""
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
            model = copy.deepcopy(start.model)  # the next round goes on with the original
            rounds.append(Outcome(model, masks, history, cost, sparsity))
        return replace(rounds[-1], rounds=rounds[:-1])


def surviving_magnitudes(
    weights: Mapping[str, nn.Parameter], masks: Masks | None
) -> dict[str, Tensor]:
    """|theta|, below every magnitude where already pruned, so that pruned stays pruned."""
    scores = magnitudes(weights)
    if masks is not None:
        for name, score in scores.items():
            score.masked_fill_(~masks[name], -torch.inf)
    return scores
