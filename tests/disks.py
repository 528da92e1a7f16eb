"""A disk that is soon full."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


class SmallDisk:
    """A disk of so many kB at `folder`, which can be made larger."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder = folder
        folder.mkdir()
        if os.name != "posix" or os.getuid() != 0:
            pytest.skip("only root mounts disks")
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(folder)]
        if subprocess.run(mount, capture_output=True).returncode:
            pytest.skip("no disk can be mounted here")

    def enlarge(self, size: int) -> None:
        options = ["-o", f"remount,size={size}k", str(self.folder)]
        subprocess.run(["mount", *options], check=True)

    def unmount(self) -> None:
        subprocess.run(["umount", str(self.folder)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """64 kB, where a disk can be mounted."""
    disk = SmallDisk(tmp_path / "disk", 64)
    try:
        yield disk
    finally:
        disk.unmount()
