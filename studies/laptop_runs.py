"""The runs of the laptop benchmark, and how accurate they are.

They are those of the studies `methods`, `controls` and `claims`: all prune a ResNet-8 on 10,000
images of CIFAR-10, and differ in method, settings, structure, sparsity and seed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from biprune.experiments.presets.base import RESNET20, SIZES
from biprune.experiments.record import RunRecord, RunSpec
from biprune.methods import IMP
from biprune.report.results import sample_of
from biprune.report.statistics import Sample
from biprune.report.wording import percent_of, spread
from studies.presets import CLAIM_SEEDS, HIGH, OTHERS, UNITS

SETTING = "score_dead_rows"
MARK = "†"
NOTE = (
    f"{MARK} runs in which the scores of dead rows were learned too (`{SETTING}=True`), as they "
    "were by default before 2026-11-18."
)


def mark(records: Iterable[RunRecord]) -> str:
    """The mark, if the note is about some of the records."""
    return MARK if any(r.spec.settings.get(SETTING) for r in records) else ""


def noted(lines: Sequence[str]) -> list[str]:
    """With the note, if one of the lines has its mark."""
    return [*lines, "", NOTE] if any(MARK in line for line in lines) else [*lines]


class Runs:
    """The benchmark's runs by method, structure, sparsity, and what they change of its defaults.

    Marked runs count where there is no other with their seed.
    """

    def __init__(self, records: Iterable[RunRecord]) -> None:
        known = [r for r in records if r.status == "done" and _is_counted(r.spec)]
        places: defaultdict[tuple[object, ...], dict[int, RunRecord]] = defaultdict(dict)
        for record in sorted(known, key=lambda r: not mark([r])):  # the others replace marked ones
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


def _is_counted(spec: RunSpec) -> bool:
    """Whether a run is of the benchmark's network, data, dense run and seeds, all else usual."""
    size = SIZES["laptop"]
    pair = size.fit(RESNET20)
    own = ("method", "sparsity", "structure", "settings", "seed")
    usual = RunSpec(
        model=pair.model,
        data=pair.data,
        data_options=dict(size.data_options),
        dense=dict(size.dense),
        **{name: getattr(spec, name) for name in own},
    )
    return spec == usual and spec.method != "train" and spec.seed in CLAIM_SEEDS


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


@dataclass(frozen=True)
class Ours:
    """A version of our method, and its controls: GMP as near to it as there is, it as near to GMP.

    `shared` is what `like_gmp` has of GMP.
    """

    name: str
    shared: str
    like_gmp: Pick
    not_learned: Pick
    gmp_like_it: Pick

    @property
    def usual(self) -> Pick:
        """With 20 passes."""
        return picking(self.name)

    @property
    def long(self) -> Pick:
        """With a fifth of IMP's."""
        return fifth_of_imp(self.name)


_FROZEN = {"nesterov": True, "freeze_pruned": True}
NOW = Ours(
    "bip-plus",
    "momentum",
    picking("bip-plus", nesterov=False),
    picking("bip-plus", kappa=0.0),
    picking("gmp", **_FROZEN),
)
BEFORE = Ours(
    "bip-plus-0.1",
    "momentum and decay",
    picking("bip-plus-0.1", nesterov=False, freeze_pruned=False),
    picking("bip-plus-0.1", score_lr=0.0),
    picking("gmp-0.1", **_FROZEN),
)
PAPER = picking("bip")
IMP_RUNS = picking("imp")
LIKE_BIP = {"schedule": "cosine", "nesterov": True}
KEPT_IMP = picking("imp", rewind=False, **LIKE_BIP)
GMP_NESTEROV = picking("gmp", nesterov=True)
LONG_GMP = fifth_of_imp("gmp", nesterov=True)
LONG = "{}, a fifth of IMP's passes (44, 56, 72 from 90 % on)"
FEW: dict[str, Pick] = {
    **{version.name: version.usual for version in (NOW, BEFORE)},
    **{name: picking(name) for name in ("gmp", "hydra")},
    "bip": PAPER,
    **{name: picking(name) for name in ("magnitude", "omp", *OTHERS)},
    **{LONG.format(version.name): version.long for version in (NOW, BEFORE)},
    "imp, 160, 240, 320 and 420 passes": IMP_RUNS,
}
MORE: dict[str, Pick] = {
    **{f"{v.name}, GMP's {v.shared}": v.like_gmp for v in (NOW, BEFORE)},
    **{f"{v.name}, scores not learned": v.not_learned for v in (NOW, BEFORE)},
    "bip, rate 0.1": picking("bip", lr=0.1),
    "gmp, Nesterov's momentum": GMP_NESTEROV,
    "gmp, Nesterov's momentum, pruned weights left alone": NOW.gmp_like_it,
    "gmp-0.1, Nesterov's momentum, pruned weights left alone": BEFORE.gmp_like_it,
    "magnitude, cosine, Nesterov's momentum": picking("magnitude", **LIKE_BIP),
    "snip, 40 passes": picking("snip", epochs=40),
    LONG.format("gmp, Nesterov's momentum"): LONG_GMP,
    "imp, not rewound, cosine, Nesterov's momentum, 220 and 300 passes": KEPT_IMP,
}
ON_UNITS = (NOW.name, BEFORE.name, "gmp", "bip", "hydra", "omp", "grasp", "imp")


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


def versions_line(runs: Runs) -> str:
    """Which rule the runs of our method are of, and how many of today's there are."""
    count = sum(record.spec.method == NOW.name for record in runs.all)
    line = (
        f"`{BEFORE.name}` is the default of version 0.1, no longer in the package: only its "
        "records are kept. "
    )
    made = {0: "no run", 1: "one run"}.get(count, f"{count} runs")
    return f"{line}Today's `{NOW.name}` has a new rule, with {made} here so far."


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
    return "\n".join(noted(lines)) if len(lines) > 2 else "Not run yet."


def shown(sample: Sample) -> str:
    """A cell of a table."""
    return f"{spread(sample.mean, sample.std)} ({sample.n})" if sample.n else "-"


def cell(values: Iterable[float]) -> str:
    """The same of numbers, one for each seed."""
    return shown(Sample(dict(enumerate(values))))
