"""The exact top-k under a structure: the only place where a mask is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from biprune.core.layout import flattened, is_dense, logical_places, views_like
from biprune.core.masks import Masks
from biprune.core.ranking import band_around, cut, is_host, top_k_mask, true_places
from biprune.core.structure import Structure, num_kept


def check_sparsity(sparsity: float, argument: str = "sparsity") -> None:
    """Refuse what is not a fraction to remove, in [0, 1)."""
    if not isinstance(sparsity, (int, float)):
        raise TypeError(f"`{argument}` must be a number in [0, 1), got {sparsity!r}.")
    if 0 <= sparsity < 1:
        return
    hint = f" Did you mean {sparsity / 100:g}?" if 1 < sparsity < 100 else ""
    raise ValueError(f"`{argument}` must be in [0, 1), got {sparsity:g}.{hint}")


def check_kept(masks: Masks, sparsity: float, *, allow_empty: bool) -> None:
    """Check what a method has kept, before anyone measures it.

    Raises:
        RuntimeError: The method has a bug: another number of units is kept than was asked for, or
            a layer is empty.
    """
    layers = masks.per_layer()
    total = sum(count.total for count in layers.values())
    masks.structure.check_kept([count.kept for count in layers.values()], total, sparsity)
    empty = [name for name, count in layers.items() if count.kept == 0]
    if empty and not allow_empty:
        raise RuntimeError(f"The method emptied the layers {', '.join(empty)}.")


def select(
    scores: Mapping[str, Tensor],
    sparsity: float,
    structure: Structure,
    *,
    allow_empty: bool = False,
    weights: Mapping[str, Tensor] | None = None,
) -> Masks:
    """Keep the units whose weights score highest; see `select_units` for what is guaranteed.

    Args:
        scores: Shaped like the weights, and pooled to units by the structure. With `weights`,
            shaped as `Structure.scored` says.
        sparsity: The removed fraction of units.
        structure: What a unit is, and which units compete.
        allow_empty: Whether a layer may lose all of its units.
        weights: What the masks are shaped like, where the scores are not.

    Returns:
        The masks, laid out in memory as the scores are where that is faster.

    Example:
        >>> from biprune.core.structure import get_structure
        >>> masks = select({"w": torch.tensor([3.0, 1.0, 2.0])}, 2 / 3, get_structure("weight"))
        >>> masks["w"].tolist()
        [True, False, False]
    """
    check_sparsity(sparsity)
    if structure.is_one_ranking and is_host(next(iter(scores.values()))):
        kept = _by_threshold(list(scores.values()), sparsity, allow_empty)
        if kept is not None:
            return Masks(views_like(scores, kept), structure)
    units = structure.pool(scores) if weights is None else structure.pool_scored(scores)
    chosen = select_units(units, sparsity, structure, allow_empty=allow_empty)
    return Masks(structure.expand(chosen, weights or scores), structure)


def _by_threshold(scores: Sequence[Tensor], sparsity: float, allow_empty: bool) -> Tensor | None:
    """What is kept, in the order of memory, or None if too many scores are equal for that.

    A threshold does not ask for the order of the scores. Each layer that would be empty takes a
    unit from the others, which may empty another layer: so it is done again until all have one.
    """
    if not all(is_dense(score) for score in scores):
        return None
    flat, sizes = flattened(scores), [score.numel() for score in scores]
    total, num_empty = num_kept(sparsity, len(flat)), 0
    band = band_around(flat, total) if 0 < total < len(flat) else None
    while len(sizes) <= total < len(flat) and num_empty < total:
        found = cut(flat, total - num_empty, partial(_logical_order, scores=scores), band)
        if not found.ordered:
            return None
        layers = found.mask.split(sizes)
        empty = [] if allow_empty else _empty_layers(layers)
        if len(empty) == num_empty:
            for layer in empty:
                _keep_best_(layers[layer], flat.split(sizes)[layer], scores[layer])
            return found.mask
        num_empty = len(empty)
    return None


def _logical_order(places: Tensor, scores: Sequence[Tensor]) -> Tensor:
    """Where `places` in the memory of all scores come, layer by layer in logical order."""
    order, start = torch.empty_like(places), 0
    for score in scores:
        inside = (places >= start) & (places < start + score.numel())
        order[inside] = start + logical_places(places[inside] - start, score)
        start += score.numel()
    return order


def _empty_layers(masks: Sequence[Tensor]) -> list[int]:
    # torch finds the maximum of bytes some 70 times as fast as `any` of booleans.
    kept = torch.stack([mask.view(torch.uint8).amax() for mask in masks])
    return (kept == 0).nonzero().flatten().tolist()


def _keep_best_(mask: Tensor, flat: Tensor, score: Tensor) -> None:
    """Keep the first of the best scores of a layer, `score`, which lies in memory as `flat`."""
    best = true_places(flat == flat.max())
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
    total is exact (see `share_out`). In either scope every layer keeps at least its best unit, at
    the same total, unless `allow_empty`. Under a budget the number follows from what units cost
    (see `budget`), and of n:m every block keeps the same number.

    Args:
        units: The scores of the units of each layer or group, flat.
        sparsity: The fraction of units to remove.
        structure: What the units are.
        allow_empty: Whether a layer may lose all of its units.

    Returns:
        Which units stay, shaped like `units`.

    Raises:
        ValueError: The sparsity leaves fewer units than there are layers.
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
