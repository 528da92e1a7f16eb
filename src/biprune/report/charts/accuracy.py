"""Accuracy against sparsity."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from biprune.experiments.reference import ReferencePoint
from biprune.report.charts.against import dense_layers, published_layers
from biprune.report.charts.base import (
    MethodEncodings,
    accuracy_axis,
    cell_rows,
    cell_tooltip,
    layered,
    sparsity_axis,
)
from biprune.report.comparison import Comparison


def accuracy_by_sparsity(
    comparison: Comparison, paper: Sequence[ReferencePoint] = ()
) -> alt.LayerChart | None:
    """Mean and standard deviation of every method, beside dense and published numbers.

    None where no run has finished.
    """
    rows = cell_rows(comparison)
    if not rows:
        return None
    published = [point for point in paper if point.method != "dense"]
    methods = MethodEncodings(
        comparison.methods | _not_ours(comparison, sorted({point.method for point in published}))
    )
    x = sparsity_axis([*comparison.sparsities, *(point.sparsity for point in published)])
    base = alt.Chart(alt.Data(values=rows)).encode(x=x, color=methods.color)
    # A band of one sparsity has no width.
    band, strength = base.mark_area(), 0.14
    if len(comparison.sparsities) == 1:
        band, strength = base.mark_rule(strokeWidth=2), 0.6
    band = band.encode(y=accuracy_axis("low"), y2="high:Q", opacity=methods.opacity(strength, 0.0))
    drawn = base.encode(y=accuracy_axis(), opacity=methods.opacity())
    line = drawn.mark_line(strokeWidth=2).encode(strokeDash=methods.dash)
    marks = drawn.mark_point(filled=True, size=80).encode(
        shape=methods.shape, tooltip=cell_tooltip(), description="words:N"
    )
    return layered(
        *dense_layers(comparison),
        band,
        line,
        marks.add_params(methods.shown),
        *published_layers(paper, methods, x),
    )


def _not_ours(comparison: Comparison, names: Sequence[str]) -> dict[str, str]:
    return {name: name for name in names if name not in comparison.methods}
