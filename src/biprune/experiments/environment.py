"""Where a run was made: versions, machine, revision."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch


def environment(device: str = "cpu") -> dict[str, Any]:
    """Versions, the machine with the `device` that was used, and the time, JSON-able."""
    return {
        **{name: version(name) for name in ("biprune", "torch", "numpy")},
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": _processor(),
        "kernels": torch.backends.cpu.get_cpu_capability(),  # others round otherwise
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else device,
        "revision": revision(),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }


@cache
def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@cache
def revision() -> str | None:
    """The commit of biprune's own checkout, marked where it has changes; None outside one.

    As of the first call: call it before a long run, in whose time the checkout may move on.
    """
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    folder = Path(__file__).parent
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
