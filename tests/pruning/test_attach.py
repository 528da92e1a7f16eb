"""`attach` against the rule written out, over optimizers, methods and structures."""

from __future__ import annotations

import copy
import io
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

import biprune
from attach_oracle import Make, Reference

STEPS = 14
Batches = list[tuple[Tensor, Tensor]]


def one(kind: Callable[..., Optimizer], **options: Any) -> Make:
    return lambda model: [kind(model.parameters(), **options)]


def muon_and_adamw(model: nn.Module) -> list[Optimizer]:
    matrices = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    return [torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(others, lr=0.01)]


def several_groups(model: nn.Module) -> list[Optimizer]:
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 2], "lr": 0.1},
        {"params": [p for p in model.parameters() if p.ndim <= 2], "weight_decay": 0.0},
    ]
    return [torch.optim.SGD(groups, lr=0.03, momentum=0.9, weight_decay=1e-2)]


OPTIMIZERS: dict[str, Make] = {
    "sgd": one(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-2),
    "fused sgd": one(torch.optim.SGD, lr=0.05, momentum=0.9, fused=True),
    "groups": several_groups,
    "adam": one(torch.optim.Adam, lr=0.01, foreach=True),
    "adamw": one(torch.optim.AdamW, lr=0.01, weight_decay=0.1),
    "fused adamw": one(torch.optim.AdamW, lr=0.01, fused=True),
    "rmsprop": one(torch.optim.RMSprop, lr=0.005),
    "adafactor": one(torch.optim.Adafactor, lr=0.02),
    "muon and adamw": muon_and_adamw,
}
METHODS = ["bip-plus", "bip", "gmp", "movement"]
STRUCTURES = {"weight": 0.8, "filter": 0.5, "channel": 0.5, "1:3": 1 - 1 / 3}


def backward(model: nn.Module, batch: tuple[Tensor, Tensor], scale: float = 1.0) -> Tensor:
    model.zero_grad()
    loss = cross_entropy(model(batch[0]), batch[1])
    (loss * scale).backward()
    return loss.detach()


def attached(
    model: nn.Module, make: Make, method: str = "bip-plus", steps: int = STEPS, **how: Any
) -> tuple[Sequence[Optimizer], biprune.Pruner]:
    optimizers = make(model)
    given = optimizers[0] if len(optimizers) == 1 else optimizers
    how = {"sparsity": 0.8} | how
    return optimizers, biprune.attach(model, given, steps=steps, method=method, **how)


def is_plus_zero(values: Tensor) -> bool:
    return not values.any() and not values.signbit().any()


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_step_is_the_rule_written_out(
    conv_net: nn.Module, batches: Batches, name: str, method: str, structure: str
) -> None:
    plain = copy.deepcopy(conv_net)
    sparsity = STRUCTURES[structure]
    reference = Reference(plain, OPTIMIZERS[name], method, structure, sparsity, STEPS)
    optimizers, pruner = attached(
        conv_net, OPTIMIZERS[name], method, structure=structure, sparsity=sparsity
    )
    assert list(pruner.masks) == reference.names
    for batch in itertools.islice(itertools.cycle(batches), STEPS + 2):
        backward(plain, batch)
        backward(conv_net, batch)
        reference.step()
        for optimizer in optimizers:
            optimizer.step()
        for i, part in enumerate(reference.names):
            weight, mask = conv_net.get_parameter(part), pruner.masks[part]
            assert torch.equal(mask, reference.masks[i])
            assert torch.equal(pruner.theta[part], reference.theta[i])
            assert torch.equal(weight[mask], pruner.theta[part][mask])
            assert is_plus_zero(weight[~mask])
            if method != "gmp":
                scores = pruner.state_dict()["scores"][part].double()
                torch.testing.assert_close(scores, reference.scores[i], rtol=1e-4, atol=1e-6)
    assert pruner.step == STEPS
    assert pruner.sparsity == pytest.approx(sparsity, abs=1e-3)


def test_masks_move_and_weights_come_back(conv_net: nn.Module, batches: Batches) -> None:
    """Else the suite above would compare nothing."""
    (optimizer,), pruner = attached(conv_net, OPTIMIZERS["adamw"], steps=60)
    returned = 0
    for batch in itertools.islice(itertools.cycle(batches), 60):
        backward(conv_net, batch)
        before = pruner.masks
        optimizer.step()
        returned += sum(int((mask & ~before[n]).sum()) for n, mask in pruner.masks.items())
    assert returned > 5
    assert sum(record["flip_rate"] > 0 for record in pruner.history) > 30


@pytest.mark.parametrize("method", [method for method in METHODS if method != "bip"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_sparsity_zero_is_training_without_us(
    conv_net: nn.Module,
    batches: Batches,
    same_state: Callable[[nn.Module, nn.Module], bool],
    name: str,
    method: str,
) -> None:
    plain = copy.deepcopy(conv_net)
    ours, _ = attached(conv_net, OPTIMIZERS[name], method, sparsity=0.0)
    theirs = OPTIMIZERS[name](plain)
    for batch in batches * 3:
        for model, optimizers in ((conv_net, ours), (plain, theirs)):
            backward(model, batch)
            for optimizer in optimizers:
                optimizer.step()
    assert same_state(conv_net, plain)
    for own, other in zip(ours, theirs, strict=True):
        assert str(own.state_dict()) == str(other.state_dict())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["groups", "fused adamw", "muon and adamw"])
def test_a_resumed_run_is_the_same_bit_for_bit(
    conv_net: nn.Module,
    batches: Batches,
    same_state: Callable[[nn.Module, nn.Module], bool],
    name: str,
    method: str,
) -> None:
    again = copy.deepcopy(conv_net)
    optimizers, pruner = attached(conv_net, OPTIMIZERS[name], method)
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(o, 0.9) for o in optimizers]

    def train(model: nn.Module, optimizers: Sequence[Optimizer], schedulers: Any, n: int) -> None:
        for batch in itertools.islice(itertools.cycle(batches), n):
            backward(model, batch)
            for each in (*optimizers, *schedulers):
                each.step()

    train(conv_net, optimizers, schedulers, 7)
    saved = io.BytesIO()
    parts = [*optimizers, *schedulers, pruner, conv_net]
    torch.save([part.state_dict() for part in parts], saved)
    train(conv_net, optimizers, schedulers, 7)

    saved.seek(0)
    optimizers, other = attached(again, OPTIMIZERS[name], method)
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(o, 0.9) for o in optimizers]
    loaded = torch.load(saved, weights_only=True)
    for part, state in zip([*optimizers, *schedulers, other, again], loaded, strict=True):
        part.load_state_dict(state)
    train(again, optimizers, schedulers, 7)

    assert same_state(conv_net, again)
    assert other.masks == pruner.masks
    assert other.history == pruner.history
    mine, theirs = pruner.state_dict(), other.state_dict()
    assert {k: v for k, v in mine.items() if not isinstance(v, dict)} == {
        k: v for k, v in theirs.items() if not isinstance(v, dict)
    }
    for part in ("theta", "scores", "momentum"):
        for weight, value in mine.get(part, {}).items():
            assert torch.equal(value, theirs[part][weight])


def test_detach_leaves_an_ordinary_model_and_optimizer(
    conv_net: nn.Module, batches: Batches, same_state: Callable[[nn.Module, nn.Module], bool]
) -> None:
    (optimizer,), pruner = attached(conv_net, OPTIMIZERS["adamw"])
    names = [name for name, _ in conv_net.named_parameters()]
    for batch in batches:
        backward(conv_net, batch)
        optimizer.step()
    pruner.detach()
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert [name for name, _ in conv_net.named_parameters()] == names
    plain = copy.deepcopy(conv_net)
    other = torch.optim.AdamW(plain.parameters())
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for model, each in ((conv_net, optimizer), (plain, other)):
        backward(model, batches[0])
        each.step()
    assert same_state(conv_net, plain)
    assert int(torch.count_nonzero(conv_net.get_parameter("conv2.weight"))) > 600
    biprune.attach(conv_net, optimizer, sparsity=0.5, steps=3)  # and may be attached to again


@pytest.mark.parametrize(("name", "rate"), [("adamw", 1.0), ("sgd", 1e-3), ("rmsprop", 1.0)])
def test_the_scale_of_the_loss_does_not_matter(
    conv_net: nn.Module, batches: Batches, name: str, rate: float
) -> None:
    """Under SGD, whose steps are as large as the loss, the learning rate makes up for it."""
    large = copy.deepcopy(conv_net)
    (optimizer,), pruner = attached(conv_net, OPTIMIZERS[name], steps=40)
    (scaled,), other = attached(large, OPTIMIZERS[name], steps=40)
    for group in scaled.param_groups:
        group["lr"] *= rate
        if name == "sgd":
            group["weight_decay"] /= rate
    for batch in batches * 10:
        backward(conv_net, batch)
        optimizer.step()
        backward(large, batch, 1000.0)
        scaled.step()
        assert pruner.masks == other.masks


def test_memory_is_nine_bytes_a_weight(conv_net: nn.Module) -> None:
    _, pruner = attached(conv_net, OPTIMIZERS["sgd"])
    state = pruner.state_dict()
    held = [*state["theta"].values(), *state["scores"].values(), *state["masks"].values()]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held}
    assert sum(storages.values()) == 9 * pruner.masks.total
