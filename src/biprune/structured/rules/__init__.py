"""The rules that labels follow: one small function for each class of operation, by aten name."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from biprune.structured.labels import MOVING, RULES, Rule
from biprune.structured.rules import indexing, moving, pointwise, products, reductions
from biprune.structured.trace import op_name

RULE_FILES = (indexing, moving, pointwise, products, reductions)  # register rules


def rule_of(node: fx.Node) -> tuple[Rule | None, str]:
    """The rule for what a node calls, None if it is not known; and its name in words."""
    if name := op_name(node):
        return _rule_for(node.target), name
    on_sizes = getattr(node.target, "__module__", "") in ("_operator", "math", "torch")
    title = getattr(node.target, "__name__", str(node.target))
    return reductions.nothing if on_sizes else None, title


def _rule_for(operation: Any) -> Rule | None:
    known = RULES.get(operation._opname) if operation.namespace == "aten" else None
    tagged = torch.Tag.pointwise in operation.tags
    return pointwise.pointwise if known is None and tagged else known


def is_known(function: object) -> bool:
    """Whether a function is an operation of torch that a rule knows."""
    is_aten = isinstance(function, torch._ops.OpOverload) and function.namespace == "aten"
    return is_aten and _rule_for(function) is not None


def is_moving(node: fx.Node) -> bool:
    """Whether a node moves data and computes nothing."""
    return node.target is operator.getitem or op_name(node) in MOVING


def may_read_table(node: fx.Node) -> bool:
    """Whether a node may read a constant table, such as rotary angles or a bias by position."""
    if node.op != "call_function":
        return False
    rule, name = rule_of(node)
    return rule is pointwise.pointwise or name == "scaled_dot_product_attention"
