"""Reports: what records add up to, as a page, figures and tables.

Charts need the extra `report`, and are imported only when a page or figures are written.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from biprune.core.files import write_text
from biprune.experiments.paper import ReferencePoint
from biprune.experiments.record import RunRecord
from biprune.report.results import Cell, Comparison, Hole
from biprune.report.summary import summarise
from biprune.report.typesetting import csv_table, latex_tables, markdown_tables

__all__ = [
    "Cell",
    "Comparison",
    "Hole",
    "ReferencePoint",
    "csv_table",
    "latex_tables",
    "markdown_tables",
    "require_charts",
    "summarise",
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
    paper: Iterable[ReferencePoint] = (),
) -> Path:
    """Write a page about `records`, and the figures and tables that are given a place.

    Args:
        records: Finished and failed runs; at least one.
        path: The HTML file. It holds everything it needs and works offline.
        figures: A folder for the charts, as SVG and PNG files.
        csv: A file with one line for each cell and each missing run.
        markdown: A file for the tables in Markdown.
        latex: A file for the tables in LaTeX.
        title: The page's heading.
        paper: Published numbers, shown with the runs of the same model, data and structure.

    Returns:
        The path of the page.

    Raises:
        ModuleNotFoundError: The extra `report` is not installed.
        ValueError: There are no records.
    """
    require_charts()
    from biprune.report.figures import write_figures
    from biprune.report.page import page_html

    comparisons = summarise(records, paper)
    if not comparisons:
        raise ValueError("`records` must hold at least one record, got none.")
    write_text(path, page_html(comparisons, title or "Pruning methods compared"))
    if figures is not None:
        write_figures(comparisons, figures)
    for file, tables in ((csv, csv_table), (markdown, markdown_tables), (latex, latex_tables)):
        if file is not None:
            write_text(file, tables(comparisons))
    return Path(path)


def require_charts() -> None:
    """Check that charts can be drawn, so that a missing package is noticed before long runs.

    Raises:
        ModuleNotFoundError: The extra `report` is not installed; the message says how to do that.
    """
    try:
        import altair  # noqa: F401
        import vl_convert  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"Pages and figures need {error.name}, which is not installed: "
            "pip install 'biprune[report]'",
            name=error.name,
        ) from None
