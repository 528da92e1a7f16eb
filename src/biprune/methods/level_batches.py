"""Which batches the two levels of BiP see."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Literal

from biprune.batches import Batch, take

BatchScheme = Literal["different", "reverse", "same"]


def level_batches(
    batches: Iterable[Batch], steps: int, lower_steps: int, passes: int, scheme: BatchScheme
) -> Iterator[Sequence[Batch]]:
    """`lower_steps` batches, and with two passes one for the upper level, `steps` times.

    Whole passes over the loader, one after the other and never two at once: loaders with
    persistent workers have a single iterator.
    """
    if passes == 1:
        return zip(*[take(batches, steps * lower_steps)] * lower_steps, strict=True)
    if scheme == "different":
        stream = take(batches, steps * (lower_steps + 1))
        return _rotated(zip(*[stream] * (lower_steps + 1), strict=True), steps, lower_steps + 1)
    lower = take(batches, steps * lower_steps)
    if scheme == "same":
        return ((*group, group[-1]) for group in zip(*[lower] * lower_steps, strict=True))
    first_pass = list(take(batches, steps))
    lower = chain(first_pass, take(batches, steps * (lower_steps - 1)))
    return zip(*[lower] * lower_steps, reversed(first_pass), strict=True)


def _rotated(
    groups: Iterable[Sequence[Batch]], steps: int, roles: int
) -> Iterator[Sequence[Batch]]:
    """Swap the roles at each pass where passes hold whole groups.

    Otherwise a loader that keeps its order would show each batch to one level alone.
    """
    for number, group in enumerate(groups):
        turn = number * roles // steps if steps % roles == 0 else 0
        yield (*group[turn:], *group[:turn])
