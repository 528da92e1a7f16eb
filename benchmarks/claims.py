"""The paper's claims and ours, each held against the records of a store.

python benchmarks/claims.py docs/results/laptop

A claim that one way is better than another is a paired difference of test accuracies over the seeds
that both have, three at least. It holds where the mean is more than one standard error on the
claimed side at every sparsity, in part where at some, and otherwise it does not; "so far" says that
some sparsities are still to be judged. "At least as good" asks that the mean is not more than one
standard error on the other side.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from biprune.experiments.presets.base import RESNET20
from biprune.experiments.presets.scales import SIZES
from biprune.experiments.record import RunRecord
from biprune.experiments.spec import RunSpec
from biprune.experiments.store import Store
from biprune.methods import IMP
from biprune.report.comparison import sample_of
from biprune.report.formatting import percent_of, points
from biprune.report.verdict import Difference, difference

ALL = (0.8, 0.9, 0.95, 0.98)
CLAIMED = (0.9, 0.95, 0.98)
AT_INIT, SOME = ("grasp", "snip", "synflow"), (0.9, 0.95)
UNITS = (0.4, 0.6, 0.8)  # of filters and channels
BENCHMARK = SIZES["laptop"].fit(RESNET20)
LAST_EPOCHS = 3
FEWEST_SEEDS = 3
SETTLED = 0.99  # IoU of the masks of adjacent epochs


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("store", type=Path)
    print(markdown(Runs(Store(parser.parse_args().store))))


class Runs:
    """The benchmark's runs by method, structure, sparsity, and what they change of its defaults."""

    def __init__(self, records: Iterable[RunRecord]) -> None:
        self._by_place: defaultdict[tuple[object, ...], list[RunRecord]] = defaultdict(list)
        for record in records:
            spec = record.spec
            if record.status == "done" and _in_benchmark(spec):
                changes = {n: v for n, v in spec.settings.items() if n not in ("epochs", "stops")}
                length = spec.settings.get("epochs")
                place = (spec.method, spec.structure, spec.sparsity, _frozen(changes), length)
                self._by_place[place].append(record)

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
    """Whether a run differs from the others in method, structure, sparsity and seed alone."""
    size = SIZES["laptop"]
    given = (spec.model, spec.data, spec.model_options, spec.data_options)
    dense = {name: v for name, v in spec.dense.items() if name != "rewind_epochs"}
    wanted = (BENCHMARK.model, BENCHMARK.data, BENCHMARK.model_options, size.data_options)
    return given == wanted and dense == size.dense and spec.scope is None


def _frozen(changes: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(changes.items()))


Pick = Callable[[Runs, float], list[RunRecord]]
Finding = tuple[str, str]  # numbers, verdict


def picking(method: str, *, epochs: int = 20, **changes: Any) -> Pick:
    return lambda runs, sparsity: runs.get(method, sparsity, epochs=epochs, **changes)


PAPER = picking("bip-paper", epochs=10)
OURS = picking("bip")
PLAIN = picking("bip", nesterov=False, freeze_pruned=False)


def fifth_of_imp(runs: Runs, sparsity: float) -> list[RunRecord]:
    """BiP with a fifth of what IMP takes to this sparsity alone."""
    passes = int(IMP(epochs=20).data_passes(sparsity)) // 5
    return runs.get("bip", sparsity, epochs=passes)


def ahead(one: Pick, other: Pick, sparsities: Sequence[float], *, or_equal: bool = False) -> Any:
    """Whether `one` is more accurate, or with `or_equal` not less."""

    def check(runs: Runs) -> Finding:
        found = {s: _paired(one(runs, s), other(runs, s)) for s in sparsities}
        known = {sparsity: paired for sparsity, paired in found.items() if paired is not None}
        wins = [_wins(paired, or_equal) for paired in found.values()]
        numbers = [
            f"{percent_of(sparsity)}: {points(paired.mean, paired.error)} ({paired.n})"
            for sparsity, paired in known.items()
        ]
        return ", ".join(numbers), _verdict(wins)

    return check


def _paired(ours: list[RunRecord], theirs: list[RunRecord]) -> Difference | None:
    return difference(sample_of(ours), sample_of(theirs))


def _wins(paired: Difference | None, or_equal: bool) -> bool | None:
    if paired is None or paired.error is None or paired.n < FEWEST_SEEDS:
        return None
    return paired.mean >= -paired.error if or_equal else paired.mean > paired.error


def _verdict(wins: Sequence[bool | None]) -> str:
    judged = [win for win in wins if win is not None]
    if not judged:
        return "not judged: too few seeds"
    verdict = "holds" if all(judged) else "in part" if any(judged) else "does not hold"
    return verdict if len(judged) == len(wins) else f"{verdict} so far"


def same_cost(runs: Runs) -> Finding:
    """Passes of BiP and of IMP at every sparsity."""
    parts, counts = [], set()
    for sparsity in ALL:
        bip, imp = PAPER(runs, sparsity), picking("imp")(runs, sparsity)
        if bip:
            counts.add(bip[0].backward_passes)
        if bip and imp:
            ratio = fmean(r.backward_passes for r in imp) / bip[0].backward_passes
            parts.append(f"{percent_of(sparsity)}: IMP takes {ratio:.0f} times the passes")
    if len(parts) < 2:
        return ", ".join(parts), "not judged: too few sparsities"
    return ", ".join(parts), "holds" if len(counts) == 1 else "does not hold"


def settles(runs: Runs) -> Finding:
    """IoU of the masks of adjacent epochs, over the last epochs of the runs."""
    parts, wins = [], []
    for sparsity in ALL:
        curves = [[e["iou"] for e in r.history if "iou" in e] for r in PAPER(runs, sparsity)]
        if not curves:
            wins.append(None)
            continue
        last = fmean(fmean(curve[-LAST_EPOCHS:]) for curve in curves)
        first = fmean(fmean(curve[:LAST_EPOCHS]) for curve in curves)
        parts.append(f"{percent_of(sparsity)}: {first:.3f} to {last:.3f}")
        wins.append(last >= SETTLED if len(curves) >= FEWEST_SEEDS else None)
    return ", ".join(parts), _verdict(wins)


Claim = tuple[str, str, Callable[[Runs], Finding]]  # the words, the preset with its runs, the test

HALF = 10  # epochs of two passes each
TUNED = (0.8, 0.95)  # where the studies of settings are run
REWOUND = (0.8, 0.9)  # and that of rewinding


def ablated(**changes: Any) -> Pick:
    return picking("bip-paper", epochs=HALF, **changes)


def on_units(ours: str, rivals: Sequence[str], *, epochs: int) -> list[Claim]:
    """The same of whole filters and channels, for which the paper too has BiP ahead."""
    return [
        (
            f"on {structure}s more accurate than {name}",
            structure,
            ahead(
                picking(ours, epochs=epochs, structure=structure),
                picking(name, structure=structure),
                UNITS,
            ),
        )
        for structure in ("filter", "channel")
        for name in rivals
    ]


CLAIMS: list[Claim] = [
    ("as accurate as IMP", "methods", ahead(PAPER, picking("imp"), ALL, or_equal=True)),
    ("its cost does not depend on the sparsity, IMP's does", "methods", same_cost),
    *(
        (f"more accurate than {name} at equal passes", "methods", ahead(PAPER, picking(name), at))
        for names, at in ((("omp", "magnitude", "hydra", "gmp"), ALL), (AT_INIT, SOME))
        for name in names
    ),
    *(
        (
            f"no better for retraining from epoch {epoch}",
            "rewinding",
            ahead(PAPER, ablated(retrain_epochs=20, rewind_epoch=epoch), REWOUND, or_equal=True),
        )
        for epoch in (0, 1)
    ),
    (
        "the implicit gradient matters",
        "ablation-implicit",
        ahead(PAPER, ablated(implicit_gradient=False), TUNED),
    ),
    *(
        (
            f"N = 1 is as good as N = {steps}, which costs more",
            "ablation-steps",
            ahead(PAPER, ablated(lower_steps=steps), TUNED, or_equal=True),
        )
        for steps in (2, 3, 5)
    ),
    *(
        (
            f"different batches are better than {scheme} ones",
            "batch-schemes",
            ahead(PAPER, ablated(batches=scheme), TUNED),
        )
        for scheme in ("same", "reverse")
    ),
    ("the mask settles: IoU goes to 1", "methods", settles),
    *(
        (
            f"gamma 1 is as good as gamma {gamma:g}",
            "ablation-gamma",
            ahead(PAPER, ablated(gamma=gamma), TUNED, or_equal=True),
        )
        for gamma in (0.1, 0.5, 5.0, 10.0)
    ),
    *on_units("bip-paper", ("imp", "omp", "hydra", "grasp", "gmp"), epochs=HALF),
]
OUR_CLAIMS: list[Claim] = [
    *(
        (f"more accurate than {name} at equal passes", "methods", ahead(OURS, pick, CLAIMED))
        for name, pick in {
            "BiP as published": PAPER,
            **{name: picking(name) for name in ("gmp", "hydra", "omp", "magnitude")},
            "gmp with Nesterov's momentum": picking("gmp", nesterov=True),
        }.items()
    ),
    (
        "more accurate than gmp even with plain momentum and decay",
        "methods",
        ahead(PLAIN, picking("gmp"), CLAIMED),
    ),
    (
        "as accurate as IMP, with less than a tenth of its passes",
        "methods",
        ahead(OURS, picking("imp"), CLAIMED, or_equal=True),
    ),
    (
        "as accurate as IMP, with a fifth of its passes",
        "methods",
        ahead(fifth_of_imp, picking("imp"), CLAIMED, or_equal=True),
    ),
    *on_units("bip", ("omp", "hydra", "gmp"), epochs=20),
]


def markdown(runs: Runs) -> str:
    """Two tables: the paper's claims of its BiP, and ours of today's default."""
    return f"{_table('BiP as published (`bip-paper`) is', CLAIMS, runs)}\n\n" + _table(
        "BiP as it is here (`bip`) is", OUR_CLAIMS, runs
    )


def _table(head: str, claims: Sequence[Claim], runs: Runs) -> str:
    lines = [f"| {head} | preset | difference in points, or as said (seeds) | verdict |"]
    lines.append("|---|---|---|---|")
    for text, preset, check in claims:
        numbers, verdict = check(runs)
        if numbers:
            lines.append(f"| {text} | `{preset}` | {numbers} | {verdict} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
