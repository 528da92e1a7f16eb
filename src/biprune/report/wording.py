"""Names and results in words: labels, numbers as people read them, holes, and the outcome."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from biprune.experiments.record import RunSpec
from biprune.report.results import Cell, Comparison, Hole, Sparsest

Options = Mapping[str, Any]  # what differs from the defaults, by name

COMPARED = {"method", "sparsity", "seed", "settings"}  # the fields that vary in a comparison
_OPTIONS = {"model_options": "model", "data_options": "data", "dense": "dense"}
# At equal passes the epochs follow from the other settings, so labels leave them out.
_EPOCHS = "epochs"
# IMP stops at each smaller sparsity of its grid, so every point of its curve has other stops.
_STOPS = "stops"


def differing(options: Sequence[Options]) -> list[str]:
    """The names whose value is not the same in all of `options`, in alphabetical order.

    >>> differing([{"epochs": 5}, {"epochs": 5, "gamma": 0.5}])
    ['gamma']
    """
    names = sorted({name for given in options for name in given})
    return [n for n in names if len({_json(o[n]) if n in o else None for o in options}) > 1]


def described(options: Options, names: Iterable[str]) -> str:
    """The values of `names` in `options`; a name that is absent is at its default.

    >>> described({"gamma": 0.5, "epochs": 5}, ["gamma", "lr"])
    'gamma=0.5'
    """
    return ", ".join(f"{name}={_shown(options[name])}" for name in names if name in options)


def method_labels(specs: Sequence[RunSpec]) -> dict[str, str]:
    """A label for each spec's key: its method, and the settings that tell its variants apart."""
    by_method: defaultdict[str, list[RunSpec]] = defaultdict(list)
    for spec in specs:
        by_method[spec.method].append(spec)
    labels = {}
    for method, variants in by_method.items():
        names = _distinguishing(variants)
        for spec in variants:
            labels[spec.key] = _with_details(method, described(spec.settings, names))
    return labels


def setting_titles(specs: Sequence[RunSpec]) -> list[str]:
    """A title for each setting; those of the same model, data and structure say how they differ.

    Args:
        specs: One spec of each setting.
    """
    plain = [f"{spec.model} on {spec.data}, pruned by {spec.structure}" for spec in specs]
    options = [_flat(spec) for spec in specs]
    alike: defaultdict[str, list[Options]] = defaultdict(list)
    for title, given in zip(plain, options, strict=True):
        alike[title].append(given)
    return [
        _with_details(title, described(given, differing(alike[title])))
        for title, given in zip(plain, options, strict=True)
    ]


def natural_order(label: str) -> list[tuple[int, float, str]]:
    """A sort key: numbers in labels by their size, a method before its variants.

    >>> sorted(["bip (gamma=10)", "bip (gamma=2)", "bip"], key=natural_order)
    ['bip', 'bip (gamma=2)', 'bip (gamma=10)']
    """
    parts = re.split(r"(\d+(?:\.\d+)?)", label)
    return [(0, float(p), "") if p[:1].isdigit() else (1, 0.0, p) for p in parts]


def _distinguishing(specs: Sequence[RunSpec]) -> list[str]:
    """The settings that labels must show to tell variants of one method apart."""
    settings = [spec.settings for spec in specs]
    names = [name for name in differing(settings) if name != _STOPS]
    others = [name for name in names if name != _EPOCHS]
    told_apart = {described(given, names) for given in settings}
    if len(told_apart) == len({described(given, others) for given in settings}):
        names = others
    points = {_json([spec.sparsity, spec.settings]) for spec in specs}
    without_stops = {
        _json([s.sparsity, {n: v for n, v in s.settings.items() if n != _STOPS}]) for s in specs
    }
    return names if len(points) == len(without_stops) else [*names, _STOPS]


def _flat(spec: RunSpec) -> dict[str, Any]:
    """What differs from the defaults in the fields that all runs share, each option by itself."""
    given = spec.model_dump(mode="json", exclude_defaults=True, exclude=COMPARED)
    flat = {n: v for n, v in given.items() if n not in _OPTIONS}
    for field, prefix in _OPTIONS.items():
        flat |= {f"{prefix} {name}": value for name, value in given.get(field, {}).items()}
    return flat


def _with_details(name: str, details: str) -> str:
    return f"{name} ({details})" if details else name


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


MANY = 12  # labels that a sentence can list
_TRAINED_LONGER = (
    "Tickets that start from the dense networks have trained longer than these. Runs at a sparsity "
    "of 0 would show how much is due to the longer training alone."
)


def percent_of(fraction: float) -> str:
    """A fraction in percent.

    >>> percent_of(0.98), percent_of(1 - 0.8**3)
    ('98 %', '48.8 %')
    """
    return f"{100 * fraction:.4g} %"


def spread(mean: float, std: float | None) -> str:
    """A mean and its standard deviation, if there is one.

    >>> spread(91.234, 0.1), spread(91.234, None)
    ('91.23 ± 0.10', '91.23')
    """
    return f"{mean:.2f}" if std is None else f"{mean:.2f} ± {std:.2f}"


def points(difference: float | None, error: float | None = None) -> str:
    """A difference of accuracies with its sign, and its standard error if there is one.

    >>> points(0.5), points(-0.25, 0.1), points(None)
    ('+0.50', '-0.25 ± 0.10', 'unknown')
    """
    if difference is None:
        return "unknown"
    return f"{difference:+.2f}" if error is None else f"{difference:+.2f} ± {error:.2f}"


def counted(number: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "run"), counted(3, "run")
    ('1 run', '3 runs')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listed(words: Sequence[str]) -> str:
    """Words as a sentence lists them.

    >>> listed(["bip", "imp", "omp"]), listed(["bip"])
    ('bip, imp and omp', 'bip')
    """
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


@dataclass(frozen=True)
class HoleLine:
    """All holes of one method that share an error."""

    label: str
    where: str
    error: str

    def __str__(self) -> str:
        return f"{self.label} at {self.where}: {self.error}"


def hole_lines(holes: Iterable[Hole]) -> list[HoleLine]:
    """One line for each method and error, in the order of the holes.

    >>> print(*hole_lines([Hole("imp", 0.9, 0, "no record"), Hole("imp", 0.9, 1, "no record")]))
    imp at 90 % (seeds 0 and 1): no record
    """
    seeds: defaultdict[tuple[str, str], defaultdict[float, list[int]]]
    seeds = defaultdict(lambda: defaultdict(list))
    for hole in holes:
        seeds[hole.label, hole.error][hole.sparsity].append(hole.seed)
    return [
        HoleLine(label, listed([_place(*place) for place in places.items()]), error)
        for (label, error), places in seeds.items()
    ]


def _place(sparsity: float, seeds: list[int]) -> str:
    noun = "seed" if len(seeds) == 1 else "seeds"
    return f"{percent_of(sparsity)} ({noun} {listed([str(seed) for seed in seeds])})"


def overview(comparisons: Sequence[Comparison]) -> str:
    """What was compared, in how many runs."""
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
    """All labels; where there are too many, the methods with their number of variants."""
    if len(methods) <= MANY:
        return listed(list(methods))
    variants = Counter(methods.values())
    return listed([f"{m} in {n} variants" if n > 1 else m for m, n in variants.items()])


def dense_text(comparison: Comparison) -> str:
    """The dense accuracy as a sentence."""
    if comparison.dense is None:
        return "The dense accuracy is unknown."
    dense = comparison.dense
    return f"Dense: {spread(dense.mean, dense.std)} % ({counted(dense.n, 'run')})."


def verdict_sentences(comparison: Comparison) -> list[str]:
    """The dense accuracy, the best at the highest sparsity, and each method's sparsest ticket."""
    if not comparison.cells:
        return [dense_text(comparison), "No pruning run has finished."]
    if comparison.dense is None:
        unknown = "The dense accuracy is unknown, so no ticket can be called a winning ticket."
        return [unknown, _best_of_the_sparsest(comparison)]
    sentences = [dense_text(comparison), _best_of_the_sparsest(comparison)]
    tickets = comparison.sparsest_tickets()
    sentences += [_ticket_sentence(ticket) for ticket in tickets if ticket.wins]
    if any(ticket.wins for ticket in tickets) and 0 not in comparison.sparsities:
        sentences.append(_TRAINED_LONGER)
    losers = [ticket.label for ticket in tickets if not ticket.wins]
    sentences += [f"No winning ticket at any sparsity: {listed(losers)}."] if losers else []
    if all(cell.verdict.bound is None for cell in comparison.cells):
        sentences.append("Confidence bounds need at least two seeds.")
    return sentences


def _best_of_the_sparsest(comparison: Comparison) -> str:
    deepest = max(cell.sparsity for cell in comparison.cells)
    where = f"At {percent_of(deepest)}, the sparsest tried"
    best = next(iter(comparison.best_at(deepest)), None)
    if best is None:
        return f"{where}, no method beats all others on the seeds they share."
    budget = ", on a different budget" if best.has_other_budget else ""
    return f"{where}, {best.label} is best: {_mean(best)}{budget}."


def _ticket_sentence(ticket: Sparsest) -> str:
    parts = []
    if cell := ticket.by_mean:
        parts.append(f"at {percent_of(cell.sparsity)} by its mean ({_mean(cell)})")
    if cell := ticket.by_bound:
        gain = f"{points(cell.verdict.bound)} points or more"
        parts.append(f"at {percent_of(cell.sparsity)} with 95 % confidence ({gain})")
    return f"{ticket.label}: sparsest winning ticket {listed(parts)}."


def _mean(cell: Cell) -> str:
    return f"{spread(cell.accuracy.mean, cell.accuracy.std)} %, {counted(cell.accuracy.n, 'run')}"
