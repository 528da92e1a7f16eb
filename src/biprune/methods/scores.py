"""What BiP's scores start from, and what moves them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from biprune.methods.base import fan_in_bound, magnitudes, scaled_to_bound
from biprune.methods.level_settings import LevelSettings, ScoreInit
from biprune.training.seeding import drawing_generator
from biprune.training.sgd import make_sgd


@torch.no_grad()
def initial_scores(
    weights: Mapping[str, nn.Parameter], init: ScoreInit, seed: int
) -> dict[str, Tensor]:
    """Scores that share no storage with the weights.

    "magnitude": |theta|. "hydra": |theta| scaled in each layer to a maximum of sqrt(6 / fan_in)
    (Sehwag et al. 2020). "random": uniform in [0, sqrt(6 / fan_in)).
    """
    scores = magnitudes(weights)
    if init == "hydra":
        return {name: scaled_to_bound(score) for name, score in scores.items()}
    if init == "random":
        generator = drawing_generator(seed, next(iter(scores.values())).device)
        return {n: s.uniform_(0, fan_in_bound(s), generator=generator) for n, s in scores.items()}
    return scores


def make_score_optimizer(
    settings: LevelSettings, scores: Collection[Tensor]
) -> torch.optim.Optimizer:
    """What steps the upper level, without decay; Adam has its own averages and no momentum."""
    if settings.score_optimizer == "adam":
        return torch.optim.Adam(scores, lr=settings.score_lr)
    own = settings.score_momentum
    momentum = settings.momentum if own is None else own
    return make_sgd(scores, next(iter(scores)).device, lr=settings.score_lr, momentum=momentum)
