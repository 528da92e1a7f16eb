"""bip-plus by hand, of groups by brute force, and its ramp; `test_attach` has all else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import cycle, islice

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import biprune
from architectures import CLASSES, build, images
from biprune.core.groups import Groups
from biprune.core.structure import Scope
from biprune.methods import METHODS, BiPPlus
from biprune.methods.base import Target
from biprune.methods.bip_plus import BiPPlusRule
from biprune.training.step_hooks import StepHooks
from hand_groups import TwoGroups, two_groups
from linear_loss import backward, linear_problem
from oracles import stable_top_k, top_k_with_floor

Batches = list[tuple[Tensor, Tensor]]


def test_a_step_by_hand() -> None:
    model, c = linear_problem([2.0, 1.75, 1.5, 0.5], [2.0, 0.0, -0.25, 0.5])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    pruner = biprune.attach(
        model, optimizer, 0.5, steps=10, ramp=0.1, initial_sparsity=0.5, kappa=2.5
    )
    assert model.weight.tolist() == [[2.0, 1.75, 0.0, 0.0]]
    backward(model, c)
    optimizer.step()
    theta = [1.0, 1.75, 1.5, 0.5]  # kept weights moved by -0.5 c, pruned ones stand still
    products = [1.0 * 2.0, 0.0, 1.5 * -0.25, 0.5 * 0.5]  # theta * g, at the theta of after
    a = sum(map(abs, products)) / 4
    scores = [-2.5 * product / (10 * a) for product in products]
    found = pruner.state_dict()["scores"]["weight"]
    torch.testing.assert_close(found, torch.tensor([scores], dtype=torch.float64))
    rms = math.sqrt(sum(value**2 for value in theta) / 4)
    ranked = [value / rms + score for value, score in zip(theta, scores, strict=True)]
    kept = stable_top_k(ranked, 2)
    assert kept == [False, True, True, False]  # by magnitudes and scores alike
    assert pruner.theta["weight"].tolist() == [theta]
    assert model.weight.tolist() == [[0.0, 1.75, 1.5, 0.0]]


def test_the_divisor_is_a_running_mean() -> None:
    model, c = linear_problem([2.0, 1.0], [1.0, 0.0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    pruner = biprune.attach(model, optimizer, 0.5, steps=200, ramp=0.005, kappa=1.0)
    optimizer.param_groups[0]["initial_lr"] = 1.0  # theta stands still, and so does the score
    mean, sizes = 0.0, []
    for number in range(1, 151):
        backward(model, c * number)
        optimizer.step()
        sizes.append(2.0 * number / 2)
        mean += (sizes[-1] - mean) * max(0.01, 1 / number)
    assert pruner.state_dict()["mean"] == pytest.approx(mean)
    assert not pruner.state_dict()["scores"]["weight"].any()


@pytest.mark.parametrize("scope", ["layer", "global"])
def test_groups_by_brute_force(scope: Scope) -> None:
    """The norm of a unit's filters over the root mean square of all, and one score for its gates.

    Scores of pruned units stand still.
    """
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    with torch.no_grad():
        target = Target(0.6, two_groups(scope=scope))
        rule = BiPPlusRule(model, target, BiPPlus(ramp=1.0), steps=8)
    StepHooks(optimizer, rule.weights).register(rule)
    scores = {"first.weight": [0.0] * 8, "second.weight": [0.0] * 12}
    mean, came_back = 0.0, False
    for number, batch in enumerate(small_batches(8), start=1):
        model.zero_grad()
        cross_entropy(model(batch[0]), batch[1]).backward()
        gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        kept = rule.masks.structure.kept_units(rule.masks)
        optimizer.step()
        sums = _gate_sums(rule.theta, gradients)
        size = sum(abs(value) for each in sums.values() for value in each) / 20
        mean += (size - mean) * max(0.01, 1 / number)
        for name, each in sums.items():
            step = 3.0 / (8 * mean)
            scores[name] = [s - step * g for s, g in zip(scores[name], each, strict=True)]
            assert rule.scores[name].tolist() == pytest.approx(scores[name])
        norms = {name: [_norm(unit) for unit in rule.theta[name]] for name in scores}
        every = [value for each in norms.values() for value in each]
        rms = math.sqrt(sum(value**2 for value in every) / len(every))
        ranked = [
            [norm / rms + score for norm, score in zip(norms[name], scores[name], strict=True)]
            for name in scores
        ]
        units = rule.masks.structure.kept_units(rule.masks)
        found = [units[name].tolist() for name in scores]
        assert found == _best(ranked, list(map(sum, found)), scope)
        came_back |= any((units[name] & ~kept[name]).any() for name in scores)
    assert came_back
    assert rule.masks.kept == 8


def test_a_stream_that_many_write_by_brute_force() -> None:
    """The mean square over its writers, the unit's score added behind the root."""
    model = build("residual").double().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = biprune.attach(
        model,
        optimizer,
        0.5,
        steps=6,
        ramp=1.0,
        structure="group",
        example_input=images().double(),
    )
    structure = pruner.masks.structure
    assert isinstance(structure, Groups)
    assert max(len(group.filters) for group in structure.groups) > 1
    inputs, labels = images(16).double(), torch.arange(16) % CLASSES
    for _ in range(6):
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        scores, ranked = pruner.state_dict()["scores"], {}
        for group in structure.groups:
            writers = [part.of(pruner.theta[part.tensor]) for part in group.filters]
            squares = [[_norm(w[i]) ** 2 for w in writers] for i in range(group.size)]
            ranked[group.name] = [math.sqrt(sum(each) / len(each)) for each in squares]
        every = [value for each in ranked.values() for value in each]
        rms = math.sqrt(sum(value**2 for value in every) / len(every))
        kept = structure.kept_units(pruner.masks)
        for name, norms in ranked.items():
            pairs = zip(norms, scores[name].tolist(), strict=True)
            found = kept[name].tolist()
            assert stable_top_k([norm / rms + score for norm, score in pairs], sum(found)) == found
    assert pruner.masks.kept == round(0.5 * pruner.masks.total)


def test_the_ramp_goes_from_dense_to_the_target(conv_net: nn.Module, batches: Batches) -> None:
    ticket = biprune.prune(conv_net, batches, sparsity=0.9, epochs=4, ramp=0.75)
    reached = [record["sparsity"] for record in ticket.history]
    # After epochs 1, 2, 3 of 4: 0.9 (1 - (1 - t / 0.75)^3) at t = 1/4, 1/2, 3/4.
    wanted = [0.9 * (1 - (2 / 3) ** 3), 0.9 * (1 - (1 / 3) ** 3), 0.9]
    assert reached[:3] == pytest.approx(wanted, abs=2e-3)
    assert reached[3] == reached[2]
    late = biprune.prune(conv_net, batches, sparsity=0.9, epochs=1, ramp=1.0)
    assert late.masks.kept == round(0.1 * late.masks.total)


def test_weights_that_are_pruned_stand_still(conv_net: nn.Module, batches: Batches) -> None:
    """They neither decay nor drift by the momentum they have left."""
    optimizer = torch.optim.SGD(conv_net.parameters(), 0.1, momentum=0.9, weight_decay=0.1)
    pruner = biprune.attach(conv_net, optimizer, 0.8, steps=20)
    for batch in islice(cycle(batches), 20):
        theta = {name: value.clone() for name, value in pruner.theta.items()}
        masks = dict(pruner.masks)
        optimizer.zero_grad()
        cross_entropy(conv_net(batch[0]), batch[1]).backward()
        optimizer.step()
        for name, mask in masks.items():
            assert torch.equal(pruner.theta[name][~mask], theta[name][~mask])
            assert not torch.equal(pruner.theta[name][mask], theta[name][mask])


def test_high_sparsity_in_front_of_norms_is_learned() -> None:
    """Where scores of rows without a kept weight are learned, such a run ends at chance."""
    data = biprune.load_data("digits", seed=0)
    model = biprune.create_model("resnet8", width=8, in_channels=data.in_channels, seed=0)
    dense = biprune.train(model, data, epochs=6, seed=0)
    ticket = biprune.prune(dense, data, sparsity=0.97, epochs=10)
    assert ticket.accuracy is not None
    assert ticket.accuracy > 75


def test_passes_and_what_they_cost(conv_net: nn.Module, batches: Batches) -> None:
    assert METHODS["bip-plus"] is BiPPlus
    assert BiPPlus().data_passes(0.9) == 100
    method = BiPPlus(passes=2, epochs=3)
    assert method.data_passes(0.9) == 6
    ticket = biprune.prune(conv_net, batches, method, sparsity=0.8)
    assert ticket.cost.backward_passes == 6 * len(batches)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"passes": 3}, "`passes` must be 1 or 2, got 3"),
        ({"kappa": -1.0}, "`kappa` must be 0 or more, got -1"),
        ({"mask_every": 0}, "`mask_every` must be at least 1, got 0"),
        ({"ramp": 0.0}, r"`ramp` must be in \(0, 1\], got 0"),
        ({"initial_sparsity": 1.0}, r"`initial_sparsity` must be in \[0, 1\), got 1"),
        (
            {"initial_sparsity": 0.6},
            r"`initial_sparsity` 0\.6 is above the sparsity to",
        ),
        ({"schedule": "linear"}, "`schedule` must be one of cosine, step, constant"),
        ({"epochs": 0}, "`epochs` must be at least 1, got 0"),
    ],
)
def test_bad_settings(conv_net: nn.Module, batches: Batches, settings: dict, text: str) -> None:
    def never(model: nn.Module, batch: object) -> Tensor:
        raise AssertionError("A pass was made.")

    with pytest.raises(ValueError, match=text):
        biprune.prune(conv_net, batches, "bip-plus", sparsity=0.5, loss=never, **settings)


def small_net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return TwoGroups().double()


def small_batches(count: int) -> Batches:
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(count, 6, 3, 2, 2, generator=generator, dtype=torch.float64)
    return [(each, torch.arange(6) % 3) for each in inputs]


def _gate_sums(theta: Mapping[str, Tensor], g: Mapping[str, Tensor]) -> dict[str, list[float]]:
    """theta * g over the gates of every unit."""
    product = {name: value * g[name] for name, value in theta.items()}
    first = product["norm.weight"] + product["norm.bias"]
    second = product["second.weight"].flatten(1).sum(1) + product["second.bias"]
    return {"first.weight": first.tolist(), "second.weight": second.tolist()}


def _norm(values: Tensor) -> float:
    return math.sqrt(sum(value**2 for value in values.flatten().tolist()))


def _best(layers: list[list[float]], kept: list[int], scope: Scope) -> list[list[bool]]:
    if scope == "global":
        return top_k_with_floor(layers, sum(kept))
    return [stable_top_k(layer, count) for layer, count in zip(layers, kept, strict=True)]
