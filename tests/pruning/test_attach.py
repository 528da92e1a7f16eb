"""`attach` against the rule written out, over optimizers, methods and structures."""

from __future__ import annotations

import copy
import io
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from loops import (
    METHODS,
    OPTIMIZERS,
    STRUCTURES,
    Batches,
    Same,
    attached,
    backward,
    made,
    one,
    same_content,
    shows_z,
    train,
)
from torch import nn
from torch.optim import AdamW, Optimizer, RMSprop

import biprune
from attach_oracle import Reference

STEPS = 12


@pytest.fixture
def net(conv_net: nn.Module) -> nn.Module:
    """With numbers of inputs that 2:4 divides."""
    return type(conv_net)(width=4)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_step_is_the_rule_written_out(
    net: nn.Module, batches: Batches, name: str, method: str, structure: str
) -> None:
    plain, sparsity = copy.deepcopy(net), STRUCTURES[structure]
    theirs = made(OPTIMIZERS[name], plain)
    reference = Reference(plain, theirs, method, structure, sparsity, STEPS)
    ours = made(OPTIMIZERS[name], net)
    pruner = attached(net, ours, method, structure=structure, sparsity=sparsity, steps=STEPS)
    assert list(pruner.masks) == reference.names
    for batch in itertools.islice(itertools.cycle(batches), STEPS + 2):
        backward(plain, batch)
        reference.step()
        train(net, ours, [batch])
        assert shows_z(net, pruner)
        for i, part in enumerate(reference.names):
            assert torch.equal(pruner.masks[part], reference.masks[i])
            assert torch.equal(pruner.theta[part], reference.theta[i])
            if (scores := pruner.state_dict().get("scores")) is not None:
                torch.testing.assert_close(
                    scores[part].double(), reference.scores[i], rtol=1e-4, atol=1e-6
                )
    assert pruner.step == STEPS
    assert pruner.sparsity == pytest.approx(sparsity, abs=2e-3)


def test_masks_move_and_weights_come_back(net: nn.Module, batches: Batches) -> None:
    """Else the suite above would compare nothing."""
    optimizers = made(OPTIMIZERS["adamw"], net)
    pruner = attached(net, optimizers, steps=60)
    returned = 0
    for batch in itertools.islice(itertools.cycle(batches), 60):
        before = pruner.masks
        train(net, optimizers, [batch])
        returned += sum(int((mask & ~before[n]).sum()) for n, mask in pruner.masks.items())
    assert returned > 5
    assert sum(record["flip_rate"] > 0 for record in pruner.history) > 30


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_sparsity_zero_is_training_without_us(
    net: nn.Module, batches: Batches, same_state: Same, name: str, method: str
) -> None:
    """In so far as the steps are the weights': those of an upper level move the mask alone."""
    plain = copy.deepcopy(net)
    ours, theirs = made(OPTIMIZERS[name], net), made(OPTIMIZERS[name], plain)
    attached(net, ours, method, sparsity=0.0, steps=STEPS)
    levels = METHODS[method]().steps_per_iteration
    for number in range(STEPS):
        batch = batches[number % len(batches)]
        train(net, ours, [batch])
        is_upper = levels > 1 and number % levels == levels - 1
        train(plain, [] if is_upper else theirs, [batch])
    assert same_state(net, plain)
    for own, other in zip(ours, theirs, strict=True):
        assert same_content(own.state_dict(), other.state_dict())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_resumed_run_is_the_same_bit_for_bit(
    net: nn.Module, batches: Batches, same_state: Same, name: str, method: str
) -> None:
    again = copy.deepcopy(net)
    optimizers = made(OPTIMIZERS[name], net)
    pruner = attached(net, optimizers, method)
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(o, 0.9) for o in optimizers]

    def go_on(model: nn.Module, optimizers: Sequence[Optimizer], schedulers: Any) -> None:
        for batch in [*batches, batches[0]]:
            train(model, optimizers, [batch])
            for each in schedulers:
                each.step()

    go_on(net, optimizers, schedulers)
    saved = io.BytesIO()
    parts = [*optimizers, *schedulers, pruner, net]
    torch.save([part.state_dict() for part in parts], saved)
    go_on(net, optimizers, schedulers)

    saved.seek(0)
    optimizers = made(OPTIMIZERS[name], again)
    other = attached(again, optimizers, method)
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(o, 0.9) for o in optimizers]
    loaded = torch.load(saved, weights_only=True)
    for part, state in zip([*optimizers, *schedulers, other, again], loaded, strict=True):
        part.load_state_dict(state)
    go_on(again, optimizers, schedulers)

    assert same_state(net, again)
    assert same_content(pruner.state_dict(), other.state_dict())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_detach_leaves_an_ordinary_model_and_optimizer(
    net: nn.Module, batches: Batches, same_state: Same, name: str, method: str
) -> None:
    """Which then train as others do from the same state, whose zeros come back."""
    optimizers = made(OPTIMIZERS[name], net)
    attributes = {name: set(vars(module)) for name, module in net.named_modules()}
    pruner = attached(net, optimizers, method)
    train(net, optimizers, batches * 3)
    pruner.detach()
    assert {name: set(vars(module)) for name, module in net.named_modules()} == attributes
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_state_dict_hooks")
    assert not any(getattr(module, name) for module in net.modules() for name in hooks)
    for optimizer in optimizers:
        assert not optimizer._optimizer_step_pre_hooks
        assert not optimizer._optimizer_step_post_hooks
    plain = copy.deepcopy(net)
    others = made(OPTIMIZERS[name], plain)
    for mine, other in zip(optimizers, others, strict=True):
        other.load_state_dict(copy.deepcopy(mine.state_dict()))
    train(net, optimizers, batches)
    train(plain, others, batches)
    assert same_state(net, plain)
    nonzero = sum(int(torch.count_nonzero(net.get_parameter(n))) for n in pruner.masks)
    assert nonzero > 2 * pruner.masks.kept
    biprune.attach(net, optimizers, sparsity=0.5, steps=3)  # and may be attached to again


FREE_OF_SCALE = {
    "adamw": (one(AdamW, lr=0.01, weight_decay=0.1, eps=1e-15), 1.0),
    "rmsprop": (one(RMSprop, lr=0.005, eps=1e-15), 1.0),
    "adafactor": (OPTIMIZERS["adafactor"], 1.0),
    "muon and adamw": (OPTIMIZERS["muon and adamw"], 1.0),
    "nesterov": (OPTIMIZERS["nesterov"], 1 / 1024),
}


@pytest.mark.parametrize("method", ["bip-plus", "gmp", "movement"])
@pytest.mark.parametrize("name", FREE_OF_SCALE)
def test_the_scale_of_the_loss_does_not_matter(
    net: nn.Module, batches: Batches, name: str, method: str
) -> None:
    """Under SGD, whose steps are as large as the loss, the learning rate makes up for it.

    Times a power of two, so that rounding has no say; nor has what optimizers add to a divisor.
    """
    make, rate = FREE_OF_SCALE[name]
    large = copy.deepcopy(net)
    optimizers, scaled = made(make, net), made(make, large)
    pruner, other = attached(net, optimizers, method), attached(large, scaled, method)
    for group in itertools.chain(*(each.param_groups for each in scaled)):
        group["lr"] *= rate
        group["weight_decay"] /= rate
    for batch in batches * 3:
        train(net, optimizers, [batch])
        backward(large, batch, 1024.0)
        for each in scaled:
            each.step()
        assert pruner.masks == other.masks


def test_memory_is_nine_bytes_a_weight(net: nn.Module) -> None:
    pruner = attached(net, made(OPTIMIZERS["sgd"], net))
    state = pruner.state_dict()
    held = [*state["theta"].values(), *state["scores"].values(), *state["masks"].values()]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held}
    assert sum(storages.values()) == 9 * pruner.masks.total
