"""What every benchmark shares: interleaved timing, the machine, a table and a file."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from biprune.experiments.environment import environment

Row = Mapping[str, Any]


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Options that every benchmark has; the first line of its docstring is its description."""
    options = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    options.add_argument("--threads", type=int, default=torch.get_num_threads())
    options.add_argument("--json", type=Path, metavar="FILE", help="write settings and rows there")
    return options


def interleaved(
    candidates: Mapping[str, Callable[[], object]], rounds: int
) -> dict[str, list[float]]:
    """Seconds of each candidate in each of the `rounds`, after one to warm up.

    Every candidate runs once a round, so that a slow minute of the machine hits them all, and each
    round starts with another, so that none always runs behind the same one.
    """
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    names = list(candidates)
    for number in range(rounds + 1):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            started = time.perf_counter()
            candidates[name]()
            if number > 0:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def medians(seconds: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The median of each candidate."""
    return {name: statistics.median(values) for name, values in seconds.items()}


def ratio(seconds: Mapping[str, Sequence[float]], name: str, base: str) -> float:
    """Median over the rounds of the ratio within a round, which a slow minute cannot move."""
    pairs = zip(seconds[name], seconds[base], strict=True)
    return statistics.median(own / other for own, other in pairs)


def report(rows: Sequence[Row], options: argparse.Namespace) -> None:
    """Print the rows as a table with the machine beneath, and write them where asked."""
    print(table(rows))
    print("\n" + ", ".join(f"{key} {value}" for key, value in environment().items()))
    if options.json is not None:
        settings = {k: v for k, v in vars(options).items() if k != "json"}
        content = {"settings": settings, "rows": list(rows), **environment()}
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
