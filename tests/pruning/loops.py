"""Optimizers, methods, structures and a plain loop, for the tests of `attach` and `hold`."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adafactor, Adam, AdamW, Muon, Optimizer, RMSprop

import biprune
from biprune.methods.moving import MovingMask

Batches = list[tuple[Tensor, Tensor]]
Groups = list[dict[str, Any]]  # weights, and norms with biases
Make = Callable[[Groups], list[Optimizer]]
Loss = Callable[[nn.Module, Any], Tensor]
Same = Callable[[nn.Module, nn.Module], bool]


class Adam8bit(Optimizer):
    """Adam whose moments are bytes with one scale a tensor, and whose steps are its own."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:  # pyright: ignore
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    first, second = (self._moment(p, name) for name in ("first", "second"))
                    first.lerp_(p.grad, 0.1)
                    second.lerp_(p.grad**2, 0.01)
                    p.addcdiv_(first, second.sqrt() + 1e-4, value=-group["lr"])
                    self.state[p] = {"first": _bytes(first), "second": _bytes(second)}
        return loss

    def _moment(self, p: Tensor, name: str) -> Tensor:
        if name not in self.state[p]:
            return torch.zeros_like(p)
        values, scale = self.state[p][name]
        return values.float() * scale


def _bytes(moment: Tensor) -> list[Tensor]:
    scale = moment.abs().amax() / 127
    return [(moment / scale.clamp(min=1e-20)).round().to(torch.int8), scale]


def one(kind: Callable[..., Optimizer], **options: Any) -> Make:
    return lambda groups: [kind(groups, **options)]


def own_settings(groups: Groups) -> list[Optimizer]:
    """A rate and a decay for each group."""
    weights, rest = groups
    kinds = [
        {"params": [p for p in weights["params"] if p.ndim > 2], "lr": 0.1},
        {"params": [p for p in weights["params"] if p.ndim == 2], "weight_decay": 0.1},
        rest,
    ]
    return [SGD(kinds, lr=0.03, momentum=0.9, weight_decay=1e-2)]


def muon_and_adamw(groups: Groups) -> list[Optimizer]:
    """Muon takes matrices alone."""
    weights, rest = groups
    matrices = [p for p in weights["params"] if p.ndim == 2]
    others = [p for p in weights["params"] if p.ndim != 2]
    return [Muon(matrices, lr=0.02), AdamW([{"params": others}, rest], lr=0.01)]


OPTIMIZERS: dict[str, Make] = {
    "sgd": one(SGD, lr=0.05),
    "nesterov": one(SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-2),
    "fused sgd": one(SGD, lr=0.05, momentum=0.9, fused=True),
    "groups": own_settings,
    "adam": one(Adam, lr=0.01, foreach=True),
    "adamw": one(AdamW, lr=0.01, weight_decay=0.1, foreach=False),
    "fused adamw": one(AdamW, lr=0.01, fused=True),
    "rmsprop": one(RMSprop, lr=0.005),
    "adafactor": one(Adafactor, lr=0.02),
    "muon and adamw": muon_and_adamw,
    "adam in 8 bits": one(Adam8bit, lr=0.01),
}
METHODS = {n: each for n, each in biprune.METHODS.items() if issubclass(each, MovingMask)}
STRUCTURES = {"weight": 0.8, "filter": 0.5, "channel": 0.5, "2:4": 0.5}


def made(make: Make, model: nn.Module) -> list[Optimizer]:
    """The optimizers of a table for a model."""
    parameters = list(model.parameters())
    weights = [p for p in parameters if p.ndim > 1]
    return make([{"params": weights}, {"params": [p for p in parameters if p.ndim <= 1]}])


def attached(
    model: nn.Module, optimizers: Sequence[Optimizer], method: str = "bip-plus", **how: Any
) -> biprune.Pruner:
    """A pruner, of 0.8 in 12 steps unless something else is said."""
    given = optimizers[0] if len(optimizers) == 1 else optimizers
    return biprune.attach(model, given, method=method, **{"sparsity": 0.8, "steps": 12} | how)


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The cross-entropy of a batch."""
    return cross_entropy(model(batch[0]), batch[1])


def backward(model: nn.Module, batch: tuple[Tensor, Tensor], scale: float = 1.0) -> None:
    """Clear the gradients, and one pass."""
    model.zero_grad()
    (loss_of(model, batch) * scale).backward()


def train(
    model: nn.Module, optimizers: Sequence[Optimizer], batches: Batches, steps: int | None = None
) -> None:
    """A plain loop over so many batches, or over all of them once."""
    count = len(batches) if steps is None else steps
    for batch in itertools.islice(itertools.cycle(batches), count):
        backward(model, batch)
        for optimizer in optimizers:
            optimizer.step()


def trained(
    model: nn.Module, optimizer: Optimizer, batches: Batches, method: str = "bip-plus", **how: Any
) -> biprune.Pruner:
    """A run that others are compared with."""
    pruner = attached(model, [optimizer], method, **how)
    train(model, [optimizer], batches, 12)
    return pruner


def is_plus_zero(values: Tensor) -> bool:
    """Whether there is no other bit in them."""
    return not values.any() and not values.signbit().any()


def shows_z(model: nn.Module, pruner: biprune.Pruner) -> bool:
    """Whether every weight is m * theta, bit for bit."""
    pairs = ((model.get_parameter(n), mask, pruner.theta[n]) for n, mask in pruner.masks.items())
    return all(
        torch.equal(weight[mask], theta[mask]) and is_plus_zero(weight[~mask])
        for weight, mask, theta in pairs
    )


def same_content(one: Any, other: Any) -> bool:
    """Whether two nested states are the same bit for bit."""
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_content(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        pairs = itertools.zip_longest(one, other)
        return all(same_content(mine, theirs) for mine, theirs in pairs)
    return one == other


def distilled(teacher: nn.Module, temperature: float, weight: float) -> Loss:
    """(1 - w) * cross-entropy + w T^2 KL(teacher || student), sample by sample."""
    teacher = copy.deepcopy(teacher).eval()

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, labels = batch
        with torch.no_grad():
            taught = (teacher(images) / temperature).softmax(dim=1)
        logits = model(images)
        learned = (logits / temperature).softmax(dim=1)
        terms = []
        for p, q, own, label in zip(taught, learned, logits, labels, strict=True):
            divergence = sum(p[c] * (p[c].log() - q[c].log()) for c in range(len(p)))
            own_loss = -own.softmax(dim=0)[label].log()
            terms.append((1 - weight) * own_loss + weight * temperature**2 * divergence)
        return torch.stack(terms).mean()

    return loss
