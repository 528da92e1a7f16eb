"""What trials on CIFAR-10 share: their options, and a file of records that is added to."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from biprune.experiments.environment import environment
from biprune.report.wording import spread

Record = Mapping[str, Any]


def parser(doc: str | None, *, subset: int) -> argparse.ArgumentParser:
    """Options that every trial has; the first line of its docstring is its description."""
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


def _setting(options: argparse.Namespace) -> dict[str, Any]:
    """What the records of one table have in common."""
    named = ("subset", "passes", "lr", "model")
    return {name: value for name, value in vars(options).items() if name in named}


def records(options: argparse.Namespace) -> list[dict[str, Any]]:
    """What the file has of this setting; nothing if there is none."""
    if not options.jsonl.exists():
        return []
    lines = options.jsonl.read_text(encoding="utf-8").splitlines()
    found = [json.loads(line) for line in lines]
    return [record for record in found if _setting(options).items() <= record.items()]


def add(options: argparse.Namespace, record: Record) -> None:
    """Append a record, with its setting, the machine and the versions."""
    content = {**record, **_setting(options), **environment()}
    with options.jsonl.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(content) + "\n")


def cell(values: Sequence[float]) -> str:
    """Mean ± standard deviation (number of seeds), empty if there are none."""
    if not values:
        return ""
    std = statistics.stdev(values) if len(values) > 1 else None
    return f"{spread(statistics.mean(values), std)} ({len(values)})"
