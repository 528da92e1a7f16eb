"""The memory of a process that trains: what a step frees, the next step takes again."""

from __future__ import annotations

import ctypes
import platform

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
