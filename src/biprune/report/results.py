"""Comparisons as values: the cells and holes that tables, charts and sentences are made of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

from biprune.experiments.paper import ReferencePoint
from biprune.experiments.record import RunRecord, RunSpec
from biprune.report.statistics import ROUNDING, Sample, Verdict, difference

BUDGET_TOLERANCE = 0.02


@dataclass(frozen=True)
class Cell:
    """The finished runs of one method at one sparsity, one for each seed.

    `budget_ratio` is their mean number of backward passes, divided by the median over all methods
    at that sparsity. It is None where the median is 0.
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
        """Whether it took too many or too few passes to be compared fairly with its column."""
        if self.budget_ratio is None:
            return False
        return abs(self.budget_ratio - 1) > BUDGET_TOLERANCE + ROUNDING


@dataclass(frozen=True)
class Hole:
    """A run without a result: it failed with `error`, or its record is missing."""

    label: str
    sparsity: float
    seed: int
    error: str


@dataclass(frozen=True)
class Sparsest:
    """A method's sparsest winning ticket by each rule; None where no ticket wins."""

    label: str
    by_mean: Cell | None
    by_bound: Cell | None

    @property
    def wins(self) -> bool:
        """Whether any ticket wins, by either rule."""
        return self.by_mean is not None or self.by_bound is not None


@dataclass(frozen=True)
class Comparison:
    """All runs that differ only in method, sparsity and seed.

    `methods` maps each label to the name of its method, in the order of tables and legends.
    `published` are reported numbers for the same model, data and structure.
    """

    title: str
    runs: tuple[RunRecord, ...]
    dense_runs: tuple[RunRecord, ...]
    dense: Sample | None
    methods: dict[str, str]
    sparsities: tuple[float, ...]
    cells: tuple[Cell, ...]
    holes: tuple[Hole, ...]
    published: tuple[ReferencePoint, ...] = ()

    @property
    def setting(self) -> RunSpec:
        """The first run's spec; all runs share it but for method, settings, sparsity and seed."""
        return (self.runs or self.dense_runs)[0].spec

    @property
    def labels(self) -> list[str]:
        """One label for each method or variant of a method."""
        return list(self.methods)

    def grid(self) -> dict[str, dict[float, Cell | None]]:
        """Cells by label and sparsity; None where no run finished."""
        cells = {(cell.label, cell.sparsity): cell for cell in self.cells}
        return {
            label: {sparsity: cells.get((label, sparsity)) for sparsity in self.sparsities}
            for label in self.methods
        }

    def best_at(self, sparsity: float) -> list[Cell]:
        """The cells at `sparsity` that no other cell beats on the seeds that both have.

        Usually there is one. Equal cells are all best. Where two cells have no seed in common,
        neither is.
        """
        column = [cell for cell in self.cells if cell.sparsity == sparsity]
        return [cell for cell in column if all(_is_as_good(cell, other) for other in column)]

    def sparsest_tickets(self) -> list[Sparsest]:
        """Each method's sparsest winning tickets; a run at sparsity 0 is not a ticket."""
        return [
            Sparsest(
                label,
                _sparsest(cell for cell in row.values() if cell and cell.verdict.by_mean),
                _sparsest(cell for cell in row.values() if cell and cell.verdict.by_bound),
            )
            for label, row in self.grid().items()
        ]


def sample_of(runs: Iterable[RunRecord]) -> Sample:
    """The test accuracies of the runs that have one."""
    return Sample({r.spec.seed: r.test_accuracy for r in runs if r.test_accuracy is not None})


def _is_as_good(cell: Cell, other: Cell) -> bool:
    paired = difference(cell.accuracy, other.accuracy)
    return paired is not None and paired.mean >= -ROUNDING


def _sparsest(cells: Iterable[Cell]) -> Cell | None:
    return max((c for c in cells if c.sparsity > 0), key=lambda c: c.sparsity, default=None)
