"""Where a run was made: versions, machine and revision."""

from __future__ import annotations

import os
import platform
import subprocess
import tomllib
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from biprune import __version__


def environment(device: str = "cpu") -> dict[str, Any]:
    """Versions, the machine, the `device` that was used, and the time; JSON-able."""
    return {
        "biprune": __version__,
        **{name: version(name) for name in ("torch", "numpy")},
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
    """The commit of biprune's own checkout, marked if there are changes; None outside one.

    The package may also lie in somebody else's repository, such as in its `.venv`; that does not
    count. The first call decides: make it before a long run, during which the checkout may change.
    """
    source = Path(__file__).resolve()
    root = source.parents[3]
    if not _is_ours(root):
        return None
    # Inside a hook these variables name another repository. The search must not go above ours.
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    own["GIT_CEILING_DIRECTORIES"] = str(root.parent)

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        options = {"capture_output": True, "text": True, "timeout": 10, "check": True}
        return subprocess.run(command, env=own, **options).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", str(source))
        return git("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return None


def _is_ours(root: Path) -> bool:
    try:
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return project.get("project", {}).get("name") == "biprune"
