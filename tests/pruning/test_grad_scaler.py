"""`attach` under `GradScaler`, of whose scale fused optimizers rid the gradients themselves."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from loops import METHODS, Batches, Same, attached, backward, same_content, shows_z, train
from torch import nn
from torch.optim import SGD, Adam, AdamW

STEPS = 16


def train_scaled(model: nn.Module, optimizer: Any, scaler: Any, batches: Batches) -> None:
    for batch in itertools.islice(itertools.cycle(batches), STEPS):
        backward(model, batch, scaler.get_scale())
        scaler.scale(torch.ones(()))  # which a loop does to its loss
        scaler.step(optimizer)
        scaler.update()


@pytest.mark.parametrize("sparsity", [0.8, 0.95])  # of which one empties rows
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", [SGD, Adam, AdamW])
@pytest.mark.parametrize("fused", [False, True])
def test_a_grad_scaler_changes_nothing(
    conv_net: nn.Module,
    batches: Batches,
    same_state: Same,
    kind: Any,
    fused: bool,
    method: str,
    sparsity: float,
) -> None:
    plain = copy.deepcopy(conv_net)
    optimizer = kind(plain.parameters(), lr=0.01, fused=fused)
    pruner = attached(plain, [optimizer], method, sparsity=sparsity, steps=STEPS)
    train(plain, [optimizer], batches, STEPS)
    scaled = kind(conv_net.parameters(), lr=0.01, fused=fused)
    other = attached(conv_net, [scaled], method, sparsity=sparsity, steps=STEPS)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=5)
    train_scaled(conv_net, scaled, scaler, batches)
    assert scaler.get_scale() == 2.0**13
    assert same_state(plain, conv_net)
    assert same_content(pruner.state_dict(), other.state_dict())


class ScaledByItself(SGD):
    """Takes the scale from `GradScaler` and leaves the gradients as they are."""

    _step_supports_amp_scaling = True

    def step(self, closure: Any = None) -> None:  # pyright: ignore
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data.sub_(p.grad / self.grad_scale, alpha=group["lr"])  # pyright: ignore


@pytest.mark.parametrize("method", METHODS)
def test_a_scale_that_an_optimizer_leaves_in_the_gradients_is_divided_out(
    conv_net: nn.Module, batches: Batches, same_state: Same, method: str
) -> None:
    plain = copy.deepcopy(conv_net)
    optimizer = SGD(plain.parameters(), lr=0.01)
    pruner = attached(plain, [optimizer], method, sparsity=0.95, steps=STEPS)
    train(plain, [optimizer], batches, STEPS)
    scaled = ScaledByItself(conv_net.parameters(), lr=0.01)
    other = attached(conv_net, [scaled], method, sparsity=0.95, steps=STEPS)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
    train_scaled(conv_net, scaled, scaler, batches)
    assert same_state(plain, conv_net)
    assert same_content(pruner.state_dict(), other.state_dict())


def test_gradients_that_were_unscaled_to_be_clipped_are_not_unscaled_again(
    conv_net: nn.Module, batches: Batches, same_state: Same
) -> None:
    plain = copy.deepcopy(conv_net)
    one, other = (AdamW(m.parameters(), lr=0.01, fused=True) for m in (plain, conv_net))
    attached(plain, [one]), attached(conv_net, [other])
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for batch in batches * 3:
        backward(plain, batch)
        nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
        one.step()
        backward(conv_net, batch, scaler.get_scale())
        scaler.scale(torch.ones(()))
        scaler.unscale_(other)
        nn.utils.clip_grad_norm_(conv_net.parameters(), 0.1)
        scaler.step(other)
        scaler.update()
    assert same_state(plain, conv_net)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("where", ["conv1.weight", "head.bias"])
@pytest.mark.parametrize("fused", [False, True])
def test_a_step_skipped_for_overflow_changes_nothing(
    conv_net: nn.Module, batches: Batches, same_state: Same, fused: bool, where: str, method: str
) -> None:
    optimizer = AdamW(conv_net.parameters(), lr=0.01, fused=fused)
    pruner = attached(conv_net, [optimizer], method)
    train(conv_net, [optimizer], batches, 5)
    conv_net.eval()  # running averages are not the optimizer's
    parts = (conv_net, pruner, optimizer)
    kept = [copy.deepcopy(part.state_dict()) for part in parts]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    backward(conv_net, batches[0], scaler.get_scale())
    scaler.scale(torch.ones(()))
    conv_net.get_parameter(where).grad.view(-1)[0] = torch.inf  # pyright: ignore
    scaler.step(optimizer)
    assert pruner.step == 5
    for part, before in zip(parts, kept, strict=True):
        assert same_content(part.state_dict(), before)


def test_one_of_two_optimizers_overflows(conv_net: nn.Module, batches: Batches) -> None:
    """Then the mask stands still, and the next whole step is one again."""
    matrices = [p for p in conv_net.parameters() if p.ndim == 2]
    others = [p for p in conv_net.parameters() if p.ndim != 2]
    optimizers = [SGD(matrices, lr=0.05), AdamW(others, lr=0.01)]
    pruner = attached(conv_net, optimizers)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    counted = []
    for overflow in (None, "head.weight", None, "conv1.weight", None):
        backward(conv_net, batches[0], scaler.get_scale())
        scaler.scale(torch.ones(()))
        if overflow:
            conv_net.get_parameter(overflow).grad.fill_(torch.inf)  # pyright: ignore
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        counted.append(pruner.step)
        assert shows_z(conv_net, pruner)
    assert counted == [1, 1, 2, 2, 3]
