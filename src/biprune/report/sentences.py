"""The outcome of a comparison in plain sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from biprune.report.comparison import Cell, Comparison, Sparsest
from biprune.report.formatting import counted, listed, percent_of, points, spread
from biprune.report.tables import dense_text

MANY = 12  # labels that a sentence can list
_TRAINED_LONGER = (
    "Tickets that start from the dense networks have trained for longer than these. What training "
    "alone would gain is told by runs at a sparsity of 0."
)


def overview(comparisons: Sequence[Comparison]) -> str:
    """What was compared, and how many runs are behind it."""
    methods = {label: method for c in comparisons for label, method in c.methods.items()}
    sparsities = sorted({s for c in comparisons for s in c.sparsities})
    seeds = {run.spec.seed for c in comparisons for run in (*c.runs, *c.dense_runs)}
    runs = sum(len(c.runs) for c in comparisons)
    dense = len({run.key for c in comparisons for run in c.dense_runs})
    counts = f"{counted(len(seeds), 'seed')}, {counted(runs, 'pruning run')}"
    counts += f" and {counted(dense, 'dense run')}" if dense else ""
    holes = sum(len(c.holes) for c in comparisons)
    missing = f"{counted(holes, 'run')} missing or failed." if holes else "No run is missing."
    if not methods:
        return f"{counts}. {missing}"
    span = listed([percent_of(sparsity) for sparsity in sparsities])
    return f"{_compared(methods)} at sparsities of {span}: {counts}. {missing}"


def _compared(methods: dict[str, str]) -> str:
    """The labels, or where they are many the methods, each with the number of its variants."""
    if len(methods) <= MANY:
        return listed(list(methods))
    variants = Counter(methods.values())
    return listed([f"{m} in {n} variants" if n > 1 else m for m, n in variants.items()])


def verdict_sentences(comparison: Comparison) -> list[str]:
    """Dense, then the best of the sparsest, then the sparsest winning ticket of each method."""
    if not comparison.cells:
        return [dense_text(comparison), "No pruning run has finished."]
    if comparison.dense is None:
        unknown = "The dense accuracy is unknown, so that no ticket can be called a winning one."
        return [unknown, _best_of_the_sparsest(comparison)]
    sentences = [dense_text(comparison), _best_of_the_sparsest(comparison)]
    tickets = comparison.sparsest_tickets()
    sentences += [_ticket_sentence(ticket) for ticket in tickets if ticket.wins]
    if any(ticket.wins for ticket in tickets) and 0 not in comparison.sparsities:
        sentences.append(_TRAINED_LONGER)
    losers = [ticket.label for ticket in tickets if not ticket.wins]
    sentences += [f"Without a winning ticket at any sparsity: {listed(losers)}."] if losers else []
    if all(cell.verdict.bound is None for cell in comparison.cells):
        sentences.append("Confidence bounds need at least two seeds.")
    return sentences


def _best_of_the_sparsest(comparison: Comparison) -> str:
    deepest = max(cell.sparsity for cell in comparison.cells)
    where = f"At {percent_of(deepest)}, the sparsest tried"
    best = next(iter(comparison.best_at(deepest)), None)
    if best is None:
        return f"{where}, none is ahead of all others over the seeds they share."
    budget = ", on a budget of its own" if best.has_other_budget else ""
    return f"{where}, {best.label} is best: {_mean(best)}{budget}."


def _ticket_sentence(ticket: Sparsest) -> str:
    parts = []
    if ticket.by_mean:
        cell = ticket.by_mean
        parts.append(f"at {percent_of(cell.sparsity)} by its mean ({_mean(cell)})")
    if ticket.by_bound:
        cell = ticket.by_bound
        gain = f"{points(cell.verdict.bound)} points or more"
        parts.append(f"at {percent_of(cell.sparsity)} with 95 % confidence ({gain})")
    return f"{ticket.label}: sparsest winning ticket {listed(parts)}."


def _mean(cell: Cell) -> str:
    return f"{spread(cell.accuracy.mean, cell.accuracy.std)} %, {counted(cell.accuracy.n, 'run')}"
