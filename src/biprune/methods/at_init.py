"""Methods that prune before training, from scores on a few labelled samples."""

from __future__ import annotations

import copy
import math
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from biprune.core.structure import Structure
from biprune.methods.base import Outcome, Start, Target, TrainingMethod, retrain_
from biprune.methods.gates import Gates, gated_parameters
from biprune.training.batches import (
    Batch,
    count_batches,
    device_of,
    endless,
    loss_of,
    num_samples,
    to_device,
)
from biprune.training.loop import Cost, train_mode_
from biprune.training.seeding import DRAWS, derive_seed, forked_rng, seed_all
from biprune.training.setup import Setup


def class_balanced(scoring: Scoring, per_class: int) -> list[Batch]:
    """Return `per_class` samples of each class, in equal chunks no longer than a batch.

    It takes one pass over the training batches; a class with fewer samples gives all it has. If
    batches are not pairs (inputs, class labels) of tensors, or their inputs differ in shape, the
    result is the first batch.
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
    # A shuffled loader mixes classes, so the chunks do too. They are equal in size, because their
    # gradients get equal weight in the sum, and BatchNorm cannot train on one sample.
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


@dataclass
class Scoring:
    """A copy of the network for taking gradients; it counts every pass."""

    model: nn.Module
    weights: dict[str, nn.Parameter]
    setup: Setup
    forward_passes: int = field(default=0, init=False)
    backward_passes: int = field(default=0, init=False)

    def stream(self) -> Iterator[Batch]:
        """Return an endless stream of training batches on the model's device."""
        device = device_of(self.model)
        return (to_device(batch, device) for batch in endless(self.setup.batches))

    def batches(self, samples: int, stream: Iterator[Batch] | None = None) -> list[Batch]:
        """Take batches of `stream` (default: a new one) until they hold `samples` samples.

        Never more than one pass over the training data.
        """
        found, seen = [], 0
        for batch in islice(stream or self.stream(), self._most):
            found.append(batch)
            seen += num_samples(batch) or samples  # one batch will do if its size is unknown
            if seen >= samples:
                break
        return found

    @cached_property
    def _most(self) -> int:
        # Counted once, before a stream is open: a loader without a length must be iterated.
        return count_batches(self.setup.batches)

    def gates(self, structure: Structure, batch: Batch) -> Gates:
        """Return what the units' gates multiply; for filters this takes a forward pass."""
        return gated_parameters(self.model, self.weights, structure, lambda: self.loss(batch))

    def loss(self, batch: Batch) -> Tensor:
        """Run one forward pass and return the loss."""
        self.forward_passes += 1
        return loss_of(self.setup.loss, self.model, batch)

    def gradients(
        self,
        output: Tensor,
        parameters: Sequence[Tensor],
        *,
        num_batches: int = 1,
        create_graph: bool = False,
    ) -> list[Tensor]:
        """Run a backward pass of `num_batches`; unused parameters get a gradient of zeros."""
        self.backward_passes += num_batches
        if not output.requires_grad:
            return [torch.zeros_like(p) for p in parameters]
        found = torch.autograd.grad(
            output, parameters, create_graph=create_graph, allow_unused=True
        )
        pairs = zip(parameters, found, strict=True)
        return [torch.zeros_like(p) if g is None else g for p, g in pairs]

    def summed_gradients(
        self, batches: Sequence[Batch], parameters: Sequence[Tensor]
    ) -> list[Tensor]:
        """Return the sum of the gradients of each batch's mean loss."""
        total = [torch.zeros_like(p) for p in parameters]
        for batch in batches:
            gradients = self.gradients(self.loss(batch), parameters)
            total = [t + g for t, g in zip(total, gradients, strict=True)]
        return total


@dataclass(frozen=True)
class AtInit(TrainingMethod):
    """Scores the initial weights, prunes once and trains, with the BiP paper's settings."""

    starts_from: ClassVar[Literal["dense", "init"]] = "init"

    epochs: int = 200

    @abstractmethod
    def unit_scores(self, scoring: Scoring, target: Target) -> Mapping[str, Tensor]:
        """Return a flat tensor of unit scores for each prunable tensor; the highest are kept."""

    def run(self, start: Start, setup: Setup, target: Target) -> Outcome:
        """Restore the initial weights, score them, prune, and train what is kept."""
        note = start.rewind_(0)
        began = time.perf_counter()
        model = copy.deepcopy(start.model)
        train_mode_(model)
        scoring = Scoring(model, target.weights(model), setup)
        # Fused attention kernels have no second derivative.
        with forked_rng(setup.batches), sdpa_kernel(SDPBackend.MATH):
            seed_all(derive_seed(setup.seed, DRAWS), setup.batches)
            units = self.unit_scores(scoring, target)
        masks = target.select_units(scoring.weights, units)
        seconds = time.perf_counter() - began
        cost = Cost(seconds, scoring.forward_passes, scoring.backward_passes)
        trained = retrain_(start.model, masks, self.recipe(), setup, note)
        return replace(trained, cost=cost + trained.cost)
