"""The levels of BiP, or of bip-plus, by a sparsity, a structure and settings alone."""

from __future__ import annotations

from typing import Any

from torch import nn

from biprune.core.parameters import Patterns
from biprune.core.structure import Scope, Structure, get_structure
from biprune.methods.base import Target
from biprune.methods.bip import BiP, BiPLevels
from biprune.methods.bip_plus import AS_PUBLISHED, BiPPlus, BiPPlusLevels


def published(
    model: nn.Module,
    sparsity: float,
    structure: str | Structure = "weight",
    *,
    scope: Scope | None = None,
    include: Patterns = None,
    **settings: Any,
) -> BiPLevels:
    """The levels of BiP, with these settings."""
    target = Target(sparsity, as_structure(structure, scope), include)
    return BiPLevels(model, target, BiP(**settings))


def bilevel(
    model: nn.Module,
    sparsity: float,
    structure: str | Structure = "weight",
    *,
    scope: Scope | None = None,
    include: Patterns = None,
    seed: int = 0,
    **settings: Any,
) -> BiPPlusLevels:
    """The levels of bip-plus with the published settings, but for these."""
    target = Target(sparsity, as_structure(structure, scope), include)
    method = BiPPlus(**{**AS_PUBLISHED, **settings})
    return BiPPlusLevels(model, target, method, seed=seed)


def as_structure(structure: str | Structure, scope: Scope | None) -> Structure:
    return get_structure(structure, scope) if isinstance(structure, str) else structure
