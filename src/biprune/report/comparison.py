"""Cells, holes and the comparison they make up: values that tables and charts read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

from biprune.experiments.record import RunRecord
from biprune.experiments.spec import RunSpec
from biprune.report.verdict import Sample, Verdict, difference

BUDGET_TOLERANCE = 0.02
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Cell:
    """The finished runs of one method at one sparsity, one a seed.

    `budget_ratio` is their backward passes over the median of all methods at that sparsity; None
    where that is 0.
    """

    label: str
    sparsity: float
    runs: tuple[RunRecord, ...]
    verdict: Verdict
    budget_ratio: float | None

    @property
    def method(self) -> str:
        """The method's name, without its settings."""
        return self.runs[0].spec.method

    @property
    def accuracy(self) -> Sample:
        """Test accuracies in percent."""
        return sample_of(self.runs)

    @property
    def passes(self) -> float:
        """Mean backward passes of a run."""
        return fmean(run.backward_passes for run in self.runs)

    @property
    def seconds(self) -> float:
        """Mean seconds of a run."""
        return fmean(run.seconds for run in self.runs)

    @property
    def has_other_budget(self) -> bool:
        """Whether it is unfair to compare this cell with its column."""
        if self.budget_ratio is None:
            return False
        return abs(self.budget_ratio - 1) > BUDGET_TOLERANCE + _ROUNDING


@dataclass(frozen=True)
class Hole:
    """A run that should be there and is not: it failed with `error`, or has no record."""

    label: str
    sparsity: float
    seed: int
    error: str


@dataclass(frozen=True)
class Sparsest:
    """The largest sparsity at which a method still wins by each rule; None for nowhere."""

    label: str
    by_mean: Cell | None
    by_bound: Cell | None

    @property
    def wins(self) -> bool:
        """Whether there is a winning ticket by either rule."""
        return self.by_mean is not None or self.by_bound is not None


@dataclass(frozen=True)
class Comparison:
    """All runs that differ in nothing but method, sparsity and seed."""

    title: str
    runs: tuple[RunRecord, ...]
    dense_runs: tuple[RunRecord, ...]
    dense: Sample | None
    methods: dict[str, str]  # by label, in the order of tables and legends
    sparsities: tuple[float, ...]
    cells: tuple[Cell, ...]
    holes: tuple[Hole, ...]

    @property
    def setting(self) -> RunSpec:
        """A spec that has in common with all of the runs what they have in common."""
        return (self.runs or self.dense_runs)[0].spec

    @property
    def labels(self) -> list[str]:
        """Every method or variant of one."""
        return list(self.methods)

    def grid(self) -> dict[str, dict[float, Cell | None]]:
        """Cells by label and sparsity; None where no run finished."""
        cells = {(cell.label, cell.sparsity): cell for cell in self.cells}
        return {
            label: {sparsity: cells.get((label, sparsity)) for sparsity in self.sparsities}
            for label in self.methods
        }

    def best_at(self, sparsity: float) -> list[Cell]:
        """Cells that no other of their column is above, on average over the seeds both have.

        One as a rule, several if they are equal, none where they share no seeds.
        """
        column = [cell for cell in self.cells if cell.sparsity == sparsity]
        return [cell for cell in column if all(_is_level(cell, other) for other in column)]

    def sparsest_tickets(self) -> list[Sparsest]:
        """The verdict on each method; a sparsity of 0 is no ticket."""
        return [
            Sparsest(
                label,
                _last(cell for cell in row.values() if cell and cell.verdict.by_mean),
                _last(cell for cell in row.values() if cell and cell.verdict.by_bound),
            )
            for label, row in self.grid().items()
        ]


def sample_of(runs: Iterable[RunRecord]) -> Sample:
    """Test accuracies of finished runs."""
    return Sample({r.spec.seed: r.test_accuracy for r in runs if r.test_accuracy is not None})


def _is_level(cell: Cell, other: Cell) -> bool:
    """Whether a cell is at least as accurate as another."""
    paired = difference(cell.accuracy, other.accuracy)
    return paired is not None and paired.mean >= -_ROUNDING


def _last(cells: Iterable[Cell]) -> Cell | None:
    return max((c for c in cells if c.sparsity > 0), key=lambda c: c.sparsity, default=None)
