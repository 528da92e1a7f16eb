"""The options of `prune`, against plain torch loops that know nothing of us."""

from __future__ import annotations

import copy
import itertools
import logging
import math
from functools import partial
from typing import Any

import pytest
import torch
from loops import Batches, Groups, Same, loss_of
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW

import biprune

DENSE: dict[str, Any] = {"method": "gmp", "sparsity": 0.0}  # trains as if there were no mask


class ViT(nn.Module):
    """Small, with the norms in front, as transformers for images are."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.patches = nn.Conv2d(1, width, 2, 2)
        self.places = nn.Parameter(0.02 * torch.randn(1, 16, width))
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 3)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).mT + self.places
        return self.head(self.norm(self.encoder(tokens)).mean(dim=1))


def adam(groups: Groups) -> Adam:
    return Adam(groups, lr=0.01)


def test_options_of_the_loop(conv_net: nn.Module, batches: Batches, same_state: Same) -> None:
    """A schedule, clipping, accumulation and a moving average."""
    ticket = biprune.prune(
        conv_net,
        batches,
        **DENSE,
        steps=6,
        optimizer=adam,
        lr_schedule=lambda done: 1 - done,
        clip_grad=0.5,
        accumulate=2,
        ema=0.9,
    )
    own = copy.deepcopy(conv_net).train()
    optimizer = Adam(own.parameters(), lr=0.01)
    average = copy.deepcopy(own.state_dict())
    stream, norms = itertools.cycle(batches), []
    for number in range(6):
        optimizer.param_groups[0]["lr"] = 0.01 * (1 - number / 6)
        optimizer.zero_grad()
        for _ in range(2):
            (loss_of(own, next(stream)) / 2).backward()
        norms.append(float(nn.utils.clip_grad_norm_(own.parameters(), 0.5)))
        optimizer.step()
        for name, value in own.state_dict().items():
            if number == 0 or not value.is_floating_point():
                average[name] = value.clone()
            else:
                average[name].lerp_(value, 1 - 0.9)
    assert max(norms) > 0.5
    for name, value in average.items():
        torch.testing.assert_close(ticket.model.state_dict()[name], value, rtol=1e-5, atol=1e-6)
    assert not same_state(ticket.model, own)


def test_an_average_of_a_moving_mask_is_pruned(conv_net: nn.Module, batches: Batches) -> None:
    ticket = biprune.prune(conv_net, batches, sparsity=0.8, epochs=2, ema=0.9)
    nonzero = [torch.count_nonzero(ticket.model.get_parameter(name)) for name in ticket.masks]
    assert sum(nonzero) == ticket.masks.kept == round(0.2 * 738)


def test_the_recipe_of_convolutional_nets(
    conv_net: nn.Module, batches: Batches, same_state: Same
) -> None:
    ticket = biprune.prune(conv_net, batches, **DENSE, epochs=2)
    own = copy.deepcopy(conv_net).train()
    optimizer = SGD(own.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    for number, batch in enumerate(batches * 2):
        optimizer.param_groups[0]["lr"] = 0.1 * (0.5 * (1 + math.cos(math.pi * number / 8)))
        optimizer.zero_grad()
        loss_of(own, batch).backward()
        optimizer.step()
    for name, value in own.state_dict().items():
        torch.testing.assert_close(ticket.model.state_dict()[name], value, rtol=1e-5, atol=1e-6)
    assert ticket.settings["optimizer"] == "sgd"


def test_the_recipe_of_transformers(
    batches: Batches, same_state: Same, caplog: pytest.LogCaptureFixture
) -> None:
    """AdamW, warm-up over a twentieth, clipping at 1, decay of weights alone; and it says so."""
    vit = ViT()
    with caplog.at_level(logging.INFO, "biprune"):
        ticket = biprune.prune(vit, batches, **DENSE, steps=40)
    assert "trained by AdamW (lr 0.001, warm-up, gradients clipped)" in caplog.text
    assert ticket.settings["optimizer"] == "adamw"
    own = copy.deepcopy(vit).train()
    groups = [
        {"params": [p for p in own.parameters() if p.ndim > 1]},
        {"params": [p for p in own.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer, norms = AdamW(groups, lr=1e-3, weight_decay=0.05), []
    for number, batch in enumerate(batches * 10):
        done = number / 40
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1.0, done / 0.05) * 0.5 * (1 + math.cos(math.pi * done))
        optimizer.zero_grad()
        loss_of(own, batch).backward()
        norms.append(float(nn.utils.clip_grad_norm_(own.parameters(), 1.0)))
        optimizer.step()
    assert max(norms) > 1
    for name, value in own.state_dict().items():
        torch.testing.assert_close(ticket.model.state_dict()[name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", ["bip-plus", "bip", "gmp", "movement"])
def test_a_transformer_learns_at_our_default_rate(batches: Batches, method: str) -> None:
    losses: list[float] = []
    vit = ViT()
    before = [loss_of(vit, batch).item() for batch in batches]
    how: dict[str, Any] = {"sparsity": 0.5, "steps": 30}
    biprune.prune(vit, batches, method, progress=lambda e: losses.append(e.loss), **how)
    assert all(math.isfinite(loss) for loss in losses)
    assert sum(losses[-4:]) < sum(before)


def test_autocast_is_in_bfloat16(conv_net: nn.Module, batches: Batches, same_state: Same) -> None:
    ticket = biprune.prune(
        conv_net, batches, **DENSE, epochs=1, optimizer=adam, lr_schedule="constant", autocast=True
    )
    own = copy.deepcopy(conv_net).train()
    optimizer = Adam(own.parameters(), lr=0.01)
    for batch in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(own, batch)
        loss.backward()
        optimizer.step()
    assert same_state(ticket.model, own)


@pytest.mark.parametrize(("steps", "taken"), [(3, [0, 1, 2]), (6, [0, 1, 2, 0, 1, 2])])
def test_steps_are_spread_over_passes(
    conv_net: nn.Module, batches: Batches, steps: int, taken: list[int]
) -> None:
    """3 are part of one pass, 6 are of two, of which each is as long as the other."""
    seen: list[int] = []
    places = {float(images.sum()): place for place, (images, _) in enumerate(batches)}

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        seen.append(places[float(batch[0].sum())])
        return loss_of(model, batch)

    ticket = biprune.prune(conv_net, batches, sparsity=0.5, steps=steps, loss=loss)  # pyright: ignore
    assert seen == taken
    assert ticket.cost.backward_passes == steps


def test_the_device_is_where_the_ticket_is(conv_net: nn.Module, batches: Batches) -> None:
    ticket = biprune.prune(conv_net, batches, sparsity=0.5, steps=2, device="cpu")
    assert {p.device.type for p in ticket.model.parameters()} == {"cpu"}


def test_settings_of_a_ticket_name_the_optimizer_that_was_made(
    conv_net: nn.Module, batches: Batches
) -> None:
    ticket = biprune.prune(conv_net, batches, sparsity=0.5, steps=2, optimizer=adam)
    assert ticket.settings["optimizer"] == "adam"
    assert not ticket.settings.keys() & {"lr", "momentum", "weight_decay", "nesterov"}


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"optimizer": "adam"}, ValueError, "`optimizer` must be one of sgd, adamw, got 'adam'"),
        ({"optimizer": 1}, TypeError, "`optimizer` must be a name or a function, got int"),
        ({"optimizer": adam, "lr": 0.1}, ValueError, "`lr` is set by the optimizer that"),
        ({"optimizer": lambda groups: None}, TypeError, r"must return a torch\.optim\.Optimizer"),
        (
            {"optimizer": lambda groups: Adam(groups[1:])},
            ValueError,
            "does not hold 'conv1.weight', nor 2 more of 3 prunable weights",
        ),
        ({"lr_schedule": "linear"}, ValueError, "must be one of cosine, step, constant"),
        ({"lr_schedule": 0.1}, TypeError, "`lr_schedule` must be a name or a function, got float"),
        ({"clip_grad": 0}, ValueError, "`clip_grad` must be positive, got 0"),
        ({"accumulate": 9}, ValueError, "`accumulate` 9 is more than the 4 batches of `data`"),
        ({"ema": 1.5}, ValueError, r"`ema` must be in \(0, 1\), such as 0.999, got 1.5"),
        ({"epochs": 1}, ValueError, "`epochs` and `steps` both set the run's length"),
        ({"method": "bip", "steps": 3}, ValueError, "`steps` must be a multiple of 2"),
        ({"learning_rate": 0.1}, TypeError, "Did you mean `lr`"),
        ({"max_grad_norm": 1.0}, TypeError, "Did you mean `clip_grad`"),
        ({"teacher": None}, TypeError, "Did you mean `distill`"),
        ({"optim": adam}, TypeError, "Did you mean `optimizer`"),
    ],
)
def test_options_that_cannot_be_are_refused(
    conv_net: nn.Module, batches: Batches, given: dict[str, Any], error: Any, words: str
) -> None:
    with pytest.raises(error, match=words):
        biprune.prune(conv_net, batches, **{"sparsity": 0.5, "steps": 4} | given)


def test_an_optimizer_that_is_made_already_is_refused(
    conv_net: nn.Module, batches: Batches
) -> None:
    """It holds the weights of the model that was given, and a copy is pruned."""
    how = {"optimizer": Adam(conv_net.parameters())}
    for run in (biprune.train, partial(biprune.prune, sparsity=0.5)):
        with pytest.raises(TypeError, match="must be a name or a function, got Adam"):
            run(conv_net, batches, **how)  # pyright: ignore[reportArgumentType]
