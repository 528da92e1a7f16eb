"""Charts of training: loss, accuracy and masks by epoch, and the sparsity of every layer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any, Literal

import altair as alt

from biprune.experiments.record import RunRecord
from biprune.report.results import Cell, Comparison
from biprune.report.theme import (
    MethodEncodings,
    Row,
    chart_at,
    chart_of,
    layered,
    sparsity_menu,
    tooltip,
)
from biprune.report.wording import percent_of

Measure = Literal["loss", "accuracy", "iou"]
_TITLES: dict[Measure, str] = {
    "loss": "training loss",
    "accuracy": "validation accuracy (%)",
    "iou": "mask IoU with the previous epoch",
}
_MARKS = 8  # shapes along a line
_TALLEST = 900  # pixels for all layers of a deep network


def by_epoch(comparison: Comparison, measure: Measure) -> alt.LayerChart | None:
    """Mean and standard deviation over the seeds, at a sparsity the reader chooses.

    Returns:
        None if no history has the measure.
    """
    rows = [row for cell in comparison.cells for row in _epoch_rows(cell, measure)]
    if not rows:
        return None
    drawn = {row["method"] for row in rows}
    methods = MethodEncodings({n: m for n, m in comparison.methods.items() if n in drawn})
    chosen = sparsity_menu(rows)
    base = chart_at(rows, chosen).encode(
        x=_epoch_axis(max(row["epoch"] for row in rows)), color=methods.color
    )
    band = base.mark_area().encode(
        y=_measure_axis(measure, "low"), y2="high:Q", opacity=methods.opacity(0.12, 0.0)
    )
    centre = base.encode(y=_measure_axis(measure))
    line = centre.mark_line(strokeWidth=2)
    line = line.encode(strokeDash=methods.dash, opacity=methods.opacity())
    # Points between the marks are invisible, but have a tooltip.
    visible = alt.when(methods.shown & alt.datum["marked"])
    marks = centre.mark_point(filled=True, size=60).encode(
        shape=methods.shape,
        opacity=visible.then(alt.value(1)).otherwise(alt.value(0)),
        tooltip=tooltip("method:N", "sparsity:N", "epoch:Q", f"{measure}:Q", "runs:Q"),
    )
    return layered(band, line, marks.add_params(methods.shown)).add_params(chosen)


def layers_by_method(comparison: Comparison) -> alt.LayerChart | None:
    """Mean sparsity over the seeds, layers x methods, at a sparsity the reader chooses.

    Returns:
        None if no run recorded its layers.
    """
    rows = [row for cell in comparison.cells for row in _layer_rows(cell)]
    if not rows:
        return None
    chosen = sparsity_menu(rows)
    present = {row["method"] for row in rows}
    labels = [label for label in comparison.labels if label in present]
    axis = alt.Axis(labelAngle=-30, labelLimit=140, orient="top", title=None, domain=False)
    x = alt.X("method:N", sort=labels, axis=axis)
    base = chart_at(rows, chosen).transform_joinaggregate(least="min(removed)", most="max(removed)")
    is_light = alt.datum["removed"] > (alt.datum["least"] + alt.datum["most"]) / 2
    numbers = base.mark_text(fontSize=10).encode(
        x=x,
        y=_layer_axis(rows),
        text=alt.Text("removed:Q", format=".0f"),
        color=alt.when(is_light).then(alt.value("#10131a")).otherwise(alt.value("#ffffff")),
    )
    cells = _heat(base, x, rows, "method:N")
    return layered(cells, numbers, height=_height(rows)).add_params(chosen)


def layers_by_epoch(comparison: Comparison) -> alt.Chart | None:
    """Sparsity of the `moving_cell`, layers x epochs.

    Returns:
        None if there is no such cell.
    """
    cell = moving_cell(comparison)
    if cell is None:
        return None
    rows = [
        {"epoch": epoch, "layer": _layer(name), "removed": round(100 * sparsity, 2)}
        for epoch, entry in enumerate(_trained_epochs(cell.runs[0]), start=1)
        for name, sparsity in entry.get("layer_sparsity", {}).items()
    ]
    x = alt.X("epoch:O", axis=alt.Axis(labelAngle=0, labelOverlap="greedy", labelSeparation=8))
    chart = _heat(chart_of(rows), x, rows, "epoch:O")
    return chart.properties(width="container", height=_height(rows))


def moving_cell(comparison: Comparison) -> Cell | None:
    """Of the first method whose mask moves, the sparsest cell; None if no mask moves."""
    for row in comparison.grid().values():
        for cell in reversed(list(row.values())):
            if cell and any(map(_has_moved, _trained_epochs(cell.runs[0]))):
                return cell
    return None


def _has_moved(entry: Mapping[str, Any]) -> bool:
    overlap = _measured(entry, "iou")
    return overlap is not None and overlap < 1 and bool(entry.get("layer_sparsity"))


def _trained_epochs(run: RunRecord) -> list[dict[str, Any]]:
    """The entries of a history that are epochs, in order.

    A method that trains in rounds starts each from the same early weights, so only the last round
    counts.
    """
    epochs = [entry for entry in run.history if "loss" in entry]
    last = str(epochs[-1].get("stage", "")) if epochs else ""
    if last.startswith("round-"):
        return [entry for entry in epochs if entry.get("stage") == last]
    return epochs


def _measured(entry: Mapping[str, Any], measure: Measure) -> float | None:
    """A measure of one epoch; None where it is missing, null or not finite."""
    value = entry.get(measure)
    return float(value) if value is not None and math.isfinite(value) else None


def _epoch_rows(cell: Cell, measure: Measure) -> Iterable[Row]:
    histories = [_trained_epochs(run) for run in cell.runs]
    longest = max(map(len, histories))
    stride = math.ceil(longest / _MARKS)
    for place in range(longest):
        entries = [history[place] for history in histories if place < len(history)]
        values = [value for e in entries if (value := _measured(e, measure)) is not None]
        if not values:
            continue
        mean = fmean(values)
        std = stdev(values) if len(values) > 1 else 0.0
        yield {
            "method": cell.label,
            "sparsity": percent_of(cell.sparsity),
            "epoch": place + 1,
            measure: _short(mean),
            "low": _short(mean - std),
            "high": _short(min(mean + std, 1.0) if measure == "iou" else mean + std),
            "runs": len(values),
            "marked": place % stride == 0 or place == longest - 1,
        }


def _layer_rows(cell: Cell) -> Iterable[Row]:
    for name in cell.runs[0].layers:
        counts = [run.layers[name] for run in cell.runs if name in run.layers]
        yield {
            "method": cell.label,
            "sparsity": percent_of(cell.sparsity),
            "layer": _layer(name),
            "removed": round(100 * fmean(1 - kept / units for kept, units in counts), 2),
        }


def _heat(base: alt.Chart, x: alt.X, rows: Sequence[Row], column: str) -> alt.Chart:
    legend = alt.Legend(title="removed (%)", orient="bottom", gradientLength=180)
    return base.mark_rect().encode(
        x=x,
        y=_layer_axis(rows),
        color=alt.Color("removed:Q", scale=alt.Scale(scheme="viridis", zero=False), legend=legend),
        tooltip=tooltip("layer:N", column, "removed:Q"),
    )


def _epoch_axis(longest: int) -> alt.X:
    # By default, a short axis has ticks at half epochs.
    ticks = list(range(1, longest + 1)) if longest <= 10 else alt.Undefined
    axis = alt.Axis(values=ticks, tickMinStep=1, format="d")
    return alt.X("epoch:Q", axis=axis, scale=alt.Scale(nice=False))


def _measure_axis(measure: Measure, field: str | None = None) -> alt.Y:
    highest = 1 if measure == "iou" else alt.Undefined
    scale = alt.Scale(zero=False, domainMax=highest)
    return alt.Y(f"{field or measure}:Q", title=_TITLES[measure], scale=scale)


def _layer_axis(rows: Sequence[Row]) -> alt.Y:
    order = list(dict.fromkeys(row["layer"] for row in rows))
    return alt.Y("layer:N", sort=order, title=None, axis=alt.Axis(labelLimit=140, domain=False))


def _height(rows: Sequence[Row]) -> int:
    count = len({row["layer"] for row in rows})
    return max(60, min(18 * count, _TALLEST))


def _layer(name: str) -> str:
    return name.removesuffix(".weight")


def _short(value: float) -> float:
    # Histories are most of a page's bytes, and a chart cannot show more digits.
    return float(f"{value:.5g}")
