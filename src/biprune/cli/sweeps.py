"""Many runs on the screen: how many are done, how long the rest will take, the table so far."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from biprune.cli.printing import new_table, print_json, print_lines, print_text
from biprune.core.files import printable

if TYPE_CHECKING:
    from biprune import Event
    from biprune.experiments.paper import ReferencePoint
    from biprune.experiments.record import RunRecord, RunSpec
    from biprune.experiments.runner import Runner
    from biprune.report.results import Comparison


def accuracy_tables(records: Iterable[RunRecord]) -> list[Table]:
    """The report's table of test accuracy for each setting, as far as its runs have ended."""
    from biprune.report.summary import summarise

    return [_accuracy_table(comparison) for comparison in summarise(records) if comparison.methods]


def _accuracy_table(comparison: Comparison) -> Table:
    from biprune.report.tables import accuracy_table

    entries = accuracy_table(comparison)
    rows = [
        [label, *(" ".join([entry.text or "hole", *entry.marks]) for entry in row)]
        for label, row in entries.rows.items()
    ]
    title = comparison.title
    if comparison.dense is not None:
        title += f": dense {comparison.dense.mean:.2f} %"
    table = new_table(["method", *entries.columns], rows, title=title, numeric=entries.columns)
    table.min_width = min(len(title), 76)  # a title is wrapped where its table ends
    table.caption = "\n".join(f"{mark} {text}" for mark, text in entries.notes.items()) or None
    table.caption_justify = "left"
    return table


def check_report(report: Path | None) -> None:
    """Refuse a page that cannot be written, before the runs and not after them."""
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
    """Print the tables and what failed, and write the page if one is asked for.

    Raises:
        ValueError: A run failed.
    """
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


def run_sweep(specs: Sequence[RunSpec], runner: Runner, workers: int) -> list[RunRecord]:
    """Run what is missing and show how it goes; Ctrl-C leaves what is finished in the store."""
    from biprune.experiments.sweep import sweep

    console = Console(stderr=True, markup=False, highlight=False)
    try:
        with (Screen if console.is_terminal else Lines)(console, specs, runner) as show:
            for record in sweep(specs, replace(runner, progress=show.hear), workers=workers):
                show.add(record)
    except KeyboardInterrupt:
        again = "Run the same command again to go on: what is finished is in"
        print(f"interrupted. {again} {runner.store.folder}.", file=sys.stderr)
        raise
    if show.records and all(record.status == "failed" for record in show.records):
        error = printable(str(show.records[0].error))
        raise ValueError(f"No run finished. The first failed with: {error}")
    return show.records


class Lines:
    """A line for each run that ends."""

    def __init__(self, console: Console, specs: Sequence[RunSpec], runner: Runner) -> None:
        from biprune.experiments.record import covered_by

        self.records: list[RunRecord] = []
        self._console = console
        self._total = len({spec.key for spec in specs})
        missing = {spec.key: spec for spec in specs if runner.finished(spec) is None}
        dense = {spec.dense_spec.key: spec.dense_spec for spec in missing.values()}
        missing |= {key: spec for key, spec in dense.items() if runner.finished(spec) is None}
        passed = {covered.key for spec in missing.values() for covered in covered_by(spec)}
        self._left = {k: 0.0 if k in passed else _cost(s) for k, s in missing.items()}
        self._run = 0.0
        self._started = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def hear(self, spec: RunSpec, event: Event) -> None:
        """An epoch's step in this process."""

    def add(self, record: RunRecord) -> None:
        """A run has ended, or was there before."""
        if self._count(record):
            line = printable(f"{self.status()}: {_outcome(record)}")
            print(line, file=sys.stderr, flush=True)

    def _count(self, record: RunRecord) -> bool:
        """Take a run and its dense one off what is left; False if it had run before."""
        self.records.append(record)
        was_run = record.key in self._left
        for key in (record.key, record.spec.dense_spec.key) if was_run else ():
            self._run += self._left.pop(key, 0.0)
        return was_run

    def status(self) -> str:
        """How many runs have ended, and about how long the rest will take."""
        status = f"{len(self.records)} of {self._total} runs"
        if failed := sum(record.status == "failed" for record in self.records):
            status += f", {failed} failed"
        if self._run and self._left:
            elapsed = time.monotonic() - self._started
            status += f", {_duration(elapsed * sum(self._left.values()) / self._run)} left"
        return status


class Screen(Lines):
    """A bar, the current run, and the table so far."""

    def __init__(self, console: Console, specs: Sequence[RunSpec], runner: Runner) -> None:
        super().__init__(console, specs, runner)
        self._current = ""
        self._tables: list[Table] = []
        # It vanishes at the end, when the tables are printed for good.
        self._live = Live(console=console, get_renderable=self._rendered, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def hear(self, spec: RunSpec, event: Event) -> None:
        """The epoch of the current run."""
        self._current = f"{spec}: epoch {event.epoch + 1} of {event.epochs} ({event.stage})"

    def add(self, record: RunRecord) -> None:
        """Count it, and put it into the table."""
        if self._count(record):  # many may be there before, and a table takes its time
            self._tables = accuracy_tables(self.records)
            self._live.refresh()  # a short run may end between two refreshes

    def _rendered(self) -> Group:
        bar = ProgressBar(total=self._total, completed=len(self.records), width=30)
        line = Table.grid(padding=(0, 2))
        line.add_row(bar, Text(self.status()))
        current = Text(self._current, style="dim", no_wrap=True, overflow="ellipsis")
        return Group(*self._tables, line, current)


def _cost(spec: RunSpec) -> float:
    """Passes over the data, without those of the dense run, which is shared."""
    from biprune.experiments.record import TRAIN

    if spec.method == TRAIN:
        return float(spec.resolved["dense"]["epochs"])
    return spec.build_method().data_passes(spec.sparsity)


def _outcome(record: RunRecord) -> str:
    if record.status == "failed":
        return f"{record.spec} failed: {record.error}"
    if record.test_accuracy is None:
        return f"{record.spec} done"
    return f"{record.spec} {record.test_accuracy:.2f} %"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
