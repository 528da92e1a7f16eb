"""What each of BiP's settings is worth: the runs of `python -m studies.run settings`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from math import sqrt
from statistics import NormalDist, median

from biprune.experiments.record import RunRecord, RunSpec
from biprune.report.results import sample_of
from biprune.report.wording import described, points
from studies.archive import Records
from studies.judging import FEWEST_SEEDS, less
from studies.laptop_runs import noted, shown
from studies.past_runs import mark, recorded
from studies.presets import STUDIES

Column = tuple[str, str]  # data and structure
COLUMNS: dict[Column, str] = {
    ("digits", "weight"): "digits",
    ("cifar10", "weight"): "CIFAR-10",
    ("cifar10", "filter"): "its filters",
    ("cifar10", "channel"): "its channels",
}
NO_CHANGE = ""
FEWEST_POOLED = 10  # changes that tell a spread
HEAD = ("change of `bip-plus` (seeds)", *COLUMNS.values())


def settings_table(records: Records) -> str:
    """Accuracy of the default, and of each change the paired difference to it, as Markdown."""
    runs: defaultdict[tuple[str, Column], list[RunRecord]] = defaultdict(list)
    specs = STUDIES["settings"].specs("laptop")
    usual = {
        _column(spec): spec.settings["epochs"] for spec in reversed(specs)
    }  # the first of each
    for spec in specs:
        record = recorded(records, spec)
        if record is not None and record.status == "done":
            runs[_change(spec, usual[_column(spec)]), _column(spec)].append(record)
    lines = [f"| {' | '.join(HEAD)} |", "|---|" + "---:|" * len(COLUMNS)]
    for change in dict.fromkeys(_change(spec, usual[_column(spec)]) for spec in specs):
        cells = [_worth(change, runs[change, study], runs[NO_CHANGE, study]) for study in COLUMNS]
        if any(cell != "-" for cell in cells):
            lines.append("| " + " | ".join([change or "none", *cells]) + " |")
    return "\n".join([*noted(lines), *_pooled(runs)])


def _column(spec: RunSpec) -> Column:
    return spec.data, spec.structure


def _change(spec: RunSpec, usual_epochs: int) -> str:
    """What a run changes; the passes are the same unless nothing else is changed."""
    if changes := described(spec.settings, [name for name in spec.settings if name != "epochs"]):
        return f"`{changes}`"
    ratio = spec.settings["epochs"] / usual_epochs
    return NO_CHANGE if ratio == 1 else f"{ratio:g} times the epochs"


def _worth(change: str, runs: Iterable[RunRecord], default: Iterable[RunRecord]) -> str:
    runs, default = list(runs), list(default)
    if not change:
        return shown(sample_of(runs)) + mark(runs)
    paired = less(runs, default)
    if paired is None:
        return "-"
    error = paired.error if paired.n >= FEWEST_SEEDS else None  # two say nothing of the spread
    return f"{points(paired.mean, error)} ({paired.n}){mark([*runs, *default])}"


def _pooled(runs: Mapping[tuple[str, Column], list[RunRecord]]) -> Iterator[str]:
    """The standard error of a difference of two seeds, from the runs of a study together.

    What the seeds differ by, x, has twice the variance of a run, and so has a difference on each
    seed; the mean of two such has half of that. The deviation of x is told by the median distance
    to the median, which the few changes that break training do not move.
    """
    for study, name in COLUMNS.items():
        samples = [sample_of(found) for (_, own), found in runs.items() if own == study]
        gaps = [sample.values[0] - sample.values[1] for sample in samples if sample.n == 2]
        if len(gaps) >= FEWEST_POOLED:
            middle = median(gaps)
            deviation = median(abs(gap - middle) for gap in gaps) / NormalDist().inv_cdf(0.75)
            yield f"\nOn {name}, with two seeds, a difference has a standard error of about"
            yield f"{deviation / sqrt(2):.2f}, by the spread of all {len(gaps)}."
