"""The k largest of a flat tensor, exactly and in linear time, without sorting it.

On a CPU a sample of the scores tells a narrow band that holds the k-th largest. Two comparisons
split all scores at its ends, and only those between are looked at one by one (Floyd and Rivest's
idea). A band that misses is noticed by counting, and then all scores are searched.

On other devices reading a number back would stall the queue, so there the same answer comes from
operations whose shapes do not depend on the scores.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

SAMPLE = 1 << 16  # scores looked at, at most, to guess where the k-th largest lies
PER_SAMPLE = 64  # scores for each one looked at, at least
CHUNK = 1 << 22  # scores compared at once
WORD = 8  # bools read at once

Order = Callable[[Tensor], Tensor]  # from places in memory to what equal scores are sorted by


class Cut(NamedTuple):
    """The largest scores as a mask.

    `ordered` is false where so many scores are equal that the first of them in memory were kept,
    and not the first in the order asked for.
    """

    mask: Tensor
    ordered: bool


def is_host(tensor: Tensor) -> bool:
    """Whether the host can read the tensor without waiting for a device."""
    return tensor.device.type == "cpu"


def top_k_mask(scores: Tensor, k: int) -> Tensor:
    """True at the `k` largest of a flat tensor, equal scores in order of their index.

    Equal to a stable descending sort. Takes at most the memory of one copy of the scores.
    """
    if k == 0 or k == scores.numel():
        return torch.full_like(scores, k > 0, dtype=torch.bool)
    return cut(scores, k).mask if is_host(scores) else queued_top_k_mask(scores, k)


def queued_top_k_mask(scores: Tensor, k: int) -> Tensor:
    """The same for 0 < k < N, without reading anything back from the device."""
    size = scores.numel()
    if 2 * k <= size:
        threshold = scores.topk(k, sorted=False).values.amin()
    else:
        threshold = scores.topk(size - k + 1, largest=False, sorted=False).values.amax()
    mask, equal = scores > threshold, scores == threshold
    missing = k - torch.count_nonzero(mask)
    return mask.logical_or_(equal.logical_and_(equal.cumsum(0) <= missing))


class Band:
    """Scores split once around the k-th largest, for cuts at k or somewhat below.

    The ends of the band are guessed from a sample: four standard deviations of its rank to either
    side. Scores that equal an end are not gathered, so that ties by the million take no memory.
    """

    def __init__(self, scores: Tensor, k: int) -> None:
        self._scores = scores
        self._low, self._high = _sampled_band(scores, k)
        if self._low < self._high:
            self._above, self._places = _split(scores, self._low, self._high)
            self._num_above = int(torch.count_nonzero(self._above))
            self._values = scores[self._places]

    def cut(self, k: int, order: Order | None = None) -> Cut | None:
        """The `k` largest if the k-th lies within the band, its ends included, else None."""
        if self._low == self._high:
            return _cut_at(self._scores, k, self._low)
        missing, places, values = k - self._num_above, self._places, self._values
        if not 0 < missing <= len(places):
            return _cut_at(self._scores, k, self._high if missing <= 0 else self._low)
        threshold = values.kthvalue(len(values) - missing + 1).values
        kept = values > threshold
        equal = places[values == threshold]
        if order is not None:
            equal = equal[order(equal).argsort()]
        mask = self._above.clone()
        mask[places[kept]] = True
        mask[equal[: missing - int(torch.count_nonzero(kept))]] = True
        return Cut(mask, True)


def cut(scores: Tensor, k: int, order: Order | None = None, band: Band | None = None) -> Cut:
    """Separate the `k` largest of N scores, 0 < k < N, in memory that the host can read.

    Args:
        scores: In one dimension.
        k: How many are kept.
        order: What equal scores are kept by; by default as they lie in memory.
        band: That of an earlier cut of the same scores, if there is one.

    Raises:
        FloatingPointError: There is a NaN among the scores.
    """
    band = band or band_around(scores, k)
    if band is not None and (found := band.cut(k, order)):
        return found
    threshold = scores.kthvalue(scores.numel() - k + 1).values.item()
    if found := _cut_at(scores, k, threshold):
        return found
    raise FloatingPointError(
        "The scores to select by contain NaN, as gradients or weights do. Lower the learning rate, "
        "or look at the data and the loss function."
    )


def band_around(scores: Tensor, k: int) -> Band | None:
    """The band of the k-th largest score; None where there are so few that all are searched."""
    return Band(scores, k) if scores.numel() > PER_SAMPLE**2 else None


def _sampled_band(scores: Tensor, k: int) -> tuple[float, float]:
    size = scores.numel()
    step = max(size // SAMPLE, PER_SAMPLE)
    sample = scores[::step].contiguous()
    rank = k / size * len(sample)
    margin = 1 + 4 * math.sqrt(rank * (1 - k / size))
    first, last = math.floor(rank - margin), math.ceil(rank + margin)
    high = sample.kthvalue(len(sample) - first).values.item() if first >= 0 else math.inf
    low = sample.kthvalue(len(sample) - last).values.item() if last < len(sample) else -math.inf
    return low, high


def _split(scores: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """Where scores are at least `high`, as a mask, and the places of those strictly between.

    It goes by chunks, so that what lies between is still in the cache, and memory is reused.
    """
    mask = torch.empty(scores.shape, dtype=torch.bool)
    places = []
    for start in range(0, len(scores), CHUNK):
        chunk = scores[start : start + CHUNK]
        above = torch.ge(chunk, high, out=mask[start : start + CHUNK])
        places.append(true_places((chunk > low) ^ above) + start)
    return mask, torch.cat(places)


def _cut_at(scores: Tensor, k: int, threshold: float) -> Cut | None:
    """The cut if `threshold` is the k-th largest score, else None."""
    mask, equal = scores > threshold, scores == threshold
    missing, ties = k - int(torch.count_nonzero(mask)), int(torch.count_nonzero(equal))
    if not 0 < missing <= ties:
        return None
    # The shortest start that holds as many equal scores as are missing, found by halving.
    ends = range(len(equal))
    end = bisect_left(ends, missing, key=lambda end: int(torch.count_nonzero(equal[:end])))
    mask[:end] |= equal[:end]
    return Cut(mask, missing == ties)


def true_places(flags: Tensor) -> Tensor:
    """Where `flags` are true, in order; most are false, so words of them are looked at first."""
    whole = len(flags) // WORD * WORD
    words = flags[:whole].view(torch.int64).nonzero().flatten()
    rows, columns = flags[:whole].view(-1, WORD)[words].nonzero().unbind(1)
    rest = flags[whole:].nonzero().flatten() + whole
    return torch.cat([words[rows] * WORD + columns, rest])
