"""Disks that are full or read-only: one line with a path, what was there stays, a rerun goes on."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

from faults import originals
from faults.children import Done, limit_files, run
from faults.jobs import finished, jobs, reference
from faults.verdict import OK, UNAVAILABLE, Fault


def full_for_a_file(seed: int) -> str:
    """A file that cannot grow beyond some bytes, which C++ meets as Python does."""
    draw = random.Random(seed)
    name, force = draw.choice(list(jobs())), draw.random() < 0.5
    out = originals.empty("limited")
    if force:
        _put_older(name, out)
    size = int(10 ** draw.uniform(0, 4.7))
    done = run(jobs()[name].into(out, force=force), partial(limit_files, size))
    return _said(f"{name}, {size} bytes a file", _after(name, out, done, force=force))


def full(seed: int) -> str:
    """A disk of few kilobytes; then there is room again."""
    draw = random.Random(seed)
    name, force = draw.choice(list(jobs())), draw.random() < 0.5
    out, size = originals.empty("full"), draw.randrange(16, 200)
    if not can_mount():
        return UNAVAILABLE
    with mounted(out, f"size={size}k"):
        if force:
            _put_older(name, out)
        done = run(jobs()[name].into(out, force=force))
        _mount("-o", f"remount,size={64 << 10}k", str(out))
        verdict = _after(name, out, done, force=force)
    return _said(f"{name}, a disk of {size} kB", verdict)


def _put_older(name: str, out: Path) -> None:
    reference(name, 1)
    shutil.copytree(originals.scratch() / f"{name}-1", out, dirs_exist_ok=True)


def _after(name: str, out: Path, done: Done, *, force: bool) -> str:
    if (wrong := done.complaint(0, 2)) != OK:
        return wrong
    if done.code == 2 and str(out) not in done.err:
        return f"the error names no path: {done.err[-300:]}"
    if force:
        try:
            found = jobs()[name].read(out)
        except Exception as error:
            return f"the older result is lost: {error}"
        if found not in (reference(name).result, reference(name, 1).result):
            return "the folder holds neither the older nor the new result"
    return finished(name, out, force=force)


def _said(what: str, verdict: str) -> str:
    return verdict if verdict == OK else f"{what}: {verdict}"


READING = (
    "inspect {dense}",
    "inspect {ticket} --json",
    "prune {dense} --sparsity 0.5 --method omp --epochs 1 --threads 1 --out {out}/new",
    "shrink {grouped} --out {out}/new",
    "report {store} -o {out}/report.html",
)
WRITING = (
    "train resnet8 digits --width 2 --subset 60 --epochs 1 --threads 1 --out {dense} --force",
    "train resnet8 digits --width 2 --subset 60 --epochs 1 --threads 1 --out {dense}/new",
    "prune {dense} --sparsity 0.5 --epochs 1 --threads 1 --out {ticket} --force",
    "shrink {grouped} --out {ticket}/new",
    "report {store} -o {store}/report.html",
    "compare resnet8 digits --width 2 --subset 60 --sparsities 0.7 --seeds 0 --passes 1 "
    "--dense-epochs 1 --method omp --threads 1 --store {store}",
)


def read_only(seed: int) -> str:
    """What only reads goes on, what writes says where it cannot."""
    draw = random.Random(seed)
    line, code = draw.choice([(text, 0) for text in READING] + [(text, 2) for text in WRITING])
    folder, out = _all_kinds(), originals.empty("written")
    names = {path.name: path for path in folder.iterdir()}
    if os.geteuid() == 0 and not can_mount():
        return UNAVAILABLE
    with unwritable(folder):
        done = run(line.format(out=out, **names))
    wrong = done.complaint(code)
    if wrong == OK and code == 2 and str(folder) not in done.err:
        wrong = f"the error names no path: {done.err[-300:]}"
    return _said(line.split(" ")[0], wrong)


@cache
def _all_kinds() -> Path:
    """One folder with everything that commands read."""
    folder = originals.empty("kept")
    for name in ("dense", "ticket", "grouped", "store"):
        shutil.copytree(originals.made(name), folder / name)
    return folder


@contextmanager
def unwritable(folder: Path) -> Iterator[None]:
    """A folder into which nobody can write: permissions do not bind root, a mount does."""
    if os.geteuid() == 0:
        _mount("--bind", str(folder), str(folder))
        try:
            _mount("-o", "remount,ro,bind", str(folder))
            yield
        finally:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
        return
    inside = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    for path in inside:
        path.chmod(0o555)
    try:
        yield
    finally:
        for path in inside:
            path.chmod(0o755)


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    """A file system of its own at `folder`."""
    _mount("-t", "tmpfs", "-o", options, "tmpfs", str(folder))
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


@cache
def can_mount() -> bool:
    """Whether file systems may be mounted here, which takes root and the right to."""
    try:
        with mounted(originals.empty("mount"), "size=16k"):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


FAULTS: dict[str, Fault] = {
    "no room for a file": full_for_a_file,
    "disk full": full,
    "read-only folder": read_only,
}
