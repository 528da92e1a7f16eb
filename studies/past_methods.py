"""Methods that are kept for their records: settings alone, under names that nothing else has.

`bip-plus-0.1` is the default of version 0.1: its scores were in units of the learning rate. With
`gmp-0.1` is GMP with `freeze_pruned`, in which weights came back without momentum; all else of GMP
computes what it did, and has its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from biprune.methods import METHODS
from biprune.methods.base import Outcome, Start, Target, TrainingMethod
from biprune.training.schedule import Shape
from biprune.training.setup import Setup


@dataclass(frozen=True)
class PastMethod(TrainingMethod):
    """Settings of runs that were made; new ones are refused."""

    starts_from: ClassVar[Literal["dense", "init"]] = "dense"
    retrains: ClassVar[bool] = False
    today: ClassVar[str]

    schedule: Shape = "cosine"

    def run(self, start: Start, setup: Setup, target: Target) -> Outcome:
        """Say which method to run instead."""
        del start, setup, target
        raise ValueError(
            f"{self.name!r} is kept for its records and cannot be run. Today's method is "
            f"{self.today!r}."
        )


@dataclass(frozen=True)
class BiPPlus01(PastMethod):
    """The settings of `bip-plus` in version 0.1, under the names that they had."""

    name: ClassVar[str] = "bip-plus-0.1"
    summary: ClassVar[str] = "the default of version 0.1, for its records alone"
    citation: ClassVar[str] = "after Zhang et al., NeurIPS 2022"
    settings_version: ClassVar[int] = 5
    today: ClassVar[str] = "bip-plus"

    epochs: int = 100
    nesterov: bool = True
    score_lr: float = 0.3
    gamma: float = 1.0
    lower_steps: int = 1
    batches: str = "different"
    implicit_gradient: bool = False
    form: str = "binary"
    score_dead_rows: bool = False
    retrain_epochs: int = 0
    rewind_epoch: int | None = None
    passes: int = 1
    sparsity_schedule: str = "cubic"
    ramp: float = 0.6
    follow_weights: bool = True
    score_init: str = "magnitude"
    score_schedule: Shape = "cosine"
    score_momentum: float | None = None
    score_optimizer: str = "sgd"
    score_pruned: bool | None = None
    mask_every: int = 1
    settle: bool | None = None
    freeze_pruned: bool = True


@dataclass(frozen=True)
class GMP01(PastMethod):
    """The settings of `gmp` in version 0.1."""

    name: ClassVar[str] = "gmp-0.1"
    summary: ClassVar[str] = "GMP of version 0.1, for its records alone"
    citation: ClassVar[str] = "Zhu and Gupta, ICLR Workshop 2018"
    today: ClassVar[str] = "gmp"

    ramp: float = 0.6
    mask_every: int = 10
    freeze_pruned: bool = False


PAST = {method.name: method for method in (BiPPlus01, GMP01)}
METHODS.update(PAST)
