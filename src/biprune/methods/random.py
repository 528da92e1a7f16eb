"""Random pruning: what any method must beat.

Scores are uniform draws at initialization, ranked over the model or within each layer, as the scope
says. Training is as for the other methods that prune at initialization. With `like`, the masks of
another ticket, units are shuffled within each layer: every layer keeps as many units as there, but
others. This is the strong control of Frankle et al. (ICLR 2021) and Su et al. (NeurIPS 2020).
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
    """Remove units at random, then train the rest from the initial weights.

    Args:
        like: Masks of a ticket; each layer keeps as many units as they do.
    """

    name: ClassVar[str] = "random"
    summary: ClassVar[str] = "random units, trained from initialization"
    citation: ClassVar[str] = "Frankle et al., ICLR 2021"

    like: Masks | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.like, Masks | None):
            raise TypeError(
                f"`like` must be the masks of a ticket, got {self.like!r}. Masks cannot be written "
                "down as a setting, so only `prune` takes them."
            )

    @property
    def settings(self) -> dict[str, Any]:
        """The settings; of `like`, only whether it was given."""
        plain = super(Random, replace(self, like=None)).settings
        return {**plain, "like": None if self.like is None else True}

    def run(self, start: Start, setup: Setup, target: Target) -> Outcome:
        """Prune as drawn; with `like`, its counts replace the scope."""
        if self.like is not None:
            if (groups := target.structure.coupled) and groups.is_budgeted:
                raise ValueError(
                    "`like` goes by counts of units, a `budget` or `round_to` by their cost. Prune "
                    "to a `sparsity` of units, or without `like`."
                )
            target = replace(target, structure=replace(target.structure, scope="global"))
        return super().run(start, setup, target)

    def unit_scores(self, scoring: Scoring, target: Target) -> Mapping[str, Tensor]:
        """Draw from [0, 1), and add 1 for as many units of each layer as `like` keeps."""
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
            "`like` has masks of other tensors, units or sparsity than this run prunes. Prune with "
            "the sparsity, structure, `include` and `exclude` of the ticket they come from."
        )
