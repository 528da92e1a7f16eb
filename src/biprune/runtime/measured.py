"""What was measured of the variants of a model, and what it comes to in plain sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Literal

from biprune.runtime.footprint import Footprint

NOTICEABLE = 1.1  # a speed-up below this is not worth a file of its own


@dataclass(frozen=True)
class Latency:
    """Milliseconds of one forward, and how many times as fast as the first variant that is.

    `speedup` is the median of the ratio within a round.
    """

    median: float
    p90: float
    speedup: float


@dataclass(frozen=True)
class Row:
    """One variant; `latency` by batch size."""

    name: str
    runtime: Literal["torch", "onnxruntime"]
    size: Footprint
    latency: dict[int, Latency]

    @property
    def speedups(self) -> dict[int, float]:
        """How many times as fast as the first variant, by batch size."""
        return {batch: each.speedup for batch, each in self.latency.items()}


@dataclass(frozen=True)
class Profile:
    """What `profile` measured, the first row being what the others are compared with."""

    rows: list[Row]
    threads: int
    rounds: int

    @property
    def verdict(self) -> str:
        """What the figures come to, also when nothing was gained.

        What another runtime gains is told apart from what pruning gains.
        """
        base, *others = self.rows
        if not others:
            return f"{base.name} alone was measured, so there is nothing to compare it with."
        masked = [row for row in others if _is_masked(row, base)]
        sentences = [_of_zeros(row, base) for row in masked]
        smaller = [row for row in others if row.runtime == base.runtime and row not in masked]
        if smaller:
            sentences.append(_of_fastest(smaller, base))
        exported = [row for row in others if row.runtime != base.runtime]
        if exported:
            sentences += _of_runtime(exported, base)
        return " ".join(sentences)


def _is_masked(row: Row, base: Row) -> bool:
    """Whether a variant has the zeros but not the smaller shapes, in dense tensors."""
    same_work = row.size.macs is not None and row.size.macs == base.size.macs
    return same_work and row.size.nonzero < base.size.nonzero


def _of_zeros(row: Row, base: Row) -> str:
    speed = _speed(row.speedups, base)
    if _is_noticeable(row):  # no cause beside a number that speaks against it
        return f"The zeros of {row.name} are in dense tensors, and it is {speed}."
    return (
        "Masked weights are zeros in dense tensors: no kernel here skips them, and "
        f"{row.name} is {speed}."
    )


def _of_fastest(rows: Sequence[Row], base: Row) -> str:
    best = max(rows, key=_overall)
    speed = _speed(best.speedups, base)
    if not any(map(_is_noticeable, rows)):
        return f"There is no speed-up worth the name: {best.name} is {speed}."
    return f"The variant {best.name} is {speed}."


def _of_runtime(rows: Sequence[Row], base: Row) -> list[str]:
    """What the runtime gives by itself, if the dense model is there, and what pruning adds."""
    first, *others = rows
    if first.size.nonzero < first.size.parameters:
        return [f"The variant {row.name} is {_speed(row.speedups, base)}." for row in rows]
    own = f"Without any pruning {first.runtime} is {_speed(first.speedups, base)}"
    if not others:
        return [f"{own}."]
    best = max(others, key=_overall)
    added = {b: first.latency[b].median / each.median for b, each in best.latency.items()}
    return [f"{own}; there {best.name} is {_speed(added, first)}."]


def _is_noticeable(row: Row) -> bool:
    """Whether some batch is faster by more than one would overlook."""
    return max(row.speedups.values()) >= NOTICEABLE


def _overall(row: Row) -> float:
    return geometric_mean(row.speedups.values())


def _speed(speedups: Mapping[int, float], base: Row) -> str:
    """Such as: 0.98 times as fast as dense at batch 1, 1.02 times at batch 64."""
    (batch, first), *rest = speedups.items()
    text = f"{first:.2f} times as fast as {base.name} at batch {batch}"
    return ", ".join([text, *(f"{speedup:.2f} times at batch {b}" for b, speedup in rest)])
