"""Seeded splits and subsets that keep the classes balanced."""

import torch
from torch import Tensor


def split_train(
    labels: Tensor, num_classes: int, *, subset: int | None, val_fraction: float, seed: int
) -> tuple[Tensor, Tensor | None]:
    """Indices of the images for training and for validation, None if `val_fraction` is 0."""
    kept = torch.arange(len(labels))
    if subset is not None:
        if not num_classes <= subset <= len(labels):
            raise ValueError(
                f"`subset` must be from {num_classes}, the number of classes, to {len(labels)}, "
                f"the number of training images, got {subset}."
            )
        kept = balanced_subset(labels, subset, seed=seed)
    if val_fraction == 0:
        return kept, None
    train, val = stratified_cut(labels[kept], val_fraction, seed=seed)
    if len(train) == 0 or len(val) == 0:
        raise ValueError(
            f"`val_fraction` {val_fraction} of {len(kept)} images leaves {len(train)} for training "
            f"and {len(val)} for validation. Use more images, or `val_fraction=0`."
        )
    return kept[train], kept[val]


def balanced_subset(labels: Tensor, count: int, *, seed: int) -> Tensor:
    """Ascending indices of `count` images, equally many of each class.

    Class counts differ by at most one, unless a class has too few images. Then all of its images
    are taken, and the other classes share the rest.
    """
    order, ranks = _ranks_within_class(labels, seed)
    return order[torch.argsort(ranks, stable=True)][:count].sort().values


def stratified_cut(labels: Tensor, fraction: float, *, seed: int) -> tuple[Tensor, Tensor]:
    """Ascending indices of the images that stay, and of the `fraction` that is cut off.

    The cut has round(fraction * N) images. Each class gives its share, to within one image.
    """
    order, ranks = _ranks_within_class(labels, seed)
    sizes = torch.bincount(labels)[labels[order]]
    # Place the i-th image of a class at (i + 1/2) / size, so that every prefix is proportional.
    positions = (ranks + 0.5) / sizes
    order = order[torch.argsort(positions, stable=True)]
    count = round(fraction * len(labels))
    return order[count:].sort().values, order[:count].sort().values


def _ranks_within_class(labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """A random order of all images, and for each in that order its rank within its class."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    shuffled = labels[order]
    by_class = torch.argsort(shuffled, stable=True)
    sizes = torch.bincount(labels)
    first = sizes.cumsum(0) - sizes
    ranks = torch.empty_like(order)
    ranks[by_class] = torch.arange(len(labels)) - first[shuffled[by_class]]
    return order, ranks
