"""The tables of `on_transformers`, from its records alone."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from statistics import fmean, stdev
from typing import Any

from biprune.report.statistics import t_quantile

Record = Mapping[str, Any]
Settings = Mapping[str, float]

Row = tuple[str, Settings]  # a method, with the settings that are not its defaults

OURS = "bip-plus"
NONE = "not pruned"  # trained on for as many steps
SHORT: Settings = {"kappa": 1.0, "ramp": 0.3}  # what tuning on both tasks led to
# GMP draws a mask every ten steps by default: too few of them in runs this short.
RIVALS: Sequence[Row] = (("gmp", {"mask_every": 1}), ("movement", {}), ("magnitude", {}))
COMPARED: Sequence[Row] = ((OURS, {}), (OURS, SHORT), *RIVALS)
TUNING, SEEDS = 100, (0, 1, 2)
VARIANTS: Sequence[Row] = (
    (OURS, {}),
    (OURS, {"kappa": 1.0}),
    (OURS, {"kappa": 10.0}),
    (OURS, {"ramp": 0.3}),
    (OURS, SHORT),
    RIVALS[0],
    ("gmp", {}),
    ("gmp", {"mask_every": 1, "ramp": 0.3}),
    RIVALS[2],
)
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


def tuning(records: Iterable[Record], row: Row) -> dict[float, float]:
    """What each rate was worth in tuning."""
    amount = 0.0 if row[0] == NONE else TUNED_AT
    return {r["lr"]: worth(r) for r in of_row(records, row, amount) if r["seed"] == TUNING}


def of_row(records: Iterable[Record], row: Row, amount: float | str) -> list[Record]:
    """The runs of a row at an amount."""
    found = (*row, amount)
    return [r for r in records if (r["method"], r["settings"], r["amount"]) == found]


def best(tried: Mapping[float, float]) -> float:
    return max(tried, key=lambda lr: tried[lr])


def next_rate(tried: Mapping[float, float], first: Sequence[float]) -> float | None:
    """The rate to try next, None once the best is between two worse ones."""
    found = best(tried) if tried else first[0]
    wanted = (lr for lr in (*first, 2 * found, found / 2) if lr in GRID)
    return next((lr for lr in wanted if lr not in tried), None)


def of_task(records: Iterable[Record], task: str) -> list[Record]:
    """The runs on a task."""
    return [record for record in records if record["task"] == task]


def by_seed(records: Sequence[Record], row: Row, amount: float | str) -> dict[int, float]:
    """The worth in test of a row's runs at its best rate."""
    if not (tried := tuning(records, row)):
        return {}
    own = [r for r in of_row(records, row, amount) if r["lr"] == best(tried)]
    return {r["seed"]: worth(r, "test") for r in own if r["seed"] in SEEDS}


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
    """Mean ± standard deviation (seeds) of each row at each amount."""
    measure, digits = MEASURES[task]
    own = of_task(records, task)
    rows = []
    for row in COMPARED:
        each = [by_seed(own, row, amount).values() for amount in AMOUNTS]
        rows.append([name_of(row), *(spread([*map(abs, v)], digits) for v in each)])
    if free := [*map(abs, by_seed(own, (NONE, {}), 0.0).values())]:
        rows.append([f"{NONE}, trained on", spread(free, digits), *[""] * (len(AMOUNTS) - 1)])
    return table([f"{measure} (seeds)", *map(amount_text, AMOUNTS)], rows)


def differences_table(records: Sequence[Record], task: str) -> str:
    """By how much bip-plus is ahead, paired by seed."""
    own, digits = of_task(records, task), MEASURES[task][1]
    rows = []
    for ours, rival in product([row for row in COMPARED if row[0] == OURS], RIVALS):
        cells = []
        for amount in AMOUNTS:
            mine, theirs = by_seed(own, ours, amount), by_seed(own, rival, amount)
            seeds = sorted(mine.keys() & theirs.keys())
            cells.append(judged([mine[s] - theirs[s] for s in seeds], digits))
        rows.append([f"{name_of(ours)} ahead of {name_of(rival)}", *cells])
    return table(["", *map(amount_text, AMOUNTS)], rows)


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
    own, digits = of_task(records, task), MEASURES[task][1]
    found = {row: tuning(own, COMPARED[row]) for row in range(len(COMPARED))}
    rates = sorted({lr for tried in found.values() for lr in tried})
    rows = []
    for row, tried in found.items():
        cells = {lr: f"{abs(value):.{digits}f}" for lr, value in tried.items()}
        if tried:
            cells[best(tried)] = f"**{cells[best(tried)]}**"
        rows.append([name_of(COMPARED[row]), *(cells.get(lr, "") for lr in rates)])
    measure = MEASURES[task][0].replace("test", "validation")
    return table([f"{measure}, by rate", *(f"{lr:g}" for lr in rates)], rows)


def variants_table(records: Sequence[Record]) -> str:
    """What other settings are worth in validation, at the best rate of those compared."""
    columns = [(task, amount) for task in MEASURES for amount in (TUNED_AT, 0.8)]
    rows = []
    for row in VARIANTS:
        compared = next(each for each in COMPARED if each[0] == row[0])
        cells = []
        for task, amount in columns:
            own = of_task(records, task)
            tried = tuning(own, compared)
            runs = [r for r in of_row(own, row, amount) if r["seed"] == TUNING]
            values = [abs(worth(r)) for r in runs if tried and r["lr"] == best(tried)]
            cells.append(f"{values[0]:.{MEASURES[task][1]}f}" if values else "")
        rows.append([name_of(row), *cells])
    heads = [f"{task}, {amount_text(amount)}" for task, amount in columns]
    return table(["in validation", *heads], rows)


def dense_line(records: Sequence[Record], task: str) -> str:
    """What the dense nets are worth, and what their training still gained at its end."""
    measure, digits = MEASURES[task]
    own = {r["seed"]: r for r in of_task(records, task) if r["seed"] in SEEDS}
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


def name_of(row: Row) -> str:
    """A method with its settings, in words."""
    words = [f"{name.replace('_', ' ')} {value:g}" for name, value in row[1].items()]
    return ", ".join([f"`{row[0]}`", *words])


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
