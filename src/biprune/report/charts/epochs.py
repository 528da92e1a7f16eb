"""Training as it went: loss, validation accuracy and mask overlap by epoch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import fmean, stdev
from typing import Any, Literal

import altair as alt

from biprune.experiments.record import RunRecord
from biprune.report.charts.base import MethodEncodings, Row, layered
from biprune.report.charts.menu import at_chosen, sparsity_menu
from biprune.report.comparison import Cell, Comparison
from biprune.report.formatting import percent_of

Measure = Literal["loss", "accuracy", "iou"]
TITLES: dict[Measure, str] = {
    "loss": "training loss",
    "accuracy": "validation accuracy (%)",
    "iou": "mask IoU with the epoch before",
}
_MARKS = 8  # shapes along a line, enough to know it by


def by_epoch(comparison: Comparison, measure: Measure) -> alt.LayerChart | None:
    """The mean over the seeds with its standard deviation, at a sparsity the reader chooses.

    None where no history has the measure.
    """
    rows = [row for cell in comparison.cells for row in _rows(cell, measure)]
    if not rows:
        return None
    drawn = {row["method"] for row in rows}
    methods = MethodEncodings({n: m for n, m in comparison.methods.items() if n in drawn})
    chosen = sparsity_menu(rows)
    base = at_chosen(rows, chosen).encode(
        x=_epoch_axis(max(row["epoch"] for row in rows)), color=methods.color
    )
    band = base.mark_area().encode(
        y=_axis(measure, "low"), y2="high:Q", opacity=methods.opacity(0.12, 0.0)
    )
    centre = base.encode(y=_axis(measure))
    line = centre.mark_line(strokeWidth=2)
    line = line.encode(strokeDash=methods.dash, opacity=methods.opacity())
    # Only some points are drawn; the others are there to be hovered over.
    visible = alt.when(methods.shown & alt.datum["marked"])
    marks = centre.mark_point(filled=True, size=60).encode(
        shape=methods.shape,
        opacity=visible.then(alt.value(1)).otherwise(alt.value(0)),
        tooltip=[
            alt.Tooltip("method:N"),
            alt.Tooltip("sparsity:N"),
            alt.Tooltip("epoch:Q"),
            alt.Tooltip(f"{measure}:Q", title=TITLES[measure], format=".4~f"),
            alt.Tooltip("runs:Q"),
        ],
    )
    return layered(band, line, marks.add_params(methods.shown)).add_params(chosen)


def trained_epochs(run: RunRecord) -> list[dict[str, Any]]:
    """The entries of a history that are epochs, in order.

    Of a method that trains in rounds, each from the same early weights, those of its last round.
    """
    epochs = [entry for entry in run.history if "loss" in entry]
    last = str(epochs[-1].get("stage", "")) if epochs else ""
    if last.startswith("round-"):
        return [entry for entry in epochs if entry.get("stage") == last]
    return epochs


def measured(entry: Mapping[str, Any], measure: Measure) -> float | None:
    """A number of an epoch; None where it has none or JSON made a null of it."""
    value = entry.get(measure)
    return float(value) if value is not None and math.isfinite(value) else None


def _epoch_axis(longest: int) -> alt.X:
    # Left to itself, a short axis counts in half epochs.
    ticks = list(range(1, longest + 1)) if longest <= 10 else alt.Undefined
    axis = alt.Axis(values=ticks, tickMinStep=1, format="d")
    return alt.X("epoch:Q", axis=axis, scale=alt.Scale(nice=False))


def _axis(measure: Measure, field: str | None = None) -> alt.Y:
    highest = 1 if measure == "iou" else alt.Undefined
    scale = alt.Scale(zero=False, domainMax=highest)
    return alt.Y(f"{field or measure}:Q", title=TITLES[measure], scale=scale)


def _rows(cell: Cell, measure: Measure) -> Iterable[Row]:
    histories = [trained_epochs(run) for run in cell.runs]
    longest = max(map(len, histories))
    stride = math.ceil(longest / _MARKS)
    for place in range(longest):
        entries = [history[place] for history in histories if place < len(history)]
        values = [value for e in entries if (value := measured(e, measure)) is not None]
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


def _short(value: float) -> float:
    # Histories are most of a page's bytes, and a pixel needs no more digits.
    return float(f"{value:.5g}")
