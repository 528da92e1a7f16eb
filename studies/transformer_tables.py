"""The tables of `on_transformers`, from its records alone."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from statistics import fmean, stdev
from typing import Any

import biprune
from biprune.report.statistics import t_quantile

Record = Mapping[str, Any]
Settings = Mapping[str, float]

OURS = "bip-plus"
RIVALS = ("gmp", "movement", "magnitude")
NONE = "not pruned"  # trained on for as many steps
TUNING, SEEDS = 100, (0, 1, 2)
# GMP draws a mask every ten steps by default: too few of them in a run this short.
SETTINGS: Mapping[str, Settings] = {"gmp": {"mask_every": 1}}
# The rows of a table: the names of their methods, and settings.
OURS_ROWS: Mapping[str, Settings] = {"": {}, ", kappa 1": {"kappa": 1.0}}
# What the settings that are tried are by default.
DEFAULTS = {
    OURS: {"kappa": biprune.BiPPlus().kappa, "ramp": biprune.BiPPlus().ramp},
    "gmp": {"mask_every": biprune.GMP().mask_every, "ramp": biprune.GMP().ramp},
}
TUNED_AT = 0.9
AMOUNTS = (0.5, 0.8, 0.9, "2:4")
GRID = tuple(1e-3 * 2.0**power for power in range(-2, 6))  # of learning rates
MEASURES = {"text": ("test loss, nats a byte", 3), "images": ("test accuracy, %", 2)}


def worth(record: Record, split: str = "validation") -> float:
    """More is better: the accuracy, or the loss below zero; a run that diverged is the worst."""
    value = record[split]
    if value is None or not math.isfinite(value):
        return -math.inf
    return value if record["task"] == "images" else -value


def as_compared(record: Record) -> bool:
    """Whether a run has the settings that its method is compared with."""
    return record["settings"] == SETTINGS.get(record["method"], {})


def tuning(records: Iterable[Record], method: str) -> dict[float, float]:
    """What each rate was worth in tuning."""
    amount = 0.0 if method == NONE else TUNED_AT
    own = [r for r in records if (r["method"], r["amount"], r["seed"]) == (method, amount, TUNING)]
    return {r["lr"]: worth(r) for r in own if as_compared(r)}


def best(tried: Mapping[float, float]) -> float:
    return max(tried, key=lambda lr: tried[lr])


def next_rate(tried: Mapping[float, float], first: Sequence[float]) -> float | None:
    """The rate to try next, None once the best is between two worse ones."""
    found = best(tried) if tried else first[0]
    wanted = (lr for lr in (*first, 2 * found, found / 2) if lr in GRID)
    return next((lr for lr in wanted if lr not in tried), None)


def reported(records: Iterable[Record], task: str) -> list[Record]:
    """The runs of a task that are no tuning, each at the best rate of its method."""
    own = [record for record in records if record["task"] == task]
    rates = {m: best(tuning(own, m)) for m in {r["method"] for r in own} if tuning(own, m)}
    return [r for r in own if r["seed"] in SEEDS and r["lr"] == rates.get(r["method"])]


def by_seed(
    records: Iterable[Record], method: str, amount: float | str, settings: Settings | None = None
) -> dict[int, float]:
    """The worth in test of a method's runs, by default with the settings it is compared with."""
    settings = SETTINGS.get(method, {}) if settings is None else settings
    chosen = [r for r in records if (r["method"], r["amount"]) == (method, amount)]
    return {r["seed"]: worth(r, "test") for r in chosen if r["settings"] == settings}


def tables(records: Sequence[Record]) -> dict[str, str]:
    """Every table by the name of its place."""
    found = {}
    for task in MEASURES:
        found[f"{task}-results"] = results_table(records, task)
        found[f"{task}-differences"] = differences_table(records, task)
        found[f"{task}-rates"] = rates_table(records, task)
        found[f"{task}-dense"] = dense_line(records, task)
    return found | {"settings": variants_table(records), "made": made_line(records)}


def results_table(records: Sequence[Record], task: str) -> str:
    """Mean ± standard deviation (seeds) of each method at each amount."""
    measure, digits = MEASURES[task]
    runs = reported(records, task)
    named = {f"`{OURS}`{more}": (OURS, settings) for more, settings in OURS_ROWS.items()}
    named |= {f"`{method}`": (method, None) for method in RIVALS}
    rows = []
    for name, (method, settings) in named.items():
        each = [by_seed(runs, method, amount, settings).values() for amount in AMOUNTS]
        rows.append([name, *(spread([*map(abs, v)], digits) for v in each)])
    free = [*map(abs, by_seed(runs, NONE, 0.0).values())]
    if free:
        rows.append([f"{NONE}, trained on", spread(free, digits), *[""] * (len(AMOUNTS) - 1)])
    return table([f"{measure} (seeds)", *map(amount_text, AMOUNTS)], rows)


def differences_table(records: Sequence[Record], task: str) -> str:
    """By how much bip-plus is ahead, paired by seed: mean ± standard error [95 %] verdict."""
    runs, digits = reported(records, task), MEASURES[task][1]
    rows = []
    for (more, settings), rival in product(OURS_ROWS.items(), RIVALS):
        cells = []
        for amount in AMOUNTS:
            ours, theirs = by_seed(runs, OURS, amount, settings), by_seed(runs, rival, amount)
            seeds = sorted(ours.keys() & theirs.keys())
            cells.append(judged([ours[s] - theirs[s] for s in seeds], digits))
        rows.append([f"`{OURS}`{more}", f"`{rival}`", *cells])
    return table(["", "ahead of", *map(amount_text, AMOUNTS)], rows)


def judged(gaps: Sequence[float], digits: int) -> str:
    """A mean with its standard error, its 95 % interval, and whether it is ahead."""
    if len(gaps) < 2:
        return "-"
    mean, error = fmean(gaps), stdev(gaps) / math.sqrt(len(gaps))
    reach = t_quantile(0.975, len(gaps) - 1) * error
    verdict = "ahead" if mean > error else "behind" if mean < -error else "level"
    numbers = f"{mean:+.{digits}f} ± {error:.{digits}f}"
    return f"{numbers} [{mean - reach:+.{digits}f}, {mean + reach:+.{digits}f}] {verdict}"


def rates_table(records: Sequence[Record], task: str) -> str:
    """What every rate was worth in validation; the best is bold."""
    own, digits = [r for r in records if r["task"] == task], MEASURES[task][1]
    methods = {m: found for m in (OURS, *RIVALS, NONE) if (found := tuning(own, m))}
    rates = sorted({lr for found in methods.values() for lr in found})
    rows = []
    for method, found in methods.items():
        cells = {lr: f"{abs(value):.{digits}f}" for lr, value in found.items()}
        cells[best(found)] = f"**{cells[best(found)]}**"
        rows.append([f"`{method}`", *(cells.get(lr, "") for lr in rates)])
    measure = MEASURES[task][0].replace("test", "validation")
    return table([f"{measure}, by rate", *(f"{lr:g}" for lr in rates)], rows)


def variants_table(records: Sequence[Record]) -> str:
    """What other settings are worth in validation, at the best rate of a method's own."""
    columns = [(task, amount) for task in MEASURES for amount in (TUNED_AT, 0.8)]
    cells: dict[tuple[str, str], dict[tuple[str, float], str]] = {}
    for task, (_, digits) in MEASURES.items():
        own = [r for r in records if r["task"] == task and r["seed"] == TUNING]
        rates = {method: best(tuning(own, method)) for method in {r["method"] for r in own}}
        for r in own:
            if r["lr"] == rates[r["method"]] and r["method"] != NONE:
                settings = {**DEFAULTS.get(r["method"], {}), **r["settings"]}
                said = ", ".join(f"{name} {value:g}" for name, value in sorted(settings.items()))
                row = cells.setdefault((r["method"], said), {})
                row[task, r["amount"]] = f"{abs(worth(r)):.{digits}f}"
    rows = [
        [f"`{method}`", said, *(cells[method, said].get(column, "") for column in columns)]
        for method, said in sorted(cells, key=lambda row: ((OURS, *RIVALS).index(row[0]), row[1]))
    ]
    heads = [f"{task}, {amount_text(amount)}" for task, amount in columns]
    return table(["validation", "settings", *heads], rows)


def dense_line(records: Sequence[Record], task: str) -> str:
    """What the dense nets are worth, and what their training still gained at its end."""
    measure, digits = MEASURES[task]
    own = {r["seed"]: r for r in reported(records, task)}
    if not own:
        return "-"
    tests = spread([r["dense_test"] for r in own.values()], digits)
    early = spread([r["dense_curve"][-3] for r in own.values()], digits)
    late = spread([r["dense_curve"][-1] for r in own.values()], digits)
    steps = next(iter(own.values()))["dense_steps"]
    return (
        f"Dense, before pruning: {measure} {tests}. In validation on what they were trained on, "
        f"after 80 % of {steps:,} steps {early}, at the end {late}."
    )


def made_line(records: Sequence[Record]) -> str:
    """Where, when and with what."""
    days = sorted({record["finished"][:10] for record in records})
    kinds = sorted({f"{r['processor']}, one thread; torch {r['torch']}" for r in records})
    hours = sum(record["cpu_seconds"] for record in records) / 3600
    when = " to ".join(dict.fromkeys((days[0], days[-1])))
    return f"{'; '.join(kinds)}; {when}; {len(records)} runs, {hours:.1f} hours of one core."


def spread(values: Sequence[float], digits: int) -> str:
    """Mean ± standard deviation (number of seeds)."""
    if not values:
        return "-"
    error = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{error} ({len(values)})"


def amount_text(amount: float | str) -> str:
    return amount if isinstance(amount, str) else f"{amount:.0%}".replace("%", " %")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    rule = f"|---{'|---:' * (len(heads) - 1)}|"
    shown = [f"| {' | '.join(line)} |" for line in (heads, *rows)]
    return "\n".join([shown[0], rule, *shown[1:]])


def filled(page: str, found: Mapping[str, str]) -> str:
    """The page with the table of each place in it."""
    place = re.compile(r"(<!-- ([\w-]+) -->\n).*?(\n<!-- end -->)", flags=re.DOTALL)
    return place.sub(lambda at: f"{at[1]}{found[at[2]]}{at[3]}", page)
