"""How accurate the methods are, and the paper's claims and ours, by the records of a store.

python benchmarks/claims.py docs/results/laptop

A claim that one way is better than another is a paired difference of test accuracies over the seeds
that both have, three at least. It holds where the mean is more than one standard error on the
claimed side at every sparsity, in part where at some, and otherwise it does not; "so far" says that
some sparsities are still to be judged. "At least as good" asks that the mean is not more than one
standard error on the other side.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from biprune.experiments.record import RunRecord
from biprune.experiments.store import Store
from biprune.report.comparison import sample_of
from biprune.report.formatting import percent_of, points
from biprune.report.verdict import Difference, difference
from full_size import full_size_table
from laptop_runs import ALL, OURS, PAPER, PLAIN, Pick, Runs, accuracy_table, fifth_of_imp, picking
from settings_worth import settings_table

CLAIMED = (0.9, 0.95, 0.98)
AT_INIT, SOME = ("grasp", "snip", "synflow"), (0.9, 0.95)
UNITS = (0.4, 0.6, 0.8)  # of filters and channels
FEWEST_SEEDS = 3
SETTLED = 0.99  # IoU of the masks of adjacent epochs


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("store", type=Path)
    store = Store(parser.parse_args().store)
    print(markdown(Runs(store)), full_size_table(store), settings_table(store), sep="\n\n")


Finding = tuple[str, str]  # numbers, verdict


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
    parts, ours, theirs = [], set(), []
    for sparsity in ALL:
        bip, imp = PAPER(runs, sparsity), picking("imp")(runs, sparsity)
        ours.update(record.backward_passes for record in bip)
        if bip and imp:
            theirs.append(fmean(record.backward_passes for record in imp))
            ratio = theirs[-1] / bip[0].backward_passes
            parts.append(f"{percent_of(sparsity)}: IMP takes {ratio:.0f} times the passes")
    if len(parts) < 2:
        return ", ".join(parts), "not judged: too few sparsities"
    grows = all(less < more for less, more in pairwise(theirs))
    return ", ".join(parts), "holds" if len(ours) == 1 and grows else "does not hold"


def settles(runs: Runs) -> Finding:
    """IoU of the masks of adjacent epochs, of the first and of the last."""
    parts, wins = [], []
    for sparsity in ALL:
        curves = [[e["iou"] for e in r.history if "iou" in e] for r in PAPER(runs, sparsity)]
        if not curves:
            wins.append(None)
            continue
        first, last = (fmean(curve[at] for curve in curves) for at in (0, -1))
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
    """The accuracies, our claims of today's default, and the paper's of its BiP."""
    tables = [
        accuracy_table(runs),
        _table("BiP as it is here (`bip`) is", OUR_CLAIMS, runs),
        _table("BiP as published (`bip-paper`) is", CLAIMS, runs),
    ]
    return "\n\n".join(tables)


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
