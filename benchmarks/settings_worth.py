"""What each of BiP's settings is worth: the runs of `biprune reproduce settings` in a store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from biprune.experiments.presets import PRESETS
from biprune.experiments.record import RunRecord
from biprune.experiments.spec import RunSpec
from biprune.experiments.store import Store
from biprune.report.comparison import sample_of
from biprune.report.formatting import points
from biprune.report.labels import described
from biprune.report.verdict import difference
from claims import FEWEST_SEEDS
from laptop_runs import shown

SCALES = {"digits": "digits", "cifar10": "CIFAR-10"}
HEAD = ("change of `bip` (seeds)", *SCALES.values())


def settings_table(store: Store) -> str:
    """Accuracy of the default, and of each change the paired difference to it, as Markdown."""
    runs: defaultdict[tuple[str, str], list[RunRecord]] = defaultdict(list)
    specs = PRESETS["settings"].specs("laptop")
    usual = {spec.data: spec.settings["epochs"] for spec in reversed(specs)}  # the first of each
    for spec in specs:
        record = store.get(spec)
        if record is not None and record.status == "done":
            runs[_change(spec, usual[spec.data]), spec.data].append(record)
    lines = [f"| {' | '.join(HEAD)} |", "|---|" + "---:|" * len(SCALES)]
    for change in dict.fromkeys(_change(spec, usual[spec.data]) for spec in specs):
        cells = [_worth(change, runs[change, data], runs["", data]) for data in SCALES]
        if any(cell != "-" for cell in cells):
            lines.append("| " + " | ".join([change or "none", *cells]) + " |")
    return "\n".join(lines)


def _change(spec: RunSpec, usual_epochs: int) -> str:
    """What a run changes; the passes are the same unless nothing else is changed."""
    if changes := described(spec.settings, [name for name in spec.settings if name != "epochs"]):
        return f"`{changes}`"
    ratio = spec.settings["epochs"] / usual_epochs
    return "" if ratio == 1 else f"{ratio:g} times the epochs"


def _worth(change: str, runs: Iterable[RunRecord], default: Iterable[RunRecord]) -> str:
    sample, usual = sample_of(runs), sample_of(default)
    if not change:
        return shown(sample)
    paired = difference(sample, usual)
    if paired is None:
        return "-"
    error = paired.error if paired.n >= FEWEST_SEEDS else None  # two say nothing of the spread
    return f"{points(paired.mean, error)} ({paired.n})"
