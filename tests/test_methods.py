"""Conformance: what every method promises. A new method joins by its registry row."""

from __future__ import annotations

import copy
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

import biprune
from biprune.methods import METHODS, Method, get_method
from biprune.methods.base import TrainingMethod
from biprune.parameters import prunable
from biprune.structure import get_structure

STRUCTURES = ("weight", "filter", "channel", "group")
GROUPED = ["stem.weight", "stem.bias", "norm1.weight", "norm1.bias", "body.weight", "body.bias"]
GROUPED += ["norm2.weight", "norm2.bias", "head.weight"]
SPARSITIES = (0.0, 0.5, 0.9, 0.98)
EPOCHS = 2

methods = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
structures = pytest.mark.parametrize("structure", STRUCTURES)


class Net(nn.Module):
    """Wide enough that 98 % leaves a filter and a channel in every layer; counts its forwards."""

    forwards: ClassVar[Counter[str]] = Counter()

    def __init__(self, *, norms: bool = True, bias: bool = True) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 50, 1, bias=bias)
        self.norm1 = nn.BatchNorm2d(50) if norms else nn.Identity()
        self.body = nn.Conv2d(50, 60, 1, bias=bias)
        self.norm2 = nn.BatchNorm2d(60) if norms else nn.Identity()
        self.head = nn.Linear(60, 3, bias=bias)

    def forward(self, images: Tensor) -> Tensor:
        self.forwards["net"] += 1
        hidden = torch.relu(self.norm1(self.stem(images)))
        return self.head(torch.relu(self.norm2(self.body(hidden))).mean(dim=(2, 3)))


class MobileNet(nn.Module):
    """Grouped and depthwise convolutions between pointwise ones."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(2, 24, 1, bias=False),
            nn.BatchNorm2d(24),
            nn.ReLU(),
            nn.Conv2d(24, 24, 3, padding=1, groups=24, bias=False),
            nn.BatchNorm2d(24),
            nn.ReLU(),
            nn.Conv2d(24, 24, 1, groups=4, bias=False),
            nn.ReLU(),
            nn.Conv2d(24, 24, 1),
        )
        self.head = nn.Linear(24, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.layers(images).mean(dim=(2, 3)))


@pytest.fixture
def data() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(3).repeat(4).view(2, 6)
    images = torch.randn(2, 6, 2, 3, 3, generator=generator) + labels[..., None, None, None]
    return list(zip(images, labels, strict=True))


def build(module: type[nn.Module], **options: bool) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return module(**options)


def pruned(
    method: type[Method],
    model: nn.Module | biprune.TrainResult,
    data: list,
    sparsity: float,
    structure: str,
    seed: int = 0,
) -> biprune.Ticket:
    return biprune.prune(
        model, data, method().scaled(EPOCHS), sparsity=sparsity, structure=structure, seed=seed
    )


@pytest.mark.parametrize("name", [n for n, m in METHODS.items() if issubclass(m, TrainingMethod)])
def test_nesterov_is_a_form_of_momentum(name: str, data: list, same_state) -> None:
    def model(**settings: object) -> nn.Module:
        return biprune.prune(
            build(Net), data, get_method(name, settings, EPOCHS), sparsity=0.5
        ).model

    assert not same_state(model(nesterov=True), model(nesterov=False))
    still = {"momentum": 0.0}
    assert same_state(model(nesterov=True, **still), model(nesterov=False, **still))


@methods
@structures
@pytest.mark.parametrize("sparsity", SPARSITIES)
def test_count_names_and_zeros_are_exact(
    method: type[Method], structure: str, sparsity: float, data: list, same_state
) -> None:
    model = build(Net)
    before = copy.deepcopy(model)
    if sparsity > 0 and not method.prunes:
        with pytest.raises(ValueError, match="prunes nothing"):
            pruned(method, model, data, sparsity, structure)
        return
    ticket = pruned(method, model, data, sparsity, structure)
    assert same_state(model, before)
    grouped = structure == "group"
    names = GROUPED if grouped else list(prunable(model, get_structure(structure)))
    assert list(ticket.masks) == names
    assert ticket.masks.kept == round((1 - sparsity) * ticket.masks.total)
    for name, mask in ticket.masks.items():
        weight = ticket.model.get_parameter(name)
        assert mask.any()
        assert not weight[~mask].any()
        assert not torch.signbit(weight[~mask]).any()
        assert weight.isfinite().all()
    for name, count in ticket.masks.per_layer().items():
        if structure != "weight":
            share = ticket.masks.kept * count.total / ticket.masks.total
            assert abs(count.kept - share) < 1 or count.kept == 1, name


@methods
@structures
def test_the_seed_decides_every_bit(
    method: type[Method], structure: str, data: list, same_state
) -> None:
    sparsity = 0.8 if method.prunes else 0.0
    first, again = (pruned(method, build(Net), data, sparsity, structure, seed=3) for _ in range(2))
    assert first.masks == again.masks
    assert same_state(first.model, again.model)
    assert [r.get("loss") for r in first.history] == [r.get("loss") for r in again.history]


@methods
@structures
def test_passes_are_those_really_made(
    method: type[Method], structure: str, data: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    backwards = Counter[str]()
    for name in ("grad", "backward"):
        original = getattr(torch.autograd, name)

        def counted(*args, original=original, **options):
            backwards["all"] += 1
            return original(*args, **options)

        monkeypatch.setattr(torch.autograd, name, counted)
    Net.forwards.clear()
    ticket = pruned(method, build(Net), data, 0.8 if method.prunes else 0.0, structure)
    if structure == "group":  # found by running the model, which is no pass over the data
        assert ticket.cost.forward_passes < Net.forwards["net"]
    else:
        assert ticket.cost.forward_passes == Net.forwards["net"]
    # One backward of ProsPr's scoring goes through all batches of a draw, which are all there are.
    draws = biprune.ProsPr().inner_steps + 1 if method is biprune.ProsPr else 0
    assert ticket.cost.backward_passes == backwards["all"] + draws * (len(data) - 1)
    # What `list` announces are the passes of training; scoring comes on top.
    announced = method().scaled(EPOCHS).data_passes(ticket.sparsity) * len(data)
    assert announced <= ticket.cost.backward_passes <= announced + 110


@methods
@structures
@pytest.mark.parametrize("options", [{"norms": False}, {"bias": False}], ids=["no norm", "no bias"])
def test_norms_and_biases_are_not_needed(
    method: type[Method], structure: str, options: dict[str, bool], data: list
) -> None:
    sparsity = 0.5 if method.prunes else 0.0
    ticket = pruned(method, build(Net, **options), data, sparsity, structure)
    assert ticket.masks.kept == round((1 - sparsity) * ticket.masks.total)


@methods
@structures
def test_grouped_and_depthwise_convolutions(
    method: type[Method], structure: str, data: list
) -> None:
    sparsity = 0.5 if method.prunes else 0.0
    ticket = pruned(method, build(MobileNet), data, sparsity, structure)
    assert ticket.masks.kept == round((1 - sparsity) * ticket.masks.total)
    assert ("layers.3.weight" in ticket.masks) == (structure != "channel")
    if structure == "group":
        units = ticket.masks.structure.kept_units(ticket.masks)
        # A convolution of four groups keeps as many channels in each: a unit is one of each.
        assert [len(kept) for kept in units.values()] == [6, 6, 24]
        kept = units["layers.0.weight"].repeat(4)
        assert not ticket.model.layers[3].weight[~kept].any()
        assert ticket.model.layers[3].weight[kept].flatten(1).any(dim=1).all()


@pytest.mark.parametrize("method", [m for m in METHODS.values() if m.prunes])
def test_blocks_keep_n_of_every_m(method: type[Method], data: list) -> None:
    ticket = biprune.prune(build(Net), data, method().scaled(EPOCHS), structure="2:5")
    assert ticket.left_out == {"stem.weight": "its 2 inputs do not divide by 5"}
    assert ticket.sparsity == pytest.approx(0.6)
    assert list(ticket.masks) == ["body.weight", "head.weight"]
    for name, mask in ticket.masks.items():
        rows = mask.flatten(1).view(-1, 5)
        assert (rows.sum(dim=1) == 2).all()
        assert not ticket.model.get_parameter(name)[~mask].any()


@methods
def test_a_structure_without_units_is_refused(method: type[Method], data: list) -> None:
    flat = nn.Sequential(nn.Flatten(), nn.Linear(18, 3))
    with pytest.raises(ValueError, match="nothing to prune by filter"):
        pruned(method, flat, data, 0.5 if method.prunes else 0.0, "filter")


@methods
def test_a_dense_run_gives_each_method_the_start_it_asks_for(
    method: type[Method], data: list
) -> None:
    dense = biprune.train(build(Net), data, epochs=3, lr=0.01)
    ticket = pruned(method, dense, data, 0.5 if method.prunes else 0.0, "weight")
    notes = [record["note"] for record in ticket.history if "note" in record]
    if method.starts_from == "init":
        assert notes[0] == "rewound to epoch 0"
    else:
        assert "rewound to epoch 0" not in notes


class Odd(nn.Module):
    """Weights of two types, a complex parameter, and state besides tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(18, 40).bfloat16(), nn.Linear(40, 3)
        self.phase = nn.Parameter(torch.ones(40, dtype=torch.complex64))

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.relu(self.body(images.flatten(1).to(self.body.weight.dtype)))
        return self.head((hidden.to(self.head.weight.dtype) * self.phase).real)

    def get_extra_state(self) -> dict[str, int]:
        return {"calls": 1}

    def set_extra_state(self, state: object) -> None:
        assert state == {"calls": 1}


@methods
def test_a_model_with_weights_of_several_types_and_more(
    method: type[Method], data: list, tmp_path: Path
) -> None:
    dense = biprune.train(build(Odd), data, epochs=2, lr=0.01)
    biprune.save_dense(dense, tmp_path / "dense")
    dense = biprune.load_dense(tmp_path / "dense", build(Odd))
    ticket = pruned(method, dense, data, 0.5 if method.prunes else 0.0, "weight")
    assert list(ticket.masks) == ["body.weight", "head.weight"]
    assert ticket.masks.kept == ticket.masks.total // (2 if method.prunes else 1)
    assert ticket.model.get_parameter("body.weight").dtype == torch.bfloat16
    ticket.save(tmp_path / "ticket")
    loaded = biprune.load_ticket(tmp_path / "ticket", build(Odd)).model
    assert all(map(torch.equal, loaded.parameters(), ticket.model.parameters()))


class KilledError(Exception):
    """What a test raises to stop a run in its middle."""


@methods
def test_resumed_equals_uninterrupted(
    method: type[Method], data: list, tmp_path: Path, same_state
) -> None:
    events: list[biprune.Event] = []

    def kill(event: biprune.Event) -> None:
        events.append(event)
        if len(events) == 3:  # in the second epoch, or the second stage
            raise KilledError

    sparsity, scaled = (0.8 if method.prunes else 0.0), method().scaled(EPOCHS)
    whole = biprune.prune(build(Net), data, scaled, sparsity=sparsity)
    with suppress(KilledError):
        biprune.prune(
            build(Net), data, scaled, sparsity=sparsity, checkpoint=tmp_path, progress=kill
        )
    assert len(events) == (3 if method.prunes else 0)
    resumed = biprune.prune(build(Net), data, scaled, sparsity=sparsity, checkpoint=tmp_path)
    assert resumed.masks == whole.masks
    assert same_state(resumed.model, whole.model)
    assert resumed.cost.backward_passes == whole.cost.backward_passes


@pytest.mark.parametrize("method", [m for m in METHODS.values() if m.prunes])
@pytest.mark.parametrize("options", [{}, {"norms": False}, {"bias": False}])
def test_what_groups_mask_can_be_removed(
    method: type[Method], options: dict[str, bool], data: list
) -> None:
    ticket = pruned(method, build(Net, **options), data, 0.7, "group")
    small = ticket.shrink()
    assert (small.stem.out_channels, small.body.out_channels) == (15, 18)
    assert small.head.in_features == 18
    images = torch.cat([images for images, _ in data])
    with torch.no_grad():
        torch.testing.assert_close(small(images), ticket.model(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", [m for m in METHODS.values() if m.prunes])
def test_a_run_that_diverges_says_so(method: type[Method], data: list) -> None:
    scaled = method().scaled(EPOCHS)
    rates = {name: 1e30 for name in ("lr", "score_lr") if name in scaled.settings}
    with pytest.raises(FloatingPointError, match=r"(loss|weights) became .* at step"):
        biprune.prune(build(Net), data, replace(scaled, **rates), sparsity=0.5)


@methods
def test_every_method_says_what_it_is(method: type[Method]) -> None:
    assert METHODS[method.name] is method
    assert 0 < len(method.summary) <= 60
    assert method.summary[0].islower()
    assert bool(method.citation) == method.prunes
    assert method().settings == method().scaled(getattr(method(), "epochs", 1)).settings
