"""Which charts a report shows, what it says about them, and the charts as files."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import altair as alt

from biprune.core.files import replaced
from biprune.report.accuracy_charts import accuracy_by_cost, accuracy_by_sparsity, sparsest_tickets
from biprune.report.history_charts import by_epoch, layers_by_epoch, layers_by_method, moving_cell
from biprune.report.results import Comparison
from biprune.report.theme import LIGHT, MENU
from biprune.report.wording import listed, percent_of

Chart = alt.Chart | alt.LayerChart

_SEEDS = "Mean and standard deviation over the seeds."
_TICKETS = (
    "Hollow: at least as accurate as dense, on average. Filled: the 95 % lower confidence bound of "
    "the difference, paired by seed, is at least 0. The grey line spans the sparsities tried."
)
_OVERLAP = "At 1 the mask has not changed. Methods whose mask never changes have no line."
_COST = f"{_SEEDS} Training the dense network is not counted."
_LAYERS = "Percent removed, averaged over the seeds."

_WIDTH = 620
_LETTERS = 100  # of a caption in that width
_DOTS_PER_INCH = 192  # twice the screen's
_LEGEND_COLUMNS = 4


@dataclass(frozen=True)
class Figure:
    """A chart with its title and caption; its file is called `name`."""

    name: str
    title: str
    caption: str
    chart: Chart

    @property
    def opened_at(self) -> str | None:
        """The sparsity at which the chart's menu opens; None without a menu."""
        params = self.chart.to_dict().get("params", [])
        return next((param["value"] for param in params if param["name"] == MENU), None)


def figures_of(comparison: Comparison) -> list[Figure]:
    """Every chart for which the runs have data."""
    sources = list(dict.fromkeys(point.source for point in comparison.published))
    accuracy = f"{_SEEDS} Hollow and dotted: {listed(sources)}." if sources else _SEEDS
    stages = {str(entry.get("stage")) for run in comparison.runs for entry in run.history}
    in_rounds = any(stage.startswith("round-") for stage in stages)
    epochs = f"{_SEEDS} Methods that train in rounds: the last round." if in_rounds else _SEEDS
    cell = moving_cell(comparison)
    seed = f"seed {cell.runs[0].spec.seed}" if cell else ""
    moving = f"{cell.label} at {percent_of(cell.sparsity)}, {seed}." if cell else ""
    candidates: list[tuple[str, str, str, Chart | None]] = [
        ("accuracy", "Accuracy against sparsity", accuracy, accuracy_by_sparsity(comparison)),
        ("tickets", "Sparsest winning tickets", _TICKETS, sparsest_tickets(comparison)),
        ("iou", "How much the mask still moves", _OVERLAP, by_epoch(comparison, "iou")),
        ("seconds", "Accuracy against time", _COST, accuracy_by_cost(comparison, "seconds")),
        ("passes", "Accuracy against passes", _COST, accuracy_by_cost(comparison, "passes")),
        ("loss", "Training loss", epochs, by_epoch(comparison, "loss")),
        ("validation", "Validation accuracy", epochs, by_epoch(comparison, "accuracy")),
        ("layers", "Sparsity of each layer", _LAYERS, layers_by_method(comparison)),
        ("layer-epochs", "Sparsity of each layer, by epoch", moving, layers_by_epoch(comparison)),
    ]
    return [
        Figure(name, title, caption, chart.properties(description=f"{title}. {caption}"))
        for name, title, caption, chart in candidates
        if chart is not None
    ]


def write_figures(comparisons: Sequence[Comparison], folder: Path | str) -> list[Path]:
    """Write every chart as SVG and PNG, in the light theme.

    A file is named after its comparison and chart. Comparisons that would share a name are
    numbered.

    Returns:
        The files written.
    """
    written = []
    for stem, comparison in zip(_stems(comparisons), comparisons, strict=True):
        for figure in figures_of(comparison):
            chart = _standalone(figure, comparison.title)
            for format in ("svg", "png"):
                path = Path(folder) / f"{stem}-{figure.name}.{format}"
                with replaced(path) as temporary:
                    chart.save(str(temporary), format=format, ppi=_DOTS_PER_INCH)
                written.append(path)
    return written


def _standalone(figure: Figure, comparison: str) -> Chart:
    """The chart with a fixed width, and with the title and caption that the page would have."""
    config = {**LIGHT, "legend": {**LIGHT["legend"], "columns": _LEGEND_COLUMNS}}
    setting = f"{comparison}, at {figure.opened_at}" if figure.opened_at else comparison
    subtitle = [setting, *textwrap.wrap(figure.caption, _LETTERS)]
    title = {"text": figure.title, "subtitle": subtitle}
    return figure.chart.properties(width=_WIDTH, title=title, config=config)


def _stems(comparisons: Sequence[Comparison]) -> Iterator[str]:
    taken: set[str] = set()
    for comparison in comparisons:
        stem = re.sub(r"[^a-z0-9]+", "-", comparison.title.lower()).strip("-")
        unique, number = stem, 1
        while unique in taken:
            number += 1
            unique = f"{stem}-{number}"
        taken.add(unique)
        yield unique
