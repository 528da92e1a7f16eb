"""What BiP's scores start from, what moves them, and which of their settings go together."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from biprune.checks import check_choice, check_rate
from biprune.methods.base import fan_in_bound, magnitudes, scaled_to_bound
from biprune.seeding import drawing_generator
from biprune.sgd import make_sgd

ScoreInit = Literal["magnitude", "hydra", "random"]
ImplicitMask = Literal["binary", "scores"]
ScoreOptimizer = Literal["sgd", "adam"]


def check_scores(
    score_init: ScoreInit,
    follow_weights: bool,
    clamp_scores: bool,
    implicit_mask: ImplicitMask,
    score_optimizer: ScoreOptimizer,
    score_momentum: float | None,
) -> None:
    """Refuse settings of the scores that are unknown, or that do not go together."""
    check_choice("score_optimizer", score_optimizer, get_args(ScoreOptimizer))
    if score_momentum is not None:
        check_rate("score_momentum", score_momentum)
    check_choice("implicit_mask", implicit_mask, get_args(ImplicitMask))
    check_choice("score_init", score_init, get_args(ScoreInit))
    if follow_weights and (score_init, clamp_scores, implicit_mask) != (
        "magnitude",
        False,
        "binary",
    ):
        raise ValueError(
            "`follow_weights` ranks by |theta| + scores, with scores that start at 0 and are no "
            "relaxed mask: it goes with score_init='magnitude', clamp_scores=False and "
            f"implicit_mask='binary', got {score_init!r}, {clamp_scores} and {implicit_mask!r}. "
            "Pass follow_weights=False for scores of their own."
        )


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
    kind: ScoreOptimizer, scores: Collection[Tensor], *, lr: float, momentum: float
) -> torch.optim.Optimizer:
    """What steps the upper level, without decay; Adam has its own averages and no `momentum`."""
    if kind == "adam":
        return torch.optim.Adam(scores, lr=lr)
    return make_sgd(scores, next(iter(scores)).device, lr=lr, momentum=momentum)
