from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import biprune
from biprune.core.masks import Masks
from biprune.core.structure import get_structure
from biprune.methods.base import Start, Target
from biprune.methods.hydra import HydraAlgorithm
from biprune.training.batches import classification_loss
from biprune.training.loop import Passes, Setup
from biprune.training.schedule import Moment
from linear_loss import linear_problem

Batches = list[tuple[Tensor, Tensor]]

START = Moment(0, 0, epochs=10, steps=10)


def algorithm(
    model: nn.Module, batches: Batches, structure: str = "weight", **options: float
) -> tuple[HydraAlgorithm, Passes]:
    method = biprune.Hydra(epochs=4, **options)  # pyright: ignore[reportArgumentType]
    target = Target(0.7, get_structure(structure))
    passes = Passes(model, Setup(batches, classification_loss))
    return HydraAlgorithm(method, Start(model), target), passes


def test_weights_stay_bitwise_while_scores_learn(conv_net: nn.Module, batches: Batches) -> None:
    before = {name: p.detach().clone() for name, p in conv_net.named_parameters()}
    hydra, passes = algorithm(conv_net, batches, score_lr=1.0)
    first = hydra.masked.masks
    for batch in batches:
        hydra.step(passes, (batch,), START)
    for name, theta in hydra.masked.theta.items():
        assert torch.equal(theta, before[name])
        assert not torch.equal(hydra.scores[name], before[name])
        shown = conv_net.get_parameter(name)
        assert torch.equal(shown, torch.where(hydra.masked.masks[name], theta, 0.0))
    assert hydra.masked.masks != first
    assert torch.equal(conv_net.get_parameter("head.bias"), before["head.bias"])
    assert not torch.equal(conv_net.get_parameter("norm1.weight"), before["norm1.weight"])


@pytest.mark.parametrize("structure", ["weight", "filter", "channel"])
def test_without_a_score_rate_it_is_magnitude(
    conv_net: nn.Module, batches: Batches, structure: str
) -> None:
    options = {"sparsity": 0.7, "structure": structure}
    expected = biprune.prune(conv_net, batches, "magnitude", epochs=1, **options).masks
    still = biprune.Hydra(epochs=2, score_lr=0.0)
    assert biprune.prune(conv_net, batches, still, **options).masks == expected


def test_per_layer_scores_are_scaled_as_published(conv_net: nn.Module, batches: Batches) -> None:
    target = Target(0.7, get_structure("weight", "layer"))
    hydra = HydraAlgorithm(biprune.Hydra(), Start(conv_net), target)
    theta = hydra.masked.theta["conv2.weight"]
    expected = theta * (6 / (6 * 9)) ** 0.5 / theta.abs().max()
    assert torch.allclose(hydra.scores["conv2.weight"], expected)
    layers = hydra.masked.masks.per_layer().values()
    assert all(abs(layer.sparsity - 0.7) < 0.03 for layer in layers)


def test_one_score_step_by_hand() -> None:
    model = nn.Linear(3, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[2.0, -1.0, 0.5]]))
    inputs = torch.tensor([[3.0, -1.0, 8.0]])
    passes = Passes(model, Setup([inputs], lambda model, x: model(x).sum()))
    method = biprune.Hydra(score_lr=0.1, momentum=0.0, weight_decay=0.0)
    hydra = HydraAlgorithm(method, Start(model), Target(1 / 3, get_structure("weight")))
    assert model.weight.tolist() == [[2.0, -1.0, 0.0]]
    hydra.step(passes, (inputs,), START)
    # s - 0.1 sign(s) theta g: 2 - 0.1 * 6, -1 + 0.1 * 1, 0.5 - 0.1 * 4.
    assert torch.allclose(hydra.scores["weight"], torch.tensor([[1.4, -0.9, 0.1]]))
    assert hydra.masked.masks["weight"].tolist() == [[True, True, False]]


def test_scores_follow_sgd_on_the_schedule() -> None:
    model, c = linear_problem([2.0, -1.0, 0.5], [3.0, -1.0, 8.0])
    theta = model.weight.detach().clone()
    sgd = {"momentum": 0.9, "weight_decay": 0.01, "nesterov": True}
    method = biprune.Hydra(score_lr=0.1, **sgd)
    hydra = HydraAlgorithm(method, Start(model), Target(1 / 3, get_structure("weight")))
    passes = Passes(model, Setup([c], lambda model, x: model(x).sum()))
    wanted = theta.clone().requires_grad_()
    reference = torch.optim.SGD([wanted], lr=0.1, **sgd)
    for epoch in range(4):
        reference.param_groups[0]["lr"] = 0.1 * (1 + math.cos(math.pi * epoch / 4)) / 2
        wanted.grad = wanted.detach().sign() * theta * c  # g is c whatever the mask
        reference.step()
        hydra.step(passes, (c,), Moment(epoch, 0, epochs=4, steps=1))
        torch.testing.assert_close(hydra.scores["weight"], wanted.detach())


def test_epochs_are_shared_by_both_stages(conv_net: nn.Module, batches: Batches) -> None:
    ticket = biprune.prune(conv_net, batches, "hydra", sparsity=0.5, epochs=5)
    stages = [record["stage"] for record in ticket.history if "epoch" in record]
    assert stages == ["hydra"] * 2 + ["retrain"] * 3
    with pytest.raises(ValueError, match="`epochs` must be at least 2 for Hydra"):
        biprune.prune(conv_net, batches, "hydra", sparsity=0.5, epochs=1)


@pytest.mark.parametrize("scored", [True, False])
def test_scores_of_dead_rows(conv_net: nn.Module, batches: Batches, scored: bool) -> None:
    """They stand still but for decay, which is off here; with the switch they follow theta * g."""
    nn.init.constant_(conv_net.get_parameter("norm1.bias"), 0.3)  # else the ReLU hides them
    options = {"score_dead_rows": scored, "momentum": 0.0, "weight_decay": 0.0, "score_lr": 1.0}
    hydra, passes = algorithm(conv_net, batches, **options)
    masks = {name: mask.clone() for name, mask in hydra.masked.masks.items()}
    masks["conv1.weight"][2] = False
    hydra.masked.set_masks(Masks(masks, get_structure("weight")))
    before = {name: score.clone() for name, score in hydra.scores.items()}
    passes(batches[0])
    theta, gradient = hydra.masked.theta, conv_net.get_parameter("conv1.weight").grad
    assert gradient is not None
    assert gradient[2].abs().max() > 10 * gradient[masks["conv1.weight"]].abs().max()
    moved = before["conv1.weight"].sign() * theta["conv1.weight"] * gradient
    moved[2] *= scored
    conv_net.zero_grad()
    hydra.step(passes, (batches[0],), START)
    torch.testing.assert_close(hydra.scores["conv1.weight"], before["conv1.weight"] - moved)
