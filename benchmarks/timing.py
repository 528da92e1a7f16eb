"""What every benchmark shares: the library's timing, the machine, a table and a file."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch

from biprune.experiments.environment import environment
from biprune.runtime.measured import interleaved, medians, ratio

__all__ = ["Row", "bracketed", "interleaved", "medians", "parser", "ratio", "report", "table"]

Row = Mapping[str, Any]


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Options that every benchmark has; the first line of its docstring is its description."""
    options = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    options.add_argument("--threads", type=int, default=torch.get_num_threads())
    options.add_argument("--json", type=Path, metavar="FILE", help="write settings and rows there")
    return options


def bracketed(
    candidates: Mapping[str, Callable[[], object]], base: str, rounds: int
) -> tuple[float, dict[str, float]]:
    """Median seconds of `base`, and for each other candidate its median ratio to `base`.

    The base runs right before and right after every other candidate, whose ratio is to the mean of
    the two: the machine's speed drifts within seconds, by more than what is to be told apart.
    """
    others = {name: run for name, run in candidates.items() if name != base}
    for run in candidates.values():
        run()  # to warm up
    before, bases = _seconds(candidates[base]), []
    ratios: dict[str, list[float]] = {name: [] for name in others}
    for _ in range(rounds):
        for name, run in others.items():
            own, after = _seconds(run), _seconds(candidates[base])
            ratios[name].append(own / mean([before, after]))
            bases.append(before)
            before = after
    return median(bases), {name: median(values) for name, values in ratios.items()}


def _seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def report(rows: Sequence[Row], options: argparse.Namespace, *, before: Sequence[Row] = ()) -> None:
    """Print the rows as a table with the machine beneath, and write them where asked.

    `before` are those of another table, above it. Threads are those of the option: other processes
    may have measured.
    """
    machine = {**environment(), "threads": options.threads}
    print(*(table(each) for each in (before, rows) if each), sep="\n\n")
    print("\n" + ", ".join(f"{key} {value}" for key, value in machine.items()))
    if options.json is not None:
        settings = {k: v for k, v in vars(options).items() if k != "json"}
        content = {"settings": settings, "rows": [*before, *rows], **machine}
        text = json.dumps(content, indent=1, default=str)
        options.json.write_text(text + "\n", encoding="utf-8")


def table(rows: Sequence[Row]) -> str:
    """A Markdown table; a column for each key of the first row."""
    columns = list(rows[0])
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(_cell(row[column]) for column in columns) + " |" for row in rows]
    return "\n".join(lines)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}" if value < 100 else f"{value:.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
