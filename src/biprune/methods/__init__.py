"""The pruning methods by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from typing import Any

from biprune.methods.base import Method
from biprune.methods.bip import BiP
from biprune.methods.bip_plus import BiPPlus
from biprune.methods.dense import Dense
from biprune.methods.earlybird import EarlyBird
from biprune.methods.gmp import GMP
from biprune.methods.grasp import GraSP
from biprune.methods.hydra import Hydra
from biprune.methods.imp import IMP
from biprune.methods.magnitude import OMP, FineTune, Magnitude
from biprune.methods.prospr import ProsPr
from biprune.methods.random import Random
from biprune.methods.snip import SNIP
from biprune.methods.synflow import SynFlow

METHODS: dict[str, type[Method]] = {
    "bip-plus": BiPPlus,
    "bip": BiP,
    "imp": IMP,
    "omp": OMP,
    "magnitude": Magnitude,
    "finetune": FineTune,
    "gmp": GMP,
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
    """A method by name with these settings, or the object itself, over `epochs`.

    `epochs` scales whatever the method counts in epochs, except what `settings` fix.
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
            f"The method {method!r} has no setting {', '.join(map(repr, unknown))}. "
            f"Settings: {', '.join(known) or 'none'}."
        )
    default = METHODS[method]()
    return replace(default if epochs is None else default.scaled(epochs), **settings)
