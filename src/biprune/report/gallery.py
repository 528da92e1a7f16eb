"""Which charts a report shows of a comparison, and what it says about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt

from biprune.experiments.reference import ReferencePoint
from biprune.report.charts import (
    accuracy_by_cost,
    accuracy_by_sparsity,
    by_epoch,
    layers_by_epoch,
    layers_by_method,
    sparsest_tickets,
)
from biprune.report.charts.layers import moving_cell
from biprune.report.charts.menu import MENU
from biprune.report.comparison import Comparison
from biprune.report.formatting import listed, percent_of

Chart = alt.Chart | alt.LayerChart
_TICKETS = (
    "Hollow: at least as accurate as dense, on average. Filled: the 95 % lower confidence bound of "
    "the difference, paired by seed, is at least 0. The quiet line spans what was tried."
)
_OVERLAP = "1 is a mask that stays. A method whose mask never moves has no line."
_COST = "Mean and standard deviation over the seeds; the dense training is not counted."
_LAYERS = "Percent removed, the mean over the seeds."


@dataclass(frozen=True)
class Figure:
    """A chart with its words; `name` is that of its file."""

    name: str
    title: str
    caption: str
    chart: Chart

    @property
    def opened_at(self) -> str | None:
        """The sparsity at which a chart with a menu opens."""
        params = self.chart.to_dict().get("params", [])
        return next((param["value"] for param in params if param["name"] == MENU), None)


def gallery(comparison: Comparison, paper: Sequence[ReferencePoint] = ()) -> list[Figure]:
    """Every chart the runs have data for; `paper` must be of this comparison's setting."""
    seeds = f"Mean and standard deviation over the seeds.{_rounds_note(comparison)}"
    candidates: list[tuple[str, str, str, Chart | None]] = [
        (
            "accuracy",
            "Accuracy against sparsity",
            _accuracy_caption(paper),
            accuracy_by_sparsity(comparison, paper),
        ),
        ("tickets", "Sparsest winning tickets", _TICKETS, sparsest_tickets(comparison)),
        ("iou", "How much the mask still moves", _OVERLAP, by_epoch(comparison, "iou")),
        ("seconds", "Accuracy against time", _COST, accuracy_by_cost(comparison, "seconds")),
        ("passes", "Accuracy against passes", _COST, accuracy_by_cost(comparison, "passes")),
        ("loss", "Training loss", seeds, by_epoch(comparison, "loss")),
        ("validation", "Validation accuracy", seeds, by_epoch(comparison, "accuracy")),
        ("layers", "Sparsity of each layer", _LAYERS, layers_by_method(comparison)),
        (
            "layer-epochs",
            "Sparsity of each layer, by epoch",
            _moving_caption(comparison),
            layers_by_epoch(comparison),
        ),
    ]
    return [
        Figure(name, title, caption, chart.properties(description=f"{title}. {caption}"))
        for name, title, caption, chart in candidates
        if chart is not None
    ]


def _accuracy_caption(paper: Sequence[ReferencePoint]) -> str:
    caption = "Mean and standard deviation over the seeds."
    sources = list(dict.fromkeys(point.source for point in paper))
    return f"{caption} Hollow and dotted: {listed(sources)}." if sources else caption


def _rounds_note(comparison: Comparison) -> str:
    stages = {str(entry.get("stage")) for run in comparison.runs for entry in run.history}
    in_rounds = any(stage.startswith("round-") for stage in stages)
    return " Of a method that trains in rounds, the last." if in_rounds else ""


def _moving_caption(comparison: Comparison) -> str:
    cell = moving_cell(comparison)
    if cell is None:
        return ""
    return f"{cell.label} at {percent_of(cell.sparsity)}, seed {cell.runs[0].spec.seed}."
