"""Distill and Adversarial, each against its formula."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from loops import Batches, distilled, loss_of
from torch import nn

import biprune

EPSILON = 0.3


@pytest.fixture
def teacher(conv_net: nn.Module) -> nn.Module:
    torch.manual_seed(3)
    return type(conv_net)(width=5)


@pytest.mark.parametrize(("temperature", "weight"), [(1.0, 0.5), (4.0, 0.9), (2.0, 1.0)])
def test_a_teacher_distilled(
    conv_net: nn.Module,
    teacher: nn.Module,
    batches: Batches,
    temperature: float,
    weight: float,
) -> None:
    model, taught = conv_net.double(), teacher.double()
    batch = (batches[0][0].double(), batches[0][1])
    before = copy.deepcopy(taught.state_dict())
    taught.norm1.eval()  # pyright: ignore
    grads = []
    for loss in (
        biprune.Distill(taught, temperature, weight),
        distilled(taught, temperature, weight),
    ):
        model.zero_grad()
        value = loss(model, batch)
        value.backward()
        grads.append([value.detach(), *(p.grad.clone() for p in model.parameters())])  # pyright: ignore
    for mine, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(mine, theirs)
    assert all(torch.equal(before[n], value) for n, value in taught.state_dict().items())
    assert all(p.grad is None for p in taught.parameters())
    assert taught.training
    assert not taught.norm1.training  # pyright: ignore


@pytest.mark.parametrize(("steps", "size"), [(7, None), (1, 0.1), (2, 0.1), (9, 0.1)])
def test_an_adversary_of_a_linear_model_in_closed_form(steps: int, size: float | None) -> None:
    """The loss rises along the sign of the wrong class's weights less the right one's."""
    model = nn.Sequential(nn.Linear(5, 2)).double()
    inputs, labels = torch.randn(6, 5, dtype=torch.double), torch.tensor([0, 1, 0, 1, 1, 0])
    moved, kept = biprune.Adversarial(EPSILON, steps, size).attacked(model, (inputs, labels))  # pyright: ignore
    away = (model[0].weight[1] - model[0].weight[0]).detach().sign()
    reached = min(EPSILON, steps * (2.5 * EPSILON / steps if size is None else size))
    expected = inputs + reached * torch.where(labels == 0, 1, -1)[:, None] * away
    torch.testing.assert_close(moved, expected)
    assert kept is labels


def test_an_adversary_leaves_the_model_alone(conv_net: nn.Module, batches: Batches) -> None:
    """The running statistics are those of the one pass that is learned from, as torch makes it."""
    plain = copy.deepcopy(conv_net)
    adversary = biprune.Adversarial(EPSILON, steps=3)
    moved, labels = adversary.attacked(conv_net, batches[0])  # pyright: ignore
    assert all(torch.equal(plain.state_dict()[n], v) for n, v in conv_net.state_dict().items())
    assert all(p.grad is None for p in conv_net.parameters())
    assert conv_net.training
    assert (moved - batches[0][0]).abs().max() <= EPSILON + 1e-6
    evaluated = copy.deepcopy(conv_net).eval()
    assert loss_of(evaluated, (moved, labels)) > loss_of(evaluated, batches[0])
    loss = adversary(copy.deepcopy(plain), batches[0])
    torch.testing.assert_close(loss, loss_of(plain, (moved, labels)))


def test_a_teacher_and_an_adversary_together(
    conv_net: nn.Module, teacher: nn.Module, batches: Batches
) -> None:
    """The student is what it is on the inputs that were moved, the teacher on the data's own."""
    adversary = biprune.Adversarial(EPSILON, steps=3)
    loss = biprune.Distill(teacher, weight=1 - 1e-12, loss=adversary)
    moved, _ = adversary.attacked(conv_net, batches[0])  # pyright: ignore
    with torch.no_grad():
        taught = (teacher.eval()(batches[0][0]) / 2).log_softmax(dim=1)
        learned = (copy.deepcopy(conv_net)(moved) / 2).log_softmax(dim=1)
        expected = 4 * (taught.exp() * (taught - learned)).sum(dim=1).mean()
    found = loss(conv_net, batches[0])
    torch.testing.assert_close(found, expected)
    found.backward()
    assert conv_net.get_parameter("conv1.weight").grad is not None


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: biprune.Adversarial(0.0), "`epsilon` must be positive"),
        (lambda: biprune.Adversarial(0.1, steps=0), "`steps` must be at least 1"),
        (lambda: biprune.Distill(nn.Linear(1, 1), temperature=0.0), "`temperature` must be pos"),
        (lambda: biprune.Distill(nn.Linear(1, 1), weight=0.0), r"`weight` must be in \(0, 1\]"),
    ],
)
def test_settings_of_objectives_are_checked(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_integers_have_no_adversary(conv_net: nn.Module) -> None:
    batch = (torch.ones(2, 1, 8, 8, dtype=torch.long), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="which must be floating-point tensors"):
        biprune.Adversarial(0.1)(conv_net, batch)
