"""What methods are measured against: the dense model, and published numbers."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from biprune.experiments.reference import ReferencePoint
from biprune.report.charts.base import (
    MethodEncodings,
    Row,
    accuracy_axis,
    in_words,
    sparsity_fields,
)
from biprune.report.comparison import Comparison
from biprune.report.formatting import spread

_DOTS = [2, 3]


def dense_layers(comparison: Comparison) -> list[alt.Chart]:
    """A line at the dense accuracy and a band of its standard deviation; nothing if unknown."""
    dense = comparison.dense
    if dense is None:
        return []
    std = dense.std or 0.0
    row = {
        "method": "dense",
        "accuracy": dense.mean,
        "low": dense.mean - std,
        "high": dense.mean + std,
        "mean": spread(dense.mean, dense.std),
        "runs": dense.n,
    }
    tooltip = ["method:N", alt.Tooltip("mean:N", title="accuracy (%)"), "runs:Q"]
    base = alt.Chart(alt.Data(values=[row]))
    note = base.mark_text(style="note", align="right", dx=-4, dy=-7, text="dense")
    return [
        base.mark_rect(style="dense-band").encode(y=accuracy_axis("low"), y2="high:Q"),
        base.mark_rule(style="dense", strokeWidth=1.5).encode(y=accuracy_axis(), tooltip=tooltip),
        note.encode(y=accuracy_axis(), x=alt.value("width")),
    ]


def published_layers(
    paper: Sequence[ReferencePoint], methods: MethodEncodings, x: alt.X
) -> list[alt.Chart]:
    """Hollow shapes on dotted lines, a line a method and source; for "dense" across the chart."""
    rows = [_row(point) for point in paper if point.method != "dense"]
    dense = [_row(point) for point in paper if point.method == "dense"]
    tooltip = [
        alt.Tooltip("method:N"),
        alt.Tooltip("sparsity:N"),
        alt.Tooltip("mean:N", title="accuracy (%)"),
        alt.Tooltip("source:N"),
    ]
    rule = alt.Chart(alt.Data(values=dense)).mark_rule(style="dense", strokeDash=_DOTS)
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=x, y=accuracy_axis(), color=methods.color, opacity=methods.opacity()
    )
    line = base.mark_line(strokeWidth=1.5, strokeDash=_DOTS).encode(detail="source:N")
    marks = base.mark_point(filled=False, size=90, strokeWidth=2).encode(
        shape=methods.shape, tooltip=tooltip, description="words:N"
    )
    layers = [rule.encode(y=accuracy_axis(), tooltip=tooltip)] if dense else []
    return [*layers, line, marks] if rows else layers


def _row(point: ReferencePoint) -> Row:
    return {
        "method": point.method,
        **sparsity_fields(point.sparsity),
        "accuracy": point.accuracy,
        "mean": spread(point.accuracy, point.std),
        "words": in_words(f"{point.method} of {point.source}", point.sparsity, point.accuracy),
        "source": point.source,
    }
