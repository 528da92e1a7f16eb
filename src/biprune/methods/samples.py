"""A class-balanced draw from training batches."""

from __future__ import annotations

import math
from collections import Counter
from itertools import islice

import torch
from torch import Tensor

from biprune.methods.at_init import Scoring
from biprune.training.batches import Batch, count_batches


def class_balanced(scoring: Scoring, per_class: int) -> list[Batch]:
    """Equal chunks, no longer than a batch, of `per_class` samples of each class, classes mixed.

    One pass over the training batches; a class with fewer samples gives what it has. Batches that
    are no pair of tensors (inputs, class labels) say nothing of classes, and inputs of other shapes
    do not go together: the first is taken whole.
    """
    inputs: list[Tensor] = []
    labels: list[Tensor] = []
    taken: Counter[int] = Counter()
    size, first = 1, None
    for batch in islice(scoring.stream(), count_batches(scoring.setup.batches)):
        if not _is_labelled(batch):
            return [batch]
        first = first or batch
        images, classes = batch  # pyright: ignore[reportGeneralTypeIssues]
        size = max(size, len(classes))
        chosen = []
        for index, label in enumerate(classes.tolist()):
            if taken[label] < per_class:
                taken[label] += 1
                chosen.append(index)
        if chosen:  # copies, which do not hold the whole batch
            inputs.append(images[chosen])
            labels.append(classes[chosen])
    if len({images.shape[1:] for images in inputs}) > 1:
        return [first]
    # A shuffled loader gives the samples in mixed order, so the chunks mix classes as well. They
    # are summed as equals, and BatchNorm cannot train on a rest of one.
    count = math.ceil(taken.total() / size)
    chunks = (torch.cat(parts).tensor_split(count) for parts in (inputs, labels))
    return list(zip(*chunks, strict=True))


def _is_labelled(batch: Batch) -> bool:
    if not (isinstance(batch, (tuple, list)) and len(batch) == 2):
        return False
    inputs, labels = batch
    if not (isinstance(inputs, Tensor) and isinstance(labels, Tensor)):
        return False
    return labels.ndim == 1 and not labels.is_floating_point()
