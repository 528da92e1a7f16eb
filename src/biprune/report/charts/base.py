"""What charts share: rows of cells, and the encodings that tell methods and sparsities apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import altair as alt

from biprune.report.comparison import Cell, Comparison
from biprune.report.formatting import percent_of, points, spread
from biprune.report.theme import styles

Row = dict[str, Any]
HEIGHT = 340


class MethodEncodings:
    """Colour, shape and dash by method, and the legend whose entries hide and show one."""

    def __init__(self, methods: Mapping[str, str]) -> None:
        self._labels = list(methods)
        self._styles = list(styles(methods).values())
        # All of them are chosen at first, so that a click takes one away.
        self.shown = alt.selection_point(
            name="shown",
            fields=["method"],
            bind="legend",
            toggle="true",
            clear=False,
            value=[{"method": label} for label in self._labels],
        )

    @property
    def color(self) -> alt.Color:
        """The method's colour; the legend's symbols are solid, however pale the marks."""
        scale = self._scale(style.colour for style in self._styles)
        return alt.Color("method:N", scale=scale, legend=alt.Legend(symbolOpacity=1))

    @property
    def shape(self) -> alt.Shape:
        """The method's shape, in the colour's legend."""
        return alt.Shape("method:N", scale=self._scale(style.shape for style in self._styles))

    @property
    def dash(self) -> alt.StrokeDash:
        """The variant's dash, in the colour's legend."""
        dashes = self._scale(style.dash or [1, 0] for style in self._styles)
        return alt.StrokeDash("method:N", scale=dashes)

    def _scale(self, looks: Iterable[Any]) -> alt.Scale:
        return alt.Scale(domain=self._labels, range=list(looks))

    def opacity(self, shown: float = 1.0, hidden: float = 0.06) -> Any:
        """Faint where the legend hides the method."""
        return alt.when(self.shown).then(alt.value(shown)).otherwise(alt.value(hidden))


def layered(*layers: alt.Chart, height: int = HEIGHT) -> alt.LayerChart:
    """The layers as one chart, as wide as what it stands in."""
    return alt.LayerChart(layer=list(layers), width="container", height=height)


def cell_rows(comparison: Comparison) -> list[Row]:
    """A row for each cell, in the order of the legend and then of the sparsity."""
    rows = [row for line in comparison.grid().values() for row in line.values()]
    return [_cell_row(cell, comparison) for cell in rows if cell]


def _cell_row(cell: Cell, comparison: Comparison) -> Row:
    sample = cell.accuracy
    std = sample.std or 0.0
    return {
        "method": cell.label,
        **sparsity_fields(cell.sparsity),
        "accuracy": sample.mean,
        "low": sample.mean - std,
        "high": sample.mean + std,
        "mean": spread(sample.mean, sample.std),
        "words": in_words(cell.label, cell.sparsity, sample.mean),
        "runs": sample.n,
        "values": ", ".join(f"{value:.2f}" for value in sample.values),
        "to dense": points(cell.verdict.mean),
        "bound": points(cell.verdict.bound),
        "passes": cell.passes,
        "seconds": cell.seconds,
    }


def in_words(label: str, sparsity: float, accuracy: float) -> str:
    """A point for those who hear it: its place on the axis would be misleading."""
    return f"{label} at {percent_of(sparsity)}: {accuracy:.2f} %"


def sparsity_fields(sparsity: float) -> Row:
    """Percent removed, as text, and percent left, which places the point."""
    return {"sparsity": percent_of(sparsity), "left": round(100 * (1 - sparsity), 6)}


def cell_tooltip() -> list[alt.Tooltip]:
    """What hovering over a cell's point tells."""
    return [
        alt.Tooltip("method:N"),
        alt.Tooltip("sparsity:N"),
        alt.Tooltip("mean:N", title="accuracy (%)"),
        alt.Tooltip("runs:Q"),
        alt.Tooltip("values:N", title="each run (%)"),
        alt.Tooltip("to dense:N", title="mean - dense"),
        alt.Tooltip("bound:N", title="95 % bound of it"),
        alt.Tooltip("passes:Q", format=",.0f", title="backward passes"),
        alt.Tooltip("seconds:Q", format=",.1f"),
    ]


def sparsity_axis(sparsities: Sequence[float]) -> alt.X:
    """Sparsity on the scale of what is left: a step that halves it is as wide as any other."""
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


def accuracy_axis(field: str = "accuracy") -> alt.Y:
    """Accuracy in percent, without the empty part below."""
    scale = alt.Scale(zero=False, nice=False, padding=8)
    return alt.Y(f"{field}:Q", title="test accuracy (%)", scale=scale)
