"""Random pruning: what any method must beat.

Scores are uniform draws, cut globally or in each layer as the scope says, at initialization; the
training is that of the other methods which prune there. With `like`, another ticket's masks, units
are shuffled within each layer: the layers keep its counts and lose its choice, the strong control
of Frankle et al. (ICLR 2021) and Su et al. (NeurIPS 2020).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from biprune.core.masks import Masks
from biprune.core.structure import num_kept
from biprune.methods.at_init import AtInit, Scoring
from biprune.methods.base import Outcome, Start, Target
from biprune.training.batches import device_of
from biprune.training.seeding import drawing_generator
from biprune.training.setup import Setup


@dataclass(frozen=True)
class Random(AtInit):
    """Remove units at random, then train what is left from the initial weights."""

    name: ClassVar[str] = "random"
    summary: ClassVar[str] = "random units, trained from initialization"
    citation: ClassVar[str] = "Frankle et al., ICLR 2021"

    like: Masks | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.like, Masks | None):
            raise TypeError(
                f"`like` must be the masks of a ticket, got {self.like!r}. They cannot be written "
                "down as a setting, so that only `prune` takes them."
            )

    @property
    def settings(self) -> dict[str, Any]:
        """The settings, of `like` only whether it was given."""
        plain = super(Random, replace(self, like=None)).settings
        return {**plain, "like": None if self.like is None else True}

    def run(self, start: Start, setup: Setup, target: Target) -> Outcome:
        """As drawn; with `like` the counts are its own, whatever the scope."""
        if self.like is not None:
            if (groups := target.structure.coupled) and groups.is_budgeted:
                raise ValueError(
                    "`like` goes by counts of units, a `budget` or `round_to` by what they cost. "
                    "Prune with the `sparsity` of units alone, or without `like`."
                )
            target = replace(target, structure=replace(target.structure, scope="global"))
        return super().run(start, setup, target)

    def unit_scores(self, scoring: Scoring, target: Target) -> Mapping[str, Tensor]:
        """Uniform in [0, 1), with 1 added to as many units of a layer as `like` keeps there."""
        device = device_of(scoring.model)
        generator = drawing_generator(scoring.setup.seed, device)
        sizes = target.structure.num_units(scoring.weights)
        scores = {n: torch.rand(k, generator=generator, device=device) for n, k in sizes.items()}
        if self.like is not None:
            _check_same_units(self.like, sizes, target.sparsity)
            for name, count in self.like.per_layer().items():
                scores[name][scores[name].argsort(descending=True)[: count.kept]] += 1.0
        return scores


def _check_same_units(like: Masks, sizes: Mapping[str, int], sparsity: float) -> None:
    theirs = {name: count.total for name, count in like.per_layer().items()}
    if theirs != sizes or like.kept != num_kept(sparsity, like.total):
        raise ValueError(
            "`like` has masks of other tensors, units or sparsity than are to be pruned. Prune "
            "with the sparsity, structure, `include` and `exclude` of the ticket it comes from."
        )
