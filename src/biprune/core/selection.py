"""The exact top-k under a structure: the only place where a mask is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from biprune.core.layout import flattened, is_dense, logical_places, views_like
from biprune.core.masks import Masks
from biprune.core.ranking import Band, cut, is_host, top_k_mask
from biprune.core.structure import Structure, num_kept


def check_sparsity(sparsity: float, argument: str = "sparsity") -> None:
    """Refuse what is not a removed fraction."""
    if not isinstance(sparsity, (int, float)):
        raise TypeError(f"`{argument}` must be a number in [0, 1), got {sparsity!r}.")
    if 0 <= sparsity < 1:
        return
    hint = f" Did you mean {sparsity / 100:g}?" if 1 < sparsity < 100 else ""
    raise ValueError(f"`{argument}` must be in [0, 1), got {sparsity:g}.{hint}")


def check_kept(masks: Masks, sparsity: float, *, allow_empty: bool) -> None:
    """A method that misses what was asked for has a bug; say so before anyone measures it."""
    layers = masks.per_layer()
    total = sum(count.total for count in layers.values())
    masks.structure.check_kept([count.kept for count in layers.values()], total, sparsity)
    empty = [name for name, count in layers.items() if count.kept == 0]
    if empty and not allow_empty:
        raise RuntimeError(f"The method emptied the layers {', '.join(empty)}.")


class Selector:
    """Keeps the units whose weights score highest; see `select_units` for what is guaranteed.

    Scores are shaped like the weights and pooled to units by the structure. With `weights` they are
    shaped as `Structure.scored` says, and the masks like the weights. The last cut is the first
    guess at the next: it changes the time that a selection takes, never the masks.
    """

    def __init__(
        self,
        structure: Structure,
        allow_empty: bool = False,
        weights: Mapping[str, Tensor] | None = None,
    ) -> None:
        self._structure = structure
        self._allow_empty = allow_empty
        self._weights = weights
        self._band: Band | None = None
        self._num_promoted = 0

    def __call__(self, scores: Mapping[str, Tensor], sparsity: float) -> Masks:
        """The masks of `scores` at `sparsity`."""
        check_sparsity(sparsity)
        structure = self._structure
        if structure.is_one_ranking and is_host(next(iter(scores.values()))):
            kept = self._by_threshold(list(scores.values()), sparsity)
            if kept is not None:
                return Masks(views_like(scores, kept), structure)
        pool = structure.pool if self._weights is None else structure.pool_scored
        units = pool(scores)
        kept = select_units(units, sparsity, structure, allow_empty=self._allow_empty)
        return Masks(structure.expand(kept, self._weights or scores), structure)

    def _by_threshold(self, scores: Sequence[Tensor], sparsity: float) -> Tensor | None:
        """The kept ones in the order of memory, or None if too many are equal for that.

        A threshold does not ask for the order of the scores. As many layers as would be empty take
        a unit each from the others; there are as many of them as last time, until counted.
        """
        if not all(is_dense(score) for score in scores):
            return None
        flat, sizes = flattened(scores), [score.numel() for score in scores]
        total = num_kept(sparsity, len(flat))
        while len(sizes) <= total < len(flat) and self._num_promoted < total:
            order = partial(_logical_order, scores=scores)
            found = cut(flat, total - self._num_promoted, self._band, order)
            self._band = found.band
            if not found.ordered:
                return None
            layers = found.mask.split(sizes)
            empty = [] if self._allow_empty else _empty_layers(layers)
            if len(empty) == self._num_promoted:
                for layer in empty:
                    _keep_best_(layers[layer], flat.split(sizes)[layer], scores[layer])
                return found.mask
            self._num_promoted = len(empty)
        return None


def _logical_order(places: Tensor, scores: Sequence[Tensor]) -> Tensor:
    """Layer by layer, each in its logical order, of places in the memory of all."""
    order, start = torch.empty_like(places), 0
    for score in scores:
        inside = (places >= start) & (places < start + score.numel())
        order[inside] = start + logical_places(places[inside] - start, score)
        start += score.numel()
    return order


def _empty_layers(masks: Sequence[Tensor]) -> list[int]:
    counts = torch.stack([torch.count_nonzero(mask) for mask in masks])
    return (counts == 0).nonzero().flatten().tolist()


def _keep_best_(mask: Tensor, flat: Tensor, score: Tensor) -> None:
    """Keep the first of the best scores of a layer, `score`, which lies in memory as `flat`."""
    best = (flat == flat.max()).nonzero().flatten()
    mask[best[logical_places(best, score).argmin()]] = True


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
    in either scope, at the same total. Under a budget the count follows from it (see `budget`);
    of blocks each keeps the same.
    """
    check_sparsity(sparsity)
    if (size := structure.block) is not None:
        kept = num_kept(sparsity, size)
        return {name: _best_of_blocks(score, kept, size) for name, score in units.items()}
    named = {name: score.numel() for name, score in units.items()}
    structure.check_reachable(sparsity, named, allow_empty=allow_empty)
    counts = structure.counts(units, sparsity, at_least=0 if allow_empty else 1)
    if counts is not None:
        pairs = zip(units.items(), counts, strict=True)
        return {name: top_k_mask(score, count) for (name, score), count in pairs}
    sizes = list(named.values())
    total = num_kept(sparsity, sum(sizes))
    flat = torch.cat(list(units.values()))
    layers = top_k_mask(flat, total).split(sizes)
    if not allow_empty and not _none_is_empty(layers):
        layers = top_k_mask(_best_unit_first(flat, sizes), total).split(sizes)
    return dict(zip(units, layers, strict=True))


def _best_of_blocks(scores: Tensor, kept: int, size: int) -> Tensor:
    """The `kept` highest of every `size` scores in a row, equal ones in order."""
    rows = scores.view(-1, size)
    best = rows.argsort(dim=1, descending=True, stable=True)[:, :kept]
    return torch.zeros_like(rows, dtype=torch.bool).scatter_(1, best, True).flatten()


def _best_unit_first(flat: Tensor, sizes: list[int]) -> Tensor:
    """The same ranking but for each layer's best unit, which now comes before all others."""
    promoted = flat.clone()
    for layer in promoted.split(sizes):
        layer.index_fill_(0, layer.argmax(keepdim=True), torch.inf)
    return promoted


def _none_is_empty(layers: Sequence[Tensor]) -> bool:
    """Whether all layers are known to keep a unit; other devices than the CPU are not asked."""
    return is_host(layers[0]) and not _empty_layers(layers)
