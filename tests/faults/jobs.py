"""Commands that write a result: how they run undisturbed, and whether a run came to the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import biprune
from biprune.files.small import load_small
from faults import originals
from faults.children import count_swaps, run
from faults.verdict import OK, content, unmeasured

UNFINISHED = "biprune-unfinished"


@dataclass(frozen=True)
class Job:
    """A command, without its `--out`, and what reads its result."""

    line: str
    load: Callable[[Path], Any]

    def into(self, out: Path, *, force: bool = False, seed: int = 0) -> str:
        """The command line."""
        seeded = "" if self.line.startswith("shrink") else f" --seed {seed} --threads 1"
        return f"{self.line}{seeded} --out {out}{' --force' if force else ''}"

    def read(self, out: Path) -> Any:
        """The result, without times."""
        return unmeasured(content(self.load(out)))


@dataclass(frozen=True)
class Reference:
    """An undisturbed run: its result, the names of its files, how long and how many swaps."""

    result: Any
    names: frozenset[str]
    seconds: float
    swaps: int


@cache
def jobs() -> dict[str, Job]:
    dense, grouped = originals.made("dense"), originals.made("grouped")
    group = "--structure group --budget macs=0.6 --method omp --epochs 2"
    return {
        "train": Job("train resnet8 digits --width 2 --subset 60 --epochs 4", biprune.load_dense),
        "bip-plus": Job(f"prune {dense} --sparsity 0.8 --epochs 4", biprune.load_ticket),
        "imp": Job(f"prune {dense} --sparsity 0.5 --method imp --epochs 2", biprune.load_ticket),
        "group": Job(f"prune {dense} {group}", biprune.load_ticket),
        "shrink": Job(f"shrink {grouped}", load_small),
    }


@cache
def reference(name: str, seed: int = 0) -> Reference:
    """The job `name` undisturbed, in a folder of its own."""
    job, out = jobs()[name], originals.empty(f"{name}-{seed}")
    run("list")  # the server is up
    counted = originals.empty("swaps") / "count"
    done = run(job.into(out, force=True, seed=seed), partial(count_swaps, counted))
    if done.code != 0:
        raise AssertionError(f"{name} does not run undisturbed: {done.err}")
    return Reference(job.read(out), names_in(out), done.seconds, counted.stat().st_size)


def names_in(out: Path) -> frozenset[str]:
    """The files of a folder, however deep."""
    return frozenset(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())


def finished(name: str, out: Path, *, force: bool = False, seed: int = 0) -> str:
    """Run the job to its end after a fault: OK if all is as if nothing had happened."""
    job, wanted = jobs()[name], reference(name, seed)
    done = run(job.into(out, force=force, seed=seed))
    was_done = done.code == 2 and "already holds a finished result" in done.err
    if not was_done and (wrong := done.complaint(0)) != OK:
        return f"the same command again: {wrong}"
    if job.read(out) != wanted.result:
        return "the result is not that of an undisturbed run"
    # A command that finds the result there touches nothing: states may be of a run with --force.
    left = frozenset() if was_done else names_in(out) - wanted.names
    return f"left behind: {', '.join(sorted(left))}" if left else OK
