"""Interleaved timing: every candidate once a round, so that a slow minute hits them all."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import torch


def interleaved_medians(
    candidates: Mapping[str, Callable[[], object]], rounds: int
) -> dict[str, float]:
    """Median seconds of each candidate over `rounds`, after one warm-up round."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for warm_up in [True] + [False] * rounds:
        for name, run in candidates.items():
            started = time.perf_counter()
            run()
            if not warm_up:
                seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(values) for name, values in seconds.items()}


def environment() -> dict[str, Any]:
    """Hardware, versions and date: what a number is worth nothing without."""
    return {
        "date": date.today().isoformat(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def report(result: Mapping[str, Any], json_file: Path | None) -> None:
    """Print the numbers, and write them where asked."""
    for key, value in result.items():
        print(f"{key:>16}  {value:.4f}" if isinstance(value, float) else f"{key:>16}  {value}")
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
