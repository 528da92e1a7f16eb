"""The exact top-k under a structure: the only place where a mask is made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from biprune.masks import Masks
from biprune.structure import Structure

SAMPLE = 1 << 14  # scores looked at to guess where the k-th largest lies


def check_sparsity(sparsity: float) -> None:
    """Refuse what is not a removed fraction."""
    if not isinstance(sparsity, (int, float)):
        raise TypeError(f"`sparsity` must be a number in [0, 1), got {sparsity!r}.")
    if 0 <= sparsity < 1:
        return
    hint = f" Did you mean {sparsity / 100:g}?" if 1 <= sparsity < 100 else ""
    raise ValueError(f"`sparsity` must be in [0, 1), got {sparsity:g}.{hint}")


def num_kept(sparsity: float, total: int) -> int:
    """Units that stay of `total`: Python's round((1 - sparsity) * total)."""
    return round((1 - sparsity) * total)


def check_enough(sparsity: float, sizes: Sequence[int], structure: Structure) -> None:
    """Refuse a sparsity that leaves fewer units than there are layers."""
    if (total := num_kept(sparsity, sum(sizes))) < len(sizes):
        raise ValueError(
            f"`sparsity` {sparsity:g} keeps {total} of {sum(sizes)} {structure.name} units, too "
            f"few for one in each of {len(sizes)} layers. Lower it, leave layers out with "
            "`exclude`, or pass allow_empty=True."
        )


def select(
    scores: Mapping[str, Tensor],
    sparsity: float,
    structure: Structure,
    *,
    allow_empty: bool = False,
) -> Masks:
    """Keep the units whose weights score highest.

    `scores` are weight-shaped and pooled to units by the structure; see `select_units` for what
    is guaranteed.
    """
    if structure.dim is None and structure.scope == "global":
        masks = _select_by_threshold(scores, sparsity, structure, allow_empty)
        if masks is not None:
            return masks
    units = {name: structure.pool(score) for name, score in scores.items()}
    kept = select_units(units, sparsity, structure, allow_empty=allow_empty)
    return expand(kept, scores, structure)


def _select_by_threshold(
    scores: Mapping[str, Tensor], sparsity: float, structure: Structure, allow_empty: bool
) -> Masks | None:
    """The same masks without putting scores into logical order, or None where that matters.

    A threshold does not ask for the order of the scores, so they are compared as they lie in
    memory, and the masks lie as the weights do. Only ties need the logical order.
    """
    check_sparsity(sparsity)
    if not all(_is_dense(score) for score in scores.values()):
        return None
    flat = torch.cat([score.as_strided((score.numel(),), (1,)) for score in scores.values()])
    sizes = [score.numel() for score in scores.values()]
    total = num_kept(sparsity, len(flat))
    if not len(sizes) <= total < len(flat):
        return None
    while True:
        threshold, above, equal = _kth_largest(flat, total)
        if above + equal != total:
            return None
        layers = (flat >= threshold).split(sizes)
        counts = torch.stack([torch.count_nonzero(layer) for layer in layers])
        if allow_empty or counts.all():
            break
        # The best unit of an empty layer comes first; then the others are ranked again.
        for layer in (counts == 0).nonzero().flatten().tolist():
            if not _promote_best_(flat.split(sizes)[layer]):
                return None
    pairs = zip(scores.items(), layers, strict=True)
    return Masks({n: m.as_strided(s.shape, s.stride()) for (n, s), m in pairs}, structure)


def _promote_best_(layer: Tensor) -> bool:
    """Put the best score before all others in place; False if it is not the only best."""
    best = layer.max()
    is_best = layer == best
    if int(torch.count_nonzero(is_best)) != 1:
        return False
    layer.masked_fill_(is_best, torch.inf)
    return True


def _is_dense(tensor: Tensor) -> bool:
    """Whether memory holds the entries without gaps, in one of the two usual orders."""
    return tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last)


def expand(
    kept: Mapping[str, Tensor], weights: Mapping[str, Tensor], structure: Structure
) -> Masks:
    """Masks shaped like `weights` from the kept units of each."""
    shapes = {name: weights[name].shape for name in kept}
    return Masks({n: structure.expand(kept[n], shape) for n, shape in shapes.items()}, structure)


def select_units(
    units: Mapping[str, Tensor],
    sparsity: float,
    structure: Structure,
    *,
    allow_empty: bool = False,
) -> dict[str, Tensor]:
    """Keep exactly round((1 - sparsity) * N) of all N units, ties going to the lowest index.

    In the scope "layer" each layer's share is its quota (1 - sparsity) * n, rounded so that the
    total is exact (see `share_out`). Every layer keeps at least its best unit unless `allow_empty`,
    in either scope, at the same total.
    """
    check_sparsity(sparsity)
    sizes = [score.numel() for score in units.values()]
    total = num_kept(sparsity, sum(sizes))
    if not allow_empty:
        check_enough(sparsity, sizes, structure)
    if structure.scope == "layer":
        counts = share_out(total, sizes, at_least=0 if allow_empty else 1)
        pairs = zip(units.items(), counts, strict=True)
        return {name: top_k_mask(score, count) for (name, score), count in pairs}
    flat = torch.cat(list(units.values()))
    layers = top_k_mask(flat, total).split(sizes)
    if not allow_empty and not torch.stack([torch.count_nonzero(m) for m in layers]).all():
        layers = top_k_mask(_best_unit_first(flat, sizes), total).split(sizes)
    return dict(zip(units, layers, strict=True))


def top_k_mask(scores: Tensor, k: int) -> Tensor:
    """True at the `k` largest of a flat tensor, equal scores in order of their index.

    Equal to a stable descending sort, without the sort: linear in the number of scores. A threshold
    alone would keep all scores that equal it or none, so the first of them are added one by one.
    """
    if k == 0 or k == scores.numel():
        return torch.full_like(scores, k > 0, dtype=torch.bool)
    threshold, above, equal = _kth_largest(scores, k)
    if above + equal == k:
        return scores >= threshold
    if above + equal < k:
        raise ValueError("Scores to select by contain NaN; was the loss finite?")
    mask = scores > threshold
    mask[(scores == threshold).nonzero().flatten()[: k - above]] = True
    return mask


def _kth_largest(scores: Tensor, k: int) -> tuple[Tensor, int, int]:
    """The k-th largest score, how many are above it, and how many equal it.

    Floyd and Rivest's idea: the ranks around k of a sample bound a narrow band that almost surely
    holds the answer, and only the band is searched. A band that missed it is found out by
    counting, and then all scores are searched; so the answer is exact in any case.
    """
    size = scores.numel()
    band, above = scores, 0
    if size > 16 * SAMPLE:
        sample = scores[:: size // SAMPLE].sort(descending=True).values
        rank = k / size * len(sample)
        margin = 1 + 4 * math.sqrt(rank * (1 - k / size))
        first, last = math.floor(rank - margin), math.ceil(rank + margin)
        high = sample[first] if first >= 0 else torch.inf
        low = sample[last] if last < len(sample) else -torch.inf
        inside = scores[(scores >= low) & (scores <= high)]
        outside = int(torch.count_nonzero(scores > high))
        if outside < k <= outside + len(inside):
            band, above = inside, outside
    threshold = band.kthvalue(band.numel() - (k - above) + 1).values
    larger, equal = torch.count_nonzero(band > threshold), torch.count_nonzero(band == threshold)
    return threshold, above + int(larger), int(equal)


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


def _best_unit_first(flat: Tensor, sizes: list[int]) -> Tensor:
    """The same ranking but for each layer's best unit, which now comes before all others."""
    promoted = flat.clone()
    for layer in promoted.split(sizes):
        layer[layer.argmax()] = torch.inf
    return promoted
