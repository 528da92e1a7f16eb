"""Seats for parties: a total divided over layers in proportion to their sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence


def share_out(total: int, sizes: Sequence[int], at_least: int) -> list[int]:
    """Divide `total` in proportion to `sizes`, at least so many to each (Webster's method).

    The n-th unit of a layer has the priority size / (2 n - 1), and the `total` of highest priority
    are given, the earlier layer first among equals. So no layer gains when the total falls, which
    rounding each quota by its remainder would not ensure: pruned units stay pruned.
    """
    counts = [max(math.ceil(total * size / sum(sizes) - 0.5), at_least) for size in sizes]
    layers = range(len(sizes))
    while sum(counts) < total:
        counts[max(layers, key=lambda i: (sizes[i] / (2 * counts[i] + 1), -i))] += 1
    while sum(counts) > total:
        movable = [i for i in layers if counts[i] > at_least]
        counts[min(movable, key=lambda i: (sizes[i] / (2 * counts[i] - 1), -i))] -= 1
    return counts
