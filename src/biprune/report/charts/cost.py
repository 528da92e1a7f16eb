"""Accuracy against what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import altair as alt

from biprune.report.charts.against import dense_layers
from biprune.report.charts.base import (
    MethodEncodings,
    accuracy_axis,
    cell_rows,
    cell_tooltip,
    layered,
)
from biprune.report.charts.menu import at_chosen, sparsity_menu
from biprune.report.comparison import Comparison

Cost = Literal["seconds", "passes"]
_TITLES: dict[Cost, str] = {
    "seconds": "seconds of a run",
    "passes": "backward passes of a run",
}


def accuracy_by_cost(comparison: Comparison, cost: Cost) -> alt.LayerChart | None:
    """Accuracy of every method over its mean cost, at a sparsity the reader chooses.

    None where no run has finished.
    """
    rows = cell_rows(comparison)
    if not rows:
        return None
    methods = MethodEncodings(comparison.methods)
    chosen = sparsity_menu(rows)
    axis = alt.Axis(labelOverlap="greedy", labelSeparation=10, format="~s", tickCount=6)
    scale = _scale([row[cost] for row in rows])
    base = at_chosen(rows, chosen).encode(
        x=alt.X(f"{cost}:Q", title=_TITLES[cost], scale=scale, axis=axis),
        color=methods.color,
        opacity=methods.opacity(),
    )
    bars = base.mark_rule(strokeWidth=2).encode(y=accuracy_axis("low"), y2="high:Q")
    marks = base.mark_point(filled=True, size=110).encode(
        y=accuracy_axis(),
        shape=methods.shape,
        tooltip=cell_tooltip(),
        description="words:N",
    )
    layers = [*dense_layers(comparison), bars, marks.add_params(methods.shown)]
    return layered(*layers).add_params(chosen)


def _scale(costs: Sequence[float]) -> alt.Scale:
    """Logarithmic where the dearest cell would press the others together."""
    if min(costs) > 0 and max(costs) > 5 * min(costs):
        return alt.Scale(type="log", nice=False, padding=24)
    return alt.Scale(zero=False, nice=False, padding=24)
