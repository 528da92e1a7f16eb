"""Where the weights went: the sparsity of every layer, by method and by epoch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

import altair as alt

from biprune.report.charts.base import Row, layered
from biprune.report.charts.epochs import measured, trained_epochs
from biprune.report.charts.menu import at_chosen, sparsity_menu
from biprune.report.comparison import Cell, Comparison
from biprune.report.formatting import percent_of

_TALLEST = 900  # pixels for all layers of a deep network


def layers_by_method(comparison: Comparison) -> alt.LayerChart | None:
    """Layers x methods at a sparsity the reader chooses, the mean over the seeds.

    None where no run says how its layers fared.
    """
    rows = [row for cell in comparison.cells for row in _final_rows(cell)]
    if not rows:
        return None
    chosen = sparsity_menu(rows)
    present = {row["method"] for row in rows}
    labels = [label for label in comparison.labels if label in present]
    axis = alt.Axis(labelAngle=-30, labelLimit=140, orient="top", title=None, domain=False)
    x = alt.X("method:N", sort=labels, axis=axis)
    base = at_chosen(rows, chosen).transform_joinaggregate(
        least="min(removed)", most="max(removed)"
    )
    is_light = alt.datum["removed"] > (alt.datum["least"] + alt.datum["most"]) / 2
    cells = _heat(base, x, rows, "method:N")
    numbers = base.mark_text(fontSize=10).encode(
        x=x,
        y=_layer_axis(rows),
        text=alt.Text("removed:Q", format=".0f"),
        color=alt.when(is_light).then(alt.value("#10131a")).otherwise(alt.value("#ffffff")),
    )
    return layered(cells, numbers, height=_height(rows)).add_params(chosen)


def layers_by_epoch(comparison: Comparison) -> alt.Chart | None:
    """Layers x epochs of one ticket: the sparsest whose mask moved, of the first such method.

    None where no history has it.
    """
    cell = moving_cell(comparison)
    if cell is None:
        return None
    rows = [
        {"epoch": epoch, "layer": _layer(name), "removed": round(100 * sparsity, 2)}
        for epoch, entry in enumerate(trained_epochs(cell.runs[0]), start=1)
        for name, sparsity in entry.get("layer_sparsity", {}).items()
    ]
    x = alt.X("epoch:O", axis=alt.Axis(labelAngle=0, labelOverlap="greedy", labelSeparation=8))
    chart = _heat(alt.Chart(alt.Data(values=rows)), x, rows, "epoch:O")
    return chart.properties(width="container", height=_height(rows))


def moving_cell(comparison: Comparison) -> Cell | None:
    """The cell that `layers_by_epoch` shows, with its first seed."""
    for row in comparison.grid().values():
        for cell in reversed(list(row.values())):
            if cell and any(map(_moved, trained_epochs(cell.runs[0]))):
                return cell
    return None


def _moved(entry: Mapping[str, Any]) -> bool:
    overlap = measured(entry, "iou")
    return overlap is not None and overlap < 1 and bool(entry.get("layer_sparsity"))


def _heat(base: alt.Chart, x: alt.X, rows: Sequence[Row], column: str) -> alt.Chart:
    legend = alt.Legend(title="removed (%)", orient="bottom", gradientLength=180)
    return base.mark_rect().encode(
        x=x,
        y=_layer_axis(rows),
        color=alt.Color("removed:Q", scale=alt.Scale(scheme="viridis", zero=False), legend=legend),
        tooltip=[
            alt.Tooltip("layer:N"),
            alt.Tooltip(column),
            alt.Tooltip("removed:Q", title="removed (%)", format=".2f"),
        ],
    )


def _final_rows(cell: Cell) -> Iterable[Row]:
    for name in cell.runs[0].layers:
        counts = [run.layers[name] for run in cell.runs if name in run.layers]
        yield {
            "method": cell.label,
            "sparsity": percent_of(cell.sparsity),
            "layer": _layer(name),
            "removed": round(100 * fmean(1 - kept / units for kept, units in counts), 2),
        }


def _layer_axis(rows: Sequence[Row]) -> alt.Y:
    order = list(dict.fromkeys(row["layer"] for row in rows))
    return alt.Y("layer:N", sort=order, title=None, axis=alt.Axis(labelLimit=140, domain=False))


def _height(rows: Sequence[Row]) -> int:
    count = len({row["layer"] for row in rows})
    return max(60, min(18 * count, _TALLEST))


def _layer(name: str) -> str:
    return name.removesuffix(".weight")
