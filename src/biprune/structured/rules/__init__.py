"""The rules that labels follow, by operation; see `table`."""

from __future__ import annotations

import operator

import torch
from torch import fx

from biprune.structured.labels import Rule
from biprune.structured.rules import convolutions, indexing, moving, pointwise, products, reductions
from biprune.structured.rules.table import RULES

__all__ = [
    "convolutions",
    "indexing",
    "is_known",
    "is_moving",
    "may_read_table",
    "moving",
    "products",
    "reductions",
    "rule_of",
]

_MOVING = frozenset((*moving.SAME, *moving.MOVING, *moving.COPYING, *moving.RESHAPES, *moving.LIKE))


def rule_of(node: fx.Node) -> tuple[Rule | None, str]:
    """The rule for what a node calls, None if it is not known; and its name in words."""
    name = getattr(node.target, "_opname", None)
    if name is None:
        on_sizes = getattr(node.target, "__module__", "") in ("_operator", "math", "torch")
        title = getattr(node.target, "__name__", str(node.target))
        return reductions.nothing if on_sizes else None, title
    known = RULES.get(name) if getattr(node.target, "namespace", "") == "aten" else None
    if known is None and torch.Tag.pointwise in getattr(node.target, "tags", ()):
        known = pointwise.pointwise
    return known, name


def is_known(function: object) -> bool:
    """Whether a function is an operation of torch that a rule knows."""
    if not isinstance(function, torch._ops.OpOverload) or function.namespace != "aten":
        return False
    return function._opname in RULES or torch.Tag.pointwise in function.tags


def is_moving(node: fx.Node) -> bool:
    """Whether a node moves data and computes nothing."""
    return node.target is operator.getitem or getattr(node.target, "_opname", None) in _MOVING


def may_read_table(node: fx.Node) -> bool:
    """Whether a node may read a constant table, such as rotary angles or a bias by position."""
    if node.op != "call_function":
        return False
    rule, name = rule_of(node)
    return rule is pointwise.pointwise or name == "scaled_dot_product_attention"
