"""The settings of one training, and which suit a model: SGD or AdamW."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, get_args

from torch import nn

from biprune.core.checks import check_choice, check_positive, check_rate, check_whole
from biprune.training.schedule import LRSchedule, Shape

OptimizerName = Literal["sgd", "adamw"]
logger = logging.getLogger(__name__)
CLIP_ADAMW = 1.0  # the largest norm of a transformer's gradient
WARMUP = 0.05  # the part of a transformer's run over which its rate rises


@dataclass(frozen=True)
class Recipe:
    """The settings of one training; the defaults are the BiP paper's for retraining.

    `milestones` are fractions of the run, and `warmup_epochs` are part of `epochs`. AdamW decays
    neither norms nor biases, and ignores `momentum` and `nesterov`.
    """

    epochs: int = 160
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    schedule: Shape = "step"
    milestones: tuple[float, ...] = (0.5, 0.75)
    decay: float = 0.1
    warmup_epochs: float = 0.0
    nesterov: bool = False
    optimizer: OptimizerName = "sgd"

    def __post_init__(self) -> None:
        check_whole("epochs", self.epochs, at_least=1)
        check_positive("lr", self.lr)
        check_rate("momentum", self.momentum)
        check_rate("weight_decay", self.weight_decay)
        check_choice("optimizer", self.optimizer, get_args(OptimizerName))
        if not 0 <= self.warmup_epochs <= self.epochs:
            raise ValueError(
                f"`warmup_epochs` must be in [0, {self.epochs}], the epochs of the run, got "
                f"{self.warmup_epochs:g}."
            )
        self.lr_schedule()

    def lr_schedule(self) -> LRSchedule:
        """Return the factor on `lr` over the run."""
        warmup = self.warmup_epochs / self.epochs
        return LRSchedule(self.schedule, tuple(self.milestones), self.decay, warmup)


SAID_BY_OPTIMIZER = ("lr", "momentum", "weight_decay", "nesterov")
# What training by AdamW uses instead of the defaults.
ADAMW: Mapping[str, Any] = MappingProxyType(
    {"optimizer": "adamw", "lr": 1e-3, "weight_decay": 0.05, "schedule": "cosine"}
)


def suitable_optimizer(model: nn.Module) -> OptimizerName:
    """Choose AdamW if the model normalizes tokens, like transformers and ConvNeXt, else SGD."""
    kinds = [type(module).__name__ for module in model.modules()]
    tokens = sum(kind.endswith(("LayerNorm", "RMSNorm", "LayerNorm2d")) for kind in kinds)
    batches = sum("BatchNorm" in kind for kind in kinds)
    return "adamw" if tokens > batches else "sgd"


def settings_for(optimizer: object, model: nn.Module, epochs: int) -> dict[str, Any]:
    """Return the training settings that `optimizer` implies, where they differ from the defaults.

    `optimizer` is a name, a function that makes an optimizer, or None to choose by the model; a
    choice of AdamW is logged.
    """
    name = suitable_optimizer(model) if optimizer is None else optimizer
    if isinstance(name, str):
        check_choice("optimizer", name, get_args(OptimizerName))
    if name != "adamw":
        return {}
    found = {**ADAMW, "warmup_epochs": WARMUP * epochs}
    if optimizer is None:
        logger.info(
            "The model normalizes tokens, as transformers do: it is trained by AdamW (lr %g, "
            "warm-up, gradients clipped). For SGD pass optimizer='sgd'.",
            found["lr"],
        )
    return found
