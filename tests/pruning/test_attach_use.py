"""What `attach` gives back: tickets, histories, states, scores."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from loops import Batches, attached, train
from torch import nn
from torch.optim import SGD

import biprune


def pruned(model: nn.Module, batches: Batches, steps: int, **how: Any) -> biprune.Pruner:
    """By a whole run."""
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    pruner = attached(model, [optimizer], steps=steps, **how)
    train(model, [optimizer], batches, steps)
    return pruner


def test_the_ticket_is_a_copy_that_saves(
    conv_net: nn.Module, batches: Batches, tmp_path: Path
) -> None:
    pruner = pruned(conv_net, batches, 10)
    ticket = pruner.ticket()
    assert conv_net.training
    assert not ticket.model.training
    assert ticket.model is not conv_net
    assert (ticket.method, ticket.sparsity) == ("bip-plus", 0.8)
    assert ticket.settings == {
        "steps": 10,
        "ramp": 0.6,
        "initial_sparsity": 0.0,
        "mask_every": 1,
        "kappa": 3.0,
        "passes": 1,
    }
    assert ticket.masks.kept == round(0.2 * (54 + 648 + 36))
    ticket.save(tmp_path / "out")
    loaded = biprune.load_ticket(tmp_path / "out", conv_net)
    assert loaded.masks == pruner.masks
    assert loaded.history == pruner.history
    inputs = batches[0][0]
    assert torch.equal(loaded.model(inputs), ticket.model(inputs))


def test_a_ticket_before_the_ramp_is_over_is_refused(conv_net: nn.Module, batches: Batches) -> None:
    optimizer = SGD(conv_net.parameters(), lr=0.05)
    pruner = biprune.attach(conv_net, optimizer, sparsity=0.8, steps=10)
    assert pruner.sparsity == 0
    train(conv_net, [optimizer], batches, 5)
    with pytest.raises(ValueError, match=r"sparsity of 0\.7963 on its way to 0\.8, after 5 of 10"):
        pruner.ticket()
    train(conv_net, [optimizer], batches, 1)
    assert pruner.ticket().masks.sparsity == pytest.approx(0.8, abs=1e-3)


def test_the_history_has_a_record_for_every_hundredth(
    conv_net: nn.Module, batches: Batches
) -> None:
    pruner = pruned(conv_net, batches, 250)
    assert [record["step"] for record in pruner.history] == list(range(2, 251, 2))
    last = pruner.history[-1]
    assert last["sparsity"] == pytest.approx(0.8, abs=1e-3)
    assert 0 <= last["flip_rate"] < 0.1 < last["iou"] <= 1
    assert list(last["layer_sparsity"]) == list(pruner.masks)


@pytest.mark.parametrize("method", ["bip-plus", "gmp", "movement"])
def test_a_sparse_model_is_pruned_further(
    conv_net: nn.Module, batches: Batches, method: str
) -> None:
    """What is pruned already stays so until a step moves the mask, which never has more to keep."""
    first = pruned(conv_net, batches, 10, sparsity=0.5)
    first.detach()
    optimizer = SGD(conv_net.parameters(), lr=0.05)
    how: dict[str, Any] = {"method": method, "sparsity": 0.9, "initial_sparsity": 0.5}
    how["mask_every"] = 1
    pruner = biprune.attach(conv_net, optimizer, steps=20, **how)
    assert pruner.masks == first.masks
    kept = [pruner.masks.kept]
    for batch in batches * 5:
        train(conv_net, [optimizer], [batch], 1)
        kept.append(pruner.masks.kept)
    expected = [0.9 - 0.4 * max(0.0, 1 - step / 12) ** 3 for step in range(21)]
    assert kept == [round((1 - sparsity) * 738) for sparsity in expected]


@pytest.mark.parametrize("method", ["bip-plus", "bip", "gmp", "movement"])
def test_coupled_groups_are_pruned_together(
    conv_net: nn.Module, batches: Batches, method: str
) -> None:
    example = torch.zeros(2, 1, 8, 8)
    pruner = pruned(
        conv_net, batches, 10, structure="group", sparsity=0.5, example_input=example, method=method
    )
    assert (pruner.masks.kept, pruner.masks.total) == (9, 18)
    for name, mask in pruner.masks.items():
        assert not conv_net.get_parameter(name)[~mask].any()
    dead = ~pruner.masks["norm1.weight"]
    assert 0 < int(dead.sum()) < 6
    assert not conv_net.get_parameter("conv1.weight")[dead].any()
    assert not conv_net.get_parameter("conv2.weight")[:, dead].any()
    small = pruner.ticket().shrink()
    assert small(example).shape == (2, 3)


def test_scores_of_groups_are_sums_over_their_gates(conv_net: nn.Module, batches: Batches) -> None:
    """Over the norm's weight and bias, in units of the mean over all units."""
    optimizer = SGD(conv_net.parameters(), lr=0.05)
    how: dict[str, Any] = {"structure": "group", "example_input": torch.zeros(2, 1, 8, 8)}
    pruner = biprune.attach(conv_net, optimizer, sparsity=0.5, steps=10, **how)
    train(conv_net, [optimizer], batches, 1)
    sums = []
    for norm in ("norm1", "norm2"):
        names = (f"{norm}.weight", f"{norm}.bias")
        gradients = {name: conv_net.get_parameter(name).grad for name in names}
        sums.append(sum(pruner.theta[n].double() * g.double() for n, g in gradients.items()))  # pyright: ignore
    mean = torch.cat(sums).abs().mean()
    for score, each in zip(pruner.state_dict()["scores"].values(), sums, strict=True):
        torch.testing.assert_close(score.double(), -3 * each / (10 * mean), rtol=1e-4, atol=1e-6)


def test_scores_of_dead_rows_stand_still(conv_net: nn.Module, batches: Batches) -> None:
    optimizer = SGD(conv_net.parameters(), lr=0.05)
    pruner = biprune.attach(conv_net, optimizer, sparsity=0.95, steps=40)
    met = 0
    for batch in batches * 10:
        scores = {n: s.clone() for n, s in pruner.state_dict()["scores"].items()}
        dead = {n: ~m.flatten(1).any(dim=1) for n, m in pruner.masks.items()}
        train(conv_net, [optimizer], [batch], 1)
        for name, rows in dead.items():
            met += int(rows.sum())
            assert torch.equal(pruner.state_dict()["scores"][name][rows], scores[name][rows])
    assert met > 20


def test_steps_without_gradients_move_no_scores(conv_net: nn.Module, batches: Batches) -> None:
    """They count, and the running mean begins with the first gradient there is."""
    optimizer = SGD(conv_net.parameters(), lr=0.05)
    pruner = biprune.attach(conv_net, optimizer, sparsity=0.5, steps=10)
    for _ in range(3):
        optimizer.step()
    assert pruner.step == 3
    assert not any(score.any() for score in pruner.state_dict()["scores"].values())
    masks = pruner.masks
    train(conv_net, [optimizer], batches, 1)
    gradients = {name: conv_net.get_parameter(name).grad for name in masks}
    products = [(pruner.theta[n] * g).abs().sum() for n, g in gradients.items()]  # pyright: ignore
    assert pruner.state_dict()["mean"] == pytest.approx(float(sum(products)) / 738, rel=1e-5)


def test_a_state_of_another_run_is_refused(conv_net: nn.Module, batches: Batches) -> None:
    state = copy.deepcopy(pruned(copy.deepcopy(conv_net), batches, 10).state_dict())
    optimizer = SGD(conv_net.parameters(), lr=0.05)
    for how, message in [
        ({"steps": 11}, "with the steps 10, this one has 11. Attach with the settings of that run"),
        ({"method": "movement"}, "with the method 'bip-plus', this one has 'movement'"),
        ({"kappa": 1.0}, "with the kappa 3.0, this one has 1.0"),
        ({"sparsity": 0.5}, "with the sparsity 0.8, this one has 0.5"),
    ]:
        pruner = attached(conv_net, [optimizer], **{"steps": 10} | how)
        with pytest.raises(ValueError, match=re.escape(message)):
            pruner.load_state_dict(state)
        pruner.detach()
    pruner = biprune.attach(conv_net, optimizer, sparsity=0.8, steps=10)
    with pytest.raises(ValueError, match="not saved by a pruner of bip-plus: it lacks 'history'"):
        pruner.load_state_dict({"model": {}})
    wide = nn.Sequential(nn.Linear(4, 4))
    other = biprune.attach(wide, SGD(wide.parameters()), sparsity=0.8, steps=10)
    with pytest.raises(ValueError, match="of other weights than the model's: see 'masks'"):
        other.load_state_dict(state)
