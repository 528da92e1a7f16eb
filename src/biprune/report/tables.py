"""The tables of a comparison as values; others write them down."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from biprune.experiments.reference import ReferencePoint
from biprune.report.comparison import Cell, Comparison
from biprune.report.formatting import counted, percent_of, points, spread
from biprune.report.verdict import difference

OTHER_BUDGET, INCOMPLETE, UNCLEAR = "†", "‡", "?"
NOTES = {
    "*": "at least as accurate as dense, on average over its seeds (the paper's winning ticket)",
    "**": "the 95 % lower confidence bound of the difference, paired by seed, is at least 0",
    OTHER_BUDGET: "backward passes more than 2 % off the median of the column: not a fair contest",
    INCOMPLETE: "some of its runs are missing or failed: see the holes",
    UNCLEAR: "within one standard error of none, or a single seed",
}


@dataclass(frozen=True)
class Entry:
    """One entry of a table. `error` says what is missing; an entry without text is a hole."""

    text: str = ""
    n: int | None = None
    marks: tuple[str, ...] = ()
    is_best: bool = False
    error: str | None = None


@dataclass(frozen=True)
class Table:
    """Entries by row and column, with a note for every mark in use."""

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


def accuracy_table(comparison: Comparison, paper: Sequence[ReferencePoint] = ()) -> Table:
    """Mean test accuracy, the best of each sparsity marked; published ones at the same sparsities.

    Cells may have more seeds than others: the best is so over the seeds that it shares with each.
    Published numbers compete with nobody: their training is not ours.
    """
    best = {(c.label, c.sparsity) for s in comparison.sparsities for c in comparison.best_at(s)}

    def entry(cell: Cell) -> Entry:
        sample, verdict = cell.accuracy, cell.verdict
        won = ("**",) if verdict.by_bound else ("*",) if verdict.by_mean else ()
        won = won if cell.sparsity > 0 else ()  # nothing was pruned, so nothing was won
        is_best = (cell.label, cell.sparsity) in best
        return Entry(spread(sample.mean, sample.std), sample.n, won, is_best)

    rows = _rows(comparison, entry) | _published_rows(comparison, paper)
    caption = f"Test accuracy (%) of {comparison.title}: mean ± standard deviation (number of runs)"
    return Table(f"{caption}. {dense_text(comparison)}", _columns(comparison), rows)


def difference_table(comparison: Comparison) -> Table | None:
    """What each method has more or less than the first, seed by seed; None if that is alone.

    Seeds decide split and initial weights of all methods alike: much of the spread cancels.
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
        f"Test accuracy less that of {first}, in points, of {comparison.title}: mean ± standard "
        "error of the difference paired by seed (number of seeds)."
    )
    return Table(caption, _columns(comparison), rows)


def cost_table(comparison: Comparison) -> Table:
    """Mean backward passes and seconds of a run, without those of the dense model."""

    def entry(cell: Cell) -> Entry:
        return Entry(f"{cell.passes:,.0f} / {cell.seconds:,.0f} s")

    caption = f"Cost of a run of {comparison.title}: mean backward passes / seconds."
    return Table(caption, _columns(comparison), _rows(comparison, entry))


def all_tables(comparison: Comparison, paper: Sequence[ReferencePoint] = ()) -> list[Table]:
    """Those that a report has; of dense runs alone there are none."""
    if not comparison.runs:
        return []
    differences = difference_table(comparison)
    return [
        accuracy_table(comparison, paper),
        *([differences] if differences else []),
        cost_table(comparison),
    ]


def dense_text(comparison: Comparison) -> str:
    """The dense accuracy in words."""
    if comparison.dense is None:
        return "The dense accuracy is unknown."
    dense = comparison.dense
    return f"Dense: {spread(dense.mean, dense.std)} % ({counted(dense.n, 'run')})."


def _columns(comparison: Comparison) -> list[str]:
    return [percent_of(sparsity) for sparsity in comparison.sparsities]


def _rows(comparison: Comparison, entry: Callable[[Cell], Entry]) -> dict[str, list[Entry]]:
    errors = _errors(comparison)
    rows: dict[str, list[Entry]] = {}
    for label, cells in comparison.grid().items():
        rows[label] = []
        for sparsity, cell in cells.items():
            error = errors.get((label, sparsity))
            if cell is None:
                rows[label].append(Entry(error=error) if error else Entry("-"))
                continue
            plain = entry(cell)
            budget = (OTHER_BUDGET,) if cell.has_other_budget else ()
            missing = (INCOMPLETE,) if error else ()
            marks = (*plain.marks, *budget, *missing)
            rows[label].append(replace(plain, marks=marks, error=error))
    return rows


def _errors(comparison: Comparison) -> Mapping[tuple[str, float], str]:
    errors: dict[tuple[str, float], str] = {}
    for hole in comparison.holes:
        place = hole.label, hole.sparsity
        text = f"seed {hole.seed}: {hole.error}"
        errors[place] = f"{errors[place]}; {text}" if place in errors else text
    return errors


def _published_rows(
    comparison: Comparison, paper: Sequence[ReferencePoint]
) -> dict[str, list[Entry]]:
    """A row for each method and source that has a number at one of the table's sparsities."""
    numbers: defaultdict[tuple[str, str], dict[float, Entry]] = defaultdict(dict)
    ours = list(comparison.methods.values())
    for point in sorted(paper, key=lambda p: ours.index(p.method) if p.method in ours else 99):
        about = "~" if point.approximate else ""
        entry = Entry(about + spread(point.accuracy, point.std))
        numbers[point.method, point.source][round(point.sparsity, 6)] = entry
    return {
        f"{method} ({source})": [given.get(s, Entry("-")) for s in comparison.sparsities]
        for (method, source), given in numbers.items()
        if given.keys() & set(comparison.sparsities)
    }
