"""The paper's claims and ours, each with its numbers and a verdict, by the runs of a store.

A claim that one way is better than another is a paired difference of test accuracies over the seeds
that both have, three at least. It holds where the mean is more than one standard error on the
claimed side at every sparsity, in part where at some, and otherwise it does not; "so far" says that
some sparsities are still to be judged. "At least as good" asks that the mean is not more than one
standard error on the other side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from biprune.experiments.presets.evidence import CLAIMED, UNITS
from biprune.experiments.record import RunRecord
from biprune.report.comparison import sample_of
from biprune.report.formatting import percent_of, points
from biprune.report.verdict import Difference, difference
from laptop_runs import ALL, OURS, PAPER, PLAIN, Pick, Runs, fifth_of_imp, picking

SINGLE, SOME = ("grasp", "snip", "synflow", "prospr", "earlybird"), (0.9, 0.95)
FEWEST_SEEDS = 3
SETTLED = 0.99  # IoU of the masks of adjacent epochs


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


def ablated(words: str, *, or_equal: bool = False, at: float = 0.95, **changes: Any) -> Claim:
    """The paper's BiP against itself with other settings."""
    other = picking("bip-paper", **changes)
    return words, "claims", ahead(PAPER, other, [at], or_equal=or_equal)


def on_units(ours: str, rivals: Sequence[str]) -> list[Claim]:
    """The same of whole filters and channels, for which the paper too has BiP ahead."""
    return [
        (
            f"on {structure}s more accurate than {name}",
            "claims",
            ahead(picking(ours, structure=structure), picking(name, structure=structure), UNITS),
        )
        for structure in ("filter", "channel")
        for name in rivals
    ]


def at_equal_passes(ours: Pick, rivals: Sequence[str], at: Sequence[float]) -> list[Claim]:
    """Against methods that train once."""
    words = "more accurate than {} at equal passes"
    return [(words.format(name), "methods", ahead(ours, picking(name), at)) for name in rivals]


CLAIMS: list[Claim] = [
    ("as accurate as IMP", "methods", ahead(PAPER, picking("imp"), ALL, or_equal=True)),
    ("its cost does not depend on the sparsity, IMP's does", "methods", same_cost),
    *at_equal_passes(PAPER, ("omp", "magnitude", "hydra", "gmp"), ALL),
    *at_equal_passes(PAPER, SINGLE, SOME),
    *(
        ablated(
            f"no worse than retrained for 20 passes more from epoch {epoch}",
            at=0.9,
            or_equal=True,
            retrain_epochs=20,
            rewind_epoch=epoch,
        )
        for epoch in (0, 1)
    ),
    ablated("the implicit gradient matters", implicit_gradient=False),
    ablated("N = 1 is as good as N = 3 at half the cost", or_equal=True, lower_steps=3),
    ablated("different batches are better than same ones", batches="same"),
    ablated("different batches are better than reverse ones", batches="reverse"),
    ("the mask settles: IoU goes to 1", "methods", settles),
    *(
        ablated(f"gamma 1 is as good as gamma {gamma:g}", or_equal=True, gamma=gamma)
        for gamma in (0.1, 0.5, 10.0)
    ),
    *on_units("bip-paper", ("imp", "omp", "hydra", "grasp", "gmp")),
]
OUR_CLAIMS: list[Claim] = [
    (
        "more accurate than BiP as published at equal passes",
        "methods",
        ahead(OURS, PAPER, CLAIMED),
    ),
    *at_equal_passes(OURS, ("gmp", "hydra", "omp", "magnitude"), CLAIMED),
    *at_equal_passes(OURS, SINGLE, SOME),
    (
        "more accurate than gmp with Nesterov's momentum at equal passes",
        "methods",
        ahead(OURS, picking("gmp", nesterov=True), CLAIMED),
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
    *on_units("bip", ("bip-paper", "imp", "omp", "hydra", "grasp", "gmp")),
]


def claims_table(head: str, claims: Sequence[Claim], runs: Runs) -> str:
    """Of the claims that have runs: the preset that runs them, the numbers, the verdict."""
    lines = [f"| {head} | preset | difference in points, or as said (seeds) | verdict |"]
    lines.append("|---|---|---|---|")
    for text, preset, check in claims:
        numbers, verdict = check(runs)
        if numbers:
            lines.append(f"| {text} | `{preset}` | {numbers} | {verdict} |")
    return "\n".join(lines)
