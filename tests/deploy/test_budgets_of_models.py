"""Budgets on real architectures: how close, and the same in the model that is built from it."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

import biprune
from biprune.deploy.coupling.find import Coupling
from biprune.deploy.macs import total_macs
from biprune.groups import Groups
from biprune.masked import apply_masks_
from biprune.methods.base import Target, magnitudes
from biprune.request import Request

INPUTS = torch.zeros(2, 3, 32, 32)
MODELS = {
    "resnet20": {},
    "resnet20 with projections": {"shortcut": "B"},
    "resnet18": {"width": 32},
}


@pytest.fixture(scope="module", params=MODELS, ids=lambda name: name.replace(" ", "-"))
def found(request: pytest.FixtureRequest) -> tuple[torch.nn.Module, Target]:
    name = request.param
    model = biprune.create_model(name.split()[0], **MODELS[name], seed=0)
    target, _ = Request(0.5, "group").target(model, INPUTS)
    return model, target


@pytest.mark.parametrize("scope", ["layer", "global"])
@pytest.mark.parametrize(("round_to", "off"), [(1, 0.01), (8, 0.05)])
@pytest.mark.parametrize(("measure", "kept"), [("macs", 0.5), ("params", 0.3), ("params", 0.7)])
def test_a_budget_is_met_and_not_exceeded(found, measure, kept, round_to, off, scope) -> None:
    model, target = found
    assert isinstance(target.structure, Groups)
    structure = replace(target.structure, measure=measure, round_to=round_to, scope=scope)
    target = replace(target, structure=structure, sparsity=1 - kept)
    masks = target.select(magnitudes(target.weights(model)))
    masked = copy.deepcopy(model)
    apply_masks_(masked, masks)
    small = biprune.shrink(masked, Coupling(structure.groups, {}), INPUTS)
    if measure == "macs":
        reached = total_macs(small, INPUTS) / total_macs(model, INPUTS)
    else:
        sizes = [sum(p.numel() for p in net.parameters()) for net in (small, model)]
        reached = sizes[0] / sizes[1]
    assert kept * (1 - off) <= reached <= kept
    for group, count in zip(structure.groups, masks.per_layer().values(), strict=True):
        assert count.kept % round_to == 0 or count.kept == group.size


def test_a_budget_that_cannot_be_met_says_what_is_left() -> None:
    model = biprune.create_model("resnet20", seed=0)
    with pytest.raises(ValueError, match=r"cannot be pruned to 0\.3 of its macs: .* is left"):
        Request(None, "group", budget={"macs": 0.3}, round_to=8).target(model, INPUTS)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sparsity": 0.5, "budget": {"macs": 0.5}}, "the same thing twice"),
        ({"budget": {"flops": 0.5}}, r'must be {"macs": fraction}'),
        ({"budget": {"macs": 1.5}}, r"fraction in \(0, 1\]"),
        ({"budget": {"macs": 0.5}, "structure": "filter"}, "`budget` counts what can be removed"),
        ({"sparsity": 0.5, "round_to": 8, "structure": "weight"}, "`round_to` counts"),
        ({}, "or a `budget` such as"),
        ({"structure": "2:4", "sparsity": 0.9}, "removes 0.5 of the weights"),
        ({"structure": "weight"}, "Say how much to prune"),
    ],
)
def test_requests_that_make_no_sense(given: dict, message: str) -> None:
    asked = {"sparsity": None, "structure": "group", **given}
    with pytest.raises(ValueError, match=message):
        Request(**asked)
