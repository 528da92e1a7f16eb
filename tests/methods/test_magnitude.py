from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import biprune
from biprune.core.structure import get_structure
from biprune.methods.base import Target
from biprune.methods.imp import surviving_magnitudes
from biprune.training.batches import classification_loss

Batches = list[tuple[Tensor, Tensor]]


@pytest.fixture
def dense(conv_net: nn.Module, batches: Batches) -> biprune.TrainResult:
    return biprune.train(conv_net, batches, epochs=4, lr=0.05, rewind_epochs=[0, 1])


def test_literal_weights_give_a_literal_mask() -> None:
    model = nn.Linear(4, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.1, -3.0, 2.0, 0.0], [-0.5, 0.4, 0.3, -4.0]]))
    data = [(torch.ones(2, 4), torch.tensor([0, 1]))]
    ticket = biprune.prune(model, data, "magnitude", sparsity=0.5, epochs=1, lr=1e-9)
    kept = [[False, True, True, False], [True, False, False, True]]
    assert ticket.masks["weight"].tolist() == kept
    assert torch.allclose(ticket.model.weight, model.weight * torch.tensor(kept))


def test_the_first_round_of_imp_is_omp_at_20_percent(
    dense: biprune.TrainResult, batches: Batches, same_state
) -> None:
    imp = biprune.prune(dense, batches, "imp", sparsity=0.2, epochs=2)
    omp = biprune.prune(dense, batches, "omp", sparsity=0.2, epochs=2)
    assert imp.masks == omp.masks
    assert same_state(imp.model, omp.model)
    deep = biprune.prune(dense, batches, "imp", sparsity=0.6, epochs=2)
    assert deep.rounds[0].masks == omp.masks


def test_the_ladder() -> None:
    lottery = [1 - 0.8**n for n in range(1, 12)]
    assert list(biprune.IMP().ladder(lottery[5])) == pytest.approx(lottery[:6])
    assert list(biprune.IMP().ladder(0.74)) == pytest.approx([*lottery[:5], 0.74])
    assert len(list(biprune.IMP().ladder(0.9))) == 11
    assert list(biprune.IMP().ladder(0.1)) == [0.1]
    assert list(biprune.IMP().ladder(0.0)) == [0.0]
    stopped = list(biprune.IMP(stops=(0.3, 0.5, 0.95)).ladder(0.6))
    assert stopped == pytest.approx([0.2, 0.3, 0.44, 0.5, 0.6])
    equal = list(biprune.IMP(rounds=3).ladder(0.875))
    assert equal == pytest.approx([0.5, 0.75, 0.875])
    assert biprune.IMP().data_passes(0.9) == 11 * 160


def test_every_round_starts_from_the_rewound_weights_times_its_mask(
    dense: biprune.TrainResult, batches: Batches
) -> None:
    starts: list[dict[str, Tensor]] = []
    calls = 0

    def loss(model: nn.Module, batch: object) -> Tensor:
        nonlocal calls
        if calls % len(batches) == 0:
            starts.append({n: p.detach().clone() for n, p in model.named_parameters()})
        calls += 1
        return classification_loss(model, batch)

    ticket = biprune.prune(dense, batches, "imp", sparsity=0.488, epochs=1, loss=loss)
    tickets = [*ticket.rounds, ticket]
    assert [t.sparsity for t in tickets] == pytest.approx([0.2, 0.36, 0.488])
    for start, passed in zip(starts, tickets, strict=True):
        for name, value in start.items():
            rewound = dense.states[1][name]
            if name in passed.masks:
                rewound = torch.where(passed.masks[name], rewound, 0.0)
            assert torch.equal(value, rewound)
    for before, after in pairwise(tickets):
        for name, mask in after.masks.items():
            assert not (mask & ~before.masks[name]).any()  # pruned stays pruned
        assert after.cost.backward_passes == before.cost.backward_passes + len(batches)


def test_filters_that_are_pruned_stay_pruned(batches: Batches) -> None:
    """Layers of 6, 6 and 2 filters: rounding by remainders would give the last one back."""
    model = nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.Conv2d(6, 6, 3), nn.Conv2d(6, 2, 3), nn.Flatten(), nn.Linear(8, 3)
    )
    method = biprune.IMP(epochs=1, rate=0.5, stops=(3 / 14,), lr=1e-3)
    ticket = biprune.prune(model, batches, method, sparsity=4 / 14, structure="filter")
    (before,) = ticket.rounds
    assert not (ticket.masks.units() & ~before.masks.units()).any()


def test_each_round_prunes_by_the_weights_that_the_one_before_trained(
    dense: biprune.TrainResult, batches: Batches
) -> None:
    ticket = biprune.prune(dense, batches, "imp", sparsity=0.36, epochs=2)
    first = ticket.rounds[0]
    target = Target(0.36, get_structure("weight"))
    scores = surviving_magnitudes(target.weights(first.model), first.masks)
    assert target.select(scores) == ticket.masks


def test_rounds_are_saved_and_measured(
    dense: biprune.TrainResult, batches: Batches, tmp_path: Path, same_state
) -> None:
    model = biprune.create_model("resnet8", num_classes=3, in_channels=1, width=2)
    ticket = biprune.prune(
        model,
        batches,
        biprune.IMP(epochs=1, stops=(0.3,)),
        sparsity=0.5,
        evaluate=lambda model: float(sum(int(torch.count_nonzero(p)) for p in model.parameters())),
    )
    assert [t.sparsity for t in ticket.rounds] == pytest.approx([0.2, 0.3, 0.44])
    loaded = biprune.load_ticket(ticket.save(tmp_path))
    for saved, original in zip([*loaded.rounds, loaded], [*ticket.rounds, ticket], strict=True):
        assert saved.masks == original.masks
        assert saved.accuracy == original.accuracy
        assert saved.settings == original.settings
        assert same_state(saved.model, original.model)
    assert ticket.rounds[0].accuracy > ticket.rounds[1].accuracy > ticket.accuracy  # pyright: ignore


def test_ways_to_go_on(dense: biprune.TrainResult, batches: Batches) -> None:
    """Where each variant starts, seen at a learning rate that moves nothing."""
    still = {"sparsity": 0.5, "epochs": 1, "lr": 1e-12}
    trained = dense.model.get_parameter("head.bias")
    cases = [
        ("omp", {}, dense.states[1]["head.bias"]),
        ("omp", {"rewind_epoch": 0}, dense.states[0]["head.bias"]),
        ("imp", {"rewind": False}, trained),
        ("imp", {"rewind_epoch": 0}, dense.states[0]["head.bias"]),
        ("magnitude", {}, trained),
        ("finetune", {}, trained),
    ]
    for method, options, expected in cases:
        ticket = biprune.prune(dense, batches, method, **still, **options)
        assert torch.allclose(ticket.model.get_parameter("head.bias"), expected, atol=1e-8), method


def test_gmp_follows_the_curve_and_ends_by_magnitude(conv_net: nn.Module, batches: Batches) -> None:
    method = biprune.GMP(epochs=10, ramp=0.5, mask_every=1, lr=0.01)
    ticket = biprune.prune(conv_net, batches, method, sparsity=0.8)
    reached = [record["sparsity"] for record in ticket.history]
    expected = [0.8 * (1 - (1 - epoch / 5) ** 3) for epoch in range(1, 6)] + [0.8] * 5
    assert reached == pytest.approx(expected, abs=2e-3)
    assert all(record["iou"] == 1.0 for record in ticket.history[5:])
    seldom = biprune.prune(
        conv_net, batches, biprune.GMP(epochs=10, ramp=0.5, mask_every=10, lr=0.01), sparsity=0.8
    )
    # Masks are redrawn at steps 10 and 20 of 40: in epochs 3 and 5.
    moved = [record["flip_rate"] > 0 for record in seldom.history]
    assert moved == [False, False, True, False, True] + [False] * 5


def test_gmp_can_bring_a_weight_back() -> None:
    """A pruned weight keeps its value, and returns when another falls below it."""
    model = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 0.9]]))
    data = [(torch.tensor([[1.0, 0.0]]), torch.tensor([0.0]))]

    def shrink_first(model: nn.Module, batch: object) -> Tensor:
        return model(torch.tensor([[1.0, 0.0]])).sum()

    method = biprune.GMP(epochs=4, lr=0.1, momentum=0.0, weight_decay=0.0, ramp=1.0, mask_every=1)
    ticket = biprune.prune(model, data, method, sparsity=0.5, loss=shrink_first)
    assert ticket.masks["weight"].tolist() == [[False, True]]
    assert ticket.model.weight[0, 1].item() == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("frozen", "kept", "value"),
    [
        (False, [True, False], 0.8 * (1 - 0.2 * 0.853553) * 0.9 * (1 - 0.2 * 0.146447)),
        (True, [False, True], 0.72 * 0.9),  # whichever is kept shrinks below the one that waits
    ],
)
def test_gmp_lets_pruned_weights_decay_unless_they_are_frozen(
    frozen: bool, kept: list[bool], value: float
) -> None:
    """Decay alone, by 2 lr a step, lr 0.1 on a cosine: the two weights keep their order or not."""
    model = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 0.9]]))
    data = [(torch.ones(1, 2), torch.tensor([0.0]))]
    settings = {"lr": 0.1, "momentum": 0.0, "weight_decay": 2.0, "ramp": 1.0, "mask_every": 1}
    method = biprune.GMP(epochs=4, freeze_pruned=frozen, **settings)
    ticket = biprune.prune(
        model, data, method, sparsity=0.5, loss=lambda model, batch: 0.0 * model(batch[0]).sum()
    )
    assert ticket.masks["weight"].tolist() == [kept]
    assert ticket.model.weight.max().item() == pytest.approx(value)


@pytest.mark.parametrize(
    ("method", "text"),
    [
        (lambda: biprune.IMP(rate=1.0), r"`rate` must be in \(0, 1\), got 1"),
        (lambda: biprune.IMP(rounds=0), "`rounds` must be at least 1, got 0"),
        (lambda: biprune.IMP(rounds=2, stops=(0.5,)), "`rounds` and `stops` cannot both be given"),
        (
            lambda: biprune.IMP(rewind=False, rewind_epoch=1),
            "`rewind_epoch` is given, but",
        ),
        (lambda: biprune.GMP(ramp=0.0), r"`ramp` must be in \(0, 1\], got 0"),
        (lambda: biprune.GMP(mask_every=0), "`mask_every` must be at least 1, got 0"),
    ],
)
def test_bad_settings(method, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        method()
