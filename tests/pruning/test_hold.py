"""`hold`: a mask that stays, through any optimizer."""

from __future__ import annotations

import copy

import pytest
import torch
from loops import OPTIMIZERS, Batches, Same, is_plus_zero, made, train
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import biprune
from biprune.core.masks import Masks
from biprune.core.structure import get_structure


@pytest.fixture
def masks(conv_net: nn.Module) -> Masks:
    """A tenth of each weight, drawn at random."""
    generator = torch.Generator().manual_seed(3)
    names = ("conv1.weight", "conv2.weight", "head.weight")
    shapes = {name: conv_net.get_parameter(name).shape for name in names}
    drawn = {name: torch.rand(shape, generator=generator) < 0.1 for name, shape in shapes.items()}
    return Masks(drawn, get_structure("weight"))


def pruned_are_plus_zero(model: nn.Module, masks: Masks) -> bool:
    return all(is_plus_zero(model.get_parameter(name)[~mask]) for name, mask in masks.items())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_zeros_are_exact_and_the_rest_is_masked_training(
    conv_net: nn.Module, batches: Batches, masks: Masks, name: str
) -> None:
    """Momentum and moments are those of dense steps before: they would move what is pruned."""
    optimizers = made(OPTIMIZERS[name], conv_net)
    train(conv_net, optimizers, batches)
    plain = copy.deepcopy(conv_net)
    others = made(OPTIMIZERS[name], plain)
    for mine, other in zip(optimizers, others, strict=True):
        other.load_state_dict(copy.deepcopy(mine.state_dict()))
    biprune.hold(conv_net, optimizers, masks)
    assert pruned_are_plus_zero(conv_net, masks)
    for batch in batches:
        with torch.no_grad():
            for name, mask in masks.items():
                plain.get_parameter(name).copy_(torch.where(mask, plain.get_parameter(name), 0.0))
        train(plain, others, [batch])
        train(conv_net, optimizers, [batch])
        assert pruned_are_plus_zero(conv_net, masks)
    for name, mask in masks.items():
        assert torch.equal(conv_net.get_parameter(name)[mask], plain.get_parameter(name)[mask])


def test_without_hold_the_zeros_are_lost(
    conv_net: nn.Module, batches: Batches, masks: Masks
) -> None:
    optimizer = torch.optim.AdamW(conv_net.parameters())
    holder = biprune.hold(conv_net, optimizer, masks)
    train(conv_net, [optimizer], batches)
    assert pruned_are_plus_zero(conv_net, masks)
    holder.detach()
    assert not optimizer._optimizer_step_post_hooks
    assert not optimizer._optimizer_step_pre_hooks
    train(conv_net, [optimizer], batches)
    assert not pruned_are_plus_zero(conv_net, masks)


@pytest.mark.parametrize("averaged", [True, False])
def test_an_average_of_a_moving_mask_is_pruned(
    conv_net: nn.Module, batches: Batches, averaged: bool
) -> None:
    optimizer = torch.optim.AdamW(conv_net.parameters(), lr=0.01)
    pruner = biprune.attach(conv_net, optimizer, sparsity=0.8, steps=8)
    ema = AveragedModel(conv_net, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for batch in batches * 2:
        train(conv_net, [optimizer], [batch])
        ema.update_parameters(conv_net)
    inside = ema.module
    before = {name: p.detach().clone() for name, p in inside.named_parameters()}
    assert not pruned_are_plus_zero(inside, pruner.masks)
    pruner.detach()
    holder = biprune.hold(conv_net, optimizer, pruner.masks)
    holder.apply_(ema if averaged else inside)
    assert pruned_are_plus_zero(inside, pruner.masks)
    for name, value in inside.named_parameters():
        kept = pruner.masks.get(name, torch.ones_like(value, dtype=torch.bool))
        assert torch.equal(value[kept], before[name][kept])
    train(conv_net, [optimizer], batches)
    ema.update_parameters(conv_net)  # from now on the average stays sparse by itself
    assert pruned_are_plus_zero(inside, pruner.masks)


def test_fine_tuning_a_ticket(conv_net: nn.Module, batches: Batches, same_state: Same) -> None:
    optimizer = torch.optim.SGD(conv_net.parameters(), lr=0.05)
    pruner = biprune.attach(conv_net, optimizer, sparsity=0.8, steps=8)
    train(conv_net, [optimizer], batches * 2)
    ticket = pruner.ticket()
    before = copy.deepcopy(ticket.model)
    tuned = torch.optim.AdamW(ticket.model.parameters())
    biprune.hold(ticket.model, tuned, ticket.masks)
    assert same_state(ticket.model, before)
    ticket.model.train()
    train(ticket.model, [tuned], batches)
    assert not same_state(ticket.model, before)
    assert pruned_are_plus_zero(ticket.model, ticket.masks)


def test_weights_that_the_optimizer_does_not_hold_stay(
    conv_net: nn.Module, batches: Batches, masks: Masks
) -> None:
    optimizer = torch.optim.SGD(conv_net.head.parameters(), lr=0.1)  # pyright: ignore
    biprune.hold(conv_net, optimizer, masks)
    train(conv_net, [optimizer], batches)
    assert pruned_are_plus_zero(conv_net, masks)


def test_masks_that_do_not_fit_are_refused(conv_net: nn.Module, masks: Masks) -> None:
    optimizer = torch.optim.SGD(conv_net.parameters(), lr=0.1)
    other = nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"name 'conv1\.weight', which the model does not have"):
        biprune.hold(other, torch.optim.SGD(other.parameters()), masks)
    with pytest.raises(ValueError, match="holds none of the weights that `masks` are of"):
        biprune.hold(conv_net, torch.optim.SGD(other.parameters()), masks)
    turned = Masks({"head.weight": masks["head.weight"].T}, masks.structure)
    before = conv_net.get_parameter("head.weight").clone()
    with pytest.raises(ValueError, match=r"mask of 'head\.weight' has shape \(12, 3\), its weight"):
        biprune.hold(conv_net, optimizer, turned)
    assert torch.equal(conv_net.get_parameter("head.weight"), before)
