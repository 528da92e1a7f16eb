"""From records to comparisons: which runs belong together, and which are missing."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean, median

from biprune.core.structure import UNITS
from biprune.experiments.paper import ReferencePoint
from biprune.experiments.record import RunRecord, RunSpec
from biprune.methods import METHODS
from biprune.report.results import Cell, Comparison, Hole, sample_of
from biprune.report.statistics import Sample, judge
from biprune.report.wording import COMPARED, method_labels, natural_order, setting_titles

NO_RECORD = "no record"
_STRUCTURES = list(UNITS)

Place = tuple[str, float]  # the label and sparsity of a cell


def summarise(
    records: Iterable[RunRecord], paper: Iterable[ReferencePoint] = ()
) -> list[Comparison]:
    """Group records into comparisons, one for each setting; their order does not matter.

    Args:
        records: Finished and failed runs. A dense run belongs to every comparison that starts from
            it. If one run has two records, the finished one counts.
        paper: Published numbers; each joins the comparison with its model, data and structure.

    Returns:
        Comparisons sorted by model, data and structure.
    """
    groups: defaultdict[str, list[RunRecord]] = defaultdict(list)
    dense_runs: defaultdict[str, list[RunRecord]] = defaultdict(list)
    for run in _one_record_per_run(records):
        if run.spec.method in METHODS and METHODS[run.spec.method].prunes:
            groups[_setting_key(run.spec)].append(run)
        else:
            dense_runs[_setting_key(run.spec.dense_spec)].append(run)
    starts = {key: _setting_key(group[0].spec.dense_spec) for key, group in groups.items()}
    members = [(group, dense_runs.get(starts[key], [])) for key, group in groups.items()]
    members += [([], alone) for key, alone in dense_runs.items() if key not in starts.values()]
    titles = setting_titles([(group or dense)[0].spec for group, dense in members])
    points = list(paper)
    comparisons = [
        _compare(title, group, dense, points)
        for title, (group, dense) in zip(titles, members, strict=True)
    ]
    return sorted(comparisons, key=_position)


def failure(run: RunRecord) -> str | None:
    """Why a run has no usable result; None if it has one."""
    if run.status == "failed":
        return run.error or "failed without an error"
    if run.test_accuracy is None or not math.isfinite(run.test_accuracy):
        return f"finished with test accuracy {run.test_accuracy}"
    return None


def _setting_key(spec: RunSpec) -> str:
    """The same for all runs of a comparison, and for all dense runs of a recipe."""
    return json.dumps(spec.model_dump(mode="json", exclude=COMPARED), sort_keys=True)


def _one_record_per_run(records: Iterable[RunRecord]) -> list[RunRecord]:
    runs: dict[str, RunRecord] = {}
    for record in records:
        if record.key not in runs or failure(runs[record.key]):
            runs[record.key] = record
    return list(runs.values())


def _compare(
    title: str,
    runs: list[RunRecord],
    dense_runs: list[RunRecord],
    paper: Iterable[ReferencePoint],
) -> Comparison:
    label_of = method_labels([run.spec for run in runs])
    methods = {label_of[run.key]: run.spec.method for run in runs}
    order = list(METHODS)  # with those that were added since
    labels = sorted(methods, key=lambda name: (order.index(methods[name]), natural_order(name)))
    runs = sorted(runs, key=lambda r: (labels.index(label_of[r.key]), r.spec.sparsity, r.spec.seed))
    dense_runs = sorted(dense_runs, key=lambda run: (run.spec.method, run.spec.seed))
    by_place: defaultdict[Place, list[RunRecord]] = defaultdict(list)
    for run in runs:
        # Rounded, so that 1 - 0.8**3 and 0.488 share a column.
        by_place[label_of[run.key], round(run.spec.sparsity, 6)].append(run)
    dense = _dense_sample(runs, dense_runs)
    spec = (runs or dense_runs)[0].spec
    ours = spec.model, spec.data, spec.structure
    return Comparison(
        title=title,
        runs=tuple(runs),
        dense_runs=tuple(dense_runs),
        dense=dense,
        methods={label: methods[label] for label in labels},
        sparsities=tuple(sorted({sparsity for _, sparsity in by_place})),
        cells=tuple(_cells(by_place, dense)),
        holes=tuple(_holes(labels, by_place, dense_runs)),
        published=tuple(p for p in paper if (p.model, p.data, p.structure) == ours),
    )


def _position(comparison: Comparison) -> tuple[object, ...]:
    """A sort key: model, data, structure; patterns such as 2:4 come last, by n and m."""
    spec = comparison.setting
    known = spec.structure in _STRUCTURES
    structure = _STRUCTURES.index(spec.structure) if known else len(_STRUCTURES)
    return spec.model, spec.data, structure, natural_order(spec.structure), comparison.title


def _dense_sample(runs: Sequence[RunRecord], dense_runs: Sequence[RunRecord]) -> Sample | None:
    """Accuracies of the dense runs; for seeds without one, what the pruned runs recorded."""
    recorded = {
        run.spec.seed: run.dense_accuracy
        for run in runs
        if run.dense_accuracy is not None and math.isfinite(run.dense_accuracy)
    }
    own = sample_of(run for run in dense_runs if not failure(run))
    by_seed = {**recorded, **own.by_seed}
    return Sample(by_seed) if by_seed else None


def _cells(by_place: dict[Place, list[RunRecord]], dense: Sample | None) -> Iterator[Cell]:
    done = {place: tuple(r for r in runs if not failure(r)) for place, runs in by_place.items()}
    passes = {place: fmean(r.backward_passes for r in runs) for place, runs in done.items() if runs}
    for place, own in passes.items():
        label, sparsity = place
        usual = median(other for (_, column), other in passes.items() if column == sparsity)
        verdict = judge(sample_of(done[place]), dense)
        yield Cell(label, sparsity, done[place], verdict, own / usual if usual else None)


def _holes(
    labels: Iterable[str],
    by_place: dict[Place, list[RunRecord]],
    dense_runs: Sequence[RunRecord],
) -> Iterator[Hole]:
    """Failed runs, and those missing from the grid of a method's own sparsities and seeds."""
    for run in dense_runs:
        if error := failure(run):
            yield Hole("dense", 0.0, run.spec.seed, error)
    for label in labels:
        own = {sparsity: runs for (name, sparsity), runs in by_place.items() if name == label}
        seeds = sorted({run.spec.seed for runs in own.values() for run in runs})
        for sparsity in sorted(own):
            found = {run.spec.seed: run for run in own[sparsity]}
            for seed in seeds:
                error = failure(found[seed]) if seed in found else NO_RECORD
                if error:
                    yield Hole(label, sparsity, seed, error)
