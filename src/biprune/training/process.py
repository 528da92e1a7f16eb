"""The process that trains: the memory it keeps, and that it works alone."""

from __future__ import annotations

import ctypes
import os
import platform

import torch.distributed

TRIM_THRESHOLD, MMAP_MAX = -1, -4  # from glibc's malloc.h
NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Do not hand freed memory back to the system; whether this could be arranged.

    glibc gives large tensors back as they are freed, and each step then pays for having their
    pages mapped and zeroed again. The price is that the process stays at its peak until it ends,
    and that the peak is somewhat higher, for what is kept is in pieces: a program that trains may
    choose this, not a library for it. Other C libraries are left alone.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(MMAP_MAX, 0) and mallopt(TRIM_THRESHOLD, NEVER))


def check_one_process(name: str) -> None:
    """Refuse to let every process of a group do the whole work of `name`.

    They would write the same files, and a loader that shares out the data would give each of them
    a part, which is then taken for all. A group of one is as good as none.
    """
    size, sign = _group()
    if size > 1:
        raise ValueError(
            f"`{name}` is called in one of {size} processes ({sign}), and each would do the whole "
            "work: data parallelism is not supported yet. Start it once, with `python script.py` "
            "in place of `torchrun script.py`, or without RANK and WORLD_SIZE. In a parallel loop "
            "of your own use `attach`, whose steps come after the gradients are averaged."
        )


def _group() -> tuple[int, str]:
    """How many processes work together, and what shows it."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size(), "torch.distributed is initialised"
    size = os.environ.get("WORLD_SIZE", "")
    if "RANK" in os.environ and size.isdecimal():
        return int(size), "RANK and WORLD_SIZE are set, as torchrun does"
    return 1, ""
