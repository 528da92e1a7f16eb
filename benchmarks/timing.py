"""What every benchmark shares: the library's timing, the machine, a table and a file."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from biprune.deploy.running.timing import interleaved, medians, ratio
from biprune.experiments.environment import environment

__all__ = ["Row", "interleaved", "medians", "parser", "ratio", "report", "table"]

Row = Mapping[str, Any]


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Options that every benchmark has; the first line of its docstring is its description."""
    options = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    options.add_argument("--threads", type=int, default=torch.get_num_threads())
    options.add_argument("--json", type=Path, metavar="FILE", help="write settings and rows there")
    return options


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
