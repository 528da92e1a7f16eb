"""`prune` and `attach` are one engine: the same optimizer and batches give the same bits."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import pytest
from loops import METHODS, OPTIMIZERS, STRUCTURES, Batches, Make, Same, backward, made
from torch import nn

import biprune
from biprune.training.optimizers import SGD

EPOCHS = 2
KINDS: dict[str, dict[str, Any]] = {
    **{name: {"method": name} for name in METHODS},
    "bip-plus in two passes": {"method": "bip-plus", "passes": 2},
    "gmp, pruned weights frozen": {"method": "gmp", "freeze_pruned": True},
}
UNITS = {**STRUCTURES, "2:4": None}


def loop(model: nn.Module, batches: Batches, make: Make, **how: Any) -> biprune.Pruner:
    """A user's own loop with everything that `prune` is asked to do, written out."""
    model.train()
    levels = METHODS[how["method"]](**{"passes": 2} if "passes" in how else {}).steps_per_iteration
    steps = EPOCHS * len(batches) * levels
    optimizers = made(make, model)
    rates = [[group["lr"] for group in each.param_groups] for each in optimizers]
    pruner = biprune.attach(model, optimizers, steps=steps, **how)
    for batch, number in zip(order(batches, levels), range(steps), strict=True):
        done = (number // levels) / (steps // levels)
        for optimizer, own in zip(optimizers, rates, strict=True):
            for group, rate in zip(optimizer.param_groups, own, strict=True):
                group.setdefault("initial_lr", rate)
                group["lr"] = rate * (0.5 * (1 + math.cos(math.pi * done)))
        backward(model, batch)
        for optimizer in optimizers:
            optimizer.step()
    return pruner


def order(batches: Batches, levels: int) -> Batches:
    """One after the other; of two levels each has the other's batches in the second half."""
    a, b, c, d = batches
    return [*batches, b, a, d, c] * EPOCHS if levels == 2 else [*batches] * EPOCHS


def same_bits(model: nn.Module, batches: Batches, make: Make, same: Same, **how: Any) -> None:
    own = copy.deepcopy(model)
    example = {"example_input": batches[0][0]} if how["structure"] == "group" else {}
    pruner = loop(own, batches, make, **how, **example)
    ticket = biprune.prune(
        model, batches, epochs=EPOCHS, optimizer=make, lr_schedule="cosine", **how
    )
    assert pruner.masks == ticket.masks
    assert same(own, ticket.model)
    assert not same(own, model)


@pytest.mark.parametrize("structure", UNITS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_loop_of_ones_own_gives_the_bits_of_prune(
    conv_net: nn.Module, batches: Batches, same_state: Same, name: str, kind: str, structure: str
) -> None:
    net = type(conv_net)(width=4)
    how = {**KINDS[kind], "structure": structure, "sparsity": UNITS[structure]}
    same_bits(net, batches, OPTIMIZERS[name], same_state, **how)


@pytest.mark.parametrize("kind", KINDS)
def test_so_it_does_with_coupled_groups(
    conv_net: nn.Module, batches: Batches, same_state: Same, kind: str
) -> None:
    how = {**KINDS[kind], "structure": "group", "sparsity": 0.5}
    same_bits(conv_net, batches, OPTIMIZERS["muon and adamw"], same_state, **how)


def test_coupled_bip_decays_its_prunable_weights_by_gamma(
    conv_net: nn.Module, batches: Batches, same_state: Same
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
    for batch in itertools.islice(order(batches, 2), 8):
        backward(own, batch)
        optimizer.step()
    ticket = biprune.prune(
        conv_net, batches, "bip", sparsity=0.5, epochs=1, schedule="constant", **settings
    )
    assert pruner.masks == ticket.masks
    assert same_state(own, ticket.model)
