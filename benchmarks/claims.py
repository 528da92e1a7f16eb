"""The paper's claims and ours, each with its numbers and a verdict, by the runs of a store.

A claim that one way is better than another is a paired difference of test accuracies over the seeds
that both have, three at least. It holds where the mean is more than one standard error on the
claimed side at every sparsity, does not where it is as far on the other, and between the two it is
not shown; "so far" says that some sparsities are still to be judged. "As accurate" asks only that
the mean is not more than one standard error on the other side. Differences whose one-sided 95 %
bound is above zero are bold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from biprune.experiments.presets.evidence import CLAIMED, HIGH, OTHERS, UNITS
from biprune.experiments.record import RunRecord
from biprune.report.comparison import sample_of
from biprune.report.formatting import listed, percent_of, points
from biprune.report.verdict import Difference, difference, lower_bound
from laptop_runs import (
    BIP,
    GMP_NESTEROV,
    IMP_RUNS,
    LIKE_BIP,
    LONG_BIP,
    ONE_PASS,
    PAPER,
    PLAIN_BIP,
    Pick,
    Runs,
    fifth_of_imp,
    picking,
)

SOME = (0.9, 0.95)
FEWEST_SEEDS = 3
HOLDS, OPEN, FAILS = "holds", "not shown", "does not hold"
SETTLED = 0.99  # IoU of the masks of adjacent epochs

Finding = tuple[str, str]  # numbers, verdict
Check = Callable[[Runs], Finding]
Claim = tuple[str, str, Check]  # the words, the preset with its runs, the test


def ahead(one: Pick, other: Pick, sparsities: Sequence[float], *, or_equal: bool = False) -> Check:
    """Whether `one` is more accurate, or with `or_equal` not less."""

    def check(runs: Runs) -> Finding:
        found = {s: _paired(one(runs, s), other(runs, s)) for s in sparsities}
        numbers = [f"{percent_of(s)}: {_shown(paired)}" for s, paired in found.items() if paired]
        return ", ".join(numbers), _verdict({s: _outcome(p, or_equal) for s, p in found.items()})

    return check


def _paired(ours: list[RunRecord], theirs: list[RunRecord]) -> Difference | None:
    return difference(sample_of(ours), sample_of(theirs))


def _shown(paired: Difference) -> str:
    bound = lower_bound(paired)
    bold = "**" if bound is not None and bound > 0 and paired.n >= FEWEST_SEEDS else ""
    return f"{bold}{points(paired.mean, paired.error)}{bold} ({paired.n})"


def _outcome(paired: Difference | None, or_equal: bool) -> str | None:
    if paired is None or paired.error is None or paired.n < FEWEST_SEEDS:
        return None
    if paired.mean > paired.error:
        return HOLDS
    if paired.mean < -paired.error:
        return FAILS
    return HOLDS if or_equal else OPEN


def _verdict(outcomes: Mapping[float, str | None]) -> str:
    judged = {sparsity: outcome for sparsity, outcome in outcomes.items() if outcome is not None}
    if not judged:
        return "not judged: too few seeds"
    verdict = next(iter(judged.values()))
    if len({*judged.values()}) > 1:
        others = [percent_of(sparsity) for sparsity, outcome in judged.items() if outcome != HOLDS]
        verdict = OPEN if len(others) == len(judged) else f"not at {listed(others)}"
    return verdict if len(judged) == len(outcomes) else f"{verdict}, so far"


def same_cost(runs: Runs) -> Finding:
    """Passes of BiP and of IMP at every sparsity."""
    parts, ours, theirs = [], set(), []
    for sparsity in HIGH:
        bip, imp = PAPER(runs, sparsity), IMP_RUNS(runs, sparsity)
        ours.update(record.backward_passes for record in bip)
        if bip and imp:
            theirs.append(fmean(record.backward_passes for record in imp))
            ratio = theirs[-1] / bip[0].backward_passes
            parts.append(f"{percent_of(sparsity)}: IMP takes {ratio:.0f} times the passes")
    if len(parts) < 2:
        return ", ".join(parts), "not judged: too few sparsities"
    grows = all(less < more for less, more in pairwise(theirs))
    return ", ".join(parts), HOLDS if len(ours) == 1 and grows else FAILS


def settles(runs: Runs) -> Finding:
    """IoU of the masks of adjacent epochs, of the first and of the last."""
    parts: list[str] = []
    outcomes: dict[float, str | None] = dict.fromkeys(HIGH)
    for sparsity in HIGH:
        curves = [[e["iou"] for e in r.history if "iou" in e] for r in PAPER(runs, sparsity)]
        if curves:
            first, last = (fmean(curve[at] for curve in curves) for at in (0, -1))
            parts.append(f"{percent_of(sparsity)}: {first:.3f} to {last:.3f}")
            if len(curves) >= FEWEST_SEEDS:
                outcomes[sparsity] = HOLDS if last >= SETTLED else FAILS
    return ", ".join(parts), _verdict(outcomes)


def against(ours: Pick, rivals: Sequence[str], at: Sequence[float], words: str) -> list[Claim]:
    """Against other methods with as many passes."""
    return [(words.format(name), "methods", ahead(ours, picking(name), at)) for name in rivals]


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


EQUAL = "more accurate than {} at equal passes"
FROM_INIT = "more accurate than {}, which trains as long from its initial weights"
CLAIMS: list[Claim] = [
    ("as accurate as IMP", "methods", ahead(PAPER, IMP_RUNS, HIGH, or_equal=True)),
    (
        "as cheap at every sparsity, far cheaper than IMP, whose cost grows",
        "methods",
        same_cost,
    ),
    *against(PAPER, ("omp", "magnitude", "hydra", "gmp"), HIGH, EQUAL),
    *against(PAPER, OTHERS, SOME, FROM_INIT),
    *(
        ablated(
            f"as accurate as if retrained for 20 passes more from epoch {epoch}",
            at=0.9,
            or_equal=True,
            retrain_epochs=20,
            rewind_epoch=epoch,
        )
        for epoch in (0, 1)
    ),
    ablated("better for the implicit gradient", implicit_gradient=False),
    ablated("as good with N = 1 as with N = 3, at half the cost", or_equal=True, lower_steps=3),
    ablated("better with different batches than with the same", batches="same"),
    ablated("better with different batches than with reversed ones", batches="reverse"),
    ("settled at the end: the IoU of its masks goes to 1", "methods", settles),
    ablated("better with gamma 1 than with 0.1", gamma=0.1),
    ablated("better with gamma 1 than with 10", gamma=10.0),
    ablated("as good with gamma 1 as with 0.5", or_equal=True, gamma=0.5),
    *on_units("bip-paper", ("imp", "omp", "hydra", "grasp", "gmp")),
]
OUR_CLAIMS: list[Claim] = [
    ("more accurate than BiP as published at equal passes", "methods", ahead(BIP, PAPER, HIGH)),
    ("more accurate than that in one pass, rate 0.1", "methods", ahead(BIP, ONE_PASS, [0.95])),
    *against(BIP, ("gmp", "hydra", "omp", "magnitude"), HIGH, EQUAL),
    *against(BIP, OTHERS, SOME, FROM_INIT),
    (
        "more accurate than snip with the passes of BiP's dense run too",
        "controls",
        ahead(BIP, picking("snip", epochs=40), [0.95]),
    ),
    (
        "more accurate than gmp with BiP's momentum",
        "methods",
        ahead(BIP, GMP_NESTEROV, CLAIMED),
    ),
    (
        "more accurate than gmp with BiP's momentum that leaves pruned weights alone",
        "controls",
        ahead(BIP, picking("gmp", nesterov=True, freeze_pruned=True), SOME),
    ),
    (
        "with gmp's momentum and decay more accurate than gmp",
        "methods",
        ahead(PLAIN_BIP, picking("gmp"), CLAIMED),
    ),
    (
        "more accurate than magnitude with BiP's schedule and momentum",
        "controls",
        ahead(BIP, picking("magnitude", **LIKE_BIP), SOME),
    ),
    (
        "as accurate as IMP, with an eighth of its passes at most",
        "methods",
        ahead(BIP, IMP_RUNS, HIGH, or_equal=True),
    ),
    (
        "as accurate as IMP, with a fifth of its passes",
        "methods",
        ahead(LONG_BIP, IMP_RUNS, CLAIMED, or_equal=True),
    ),
    (
        "as accurate as IMP with BiP's schedule and momentum, with a fifth of its passes",
        "controls",
        ahead(LONG_BIP, picking("imp", **LIKE_BIP), SOME, or_equal=True),
    ),
    (
        "with a fifth of IMP's passes more accurate than gmp with as many and BiP's momentum",
        "controls",
        ahead(LONG_BIP, fifth_of_imp("gmp", nesterov=True), CLAIMED),
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
