"""Freed memory stays mapped; in a process of its own, for the choice is the whole process's."""

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import torch
from biprune.training.process import keep_freed_memory

def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

if sys.argv[1] == "kept":
    assert keep_freed_memory()
for _ in range(16):  # until there are enough pieces to fit
    torch.ones(9 << 20)
before = faults()
for _ in range(4):
    torch.ones(9 << 20)
print(faults() - before)
"""
PAGES = (9 << 20) * 4 // 4096  # of one tensor, too large for glibc ever to keep by itself


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_tensors_take_pages_that_are_mapped_already() -> None:
    assert _faults("returned") > 2 * PAGES  # what there is to save
    assert _faults("kept") < PAGES // 10


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from biprune.training.process import keep_freed_memory

    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert keep_freed_memory() is False


def _faults(how: str) -> int:
    command = [sys.executable, "-c", FAULTS, how]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
