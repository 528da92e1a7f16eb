"""The runs of the laptop benchmark, and how accurate they are.

They are those of the studies `methods`, `controls` and `claims`: all prune a ResNet-8 on 10,000
images of CIFAR-10, and differ in method, settings, structure, sparsity and seed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from biprune.experiments.record import RunRecord
from biprune.methods import IMP
from biprune.methods.bip_plus import AS_PUBLISHED
from biprune.report.results import sample_of
from biprune.report.statistics import Sample
from biprune.report.wording import percent_of, spread
from studies.past_runs import MARK, NOTE, SETTING, mark, past
from studies.presets import HIGH, OTHERS, STUDIES, UNITS

JUDGED = ("methods", "controls", "claims")


@cache
def benchmark() -> frozenset[str]:
    """The keys of all runs that count."""
    specs = [spec for name in JUDGED for spec in STUDIES[name].specs("laptop")]
    return frozenset(own.key for spec in specs for own in (spec, past(spec)))


class Runs:
    """The benchmark's runs by method, structure, sparsity, and what they change of its defaults.

    Past runs (see `past_runs`) count where there is no run of today's default with their seed.
    """

    def __init__(self, records: Iterable[RunRecord]) -> None:
        known = [r for r in records if r.status == "done" and r.key in benchmark()]
        places: defaultdict[tuple[object, ...], dict[int, RunRecord]] = defaultdict(dict)
        for record in sorted(known, key=lambda r: not mark([r])):  # today's replace past ones
            spec = record.spec
            apart = ("epochs", "stops", SETTING)
            changes = {n: v for n, v in spec.settings.items() if n not in apart}
            length = spec.settings.get("epochs")
            place = (spec.method, spec.structure, spec.sparsity, _frozen(changes), length)
            places[place][spec.seed] = record
        self._by_place = {place: list(found.values()) for place, found in places.items()}
        self.all = [record for found in self._by_place.values() for record in found]

    def get(
        self,
        method: str,
        sparsity: float,
        *,
        epochs: int,
        structure: str = "weight",
        **changes: Any,
    ) -> list[RunRecord]:
        """The runs of every seed."""
        return self._by_place.get((method, structure, sparsity, _frozen(changes), epochs), [])


def _frozen(changes: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(changes.items()))


Pick = Callable[[Runs, float], list[RunRecord]]


def picking(method: str, *, epochs: int | None = None, **changes: Any) -> Pick:
    """Runs of 20 passes, or of as many epochs; the paper's BiP has two passes an epoch."""
    length = epochs or (10 if method == "bip" else 20)
    return lambda runs, sparsity: runs.get(method, sparsity, epochs=length, **changes)


def fifth_of_imp(method: str, **changes: Any) -> Pick:
    """With a fifth of what IMP takes to the sparsity alone."""

    def pick(runs: Runs, sparsity: float) -> list[RunRecord]:
        passes = int(IMP(epochs=20).data_passes(sparsity)) // 5
        return runs.get(method, sparsity, epochs=passes, **changes)

    return pick


BIP = picking("bip-plus")
PLAIN_BIP = picking("bip-plus", nesterov=False, freeze_pruned=False)
LONG_BIP = fifth_of_imp("bip-plus")
PAPER = picking("bip")
_SLOWER = ("passes", "lr")  # what it has of bip-plus
_PUBLISHED = {name: value for name, value in AS_PUBLISHED.items() if name not in _SLOWER}
ONE_PASS = picking("bip-plus", epochs=20, **_PUBLISHED)
IMP_RUNS = picking("imp")
LIKE_BIP = {"schedule": "cosine", "nesterov": True}
KEPT_IMP = picking("imp", rewind=False, **LIKE_BIP)
NOT_LEARNED = picking("bip-plus", score_lr=0.0)
GMP_NESTEROV = picking("gmp", nesterov=True)
GMP_FROZEN = picking("gmp", nesterov=True, freeze_pruned=True)
LONG = "{}, a fifth of IMP's passes (44, 56, 72 from 90 % on)"
FEW: dict[str, Pick] = {
    "bip-plus": BIP,
    **{name: picking(name) for name in ("gmp", "hydra")},
    "bip": PAPER,
    **{name: picking(name) for name in ("magnitude", "omp", *OTHERS)},
    LONG.format("bip-plus"): LONG_BIP,
    "imp, 160, 240, 320 and 420 passes": IMP_RUNS,
}
MORE: dict[str, Pick] = {
    "bip-plus, plain momentum and decay": PLAIN_BIP,
    "bip-plus, scores not learned": NOT_LEARNED,
    "bip, rate 0.1": picking("bip", lr=0.1),
    "bip in one pass, rate 0.1": ONE_PASS,
    "gmp, Nesterov's momentum": GMP_NESTEROV,
    "gmp, Nesterov's momentum, pruned weights left alone": GMP_FROZEN,
    "magnitude, cosine, Nesterov's momentum": picking("magnitude", **LIKE_BIP),
    "snip, 40 passes": picking("snip", epochs=40),
    LONG.format("gmp, Nesterov's momentum"): fifth_of_imp("gmp", nesterov=True),
    "imp, not rewound, cosine, Nesterov's momentum, 220 and 300 passes": KEPT_IMP,
}
ON_UNITS = ("bip-plus", "gmp", "bip", "hydra", "omp", "grasp", "imp")


def accuracy_table(runs: Runs, rows: Mapping[str, Pick]) -> str:
    """Of each row at each sparsity the mean and standard deviation, and the number of seeds."""
    cells = {name: [pick(runs, sparsity) for sparsity in HIGH] for name, pick in rows.items()}
    return _table(list(map(percent_of, HIGH)), cells)


def units_table(runs: Runs) -> str:
    """The same of filters and channels."""
    places = [(structure, sparsity) for structure in ("filter", "channel") for sparsity in UNITS]
    cells = {
        name: [picking(name, structure=structure)(runs, s) for structure, s in places]
        for name in ON_UNITS
    }
    return _table([f"{structure}s, {percent_of(s)}" for structure, s in places], cells)


def dense_line(runs: Runs) -> str:
    """How accurate the networks are that all methods prune, and if they are trained on."""
    before = {r.spec.seed: r.dense_accuracy for r in runs.all if r.dense_accuracy is not None}
    line = f"Dense, before pruning: {shown(Sample(before))}."
    trained_on = GMP_NESTEROV(runs, 0.0)
    more = f" Not pruned but trained on for 20 passes: {shown(sample_of(trained_on))}."
    return line + more if trained_on else line


def made_line(runs: Runs) -> str:
    """When and on what the runs were made."""
    names = ("processor", "torch")
    processors, versions = (sorted({str(r.environment.get(n)) for r in runs.all}) for n in names)
    days = sorted(str(r.environment.get("finished"))[:10] for r in runs.all)
    when = " to ".join(dict.fromkeys(days[:1] + days[-1:]))
    return f"{', '.join(processors)}, one thread a run; torch {', '.join(versions)}; {when}."


def _table(columns: Sequence[str], cells: Mapping[str, list[list[RunRecord]]]) -> str:
    """As Markdown; rows without any run are left out."""
    head = ["test accuracy, % (seeds)", *columns]
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * len(columns)]
    for name, found in cells.items():
        if any(found):
            texts = [shown(sample_of(records)) + mark(records) for records in found]
            lines.append(f"| {' | '.join([name, *texts])} |")
    if len(lines) == 2:
        return "Not run yet."
    return "\n".join(noted(lines))


def noted(lines: Sequence[str]) -> list[str]:
    """With a note on the mark, if one of the lines has it."""
    return [*lines, "", NOTE] if any(MARK in line for line in lines) else [*lines]


def shown(sample: Sample) -> str:
    """A cell of a table."""
    return f"{spread(sample.mean, sample.std)} ({sample.n})" if sample.n else "-"
