"""What a command computes with."""

from __future__ import annotations

import math
import os
import sys
from contextlib import suppress
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
QUOTAS = (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"))  # of version 2 and 1


def use_machine(threads: int | None = None, device: str | None = None) -> None:
    """Set up this process to compute, and refuse what the machine does not have.

    Torch counts the machine's cores, also in a container that is given few of them, where threads
    that wait for one another make everything slow. Memory, once freed, is kept for the next step.

    Args:
        threads: Of the CPU; by default as many as this process may have cores.
        device: Where tensors will be.

    Raises:
        ValueError: There is no such device here, or this is one of the processes of torchrun.
    """
    import torch

    from biprune.core.checks import check_whole
    from biprune.training.process import check_one_process, keep_freed_memory

    check_one_process("biprune")
    if device is not None:
        try:
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise ValueError(f"`--device` {device!r} cannot be used here: {reason}") from None
    if threads is None:
        threads = min(torch.get_num_threads(), cores())
    check_whole("--threads", threads, at_least=1)
    torch.set_num_threads(threads)
    keep_freed_memory()


def cores() -> int:
    """How many cores this process may have: those it may run on, or its container's share of time.

    >>> 1 <= cores() <= os.cpu_count()
    True
    """
    allowed = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    for files in QUOTAS:
        with suppress(OSError, ValueError):  # there is no such file, or it says "max"
            text = " ".join((CGROUP / file).read_text(encoding="ascii") for file in files)
            quota, period = map(int, text.split())
            if quota > 0:  # -1 means no limit
                return min(allowed, math.ceil(quota / period))
    return allowed
