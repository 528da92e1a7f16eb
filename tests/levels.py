"""The optimizer of both levels, by a sparsity and a structure alone."""

from __future__ import annotations

from typing import Any

from torch import nn

from biprune.core.parameters import Patterns
from biprune.core.structure import Scope, Structure, get_structure
from biprune.methods.base import Target
from biprune.methods.bilevel import BiLevelOptimizer


def bilevel(
    model: nn.Module,
    sparsity: float,
    structure: str | Structure = "weight",
    *,
    scope: Scope | None = None,
    include: Patterns = None,
    **settings: Any,
) -> BiLevelOptimizer:
    if isinstance(structure, str):
        structure = get_structure(structure, scope)
    return BiLevelOptimizer(model, Target(sparsity, structure, include), **settings)
