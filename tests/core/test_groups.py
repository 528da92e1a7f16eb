from __future__ import annotations

import json

import pytest
import torch

from biprune.core.groups import Groups, Slice
from biprune.core.masks import Masks
from biprune.core.parameters import parameter_names
from biprune.core.selection import select
from hand_groups import TwoGroups, rows, two_groups
from levels import Levels


def weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    named = parameter_names(TwoGroups()).items()
    return {name: p.detach() for name, p in named if name in two_groups().tensors}


def test_a_mask_covers_all_that_belongs_to_a_unit() -> None:
    kept = {"first.weight": torch.arange(8) != 2, "second.weight": torch.arange(12) < 9}
    masks = two_groups().expand(kept, weights())
    assert [tuple(i.tolist()) for i in (~masks["norm.bias"]).nonzero()] == [(2,)]
    assert not masks["first.weight"][2].any()
    assert masks["first.weight"].sum() == 7 * 27
    assert masks["second.weight"].sum() == 7 * 9
    assert masks["head.weight"].sum() == 3 * 36
    assert not masks["head.weight"][:, 36:].any()
    assert masks.keys() == weights().keys()
    found = Masks(masks, two_groups())
    assert {n: (c.kept, c.total) for n, c in found.per_layer().items()} == {
        "first.weight": (7, 8),
        "second.weight": (9, 12),
    }
    assert found.weight_sparsity == 1 - (7 * 27 + 7 * 2 + 63 + 9 + 108) / (
        8 * 27 + 8 * 2 + 96 + 12 + 144
    )


def test_units_are_ranked_by_the_norm_of_their_filters() -> None:
    held = weights()
    units = two_groups().pool({name: weight.abs() for name, weight in held.items()})
    for name, found in units.items():
        by_hand = [float(row.square().sum() ** 0.5) for row in held[name]]
        torch.testing.assert_close(found, torch.tensor(by_hand))


def test_a_stream_that_many_write_counts_their_mean() -> None:
    groups = two_groups()
    first = groups.groups[0]
    twice = (*first.slices, Slice("again.weight", 0, rows(8), "filter"))
    wide = Groups(*("group", "", None), scope="layer", groups=(type(first)("first.weight", twice),))
    scores = {"first.weight": torch.full((8, 3), 2.0), "again.weight": torch.full((8, 3), 4.0)}
    torch.testing.assert_close(
        wide.pool(scores)["first.weight"], torch.full((8,), ((12 + 48) / 2) ** 0.5)
    )


def test_sums_over_filters_and_over_gates() -> None:
    ones = {name: torch.ones_like(weight) for name, weight in weights().items()}
    assert two_groups().add_up(ones)["first.weight"].tolist() == [27.0] * 8
    gates = two_groups().add_up_gates(ones)
    assert gates["first.weight"].tolist() == [2.0] * 8
    assert gates["second.weight"].tolist() == [9.0] * 12
    only = {"norm.weight": torch.arange(8.0)}
    assert list(two_groups().add_up_gates(only)) == ["first.weight"]
    assert two_groups().add_up_gates(only)["first.weight"].tolist() == list(range(8))


def test_spread_is_the_gradient_of_a_gate() -> None:
    part = two_groups().groups[1].slices[2]
    gates = torch.ones(12, requires_grad=True)
    weight = weights()["head.weight"]
    (part.spread(gates, weight.shape) * weight).sum().backward()
    torch.testing.assert_close(gates.grad, part.of(weight).sum(dim=1))


def test_json_gives_the_same_structure_back() -> None:
    groups = two_groups(scope="global", measure="macs", round_to=4)
    scattered = Slice("first.weight", 0, torch.tensor([[3, 1], [0, 2]]), "filter")
    shapes = {name: list(weight.shape) for name, weight in weights().items()}
    assert torch.equal(Slice.from_json(scattered.to_json(), shapes).places, scattered.places)
    text = json.dumps(groups.to_json())
    again = Groups.from_json(json.loads(text), "global", shapes)
    assert json.dumps(again.to_json()) == text
    assert len(text) < 2500  # runs of places are not spelt out
    scores = {name: torch.rand_like(weight) for name, weight in weights().items()}
    assert select(scores, 0.5, again) == select(scores, 0.5, groups)


@pytest.mark.parametrize(
    "change",
    [
        {"shapes": {"first.weight": 3}},
        {"shapes": []},
        {"macs": {"first.weight": "x"}},
        {"products": 1},
        {"measure": "x"},
        {"round_to": "2"},
    ],
)
def test_settings_that_no_structure_has_are_refused(change: dict) -> None:
    data = {**two_groups().to_json(), **change}
    shapes = {name: list(weight.shape) for name, weight in weights().items()}
    with pytest.raises(ValueError, match="is not of type"):
        Groups.from_json(data, "global", shapes)


@pytest.mark.parametrize(
    "places", [[0, 10**15, 1], [0, 10**15, 10**15], [-1, 4, 1], [5, 4, 1], [0, -2, -3], [0, 0, 1]]
)
def test_a_group_beyond_its_tensor_is_refused_before_it_takes_memory(places: list[int]) -> None:
    data = {**two_groups().groups[0].slices[0].to_json(), "places": places}
    shapes = {name: list(weight.shape) for name, weight in weights().items()}
    with pytest.raises(ValueError, match=r"a group lies beyond 'first\.weight'"):
        Slice.from_json(data, shapes)
    with pytest.raises(ValueError, match="a group lies beyond"):
        Slice.from_json({**data, "places": [[0], [99]], "in_a_row": False}, shapes)


def test_one_score_a_unit_moved_by_its_gates() -> None:
    torch.manual_seed(0)
    model = TwoGroups()
    opt = Levels(model, 0.25, two_groups(), score_lr=0.5, momentum=0.0, gamma=2.0)
    before = {name: score.clone() for name, score in opt.scores.items()}
    theta = {name: value.clone() for name, value in opt.theta.items()}
    masks = dict(opt.masks)
    model(torch.randn(6, 3, 2, 2)).square().mean().backward()
    g = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    upper = {n: (theta[n] - masks[n] * g[n] / 2.0) * g[n] for n in theta}
    opt.upper_step()
    wanted = {
        "first.weight": upper["norm.weight"] + upper["norm.bias"],
        "second.weight": upper["second.weight"].flatten(1).sum(1) + upper["second.bias"],
    }
    for name, gradient in wanted.items():
        torch.testing.assert_close(opt.scores[name], before[name] - 0.5 * gradient)
    for name, mask in opt.masks.items():
        assert not model.get_parameter(name)[~mask].any()
    assert opt.masks.kept == 15


def test_scores_of_groups_are_not_clamped() -> None:
    with pytest.raises(ValueError, match="`form` must be one of binary, coupled, got 'clamped'"):
        Levels(TwoGroups(), 0.5, two_groups(), form="clamped")


def test_a_pruned_unit_emits_exactly_zero_in_training() -> None:
    torch.manual_seed(0)
    model = TwoGroups()
    opt = Levels(model, 0.5, two_groups())
    model(torch.randn(6, 3, 2, 2)).sum().backward()
    opt.lower_step()
    kept = opt.masks.structure.kept_units(opt.masks)["first.weight"]
    hidden = model.norm(model.first(torch.randn(6, 3, 2, 2)))
    assert not hidden[:, ~kept].any()
    assert hidden[:, kept].abs().amax(dim=(0, 2, 3)).min() > 0
