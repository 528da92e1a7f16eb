"""Batches of any shape: counting them, moving them, and the loss and accuracy on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from math import gcd
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

Batch = object  # a tensor, or any nesting of tuples, lists and dicts of them
Loss = Callable[[nn.Module, Batch], Tensor]
BatchScheme = Literal["different", "reverse", "same"]


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the model's parameters."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Return the same nesting with every tensor on `device`; other values pass through."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if callable(move := getattr(batch, "to", None)):  # such as a tokenizer's batch
        return move(device)
    if isinstance(batch, Mapping):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        moved = [to_device(value, device) for value in batch]
        if isinstance(batch, list):
            return moved
        return getattr(batch, "_make", tuple)(moved)  # namedtuples have their own constructor
    return batch


def tensors_in(nested: object) -> Iterator[Tensor]:
    """Yield every tensor in nested collections, in order; other values are skipped."""
    if isinstance(nested, Tensor):
        yield nested
    elif isinstance(nested, Iterable) and not isinstance(nested, str):
        for value in nested.values() if isinstance(nested, Mapping) else nested:
            yield from tensors_in(value)


def num_samples(batch: Batch) -> int:
    """Return the size of a batch: the length of its first tensor that has one, else 0."""
    return next((len(t) for t in tensors_in(batch) if t.ndim and len(t)), 0)


def count_batches(batches: Iterable[Batch], name: str = "data") -> int:
    """Return the number of batches in a pass, by `len` if possible, else by counting."""
    if isinstance(batches, Iterator):
        raise ValueError(
            f"`{name}` is a one-shot iterator, which training would exhaust in its first epoch. "
            "Pass something that can be iterated again: a DataLoader or a list of batches."
        )
    try:
        count = len(batches)  # pyright: ignore[reportArgumentType]
    except TypeError:  # a loader over an iterable data set has no length
        count = sum(1 for _ in batches)
    if count == 0:
        raise ValueError(f"`{name}` yields no batches: the loader is empty.")
    return count


class MicroBatches(tuple[Batch, ...]):
    """Batches whose gradients are accumulated for one step."""


@dataclass(frozen=True)
class Accumulated:
    """`batches` in groups of `size`; an incomplete group at the end of a pass is dropped."""

    batches: Iterable[Batch]
    size: int

    def __iter__(self) -> Iterator[Batch]:
        stream = iter(self.batches)
        while len(group := MicroBatches(islice(stream, self.size))) == self.size:
            yield group


def endless(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Yield batches without end, starting the loader again whenever it is exhausted."""
    while True:
        empty = True
        for batch in batches:
            empty = False
            yield batch
        if empty:
            raise ValueError("`data` stopped yielding batches: can it be iterated again?")


def take(batches: Iterable[Batch], count: int) -> Iterator[Batch]:
    """Yield exactly `count` batches of the endless stream."""
    return islice(endless(batches), count)


def level_batches(
    batches: Iterable[Batch], steps: int, lower_steps: int, scheme: BatchScheme
) -> Iterator[Sequence[Batch]]:
    """Yield `lower_steps` batches for theta and one for the mask, `steps` times.

    With "different", all come from one stream. With "reverse", the mask gets the epoch's batches in
    reverse order, which keeps them in memory. With "same", it gets the last batch of theta again.
    A loader is never iterated twice at the same time: with persistent workers it has only a single
    iterator.
    """
    if scheme == "different":
        return rotated(batches, steps, lower_steps + 1)
    if scheme == "same":
        return ((*group, group[-1]) for group in rotated(batches, steps, lower_steps))
    first_pass = list(take(batches, steps))
    lower = chain(first_pass, take(batches, steps * (lower_steps - 1)))
    return zip(*[lower] * lower_steps, reversed(first_pass), strict=True)


def rotated(batches: Iterable[Batch], steps: int, roles: int) -> Iterator[Sequence[Batch]]:
    """Yield `steps` groups of `roles` batches, rotating the roles whenever the groups repeat.

    With a loader that does not shuffle, groups repeat after lcm(steps, roles) batches. Without the
    rotation, every role would see only a part of the batches.
    """
    stream = take(batches, steps * roles)
    for number, group in enumerate(zip(*[stream] * roles, strict=True)):
        turn = number * gcd(steps, roles) // steps
        yield (*group[turn:], *group[:turn])


def loss_of(loss: Loss, model: nn.Module, batch: Batch) -> Tensor:
    """Return the loss of a batch, or raise an error that tells the user what is wrong."""
    try:
        value = loss(model, batch)
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise ValueError(
            "A batch holds one sample, but BatchNorm needs at least two to train. If it is the "
            "last batch, pass `drop_last=True` to the DataLoader; else use a larger `batch_size`."
        ) from error
    if not (isinstance(value, Tensor) and value.numel() == 1):
        raise TypeError(f"`loss` must return a scalar tensor, got {described(value)}.")
    return value


def described(value: object) -> str:
    """Describe in a few words what a user's function returned."""
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def logits_of(output: object) -> Tensor:
    """Return the logits in a model's output: the tensor, its `logits`, or its first item."""
    named = output.get("logits") if isinstance(output, Mapping) else None
    found = getattr(output, "logits", output) if named is None else named
    if isinstance(found, (tuple, list)) and found:
        found = found[0]
    if not isinstance(found, Tensor):
        raise ValueError(
            "The logits must be the tensor that the model returns, its `logits` or the first "
            f"element of a tuple, got {described(output)}. Wrap the model, or pass `loss` and "
            "`evaluate`."
        )
    return found


def classification_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Return the cross-entropy of `model(inputs)` for a batch `(inputs, labels)`."""
    if not (isinstance(batch, (tuple, list)) and len(batch) == 2):
        raise ValueError(
            f"The default loss needs batches of (inputs, labels), got {type(batch).__name__}. "
            "Pass `loss`, a function of (model, batch)."
        )
    inputs, labels = batch
    logits = logits_of(model(inputs))
    if logits.ndim < 2 or logits.shape[1] < 2:
        raise ValueError(
            "The default loss is cross-entropy over classes, but outputs of shape "
            f"{tuple(logits.shape)} have no two classes. Pass `loss`, a function of (model, batch)."
        )
    try:
        return cross_entropy(logits, labels)
    except IndexError:
        lowest = int(labels.min())
        raise ValueError(
            f"Labels run from {lowest} to {int(labels.max())}, but the model has "
            f"{logits.shape[1]} outputs. "
            f"{'Count them from 0.' if lowest < 0 else 'Build it with enough `num_classes`.'}"
        ) from None


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put every submodule into eval mode, and back as it was afterwards."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


@torch.no_grad()
def accuracy(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Return the percentage of samples whose largest logit is the label's."""
    device = device_of(model)
    correct, total = 0, 0
    with evaluation_mode(model):
        for inputs, labels in batches:
            predicted = logits_of(model(inputs.to(device))).argmax(dim=1)
            correct += int((predicted == labels.to(device)).sum())
            total += len(labels)
    if total == 0:
        raise ValueError("There are no samples to evaluate on: the loader is empty.")
    return 100.0 * correct / total
