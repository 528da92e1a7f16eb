"""What BiP's two levels are set to, and which of these settings go together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from biprune.core.checks import check_choice, check_positive, check_rate

ScoreInit = Literal["magnitude", "hydra", "random"]
ImplicitMask = Literal["binary", "scores"]
ScoreOptimizer = Literal["sgd", "adam"]


@dataclass(frozen=True)
class LevelSettings:
    """The paper's by default. `nesterov` is theta's alone; `score_momentum` None is `momentum`.

    With `follow_weights` the mask is chosen by |theta| + scores, which start at 0, otherwise by
    scores that start as `score_init` says. `couple_gamma` decays theta by gamma in place of
    `weight_decay`; `freeze_pruned` leaves pruned entries of theta as they are, and without
    `score_pruned` those of the scores get no gradient. Nor do those of rows without any kept weight
    (see `Rows.silence_dead_`), unless `score_dead_rows`, as Algorithm A1 has it to the
    letter.
    """

    lr: float = 0.01
    score_lr: float = 0.1
    gamma: float = 1.0
    momentum: float = 0.9
    nesterov: bool = False
    score_momentum: float | None = None
    score_optimizer: ScoreOptimizer = "sgd"
    weight_decay: float = 5e-4
    implicit_gradient: bool = True
    implicit_mask: ImplicitMask = "binary"
    score_init: ScoreInit = "magnitude"
    follow_weights: bool = False
    clamp_scores: bool = False
    couple_gamma: bool = False
    freeze_pruned: bool = False
    score_pruned: bool = True
    score_dead_rows: bool = False

    def __post_init__(self) -> None:
        check_rate("score_lr", self.score_lr)
        check_positive("gamma", self.gamma)
        check_choice("score_optimizer", self.score_optimizer, get_args(ScoreOptimizer))
        if self.score_momentum is not None:
            check_rate("score_momentum", self.score_momentum)
        check_choice("implicit_mask", self.implicit_mask, get_args(ImplicitMask))
        check_choice("score_init", self.score_init, get_args(ScoreInit))
        own = (self.score_init, self.clamp_scores, self.implicit_mask)
        if self.follow_weights and own != ("magnitude", False, "binary"):
            raise ValueError(
                "`follow_weights` ranks by |theta| + scores, with scores that start at 0 and are "
                "no relaxed mask: it goes with score_init='magnitude', clamp_scores=False and "
                f"implicit_mask='binary', got {own[0]!r}, {own[1]} and {own[2]!r}. "
                "Pass follow_weights=False for scores of their own."
            )
