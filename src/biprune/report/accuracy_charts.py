"""Charts of accuracy: against sparsity, against cost, and the sparsest winning tickets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import altair as alt

from biprune.experiments.paper import ReferencePoint
from biprune.report.results import Cell, Comparison
from biprune.report.statistics import Sample
from biprune.report.theme import (
    HEIGHT,
    MethodEncodings,
    Row,
    chart_at,
    chart_of,
    layered,
    sparsity_menu,
    tooltip,
)
from biprune.report.wording import percent_of, points, spread

Cost = Literal["seconds", "passes"]
_COSTS: dict[Cost, str] = {
    "seconds": "seconds of a run",
    "passes": "backward passes of a run",
}
_CELL = tooltip(
    *("method:N", "sparsity:N", "mean:N", "runs:Q", "values:N", "to dense:N", "bound:N"),
    *("passes:Q", "seconds:Q"),
)
_DOTS = [2, 3]
_LOWEST, _HIGHEST = 34, 60  # pixels for each method's row of tickets


def accuracy_by_sparsity(comparison: Comparison) -> alt.LayerChart | None:
    """Mean and standard deviation of every method, beside dense and published numbers.

    Returns:
        None if no run has finished.
    """
    rows = _cell_rows(comparison)
    if not rows:
        return None
    published = [point for point in comparison.published if point.method != "dense"]
    others = {point.method for point in published} - comparison.methods.keys()
    methods = MethodEncodings(comparison.methods | {name: name for name in sorted(others)})
    x = _sparsity_axis([*comparison.sparsities, *(point.sparsity for point in published)])
    base = chart_of(rows).encode(x=x, color=methods.color)
    # A band over a single sparsity would have no width.
    band, strength = base.mark_area(), 0.14
    if len(comparison.sparsities) == 1:
        band, strength = base.mark_rule(strokeWidth=2), 0.6
    band = band.encode(y=_accuracy_axis("low"), y2="high:Q", opacity=methods.opacity(strength, 0.0))
    drawn = base.encode(y=_accuracy_axis(), opacity=methods.opacity())
    line = drawn.mark_line(strokeWidth=2).encode(strokeDash=methods.dash)
    marks = drawn.mark_point(filled=True, size=80).encode(
        shape=methods.shape, tooltip=_CELL, description="words:N"
    )
    return layered(
        *_dense_layers(comparison.dense),
        band,
        line,
        marks.add_params(methods.shown),
        *_published_layers(comparison.published, methods, x),
    )


def accuracy_by_cost(comparison: Comparison, cost: Cost) -> alt.LayerChart | None:
    """Accuracy of every method against its mean cost, at a sparsity the reader chooses.

    Returns:
        None if no run has finished.
    """
    rows = _cell_rows(comparison)
    if not rows:
        return None
    methods = MethodEncodings(comparison.methods)
    chosen = sparsity_menu(rows)
    axis = alt.Axis(labelOverlap="greedy", labelSeparation=10, format="~s", tickCount=6)
    scale = _cost_scale([row[cost] for row in rows])
    base = chart_at(rows, chosen).encode(
        x=alt.X(f"{cost}:Q", title=_COSTS[cost], scale=scale, axis=axis),
        color=methods.color,
        opacity=methods.opacity(),
    )
    bars = base.mark_rule(strokeWidth=2).encode(y=_accuracy_axis("low"), y2="high:Q")
    marks = base.mark_point(filled=True, size=110).encode(
        y=_accuracy_axis(), shape=methods.shape, tooltip=_CELL, description="words:N"
    )
    layers = [*_dense_layers(comparison.dense), bars, marks.add_params(methods.shown)]
    return layered(*layers).add_params(chosen)


def sparsest_tickets(comparison: Comparison) -> alt.LayerChart | None:
    """A row for each method: a hollow mark where its mean wins, a filled one where its bound does.

    Returns:
        None if the dense accuracy is unknown or no run has finished.
    """
    if comparison.dense is None or not comparison.cells:
        return None
    tickets = comparison.sparsest_tickets()
    by_mean = [_ticket_row(t.by_mean, "mean >= dense mean") for t in tickets if t.by_mean]
    by_bound = [_ticket_row(t.by_bound, "95 % bound >= dense") for t in tickets if t.by_bound]
    without = [{"method": ticket.label} for ticket in tickets if not ticket.wins]
    axis = alt.Axis(labelLimit=220)
    x = _sparsity_axis(comparison.sparsities)
    y = alt.Y("method:N", sort=comparison.labels, title=None, axis=axis)
    tried = chart_of(_tried_rows(comparison)).mark_rule(style="quiet", strokeWidth=2)
    layers = [tried.encode(x=x, x2="end:Q", y=y)]
    if by_mean:
        hollow = chart_of(by_mean).mark_point(filled=False, size=230, strokeWidth=2, opacity=1)
        layers.append(_ticket_layer(hollow, comparison, x, y))
    if by_bound:
        filled = chart_of(by_bound).mark_point(filled=True, size=110, opacity=1)
        layers.append(_ticket_layer(filled, comparison, x, y))
    if without:
        note = chart_of(without).mark_text(style="note", align="left", dx=6, dy=-9)
        text = alt.value("no winning ticket")
        layers.append(note.encode(x=alt.value(0), y=y, text=text))
    count = len(comparison.labels)
    return layered(*layers, height=max(_LOWEST * count, min(_HIGHEST * count, HEIGHT)))


def in_words(label: str, sparsity: float, accuracy: float) -> str:
    """A point as a screen reader should say it."""
    return f"{label} at {percent_of(sparsity)}: {accuracy:.2f} %"


def _cell_rows(comparison: Comparison) -> list[Row]:
    """A row for each cell, in the order of the legend, then of the sparsity."""
    cells = [cell for line in comparison.grid().values() for cell in line.values() if cell]
    return [
        {
            "method": cell.label,
            **_sparsity_fields(cell.sparsity),
            **_accuracy_fields(cell.accuracy),
            "words": in_words(cell.label, cell.sparsity, cell.accuracy.mean),
            "runs": cell.accuracy.n,
            "values": ", ".join(f"{value:.2f}" for value in cell.accuracy.values),
            "to dense": points(cell.verdict.mean),
            "bound": points(cell.verdict.bound),
            "passes": cell.passes,
            "seconds": cell.seconds,
        }
        for cell in cells
    ]


def _published_row(point: ReferencePoint) -> Row:
    return {
        "method": point.method,
        **_sparsity_fields(point.sparsity),
        "accuracy": point.accuracy,
        "mean": spread(point.accuracy, point.std),
        "words": in_words(f"{point.method} ({point.source})", point.sparsity, point.accuracy),
        "source": point.source,
    }


def _ticket_row(cell: Cell, rule: str) -> Row:
    return {
        "method": cell.label,
        **_sparsity_fields(cell.sparsity),
        "rule": rule,
        "words": f"{in_words(cell.label, cell.sparsity, cell.accuracy.mean)}, {rule}",
        "mean": spread(cell.accuracy.mean, cell.accuracy.std),
        "bound": points(cell.verdict.bound),
    }


def _tried_rows(comparison: Comparison) -> list[Row]:
    """The lowest and the highest sparsity of each method."""
    rows = []
    for label, line in comparison.grid().items():
        if tried := [sparsity for sparsity, cell in line.items() if cell]:
            end = _sparsity_fields(max(tried))["left"]
            rows.append({"method": label, **_sparsity_fields(min(tried)), "end": end})
    return rows


def _sparsity_fields(sparsity: float) -> Row:
    """Percent removed, as text, and percent left, which places the point."""
    return {"sparsity": percent_of(sparsity), "left": round(100 * (1 - sparsity), 6)}


def _accuracy_fields(sample: Sample) -> Row:
    std = sample.std or 0.0
    low, high = sample.mean - std, sample.mean + std
    return {
        "accuracy": sample.mean,
        "low": low,
        "high": high,
        "mean": spread(sample.mean, sample.std),
    }


def _dense_layers(dense: Sample | None) -> list[alt.Chart]:
    """A line at the dense accuracy, a band of its standard deviation and a note."""
    if dense is None:
        return []
    base = chart_of([{"method": "dense", **_accuracy_fields(dense), "runs": dense.n}])
    shown = tooltip("method:N", "mean:N", "runs:Q")
    note = base.mark_text(style="note", align="right", dx=-4, dy=-7, text="dense")
    return [
        base.mark_rect(style="dense-band").encode(y=_accuracy_axis("low"), y2="high:Q"),
        base.mark_rule(style="dense", strokeWidth=1.5).encode(y=_accuracy_axis(), tooltip=shown),
        note.encode(y=_accuracy_axis(), x=alt.value("width")),
    ]


def _published_layers(
    paper: Sequence[ReferencePoint], methods: MethodEncodings, x: alt.X
) -> list[alt.Chart]:
    """Hollow shapes on a dotted line for each method and source; dense is a line across."""
    rows = [_published_row(point) for point in paper if point.method != "dense"]
    dense = [_published_row(point) for point in paper if point.method == "dense"]
    shown = tooltip("method:N", "sparsity:N", "mean:N", "source:N")
    rule = chart_of(dense).mark_rule(style="dense", strokeDash=_DOTS)
    base = chart_of(rows).encode(
        x=x, y=_accuracy_axis(), color=methods.color, opacity=methods.opacity()
    )
    line = base.mark_line(strokeWidth=1.5, strokeDash=_DOTS).encode(detail="source:N")
    marks = base.mark_point(filled=False, size=90, strokeWidth=2).encode(
        shape=methods.shape, tooltip=shown, description="words:N"
    )
    layers = [rule.encode(y=_accuracy_axis(), tooltip=shown)] if dense else []
    return [*layers, line, marks] if rows else layers


def _ticket_layer(marks: alt.Chart, comparison: Comparison, x: alt.X, y: alt.Y) -> alt.Chart:
    methods = MethodEncodings(comparison.methods)
    return marks.encode(
        x=x,
        y=y,
        color=methods.color.legend(None),
        shape=methods.shape.legend(None),
        description="words:N",
        tooltip=tooltip("method:N", "sparsity:N", "rule:N", "mean:N", "bound:N"),
    )


def _sparsity_axis(sparsities: Sequence[float]) -> alt.X:
    """Sparsity on a logarithmic scale of what is left: every halving is equally wide."""
    left = sorted({round(100 * (1 - sparsity), 6) for sparsity in sparsities}, reverse=True)
    return alt.X(
        "left:Q",
        title="sparsity",
        scale=alt.Scale(type="log", reverse=True, nice=False, padding=18),
        axis=alt.Axis(
            values=left,
            labelExpr="format(100 - datum.value, '.4~g') + ' %'",
            labelOverlap="greedy",
            labelSeparation=6,
        ),
    )


def _accuracy_axis(field: str = "accuracy") -> alt.Y:
    """Accuracy in percent, without the empty range below the data."""
    scale = alt.Scale(zero=False, nice=False, padding=8)
    return alt.Y(f"{field}:Q", title="test accuracy (%)", scale=scale)


def _cost_scale(costs: Sequence[float]) -> alt.Scale:
    """Logarithmic where one expensive cell would otherwise squeeze the others together."""
    if min(costs) > 0 and max(costs) > 5 * min(costs):
        return alt.Scale(type="log", nice=False, padding=24)
    return alt.Scale(zero=False, nice=False, padding=24)
