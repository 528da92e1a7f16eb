"""Which batches the two levels of BiP see."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from math import gcd
from typing import Literal

from biprune.training.batches import Batch, take

BatchScheme = Literal["different", "reverse", "same"]


def level_batches(
    batches: Iterable[Batch], steps: int, lower_steps: int, passes: int, scheme: BatchScheme
) -> Iterator[Sequence[Batch]]:
    """`lower_steps` batches, and with two passes one for the upper level, `steps` times.

    Whole passes over the loader, one after the other and never two at once: loaders with
    persistent workers have a single iterator.
    """
    if passes == 1:
        return _rotated(batches, steps, lower_steps)
    if scheme == "different":
        return _rotated(batches, steps, lower_steps + 1)
    if scheme == "same":
        return ((*group, group[-1]) for group in _rotated(batches, steps, lower_steps))
    first_pass = list(take(batches, steps))
    lower = chain(first_pass, take(batches, steps * (lower_steps - 1)))
    return zip(*[lower] * lower_steps, reversed(first_pass), strict=True)


def _rotated(batches: Iterable[Batch], steps: int, roles: int) -> Iterator[Sequence[Batch]]:
    """`steps` groups of `roles` batches, which swap their roles whenever the groups repeat.

    They do after lcm(steps, roles) batches of a loader that keeps its order: it would show some
    batches to one role alone.
    """
    stream = take(batches, steps * roles)
    for number, group in enumerate(zip(*[stream] * roles, strict=True)):
        turn = number * gcd(steps, roles) // steps
        yield (*group[turn:], *group[:turn])
