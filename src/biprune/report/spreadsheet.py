"""Every cell and every hole as a line of csv, for programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any

from biprune.core.files import printable
from biprune.report.comparison import Cell, Comparison, Hole

COLUMNS: tuple[str, ...] = (
    "model",
    "data",
    "structure",
    "comparison",
    "method",
    "label",
    "sparsity",
    "status",
    "n",
    "mean",
    "std",
    "values",
    "dense_mean",
    "dense_std",
    "dense_n",
    "wins_by_mean",
    "wins_by_bound",
    "bound",
    "backward_passes",
    "seconds",
    "budget_ratio",
    "seed",
    "error",
)

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")  # what a spreadsheet may begin one with


def csv_table(comparisons: Iterable[Comparison]) -> str:
    """A line for every cell, status "done", and for every missing run, status "hole".

    Sparsities are fractions, accuracies percent, `values` those of the runs in order of their
    seeds, separated by spaces. What is unknown is empty.
    """
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for comparison in comparisons:
        for line in [*map(_cell, comparison.cells), *map(_hole, comparison.holes)]:
            line = {**_setting(comparison), **line}
            writer.writerow({name: _short(value) for name, value in line.items()})
    return text.getvalue()


def _short(value: Any) -> Any:
    """Numbers with six digits; text on one line, and quoted where it could be a formula."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, str):
        is_formula = value.startswith(_FORMULA) and not _is_numbers(value)
        return f"'{printable(value)}" if is_formula else printable(value)
    return value


def _is_numbers(text: str) -> bool:
    try:
        list(map(float, text.split(" ")))
    except ValueError:
        return False
    return True


def _setting(comparison: Comparison) -> dict[str, Any]:
    spec, dense = comparison.setting, comparison.dense
    known = {"dense_mean": dense.mean, "dense_std": dense.std, "dense_n": dense.n} if dense else {}
    return {
        "model": spec.model,
        "data": spec.data,
        "structure": spec.structure,
        "comparison": comparison.title,
        **known,
    }


def _cell(cell: Cell) -> dict[str, Any]:
    return {
        "method": cell.method,
        "label": cell.label,
        "sparsity": cell.sparsity,
        "status": "done",
        "n": cell.accuracy.n,
        "mean": cell.accuracy.mean,
        "std": cell.accuracy.std,
        "values": " ".join(map(str, cell.accuracy.values)),
        "wins_by_mean": cell.verdict.by_mean,
        "wins_by_bound": cell.verdict.by_bound,
        "bound": cell.verdict.bound,
        "backward_passes": cell.passes,
        "seconds": cell.seconds,
        "budget_ratio": cell.budget_ratio,
    }


def _hole(hole: Hole) -> dict[str, Any]:
    return {
        "method": hole.label.split()[0],
        "label": hole.label,
        "sparsity": hole.sparsity,
        "status": "hole",
        "seed": hole.seed,
        "error": hole.error,
    }
