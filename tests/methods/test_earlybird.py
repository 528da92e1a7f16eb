from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import biprune
from biprune.core.masks import Masks
from biprune.core.structure import get_structure
from biprune.methods.at_init import Scoring
from biprune.methods.base import Target
from biprune.methods.earlybird import EarlyBirdAlgorithm, farthest, find_gammas, gates_size
from biprune.training.batches import classification_loss
from biprune.training.setup import Setup
from hand_groups import TwoGroups, two_groups

Batches = list[tuple[Tensor, Tensor]]
WEIGHT = get_structure("weight")
SETUP = Setup([0], classification_loss)


def mask(*kept: int, size: int = 40) -> Masks:
    bits = torch.zeros(size, dtype=torch.bool)
    bits[list(kept)] = True
    return Masks({"weight": bits.view(4, 10)}, WEIGHT)


def first_settled(sequence: list[Masks], epochs: int, **options: object) -> tuple[Masks, str, int]:
    """Which of a scripted sequence of masks is kept, and at the start of which epoch."""
    method = biprune.EarlyBird(epochs=epochs, **options)  # pyright: ignore[reportArgumentType]
    algorithm = EarlyBirdAlgorithm(method, nn.Linear(10, 4), Target(0.5, WEIGHT), {}, SETUP)
    script = iter(sequence)
    algorithm._draw = lambda: next(script)  # pyright: ignore[reportAttributeAccessIssue]
    drawn = 0
    for epoch in range(epochs):
        algorithm.groups([0], 1)
        if algorithm._masks is not None:
            drawn = epoch
            break
    masks, verdict = algorithm.finish()
    return masks, verdict, drawn


def test_it_stops_when_five_masks_in_a_row_are_close() -> None:
    moving = [mask(*range(n, n + 20)) for n in (0, 10, 20, 5)]
    settled = [mask(*range(20))] * 5
    masks, verdict, epoch = first_settled([*moving, *settled], epochs=20)
    # Masks are drawn from the second epoch on; the fifth equal one is the ninth drawn.
    assert (masks, verdict, epoch) == (settled[0], "the mask settled after epoch 9", 9)


def test_one_far_mask_starts_the_count_again() -> None:
    stay, far = mask(*range(20)), mask(*range(15, 35))
    masks, verdict, _ = first_settled([stay] * 4 + [far] + [stay] * 5, epochs=20)
    assert verdict == "the mask settled after epoch 10"
    assert masks == stay


def test_close_is_not_equal() -> None:
    # 20 kept, 19 shared: IoU 19 / 21, a distance of 0.095; with 16 shared it is 0.33.
    one, near, far = mask(*range(20)), mask(*range(1, 21)), mask(*range(4, 24))
    assert farthest(one, [near, far], "iou") == pytest.approx(1 - 16 / 24)
    assert farthest(one, [near, far], "hamming") == pytest.approx(8 / 40)
    assert farthest(one, [], "iou") == 1.0
    assert farthest(mask(), [mask()], "iou") == 0.0  # nothing is kept, nothing differs
    _, verdict, _ = first_settled([one, one, near, one, near], epochs=20)
    assert verdict == "the mask settled after epoch 5"
    _, verdict, epoch = first_settled([one, one, far, one, far, one, one, far], epochs=9)
    assert (verdict, epoch) == ("no mask settled: that of the last epoch's start was kept", 8)


def test_hamming_is_vacuous_at_high_sparsity_and_iou_is_not() -> None:
    """Two masks that share nothing, at 95 %: the published distance calls them the same."""
    disjoint = [mask(2 * n, 2 * n + 1) for n in range(5)]
    _, published, _ = first_settled(disjoint, epochs=20, distance="hamming")
    assert published == "the mask settled after epoch 5"
    assert farthest(disjoint[0], disjoint[1:], "iou") == 1.0


def test_a_settled_mask_is_trained_under_to_the_end(conv_net: nn.Module, batches: Batches) -> None:
    method = biprune.EarlyBird(epochs=12, lr=1e-6, memory=3)
    ticket = biprune.prune(conv_net, batches, method, sparsity=0.8)
    assert ticket.history[-1]["note"] == "the mask settled after epoch 3"
    assert ticket.cost.backward_passes == 12 * len(batches)
    trained = [record for record in ticket.history if "epoch" in record]
    assert [record["mask_distance"] for record in trained[:4]] == [1.0, 1.0, 0.0, 0.0]


def test_filters_follow_gamma_under_a_penalty(conv_net: nn.Module, batches: Batches) -> None:
    with torch.no_grad():
        conv_net.get_parameter("norm1.weight").copy_(torch.tensor([0.1, 0.9, 0.2, 0.8, 0.3, 0.7]))
    method = biprune.EarlyBird(epochs=1, lr=1e-3, penalty=0.0)
    ticket = biprune.prune(conv_net, batches, method, sparsity=0.5, structure="filter")
    kept = ticket.masks["conv1.weight"].flatten(1).any(dim=1)
    assert kept.tolist() == [False, True, False, True, False, True]

    shrunk = biprune.EarlyBird(epochs=1, lr=1e-3, momentum=0.0, weight_decay=0.0, penalty=50.0)
    pushed = biprune.prune(conv_net, batches, shrunk, sparsity=0.5, structure="filter")
    difference = ticket.model.get_parameter("norm1.weight") - pushed.model.get_parameter(
        "norm1.weight"
    )
    assert (difference > 0.02).all()


def test_distances_count_units_whatever_their_size() -> None:
    """All filters of a thin layer change: half of the units, 0.8 % of the weights."""
    structure = get_structure("filter")

    def kept(thin: range) -> Masks:
        first = torch.zeros(10, 2, 1, 1, dtype=torch.bool)
        first[list(thin)] = True
        second = torch.zeros(10, 10, 5, 5, dtype=torch.bool)
        second[:5] = True
        return Masks({"thin": first, "fat": second}, structure)

    one, other = kept(range(5)), kept(range(5, 10))
    assert farthest(one, [other], "hamming") == pytest.approx(10 / 20)
    assert farthest(one, [other], "iou") == pytest.approx(10 / 15)


def test_a_frozen_gamma_still_ranks(conv_net: nn.Module, batches: Batches) -> None:
    with torch.no_grad():
        conv_net.get_parameter("norm1.weight").copy_(torch.arange(6.0))
        conv_net.get_parameter("norm1.bias").copy_(torch.arange(6.0).flip(0))
    conv_net.get_parameter("norm1.weight").requires_grad_(False)
    method = biprune.EarlyBird(epochs=1, lr=1e-4)
    masks = biprune.prune(conv_net, batches, method, sparsity=0.5, structure="filter").masks
    assert masks["conv1.weight"].flatten(1).any(dim=1).tolist() == [False] * 3 + [True] * 3


def test_gammas_do_not_compete_with_filters_that_have_none(batches: Batches) -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.Conv2d(4, 4, 3),
        nn.Flatten(),
        nn.Linear(64, 3),
    )
    options = {"sparsity": 0.5, "structure": "filter", "epochs": 1}
    with pytest.raises(ValueError, match=r"norms of filters without one: 2\.weight"):
        biprune.prune(model, batches, "earlybird", scope="global", **options)
    assert biprune.prune(model, batches, "earlybird", **options).masks.kept == 4


@pytest.mark.parametrize("epoch", [1, 4])
def test_resumed_before_and_after_the_mask_settles(
    conv_net: nn.Module, batches: Batches, tmp_path: Path, same_state, epoch: int
) -> None:
    class KilledError(Exception):
        pass

    def kill(event: biprune.Event) -> None:
        if (event.epoch, event.step) == (epoch, 2):
            raise KilledError

    method = biprune.EarlyBird(epochs=6, lr=0.05, memory=3, threshold=0.5)
    whole = biprune.prune(conv_net, batches, method, sparsity=0.8)
    assert whole.history[-1]["note"] == "the mask settled after epoch 3"
    with pytest.raises(KilledError):
        biprune.prune(conv_net, batches, method, sparsity=0.8, checkpoint=tmp_path, progress=kill)
    resumed = biprune.prune(conv_net, batches, method, sparsity=0.8, checkpoint=tmp_path)
    assert same_state(whole.model, resumed.model)
    for one, other in zip(whole.history, resumed.history, strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}


def test_looking_for_gammas_leaves_the_model_alone(
    conv_net: nn.Module, batches: Batches, same_state
) -> None:
    before, target = copy.deepcopy(conv_net), Target(0.5, get_structure("filter"))
    scoring = Scoring(conv_net, target.weights(conv_net), Setup(batches, classification_loss))
    assert find_gammas(scoring, target.structure).keys() == target.weights(conv_net).keys()
    assert same_state(conv_net, before)


def test_groups_are_ranked_by_gammas_not_biases() -> None:
    model, target = TwoGroups(), Target(0.5, two_groups())
    with torch.no_grad():
        model.norm.weight.copy_(torch.arange(8.0) - 4)
        model.norm.bias.fill_(100.0)
    scoring = Scoring(model, target.weights(model), Setup([0], classification_loss))
    found = find_gammas(scoring, target.structure)
    assert list(found) == ["first.weight"]
    assert gates_size(found["first.weight"]).tolist() == [4, 3, 2, 1, 0, 1, 2, 3]


def test_bad_settings() -> None:
    with pytest.raises(ValueError, match="`distance` must be one of iou, hamming, got 'l1'"):
        biprune.EarlyBird(distance="l1")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="`memory` must be at least 2, got 1"):
        biprune.EarlyBird(memory=1)
