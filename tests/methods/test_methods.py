"""Conformance: what every method promises. A new method joins by its registry row."""

from __future__ import annotations

import copy
import random
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import biprune
from biprune.core.parameters import prunable
from biprune.core.structure import get_structure
from biprune.methods import METHODS, Method, get_method
from biprune.methods.base import TrainingMethod
from biprune.training.batches import classification_loss
from biprune.training.loop import Record

STRUCTURES = ("weight", "filter", "channel", "group")
GROUPED = ["stem.weight", "stem.bias", "norm1.weight", "norm1.bias", "body.weight", "body.bias"]
GROUPED += ["norm2.weight", "norm2.bias", "head.weight"]
SPARSITIES = (0.0, 0.5, 0.9, 0.98)
EPOCHS = 2

methods = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
pruning = pytest.mark.parametrize("method", [m for m in METHODS.values() if m.prunes])
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
    data: list | DataLoader,
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
        with pytest.raises(ValueError, match="prunes nothing: `sparsity` must be 0, got 0"):
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
        assert weight.grad is None
    for name, count in ticket.masks.per_layer().items():
        if structure != "weight":
            share = ticket.masks.kept * count.total / ticket.masks.total
            assert abs(count.kept - share) < 1 or count.kept == 1, name


@methods
@structures
def test_the_seed_decides_every_bit(
    method: type[Method], structure: str, data: list, same_state
) -> None:
    """Of the order of a shuffled loader too, in which another seed would have another."""
    samples = TensorDataset(*(torch.cat(parts) for parts in zip(*data, strict=True)))
    loader = DataLoader(samples, batch_size=6, shuffle=True)
    sparsity = 0.8 if method.prunes else 0.0
    first, again, other = (
        pruned(method, build(Net), loader, sparsity, structure, seed=seed) for seed in (3, 3, 4)
    )
    assert first.masks == again.masks
    assert same_state(first.model, again.model)
    assert [r.get("loss") for r in first.history] == [r.get("loss") for r in again.history]
    assert same_state(first.model, other.model) != method.prunes


@methods
@pytest.mark.parametrize("structure", ["weight", "filter", "group"])
def test_the_callers_generators_are_untouched(
    method: type[Method], structure: str, data: list
) -> None:
    def states() -> tuple[object, ...]:
        return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()

    before = states()
    pruned(method, build(Net), data, 0.5 if method.prunes else 0.0, structure)
    assert states() == before


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


@pruning
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
    method: type[Method], data: list, same_state
) -> None:
    """What a bare module with those weights gives, which has no past to go back to."""
    dense = biprune.train(build(Net), data, epochs=3, lr=0.01)
    sparsity = 0.5 if method.prunes else 0.0
    ticket = pruned(method, dense, data, sparsity, "weight")
    if method.name in ("omp", "imp"):
        assert ticket.history[0]["note"] == "rewound to epoch 1"
        return
    bare = dense.model if method.starts_from == "dense" else build(Net)
    alone = pruned(method, bare, data, sparsity, "weight")
    assert ticket.masks == alone.masks
    assert same_state(ticket.model, alone.model)


@pruning
def test_what_was_offered_is_what_is_pruned(method: type[Method], data: list) -> None:
    offered = {"body.weight": {"include": "body"}, "stem.weight body.weight": {"exclude": "head"}}
    for names, chosen in offered.items():
        ticket = biprune.prune(build(Net), data, method().scaled(EPOCHS), sparsity=0.5, **chosen)
        assert list(ticket.masks) == names.split()


BY_WEIGHTS = ("bip-plus", "bip", "gmp", "hydra", "omp", "imp", "magnitude")


@pytest.mark.parametrize("name", BY_WEIGHTS)
@pytest.mark.parametrize(("allowed", "least"), [(True, 0), (False, 1)])
def test_a_layer_may_be_empty(name: str, allowed: bool, least: int, data: list) -> None:
    model = build(Net)
    with torch.no_grad():
        model.get_parameter("stem.weight").mul_(1e-6)
    known = METHODS[name]().settings
    settings = {"lr": 1e-9, **{n: 0.0 for n in ("score_lr", "kappa") if n in known}}
    method = get_method(name, settings, EPOCHS)
    ticket = biprune.prune(model, data, method, sparsity=0.9, allow_empty=allowed)
    assert ticket.masks.per_layer()["stem.weight"].kept == least


RETRAINED = [n for n, m in METHODS.items() if m.retrains and n not in ("hydra", "imp", "omp")]


@pytest.mark.parametrize("name", RETRAINED)
def test_retraining_is_train_with_the_methods_settings(name: str, data: list, same_state) -> None:
    recipe = {"epochs": 2, "lr": 0.03, "momentum": 0.5, "weight_decay": 0.02}
    recipe |= {"schedule": "constant", "warmup_epochs": 0.5, "nesterov": True}
    ticket = biprune.prune(build(Net), data, get_method(name, recipe), sparsity=0.5)
    wanted = biprune.train(build(Net), data, masks=ticket.masks, **recipe)
    assert same_state(ticket.model, wanted.model)


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


@pruning
@pytest.mark.parametrize("at", [3, 7])  # in the second of four epochs, and in the last
def test_resumed_equals_uninterrupted(
    method: type[Method], at: int, data: list, tmp_path: Path, same_state
) -> None:
    events: list[biprune.Event] = []

    def kill(event: biprune.Event) -> None:
        events.append(event)
        if len(events) == at:
            raise KilledError

    # Of Hydra's four epochs two are for the scores.
    run = partial(biprune.prune, build(Net), data, method().scaled(4), sparsity=0.8)
    whole = run()
    with pytest.raises(KilledError):
        run(checkpoint=tmp_path, progress=kill)
    resumed = run(checkpoint=tmp_path)
    assert resumed.masks == whole.masks
    assert same_state(resumed.model, whole.model)
    assert resumed.cost.backward_passes == whole.cost.backward_passes
    assert timeless(resumed.history) == timeless(whole.history)


def timeless(history: list[Record]) -> list[Record]:
    return [{name: v for name, v in record.items() if name != "seconds"} for record in history]


@pruning
def test_a_checkpoint_of_another_seed_or_sparsity_is_refused(
    method: type[Method], data: list, tmp_path: Path
) -> None:
    run = partial(biprune.prune, build(Net), data, method().scaled(EPOCHS), checkpoint=tmp_path)
    run(sparsity=0.8)
    with pytest.raises(ValueError, match="another run: its seed was 0, now it is 1"):
        run(sparsity=0.8, seed=1)
    with pytest.raises(ValueError, match=r"another run: its (sparsity|masks) was"):
        run(sparsity=0.5)


@pruning
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


@pruning
def test_a_run_that_diverges_says_so(method: type[Method], data: list) -> None:
    scaled = method().scaled(EPOCHS)
    rates = {name: 1e30 for name in ("lr", "score_lr") if name in scaled.settings}
    with pytest.raises(FloatingPointError, match=r"(loss|weights) became .* at step"):
        biprune.prune(build(Net), data, replace(scaled, **rates), sparsity=0.5)


@pruning
def test_gradients_that_are_not_finite_under_a_loss_that_is(
    method: type[Method], data: list
) -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        root = (0 * next(model.parameters())).square().sum().sqrt()  # 0, with a gradient of 0 / 0
        return classification_loss(model, batch) + root

    said = r"became .* at step|contain NaN, as gradients or weights do"
    with pytest.raises(FloatingPointError, match=said):
        biprune.prune(build(Net), data, method().scaled(EPOCHS), sparsity=0.5, loss=loss)


@methods
def test_every_method_says_what_it_is(method: type[Method]) -> None:
    assert METHODS[method.name] is method
    assert 0 < len(method.summary) <= 60
    assert method.summary[0].islower()
    assert bool(method.citation) == method.prunes
    assert method().settings == method().scaled(getattr(method(), "epochs", 1)).settings
