"""The runs of the laptop benchmark in a store, and how accurate they are.

All prune a ResNet-8 on 10,000 images of CIFAR-10; they differ in method, settings, structure,
sparsity and seed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from biprune.experiments.presets.base import RESNET20
from biprune.experiments.presets.evidence import UNITS
from biprune.experiments.presets.scales import SIZES
from biprune.experiments.record import RunRecord
from biprune.experiments.spec import RunSpec
from biprune.methods import IMP
from biprune.report.comparison import sample_of
from biprune.report.formatting import percent_of, spread
from biprune.report.verdict import Sample

ALL = (0.8, 0.9, 0.95, 0.98)
BENCHMARK = SIZES["laptop"].fit(RESNET20)


class Runs:
    """The benchmark's runs by method, structure, sparsity, and what they change of its defaults."""

    def __init__(self, records: Iterable[RunRecord]) -> None:
        self._by_place: defaultdict[tuple[object, ...], list[RunRecord]] = defaultdict(list)
        self.dense: dict[int, float] = {}  # what each seed had before it was pruned
        for record in records:
            spec = record.spec
            if record.status == "done" and _in_benchmark(spec):
                changes = {n: v for n, v in spec.settings.items() if n not in ("epochs", "stops")}
                length = spec.settings.get("epochs")
                place = (spec.method, spec.structure, spec.sparsity, _frozen(changes), length)
                self._by_place[place].append(record)
                if record.dense_accuracy is not None:
                    self.dense[spec.seed] = record.dense_accuracy

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
        return self._by_place[method, structure, sparsity, _frozen(changes), epochs]


def _in_benchmark(spec: RunSpec) -> bool:
    """Whether a run is on the benchmark's data and network, and not of the study of settings."""
    size = SIZES["laptop"]
    if spec.seed not in size.claim_seeds:
        return False
    given = (spec.model, spec.data, spec.model_options, spec.data_options)
    dense = {name: v for name, v in spec.dense.items() if name != "rewind_epochs"}
    wanted = (BENCHMARK.model, BENCHMARK.data, BENCHMARK.model_options, size.data_options)
    return given == wanted and dense == size.dense and spec.scope is None


def _frozen(changes: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(changes.items()))


Pick = Callable[[Runs, float], list[RunRecord]]


def picking(method: str, *, epochs: int | None = None, **changes: Any) -> Pick:
    """Runs of 20 passes, or of as many epochs; the paper's BiP has two passes an epoch."""
    length = epochs or (10 if method == "bip-paper" else 20)
    return lambda runs, sparsity: runs.get(method, sparsity, epochs=length, **changes)


PAPER = picking("bip-paper")
OURS = picking("bip")
PLAIN = picking("bip", nesterov=False, freeze_pruned=False)


def fifth_of_imp(runs: Runs, sparsity: float) -> list[RunRecord]:
    """BiP with a fifth of what IMP takes to this sparsity alone."""
    passes = int(IMP(epochs=20).data_passes(sparsity)) // 5
    return runs.get("bip", sparsity, epochs=passes)


SINGLE = ("omp", "magnitude", "grasp", "snip", "synflow", "prospr", "earlybird", "random")
ROWS: dict[str, Pick] = {
    "bip": OURS,
    "bip, plain momentum and decay": PLAIN,
    "gmp, Nesterov's momentum": picking("gmp", nesterov=True),
    "gmp": picking("gmp"),
    "hydra": picking("hydra"),
    "bip-paper": PAPER,
    "bip-paper in one pass, rate 0.1": picking("bip-paper", epochs=20, passes=1, lr=0.1),
    **{name: picking(name) for name in SINGLE},
    "bip, a fifth of IMP's passes: 44, 56, 72": fifth_of_imp,
    "imp, 160, 240, 320 and 420 passes": picking("imp"),
}


FEW = ("bip", "gmp", "hydra", "bip-paper", "magnitude", "omp", "snip", *list(ROWS)[-2:])
ON_UNITS = ("bip", "gmp", "bip-paper", "hydra", "omp", "grasp", "imp")


def accuracy_table(runs: Runs, rows: Iterable[str] = ROWS) -> str:
    """Of each row at each sparsity the mean and standard deviation, and the number of seeds."""
    cells = {name: [ROWS[name](runs, sparsity) for sparsity in ALL] for name in rows}
    return _table(list(map(percent_of, ALL)), cells)


def units_table(runs: Runs) -> str:
    """The same of filters and channels."""
    places = [(structure, sparsity) for structure in ("filter", "channel") for sparsity in UNITS]
    cells = {
        name: [picking(name, structure=structure)(runs, s) for structure, s in places]
        for name in ON_UNITS
    }
    return _table([f"{structure}s, {percent_of(s)}" for structure, s in places], cells)


def dense_line(runs: Runs) -> str:
    """How accurate the networks are that all methods prune."""
    return f"Dense: {shown(Sample(runs.dense))}."


def _table(columns: list[str], cells: Mapping[str, list[list[RunRecord]]]) -> str:
    """As Markdown; rows without any run are left out."""
    head = ["test accuracy, % (seeds)", *columns]
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * len(columns)]
    for name, found in cells.items():
        if any(found):
            lines.append(f"| {' | '.join([name, *(shown(sample_of(f)) for f in found)])} |")
    return "\n".join(lines)


def shown(sample: Sample) -> str:
    """A cell of a table."""
    return f"{spread(sample.mean, sample.std)} ({sample.n})" if sample.n else "-"
