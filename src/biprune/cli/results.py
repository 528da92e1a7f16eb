"""Results of many runs as tables on the screen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from biprune.cli.tables import new_table, print_json, print_lines, print_text

if TYPE_CHECKING:
    from biprune.experiments.record import RunRecord
    from biprune.experiments.reference import ReferencePoint
    from biprune.report.comparison import Cell, Comparison

FOOTNOTE = "† other passes than most of its column"


def accuracy_tables(records: Iterable[RunRecord]) -> list[Table]:
    """A table for each setting: methods against sparsities, mean and deviation of test accuracy."""
    from biprune.report.summary import summarise

    return [_accuracy_table(comparison) for comparison in summarise(records) if comparison.methods]


def _accuracy_table(comparison: Comparison) -> Table:
    from biprune.report.wording import percent_of

    sparsities = [percent_of(sparsity) for sparsity in comparison.sparsities]
    rows = [
        [label, *(_shown(cell) for cell in cells.values())]
        for label, cells in comparison.grid().items()
    ]
    title = comparison.title
    if comparison.dense is not None:
        title += f": dense {comparison.dense.mean:.2f} %"
    table = new_table(["method", *sparsities], rows, title=title, numeric=sparsities)
    table.min_width = min(len(title), 76)  # a title is wrapped where its table ends
    if any(cell.has_other_budget for cell in comparison.cells):
        table.caption = FOOTNOTE
        table.caption_justify = "left"
    return table


def _shown(cell: Cell | None) -> str:
    from biprune.report.wording import spread

    if cell is None:
        return "-"
    text = spread(cell.accuracy.mean, cell.accuracy.std)
    return f"{text} †" if cell.has_other_budget else text


def check_report(report: Path | None) -> None:
    """Refuse a page that cannot be written before the runs, not after them."""
    from biprune.core.files import writable_folder
    from biprune.report import require_charts

    if report is not None:
        require_charts()
        writable_folder(report.parent)


def print_results(
    records: Sequence[RunRecord],
    report: Path | None,
    *,
    as_json: bool,
    title: str | None = None,
    paper: Sequence[ReferencePoint] = (),
) -> None:
    """The tables, what failed, and the page if one is asked for; then an error if any failed."""
    if report is not None:
        from biprune.report import write_report

        write_report(records, report, title=title, paper=paper)
    failed = [record for record in records if record.status == "failed"]
    if as_json:
        print_json({"records": [record.model_dump(mode="json") for record in records]})
    else:
        for table in accuracy_tables(records):
            print_text(table)
        for record in failed:
            spec = record.spec
            print_lines(f"failed: {spec.method} {spec.sparsity:g} seed {spec.seed}: {record.error}")
        if report is not None:
            print_lines(f"report: {report}")
    if failed:
        raise ValueError(
            f"{len(failed)} of {len(records)} runs failed; the others are shown. The same command "
            "tries those that failed again."
        )
