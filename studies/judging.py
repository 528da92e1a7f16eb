"""How a claim is judged by the runs: its numbers and a verdict.

A claim that one way is better than another is a paired difference of test accuracies over the seeds
that both have, three at least. It holds where the mean is more than one standard error on the
claimed side, does not where it is as far on the other, and between the two it is not shown; "so
far" says that some sparsities are still to be judged. "As accurate" is "more accurate but for
half a point": the same test with `MARGIN` added to the mean, so that noise alone does not pass it.
Differences whose one-sided 95 % bound is above zero are bold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean

from biprune.experiments.record import RunRecord
from biprune.report.results import sample_of
from biprune.report.statistics import Difference, difference, lower_bound
from biprune.report.wording import listed, percent_of, points
from studies.laptop_runs import IMP_RUNS, PAPER, Pick, Runs, mark, noted
from studies.presets import HIGH

FEWEST_SEEDS = 3
HOLDS, OPEN, FAILS = "holds", "not shown", "does not hold"
MARGIN = 0.5  # points by which "as accurate" may be less so
SETTLED = 0.99  # IoU of the masks of adjacent epochs

Finding = tuple[str, str]  # numbers, verdict
Check = Callable[[Runs], Finding]
Claim = tuple[str, str, Check]  # the words, the preset with its runs, the test


def ahead(one: Pick, other: Pick, sparsities: Sequence[float], *, margin: float = 0.0) -> Check:
    """Whether `one` is more accurate, or would be with `margin` points more."""

    def check(runs: Runs) -> Finding:
        found = {s: less(one(runs, s), other(runs, s)) for s in sparsities}
        marks = {s: mark([*one(runs, s), *other(runs, s)]) for s in sparsities}
        numbers = [f"{percent_of(s)}: {_shown(p)}{marks[s]}" for s, p in found.items() if p]
        return ", ".join(numbers), _verdict({s: _outcome(p, margin) for s, p in found.items()})

    return check


def less(ours: Iterable[RunRecord], theirs: Iterable[RunRecord]) -> Difference | None:
    """How much more accurate some runs are than others, paired by seed; None if they share none."""
    return difference(sample_of(ours), sample_of(theirs))


def _shown(paired: Difference) -> str:
    bound = lower_bound(paired)
    bold = "**" if bound is not None and bound > 0 and paired.n >= FEWEST_SEEDS else ""
    return f"{bold}{points(paired.mean, paired.error)}{bold} ({paired.n})"


def _outcome(paired: Difference | None, margin: float) -> str | None:
    if paired is None or paired.error is None or paired.n < FEWEST_SEEDS:
        return None
    if paired.mean + margin > paired.error:
        return HOLDS
    return FAILS if paired.mean + margin < -paired.error else OPEN


def _verdict(outcomes: Mapping[float, str | None]) -> str:
    """One word if all sparsities agree; otherwise "in part", and where it is what."""
    places = {
        outcome: [percent_of(s) for s, found in outcomes.items() if found == outcome]
        for outcome in (HOLDS, OPEN, FAILS)
        if outcome in outcomes.values()
    }
    if not places:
        return "not judged: too few seeds"
    verdict = next(iter(places))
    if len(places) > 1:
        parts = ", ".join(f"{outcome} at {listed(where)}" for outcome, where in places.items())
        verdict = f"in part: {parts}" if HOLDS in places else parts
    return verdict if None not in outcomes.values() else f"{verdict}, so far"


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
            old = mark(PAPER(runs, sparsity))
            parts.append(f"{percent_of(sparsity)}: {first:.3f} to {last:.3f}{old}")
            if len(curves) >= FEWEST_SEEDS:
                outcomes[sparsity] = HOLDS if last >= SETTLED else FAILS
    return ", ".join(parts), _verdict(outcomes)


def claims_table(head: str, claims: Sequence[Claim], runs: Runs) -> str:
    """Of the claims that have runs: the preset that runs them, the numbers, the verdict."""
    lines = [f"| {head} | preset | difference in points, or as said (seeds) | verdict |"]
    lines.append("|---|---|---|---|")
    for text, preset, check in claims:
        numbers, verdict = check(runs)
        if numbers:
            lines.append(f"| {text} | `{preset}` | {numbers} | {verdict} |")
    return "\n".join(noted(lines)) if len(lines) > 2 else "Not run yet."
