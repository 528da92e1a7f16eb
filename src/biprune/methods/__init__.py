"""The pruning methods by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from typing import Any

from torch import nn

from biprune.methods.base import Method, TrainingMethod
from biprune.methods.bip import BiP
from biprune.methods.bip_plus import BiPPlus
from biprune.methods.dense import Dense
from biprune.methods.earlybird import EarlyBird
from biprune.methods.gmp import GMP
from biprune.methods.grasp import GraSP
from biprune.methods.hydra import Hydra
from biprune.methods.imp import IMP
from biprune.methods.magnitude import OMP, FineTune, Magnitude
from biprune.methods.movement import Movement
from biprune.methods.prospr import ProsPr
from biprune.methods.random import Random
from biprune.methods.snip import SNIP
from biprune.methods.synflow import SynFlow
from biprune.training.recipes import SAID_BY_OPTIMIZER, settings_for

METHODS: dict[str, type[Method]] = {
    "bip-plus": BiPPlus,
    "bip": BiP,
    "imp": IMP,
    "omp": OMP,
    "magnitude": Magnitude,
    "finetune": FineTune,
    "gmp": GMP,
    "movement": Movement,
    "hydra": Hydra,
    "grasp": GraSP,
    "snip": SNIP,
    "synflow": SynFlow,
    "prospr": ProsPr,
    "earlybird": EarlyBird,
    "random": Random,
    "dense": Dense,
}


def get_method(
    method: str | Method, settings: Mapping[str, Any], epochs: int | None = None
) -> Method:
    """Return the method that `method` and `settings` describe, for a run of `epochs`.

    Args:
        method: A name of `METHODS`, or a method object, which takes no `settings`.
        settings: Fields of the method.
        epochs: The length of the run. It scales every setting that counts epochs, except those in
            `settings`. None keeps the method's own.

    Raises:
        ValueError: No method has this name.
        TypeError: The method has no such setting, or settings were given with an object.
    """
    if isinstance(method, Method):
        if settings:
            raise TypeError(
                f"Settings {sorted(settings)} go into the method object: "
                f"{type(method).__name__}({', '.join(f'{name}=...' for name in settings)})."
            )
        return method if epochs is None else method.scaled(epochs)
    if method not in METHODS:
        close = get_close_matches(str(method), METHODS, n=1, cutoff=0.0)
        raise ValueError(
            f"Unknown method {method!r}. Methods: {', '.join(METHODS)}. Closest: {close[0]}."
        )
    known = [field.name for field in fields(METHODS[method])]
    if unknown := sorted(set(settings) - set(known)):
        raise TypeError(
            f"The method {method!r} has no setting {', '.join(map(repr, unknown))}."
            f"{meant(unknown[0], known)} Settings: {', '.join(known) or 'none'}."
        )
    default = METHODS[method]()
    return replace(default if epochs is None else default.scaled(epochs), **settings)


def suited(
    method: str | Method,
    model: nn.Module,
    settings: Mapping[str, Any],
    epochs: int | None,
    optimizer: object,
) -> Method:
    """Return the method as `get_method` does, trained by `optimizer`.

    If `optimizer` is None, a method given by name uses AdamW for transformers and SGD for other
    models. A method object keeps its own settings.
    """
    found = get_method(method, settings, epochs)
    if callable(optimizer) and (said := sorted(settings.keys() & set(SAID_BY_OPTIMIZER))):
        raise ValueError(
            f"`{said[0]}` is set by the optimizer that `optimizer` returns: leave it out."
        )
    if isinstance(method, Method):
        if isinstance(optimizer, str):
            raise TypeError(
                f"`optimizer` {optimizer!r} goes into the method object: "
                f"{type(method).__name__}(optimizer={optimizer!r}, ...)."
            )
        return found
    if not isinstance(found, TrainingMethod):
        return found
    return replace(found, **{**settings_for(optimizer, model, found.epochs), **settings})


# What other libraries call our keywords.
_ELSEWHERE = {
    "learning_rate": "lr",
    "optim": "optimizer",
    "gpu": "device",
    "num_epochs": "epochs",
    "max_steps": "steps",
    "total_steps": "steps",
    "num_steps": "steps",
    "target_sparsity": "sparsity",
    "amount": "sparsity",
    "wd": "weight_decay",
    "scheduler": "lr_schedule",
    "lr_scheduler": "lr_schedule",
    "max_grad_norm": "clip_grad",
    "ema_decay": "ema",
    "clip": "clip_grad",
    "gradient_accumulation_steps": "accumulate",
    "accumulate_grad_batches": "accumulate",
    "amp": "autocast",
    "bf16": "autocast",
    "criterion": "loss",
    "loss_fn": "loss",
    "teacher": "distill",
    "ignored_layers": "exclude",
    "train_loader": "data",
}


def meant(unknown: str, known: Sequence[str]) -> str:
    """Return a sentence with the keyword that was probably meant, or nothing."""
    close = get_close_matches(unknown, [*known, *_ELSEWHERE.values()], n=1, cutoff=0.75)
    found = _ELSEWHERE.get(unknown) or next(iter(close), unknown)
    return "" if found == unknown else f" Did you mean `{found}`?"
