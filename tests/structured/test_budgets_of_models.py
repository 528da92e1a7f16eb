"""Budgets on real architectures: how close, and the same in the model that is built from it."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import architectures
import biprune
from biprune.core.groups import Groups
from biprune.methods.base import Target, magnitudes
from biprune.pruning.request import Request
from biprune.structured.grouping import Coupling
from biprune.structured.macs import total_macs

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
    masks.apply_(masked)
    small = biprune.shrink(masked, Coupling(structure.groups, {}), INPUTS)
    if measure == "macs":
        reached = total_macs(small, INPUTS) / total_macs(model, INPUTS)
    else:
        sizes = [sum(p.numel() for p in net.parameters()) for net in (small, model)]
        reached = sizes[0] / sizes[1]
    assert kept * (1 - off) <= reached <= kept
    for group, count in zip(structure.groups, masks.per_layer().values(), strict=True):
        assert count.kept % round_to == 0 or count.kept == group.size


class NonLocal(nn.Module):
    """Every position looks at every other: products of activations, not of weights."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.query, self.key, self.value = (nn.Conv2d(16, 16, 1) for _ in range(3))
        self.head = nn.Linear(16, 4)

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.relu(self.stem(images))
        query, key, value = (f(hidden).flatten(2) for f in (self.query, self.key, self.value))
        seen = (query.transpose(1, 2) @ key).softmax(dim=-1)
        return self.head((hidden.flatten(2) + value @ seen.transpose(1, 2)).mean(dim=2))


class Computed(NonLocal):
    """The same, its values by a convolution whose weight is computed: no parameter pays for it."""

    def __init__(self) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        self.value = nn.Sequential(self.value, norm(nn.Conv2d(16, 16, 3, padding=1)))


class Joined(NonLocal):
    """The same, with two groups side by side in one product, one of which goes first."""

    def __init__(self) -> None:
        super().__init__()
        self.other_query, self.other_key = nn.Conv2d(16, 16, 1), nn.Conv2d(16, 16, 1)
        for layer in (self.query, self.key):
            nn.init.normal_(layer.weight, std=1e-3)

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.relu(self.stem(images))
        pairs = (self.query, self.other_query), (self.key, self.other_key)
        query, key = (torch.cat([f(hidden).flatten(2) for f in pair], 1) for pair in pairs)
        seen = (query.transpose(1, 2) @ key).softmax(dim=-1)
        return self.head((self.value(hidden).flatten(2) @ seen.transpose(1, 2)).mean(dim=2))


OWN = {"non-local": NonLocal, "computed": Computed, "joined": Joined}


@pytest.mark.parametrize("scope", ["layer", "global"])
@pytest.mark.parametrize("name", [*OWN, "torch_vit", "written_vit"])
def test_products_of_activations_are_paid_for(name: str, scope: str) -> None:
    model = OWN[name]() if name in OWN else architectures.build(name)
    images = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    kept = 0.5 if name in ("non-local", "joined") else 0.8
    ticket = biprune.prune(
        model,
        [(images, torch.arange(6) % 3)] * 2,
        "magnitude",
        structure="group",
        scope=scope,
        budget={"macs": kept},
        epochs=1,
    )
    size = ticket.shrink().certificate
    assert 0.85 * kept <= size.after.macs / size.before.macs <= kept


def test_rounds_of_imp_never_gain_a_unit() -> None:
    model = biprune.create_model("resnet8", width=8, shortcut="B", seed=0)
    batch = (torch.randn(6, 3, 8, 8), torch.arange(6))
    options = {"structure": "group", "budget": {"macs": 0.3}, "epochs": 1}
    ticket = biprune.prune(model, [batch], "imp", **options)
    tickets = [*ticket.rounds, ticket]
    assert len(tickets) > 3
    for before, after in pairwise(tickets):
        for name, mask in after.masks.items():
            assert not (mask & ~before.masks[name]).any()
    assert ticket.shrink().certificate.units_removed == ticket.masks.total - ticket.masks.kept


def test_a_budget_that_cannot_be_met_says_what_is_left() -> None:
    model = biprune.create_model("resnet20", seed=0)
    with pytest.raises(ValueError, match=r"cannot be pruned to 0\.05 of its macs: .* leave 0"):
        Request(None, "group", budget={"macs": 0.05}, round_to=8).target(model, INPUTS)
    normed = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 6), nn.Linear(6, 2))
    with pytest.raises(ValueError, match=r"Left out: 0\.weight \(it runs through a norm .*\); 3\."):
        Request(None, "group", budget={"macs": 0.1}).target(normed, torch.zeros(2, 4))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sparsity": 0.5, "budget": {"macs": 0.5}}, "both say how much to prune"),
        ({"budget": {"flops": 0.5}}, r'must be {"macs": fraction}'),
        ({"budget": {"macs": 1.5}}, r"fraction in \(0, 1\]"),
        ({"budget": 0.5}, r'must be {"macs": fraction}.* got 0\.5'),
        ({"sparsity": 0.5, "allow_empty": True}, "a layer without any filter cannot be built"),
        ({"budget": {"macs": 0.5}, "structure": "filter"}, "`budget` counts what can be removed"),
        ({"sparsity": 0.5, "round_to": 8, "structure": "weight"}, "`round_to` counts"),
        ({}, "or a `budget` such as"),
        ({"structure": "2:4", "sparsity": 0.9}, "removes 0.5 of the weights"),
        ({"structure": "weight"}, "Say how much to prune"),
        (
            {"structure": "weight", "sparsity": 0.5, "streams": True},
            r"`streams` counts what can be removed.*alone",
        ),
        (
            {"sparsity": 0.5, "attention": "dims"},
            r"`attention` must be one of .*'width', got 'dims'",
        ),
    ],
)
def test_requests_that_make_no_sense(given: dict, message: str) -> None:
    asked = {"sparsity": None, "structure": "group", **given}
    with pytest.raises(ValueError, match=message):
        Request(**asked)
