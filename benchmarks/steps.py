"""One training step of each kind, ready to be called: what `step_cost` and `memory` measure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import biprune
from biprune.core.structure import get_structure
from biprune.methods.base import Start, Target, magnitudes
from biprune.methods.hydra import HydraAlgorithm
from biprune.methods.moving import MaskTraining, MovingMask
from biprune.training.batches import classification_loss
from biprune.training.copying import copy_model
from biprune.training.loop import Algorithm, Passes
from biprune.training.recipes import Recipe
from biprune.training.schedule import Moment
from biprune.training.setup import Setup
from biprune.training.train import PlainTraining

Step = Callable[[], object]
Batches = Sequence[tuple[Tensor, Tensor]]
SPARSITY = 0.9
TOKENS = 256


def random_batches(size: int) -> Batches:
    return [(torch.randn(size, 3, 32, 32), torch.randint(10, (size,))) for _ in range(2)]


def new_model(name: str) -> nn.Module:
    """A network whose weights are of one size in all layers.

    As drawn they are smaller in wide layers, some of which would lose all weights at 90 %. That
    takes a second selection and does not happen in a trained network.
    """
    torch.manual_seed(0)
    model = copy_model(biprune.create_model(name), channels_last=True).train()
    with torch.no_grad():
        for weight in (p for p in model.parameters() if p.ndim > 1):
            weight.div_(weight.std() / 0.02)
    return model


class Transformer(nn.Module):
    """A classifier of token sequences, of 10.6 million prunable weights at the default width."""

    def __init__(self, width: int = 384) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, width)
        layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, 0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 6)
        self.head = nn.Linear(width, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of each sequence."""
        return self.head(self.body(self.embedding(tokens)).mean(dim=1))


def random_tokens(size: int, length: int = 64) -> Batches:
    return [(torch.randint(TOKENS, (size, length)), torch.randint(10, (size,))) for _ in range(2)]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4, fused=True)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)


def dense_step(model: nn.Module, batches: Batches) -> Step:
    """The yardstick: a minimal loop in plain PyTorch, same memory format, same fused SGD."""
    return loop_step(model, batches, sgd(model))


def attach_step(model: nn.Module, batches: Batches) -> Step:
    """The yardstick with our default attached to it."""
    return attached_step(model, batches, sgd(model))


def hold_step(model: nn.Module, batches: Batches) -> Step:
    """The yardstick under a mask that stays."""
    return held_step(model, batches, sgd(model))


def attached_step(model: nn.Module, batches: Batches, optimizer: torch.optim.Optimizer) -> Step:
    """At the full sparsity from the first step on, and for as long as it is called."""
    biprune.attach(model, optimizer, sparsity=SPARSITY, steps=10**6, ramp=1e-6)
    return loop_step(model, batches, optimizer)


def held_step(model: nn.Module, batches: Batches, optimizer: torch.optim.Optimizer) -> Step:
    biprune.hold(model, optimizer, TARGET.select(magnitudes(TARGET.weights(model))))
    return loop_step(model, batches, optimizer)


def loop_step(model: nn.Module, batches: Batches, optimizer: torch.optim.Optimizer) -> Step:
    """A minimal loop in plain PyTorch."""
    inputs, labels = batches[0]

    def step() -> None:
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        loss.item()

    return step


def bip_step(model: nn.Module, batches: Batches) -> Step:
    """As published: two passes on two batches, as `prune` runs it."""
    return _moving(biprune.BiP(), model, batches)


def default_step(model: nn.Module, batches: Batches) -> Step:
    """Our default, as `prune` runs it; behind the ramp, at the sparsity of the others."""
    return _moving(biprune.BiPPlus(ramp=1e-6), model, batches)


def hydra_step(model: nn.Module, batches: Batches) -> Step:
    """Hydra's first half: the scores learn."""
    return _driven(model, batches, lambda start, _: HydraAlgorithm(biprune.Hydra(), start, TARGET))


def imp_step(model: nn.Module, batches: Batches) -> Step:
    """A step of IMP's retraining, under its mask."""
    masks = TARGET.select(magnitudes(TARGET.weights(model)))
    return _driven(
        model, batches, lambda start, setup: PlainTraining(start.model, Recipe(), setup, masks)
    )


STEPS: dict[str, Callable[[nn.Module, Batches], Step]] = {
    "dense": dense_step,
    "bip": bip_step,
    "bip-plus": default_step,
    "hydra": hydra_step,
    "imp": imp_step,
    "attach": attach_step,
    "hold": hold_step,
}
EPOCHS = 10  # of the run that a step is taken from
TARGET = Target(SPARSITY, get_structure("weight"))


def _moving(method: MovingMask, model: nn.Module, batches: Batches) -> Step:
    """Of a run so long that it is not over however often the step is called."""
    method = method.scaled(10**6)
    return _driven(model, batches, lambda start, s: MaskTraining(method, start.model, s, TARGET))


def _driven(
    model: nn.Module,
    batches: Batches,
    make: Callable[[Start, Setup], Algorithm],
) -> Step:
    setup = Setup(batches, classification_loss)
    algorithm = make(Start(model), setup)
    passes = Passes(model, setup)
    group = next(iter(algorithm.groups(batches, len(batches))))
    now = Moment(0, 0, EPOCHS, len(batches))
    return lambda: algorithm.step(passes, group, now)
