"""Reports: what records add up to, as a page, as figures and as tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from biprune.experiments.record import RunRecord
from biprune.experiments.reference import ReferencePoint
from biprune.files import write_text
from biprune.report.comparison import Cell, Comparison, Hole
from biprune.report.figures import write_figures
from biprune.report.latex import latex_tables
from biprune.report.markdown import markdown_tables
from biprune.report.page import write_page
from biprune.report.spreadsheet import csv_table
from biprune.report.summary import summarise

__all__ = [
    "Cell",
    "Comparison",
    "Hole",
    "ReferencePoint",
    "csv_table",
    "latex_tables",
    "markdown_tables",
    "summarise",
    "write_figures",
    "write_page",
    "write_report",
]


def write_report(
    records: Iterable[RunRecord],
    path: Path | str,
    *,
    figures: Path | str | None = None,
    csv: Path | str | None = None,
    markdown: Path | str | None = None,
    latex: Path | str | None = None,
    title: str | None = None,
    paper: Sequence[ReferencePoint] | None = None,
) -> Path:
    """Write the page to `path`, and whatever else is given a place; return the page's.

    `figures` is a folder for SVG and PNG files, `csv`, `markdown` and `latex` are files for the
    tables. `paper` are published numbers to stand beside ours.
    """
    records = list(records)
    page = write_page(records, path, title=title, paper=paper)
    comparisons, published = summarise(records), paper or ()
    if figures is not None:
        write_figures(comparisons, figures, published)
    if csv is not None:
        write_text(csv, csv_table(comparisons))
    if markdown is not None:
        write_text(markdown, markdown_tables(comparisons, published))
    if latex is not None:
        write_text(latex, latex_tables(comparisons, published))
    return page
