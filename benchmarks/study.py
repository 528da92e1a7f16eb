"""What studies on CIFAR-10 share: their options, and a file of records that is added to."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from biprune.experiments.environment import environment

Record = Mapping[str, Any]


def parser(doc: str | None, *, subset: int) -> argparse.ArgumentParser:
    """Options that every study has; the first line of its docstring is its description."""
    options = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    options.add_argument("--root", type=Path, required=True, help="folder of cifar-10-batches-bin")
    options.add_argument("--subset", type=int, default=subset, help="training images")
    options.add_argument(
        "--passes", type=int, default=20, help="over the data, of the longest runs"
    )
    options.add_argument("--lr", type=float, default=0.1)
    options.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options.add_argument("--threads", type=int, default=torch.get_num_threads())
    options.add_argument("--jsonl", type=Path, required=True, metavar="FILE")
    return options


def records(file: Path) -> list[dict[str, Any]]:
    """What is in the file; nothing if there is none."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def add(file: Path, record: Record) -> None:
    """Append a record, with the machine and the versions."""
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps({**record, **environment()}) + "\n")


def cell(values: Sequence[float]) -> str:
    """Mean ± standard deviation (number of seeds), empty if there are none."""
    if not values:
        return ""
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.2f} ± {spread:.2f} ({len(values)})"
