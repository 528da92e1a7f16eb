"""`prune` and `attach` are one engine: the same optimizer and batches give the same bits."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

import biprune
from biprune.training.optimizers import SGD

Batches = list[tuple[Tensor, Tensor]]
EPOCHS = 3
METHODS: dict[str, dict[str, Any]] = {
    "bip-plus": {},
    "bip-plus in two passes": {"passes": 2},
    "bip": {},
    "gmp": {},
    "movement": {},
}
STRUCTURES = {"weight": 0.8, "filter": 0.5, "channel": 0.5, "group": 0.5, "1:3": None}


def own_sgd(groups: list[dict[str, Any]]) -> Optimizer:
    return SGD(groups, lr=0.05, momentum=0.9, weight_decay=1e-2, nesterov=True, fused=True)


def adamw(groups: list[dict[str, Any]]) -> Optimizer:
    groups[-1]["weight_decay"] = 0.0
    return torch.optim.AdamW(groups, lr=0.01, weight_decay=0.1)


def rmsprop(groups: list[dict[str, Any]]) -> Optimizer:
    return torch.optim.RMSprop(groups, lr=0.005)


def adafactor(groups: list[dict[str, Any]]) -> Optimizer:
    return torch.optim.Adafactor(groups, lr=0.02)


def muon_and_adamw(groups: list[dict[str, Any]]) -> list[Optimizer]:
    weights = groups[0]["params"]
    others = [p for p in weights if p.ndim != 2]
    return [
        torch.optim.Muon([p for p in weights if p.ndim == 2], lr=0.02),
        torch.optim.AdamW([{"params": others}, groups[1]], lr=0.01),
    ]


OPTIMIZERS = [own_sgd, adamw, rmsprop, adafactor, muon_and_adamw]


def loop(
    model: nn.Module, batches: Batches, make: Callable[..., Any], method: str, **how: Any
) -> biprune.Pruner:
    """A user's own loop with everything that `prune` is asked to do, written out."""
    model.train()
    passes = 2 if method == "bip" or how.get("passes") == 2 else 1
    steps = EPOCHS * len(batches) * passes
    parameters = list(model.parameters())
    weights = [p for p in parameters if p.ndim > 1]
    made = make([{"params": weights}, {"params": [p for p in parameters if p.ndim <= 1]}])
    optimizers = made if isinstance(made, list) else [made]
    rates = [[group["lr"] for group in each.param_groups] for each in optimizers]
    pruner = biprune.attach(model, made, steps=steps, method=method, **how)
    for batch, number in zip(order(batches, passes), range(steps), strict=True):
        done = (number // passes) / (steps // passes)
        for optimizer, own in zip(optimizers, rates, strict=True):
            for group, rate in zip(optimizer.param_groups, own, strict=True):
                group.setdefault("initial_lr", rate)
                group["lr"] = rate * (0.5 * (1 + math.cos(math.pi * done)))
        model.zero_grad()
        cross_entropy(model(batch[0]), batch[1]).backward()
        for optimizer in optimizers:
            optimizer.step()
    return pruner


def order(batches: Batches, passes: int) -> list[tuple[Tensor, Tensor]]:
    """One after the other; of two passes the levels swap their batches in every second epoch."""
    a, b, c, d = batches
    if passes == 1:
        return [*batches] * EPOCHS
    return [*batches, b, a, d, c] * EPOCHS


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize("make", OPTIMIZERS, ids=lambda make: make.__name__)
def test_a_loop_of_ones_own_gives_the_bits_of_prune(
    conv_net: nn.Module, batches: Batches, same_state, make: Any, kind: str, structure: str
) -> None:
    method, settings = kind.partition(" ")[0], METHODS[kind]
    how = {"sparsity": STRUCTURES[structure], "structure": structure, **settings}
    own = copy.deepcopy(conv_net)
    example = {"example_input": batches[0][0]} if structure == "group" else {}
    pruner = loop(own, batches, make, method, **how, **example)
    ticket = biprune.prune(
        conv_net, batches, method, epochs=EPOCHS, optimizer=make, lr_schedule="cosine", **how
    )
    assert pruner.masks == ticket.masks
    assert same_state(own, ticket.model)
    assert not same_state(own, conv_net)


def test_coupled_bip_decays_its_prunable_weights_by_gamma(
    conv_net: nn.Module, batches: Batches, same_state
) -> None:
    """The rest has the decay of the recipe."""
    gamma, own = 0.5, copy.deepcopy(conv_net).train()
    prunable = [p for p in own.parameters() if p.ndim > 1]
    rest = [p for p in own.parameters() if p.ndim == 1]
    optimizer = SGD(
        [{"params": prunable, "weight_decay": gamma}, {"params": rest}],
        lr=0.01,
        momentum=0.9,
        weight_decay=5e-4,
        fused=True,
    )
    settings = {"form": "coupled", "gamma": gamma}
    pruner = biprune.attach(own, optimizer, 0.5, steps=8, method="bip", **settings)
    for batch in order(batches, 2)[:8]:
        own.zero_grad()
        cross_entropy(own(batch[0]), batch[1]).backward()
        optimizer.step()
    ticket = biprune.prune(
        conv_net, batches, "bip", sparsity=0.5, epochs=1, schedule="constant", **settings
    )
    assert pruner.masks == ticket.masks
    assert same_state(own, ticket.model)


def test_options_of_the_loop(conv_net: nn.Module, batches: Batches, same_state) -> None:
    """Clipping, accumulation and a moving average, against a loop that does them by hand."""
    own = copy.deepcopy(conv_net).train()
    optimizer = torch.optim.AdamW(own.parameters(), lr=0.01, weight_decay=0.0)
    pruner = biprune.attach(own, optimizer, 0.8, steps=6)
    average = copy.deepcopy(own).state_dict()
    stream = itertools.cycle(batches)
    norms = []
    for number in range(6):
        optimizer.param_groups[0]["lr"] = 0.01 * (1 - number / 6)
        optimizer.param_groups[0].setdefault("initial_lr", 0.01)
        optimizer.zero_grad()
        for _ in range(2):
            images, labels = next(stream)
            (cross_entropy(own(images), labels) / 2).backward()
        norms.append(float(nn.utils.clip_grad_norm_(own.parameters(), 0.5)))
        optimizer.step()
        with torch.no_grad():
            for name, value in own.state_dict().items():
                if number == 0 or not value.is_floating_point():
                    average[name] = value.clone()
                else:
                    average[name].lerp_(value, 1 - 0.9)
    assert max(norms) > 0.5
    pruner.detach()
    own.load_state_dict(average)
    pruner.masks.apply_(own)
    ticket = biprune.prune(
        conv_net,
        batches,
        sparsity=0.8,
        steps=6,
        optimizer=lambda groups: torch.optim.AdamW(
            [p for group in groups for p in group["params"]], lr=0.01, weight_decay=0.0
        ),
        lr_schedule=lambda done: 1 - done,
        clip_grad=0.5,
        accumulate=2,
        ema=0.9,
    )
    assert ticket.masks == pruner.masks
    for name, value in own.state_dict().items():
        torch.testing.assert_close(ticket.model.state_dict()[name], value, rtol=1e-5, atol=1e-6)
    assert not same_state(ticket.model, conv_net)
