"""The tables of a report, before they are written as HTML, Markdown or LaTeX."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace

from biprune.report.results import Cell, Comparison
from biprune.report.statistics import difference
from biprune.report.wording import dense_text, percent_of, points, spread

OTHER_BUDGET, INCOMPLETE, UNCLEAR = "†", "‡", "?"
NOTES = {
    "*": "at least as accurate as dense, on average over its seeds (the paper's winning ticket)",
    "**": "so is the lower 95 % confidence bound of the difference, paired by seed",
    OTHER_BUDGET: "more than 2 % off the column's median of backward passes: not a fair comparison",
    INCOMPLETE: "some of its runs are missing or failed; see the holes",
    UNCLEAR: "no clear difference: smaller than its standard error, or from a single seed",
}


@dataclass(frozen=True)
class Entry:
    """One entry of a table.

    `n` is the number of runs behind it, `error` says which runs are missing. An entry without text
    is a hole.
    """

    text: str = ""
    n: int | None = None
    marks: tuple[str, ...] = ()
    is_best: bool = False
    error: str | None = None


@dataclass(frozen=True)
class Table:
    """Entries by row and column."""

    caption: str
    columns: list[str]
    rows: dict[str, list[Entry]]

    @property
    def notes(self) -> dict[str, str]:
        """What each mark in the table means."""
        used = {mark for row in self.rows.values() for entry in row for mark in entry.marks}
        if "**" in used:
            used.add("*")
        return {mark: text for mark, text in NOTES.items() if mark in used}


def all_tables(comparison: Comparison) -> list[Table]:
    """Every table of a comparison; none if there are only dense runs."""
    if not comparison.runs:
        return []
    tables = [accuracy_table(comparison), difference_table(comparison), cost_table(comparison)]
    return [table for table in tables if table is not None]


def accuracy_table(comparison: Comparison) -> Table:
    """Mean test accuracy, the best at each sparsity marked; published numbers stand below.

    Cells may have different seeds, so the best is found on shared ones. Published numbers do not
    compete, because they come from other training.
    """
    best = {(c.label, c.sparsity) for s in comparison.sparsities for c in comparison.best_at(s)}

    def entry(cell: Cell) -> Entry:
        sample, verdict = cell.accuracy, cell.verdict
        won = ("**",) if verdict.by_bound else ("*",) if verdict.by_mean else ()
        won = won if cell.sparsity > 0 else ()  # nothing was pruned, so nothing was won
        is_best = (cell.label, cell.sparsity) in best
        return Entry(spread(sample.mean, sample.std), sample.n, won, is_best)

    rows = _rows(comparison, entry) | _published_rows(comparison)
    caption = f"Test accuracy (%) of {comparison.title}: mean ± standard deviation (number of runs)"
    return Table(f"{caption}. {dense_text(comparison)}", _columns(comparison), rows)


def difference_table(comparison: Comparison) -> Table | None:
    """Each method's accuracy minus that of the first, paired by seed; None for a single method.

    A seed fixes the split and the initial weights for all methods, so much of the spread cancels.
    """
    if len(comparison.methods) < 2:
        return None
    first = comparison.labels[0]
    accuracies = {cell.sparsity: cell.accuracy for cell in comparison.cells if cell.label == first}

    def entry(cell: Cell) -> Entry:
        base = accuracies.get(cell.sparsity)
        paired = None if base is None else difference(cell.accuracy, base)
        if paired is None:
            return Entry("-")
        unclear = paired.error is None or abs(paired.mean) <= paired.error
        return Entry(points(paired.mean, paired.error), paired.n, (UNCLEAR,) if unclear else ())

    rows = _rows(comparison, entry)
    del rows[first]
    caption = (
        f"Test accuracy minus that of {first}, in percentage points, for {comparison.title}: mean "
        "± standard error, paired by seed (number of seeds)."
    )
    return Table(caption, _columns(comparison), rows)


def cost_table(comparison: Comparison) -> Table:
    """Mean backward passes and seconds of a run, without training the dense network."""

    def entry(cell: Cell) -> Entry:
        return Entry(f"{cell.passes:,.0f} / {cell.seconds:,.0f} s")

    caption = f"Cost of a run for {comparison.title}: mean backward passes / seconds."
    return Table(caption, _columns(comparison), _rows(comparison, entry))


def _columns(comparison: Comparison) -> list[str]:
    return [percent_of(sparsity) for sparsity in comparison.sparsities]


def _rows(comparison: Comparison, entry: Callable[[Cell], Entry]) -> dict[str, list[Entry]]:
    """A row of entries for each label, with the marks that every table has."""
    errors: defaultdict[tuple[str, float], list[str]] = defaultdict(list)
    for hole in comparison.holes:
        errors[hole.label, hole.sparsity].append(f"seed {hole.seed}: {hole.error}")
    rows: dict[str, list[Entry]] = {}
    for label, cells in comparison.grid().items():
        rows[label] = []
        for sparsity, cell in cells.items():
            error = "; ".join(errors[label, sparsity]) or None
            if cell is None:
                rows[label].append(Entry(error=error) if error else Entry("-"))
                continue
            plain = entry(cell)
            budget = (OTHER_BUDGET,) if cell.has_other_budget else ()
            missing = (INCOMPLETE,) if error else ()
            marks = (*plain.marks, *budget, *missing)
            rows[label].append(replace(plain, marks=marks, error=error))
    return rows


def _published_rows(comparison: Comparison) -> dict[str, list[Entry]]:
    """A row for each method and source with a number at one of our sparsities."""
    numbers: defaultdict[tuple[str, str], dict[float, Entry]] = defaultdict(dict)
    ours = list(comparison.methods.values())
    order = {method: ours.index(method) for method in ours}
    for point in sorted(comparison.published, key=lambda p: order.get(p.method, len(ours))):
        about = "~" if point.approximate else ""
        entry = Entry(about + spread(point.accuracy, point.std))
        numbers[point.method, point.source][round(point.sparsity, 6)] = entry
    return {
        f"{method} ({source})": [given.get(s, Entry("-")) for s in comparison.sparsities]
        for (method, source), given in numbers.items()
        if given.keys() & set(comparison.sparsities)
    }
