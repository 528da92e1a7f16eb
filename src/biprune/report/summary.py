"""Runs as cells: what every method reached at every sparsity, and what is missing."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean, median

from biprune.experiments.record import RunRecord
from biprune.methods import METHODS
from biprune.report.comparison import Cell, Comparison, Hole, sample_of
from biprune.report.labels import method_labels, natural_order
from biprune.report.settings import recipe_key, setting_key, setting_titles
from biprune.report.verdict import Sample, judge
from biprune.structure import UNITS

NO_RECORD = "no record"
_ORDER = {name: place for place, name in enumerate(METHODS)}
_STRUCTURES = {name: place for place, name in enumerate(UNITS)}


def summarise(records: Iterable[RunRecord]) -> list[Comparison]:
    """A comparison for each setting; whatever the order of `records`, theirs is the same.

    Dense runs belong to every comparison that starts from them; of two records of one run the
    finished one counts.
    """
    runs = _one_a_run(records)
    groups: defaultdict[str, list[RunRecord]] = defaultdict(list)
    dense_runs: defaultdict[str, list[RunRecord]] = defaultdict(list)
    for run in runs:
        if is_pruned(run):
            groups[setting_key(run.spec)].append(run)
        else:
            dense_runs[recipe_key(run.spec)].append(run)
    used = {recipe_key(group[0].spec) for group in groups.values()}
    members = [(group, dense_runs[recipe_key(group[0].spec)]) for group in groups.values()]
    members += [([], alone) for key, alone in dense_runs.items() if alone and key not in used]
    titles = setting_titles([(group or dense)[0].spec for group, dense in members])
    comparisons = [_compare(title, *group) for title, group in zip(titles, members, strict=True)]
    return sorted(comparisons, key=_place)


def is_pruned(run: RunRecord) -> bool:
    """Whether the run belongs in a table; the dense ones are what tables compare with."""
    return run.spec.method in METHODS and METHODS[run.spec.method].prunes


def failure(run: RunRecord) -> str | None:
    """Why a run gives no number; None if it does."""
    if run.status == "failed":
        return run.error or "failed without an error"
    if run.test_accuracy is None or not math.isfinite(run.test_accuracy):
        return f"finished with test accuracy {run.test_accuracy}"
    return None


def _one_a_run(records: Iterable[RunRecord]) -> list[RunRecord]:
    runs: dict[str, RunRecord] = {}
    for record in records:
        if record.key not in runs or failure(runs[record.key]):
            runs[record.key] = record
    return list(runs.values())


def _compare(title: str, runs: list[RunRecord], dense_runs: list[RunRecord]) -> Comparison:
    label_of = method_labels([run.spec for run in runs])
    methods = {label_of[run.key]: run.spec.method for run in runs}
    labels = sorted(methods, key=lambda label: (_ORDER[methods[label]], natural_order(label)))
    runs = sorted(runs, key=lambda r: (labels.index(label_of[r.key]), r.spec.sparsity, r.spec.seed))
    dense_runs = sorted(dense_runs, key=lambda run: (run.spec.method, run.spec.seed))
    by_cell: defaultdict[tuple[str, float], list[RunRecord]] = defaultdict(list)
    for run in runs:
        by_cell[label_of[run.key], _column(run)].append(run)
    dense = _dense_sample(runs, dense_runs)
    return Comparison(
        title=title,
        runs=tuple(runs),
        dense_runs=tuple(dense_runs),
        dense=dense,
        methods={label: methods[label] for label in labels},
        sparsities=tuple(sorted({sparsity for _, sparsity in by_cell})),
        cells=tuple(_cells(by_cell, dense)),
        holes=tuple(_holes(labels, by_cell, dense_runs)),
    )


def _place(comparison: Comparison) -> tuple[object, ...]:
    """Model, data, structures as they are listed, patterns such as 2:4 behind them by n and m."""
    spec = comparison.setting
    structure = _STRUCTURES.get(spec.structure, len(_STRUCTURES))
    pattern = natural_order(spec.structure)
    return spec.model, spec.data, structure, pattern, comparison.title


def _column(run: RunRecord) -> float:
    # 1 - 0.8**n and its decimal are one column.
    return round(run.spec.sparsity, 6)


def _dense_sample(runs: Sequence[RunRecord], dense_runs: Sequence[RunRecord]) -> Sample | None:
    """From the dense runs themselves; for other seeds from what the pruned runs know of theirs."""
    told = {
        run.spec.seed: run.dense_accuracy
        for run in runs
        if run.dense_accuracy is not None and math.isfinite(run.dense_accuracy)
    }
    own = sample_of(run for run in dense_runs if not failure(run))
    by_seed = {**told, **own.by_seed}
    return Sample(by_seed) if by_seed else None


def _cells(
    by_cell: dict[tuple[str, float], list[RunRecord]], dense: Sample | None
) -> Iterator[Cell]:
    done = {place: tuple(r for r in runs if not failure(r)) for place, runs in by_cell.items()}
    passes = {place: fmean(r.backward_passes for r in runs) for place, runs in done.items() if runs}
    for place, own in passes.items():
        label, sparsity = place
        usual = median(other for (_, column), other in passes.items() if column == sparsity)
        verdict = judge(sample_of(done[place]), dense)
        yield Cell(label, sparsity, done[place], verdict, own / usual if usual else None)


def _holes(
    labels: Iterable[str],
    by_cell: dict[tuple[str, float], list[RunRecord]],
    dense_runs: Sequence[RunRecord],
) -> Iterator[Hole]:
    """Runs that failed, and what a method lacks of its own sparsities x seeds."""
    for run in dense_runs:
        if error := failure(run):
            yield Hole("dense", 0.0, run.spec.seed, error)
    for label in labels:
        own = {sparsity: runs for (name, sparsity), runs in by_cell.items() if name == label}
        seeds = sorted({run.spec.seed for runs in own.values() for run in runs})
        for sparsity in sorted(own):
            runs = {run.spec.seed: run for run in own[sparsity]}
            for seed in seeds:
                error = failure(runs[seed]) if seed in runs else NO_RECORD
                if error:
                    yield Hole(label, sparsity, seed, error)
