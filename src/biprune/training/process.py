"""The training process: keep its freed memory, and make sure that it runs alone."""

from __future__ import annotations

import ctypes
import os
import platform

import torch.distributed

TRIM_THRESHOLD, MMAP_MAX = -1, -4  # from glibc's malloc.h
NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Stop handing freed memory back to the system; return whether this was possible.

    glibc returns large tensors when they are freed, so each step pays for mapping and zeroing their
    pages again. The price of keeping them is that memory stays at its peak until the process ends,
    and that the peak is somewhat higher because of fragmentation. That is for a program to choose,
    not for a library. C libraries other than glibc are left alone.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(MMAP_MAX, 0) and mallopt(TRIM_THRESHOLD, NEVER))


def check_one_process(name: str) -> None:
    """Raise a ValueError if `name` is called in one of several processes.

    Each would do the whole work and write the same files. With a distributed sampler, each would
    also take its part of the data for all of it.
    """
    size, sign = _group()
    if size > 1:
        raise ValueError(
            f"`{name}` is called in one of {size} processes ({sign}), and each would do the whole "
            "work: data parallelism is not supported yet. Start it once, with `python script.py` "
            "instead of `torchrun script.py`, or without RANK and WORLD_SIZE. In a parallel loop "
            "of your own use `attach`, whose steps come after the gradients are averaged."
        )


def _group() -> tuple[int, str]:
    """Return how many processes work together, and how we know."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size(), "torch.distributed is initialised"
    size = os.environ.get("WORLD_SIZE", "")
    if "RANK" in os.environ and size.isdecimal():
        return int(size), "RANK and WORLD_SIZE are set, as torchrun does"
    return 1, ""
