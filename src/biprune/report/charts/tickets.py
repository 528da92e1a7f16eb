"""The sparsest winning ticket of each method."""

from __future__ import annotations

import altair as alt

from biprune.report.charts.base import (
    HEIGHT,
    MethodEncodings,
    Row,
    in_words,
    layered,
    sparsity_axis,
    sparsity_fields,
)
from biprune.report.comparison import Cell, Comparison
from biprune.report.formatting import points, spread

_LEAST, _MOST = 34, 60  # pixels a method
_NONE = "no winning ticket"


def sparsest_tickets(comparison: Comparison) -> alt.LayerChart | None:
    """A row a method: hollow where its mean wins, filled where the confidence bound does.

    A quiet line spans the sparsities that were tried. None without a dense accuracy to win against.
    """
    if comparison.dense is None or not comparison.cells:
        return None
    tickets = comparison.sparsest_tickets()
    by_mean = [_row(t.by_mean, "mean >= dense mean") for t in tickets if t.by_mean]
    by_bound = [_row(t.by_bound, "95 % bound >= dense") for t in tickets if t.by_bound]
    without = [{"method": ticket.label} for ticket in tickets if not ticket.wins]
    axis = alt.Axis(labelLimit=220)
    x = sparsity_axis(comparison.sparsities)
    y = alt.Y("method:N", sort=comparison.labels, title=None, axis=axis)
    tried = _chart(_tried(comparison)).mark_rule(style="quiet", strokeWidth=2)
    hollow = _chart(by_mean).mark_point(filled=False, size=230, strokeWidth=2, opacity=1)
    filled = _chart(by_bound).mark_point(filled=True, size=110, opacity=1)
    note = _chart(without).mark_text(style="note", align="left", dx=6, dy=-9)
    layers = [tried.encode(x=x, x2="end:Q", y=y)]
    layers += [_tickets(hollow, comparison, x, y)] if by_mean else []
    layers += [_tickets(filled, comparison, x, y)] if by_bound else []
    layers += [note.encode(x=alt.value(0), y=y, text=alt.value(_NONE))] if without else []
    count = len(comparison.labels)
    return layered(*layers, height=max(_LEAST * count, min(_MOST * count, HEIGHT)))


def _chart(rows: list[Row]) -> alt.Chart:
    return alt.Chart(alt.Data(values=rows))


def _tickets(points: alt.Chart, comparison: Comparison, x: alt.X, y: alt.Y) -> alt.Chart:
    methods = MethodEncodings(comparison.methods)
    return points.encode(
        x=x,
        y=y,
        color=methods.color.legend(None),
        shape=methods.shape.legend(None),
        description="words:N",
        tooltip=[
            alt.Tooltip("method:N"),
            alt.Tooltip("sparsity:N"),
            alt.Tooltip("rule:N"),
            alt.Tooltip("mean:N", title="accuracy (%)"),
            alt.Tooltip("bound:N", title="95 % bound of the difference"),
        ],
    )


def _row(cell: Cell, rule: str) -> Row:
    return {
        "method": cell.label,
        **sparsity_fields(cell.sparsity),
        "rule": rule,
        "words": f"{in_words(cell.label, cell.sparsity, cell.accuracy.mean)}, {rule}",
        "mean": spread(cell.accuracy.mean, cell.accuracy.std),
        "bound": points(cell.verdict.bound),
    }


def _tried(comparison: Comparison) -> list[Row]:
    rows = []
    for label, line in comparison.grid().items():
        tried = [sparsity for sparsity, cell in line.items() if cell]
        if tried:
            row = {"method": label, **sparsity_fields(min(tried))}
            rows.append({**row, "end": sparsity_fields(max(tried))["left"]})
    return rows
