from __future__ import annotations

import copy
import itertools
import math
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import biprune
from biprune.core.structure import get_structure
from biprune.methods import METHODS
from biprune.methods.base import Target
from biprune.methods.bip import BiP, upper_gradient
from biprune.methods.bip_plus import BiPPlus
from biprune.methods.gmp import GMP
from biprune.methods.moving import MaskTraining, MovingMask
from biprune.training.batches import classification_loss
from biprune.training.loop import Passes
from biprune.training.schedule import Moment
from biprune.training.setup import Setup
from levels import Levels
from linear_loss import backward, linear_problem
from oracles import ReferenceBiP, central_difference


def never(model: nn.Module, batch: object) -> Tensor:
    """The loss of a run that must be refused before its first pass."""
    raise AssertionError("A pass was made.")


def test_one_iteration_by_hand() -> None:
    model, c = linear_problem([3.0, -1.0, 2.0], [1.0, 2.0, -1.0])
    opt = Levels(model, 1 / 3, lr=0.5, score_lr=1.0, gamma=2.0, momentum=0.0, weight_decay=0.0)
    assert model.weight.tolist() == [[3.0, 0.0, 2.0]]
    backward(model, c)
    opt.lower_step()
    # Kept weights move by -0.5 c; the pruned one has no gradient.
    assert opt.theta["weight"].tolist() == [[2.5, -1.0, 2.5]]
    assert model.weight.tolist() == [[2.5, 0.0, 2.5]]
    backward(model, c)
    opt.upper_step()
    # Scores (3, 1, 2) less (theta - m c / 2) c = ((2.5 - .5) 1, -1 * 2, (2.5 + .5) * -1).
    assert opt.scores["weight"].tolist() == [[1.0, 3.0, 5.0]]
    assert opt.theta["weight"].tolist() == [[2.5, -1.0, 2.5]]
    assert model.weight.tolist() == [[0.0, -1.0, 2.5]]


@pytest.mark.parametrize("gamma", [0.5, 1.0, 3.0])
def test_upper_gradient_is_exact_for_a_linear_loss(gamma: float) -> None:
    """l(z) = c.z: theta*(m) = -m c / gamma, so dl/dm = -(2 / gamma) m c^2."""
    c = torch.tensor([[0.7, -1.3, 2.0, 0.4]], dtype=torch.float64)
    mask = torch.tensor([[1.0, 1.0, 0.0, 1.0]], dtype=torch.float64)
    theta, exact = -(mask * c) / gamma, -(2 / gamma) * mask * c**2

    def composed(m: Tensor) -> Tensor:
        return (c * (m * (-(m * c) / gamma))).sum()

    assert torch.allclose(exact, central_difference(composed, mask, 1e-5), atol=1e-9)
    for m in (mask, mask.bool()):
        assert torch.allclose(upper_gradient(theta, c, m, gamma), exact, rtol=1e-15, atol=0)
    scores = torch.tensor([[0.2, 0.9, 0.4, 1.0]], dtype=torch.float64)  # the relaxed m-step
    relaxed = (theta - scores * c / gamma) * c
    assert torch.allclose(upper_gradient(theta, c, scores, gamma), relaxed, rtol=1e-14, atol=0)


def test_upper_gradient_writes_where_it_is_told() -> None:
    generator = torch.Generator().manual_seed(0)
    theta, g = torch.randn(2, 3, 4, generator=generator)
    mask = torch.rand(3, 4, generator=generator) < 0.5
    expected, masked, before = upper_gradient(theta, g, mask, 0.7), mask * g, theta.clone()
    scratch = torch.full_like(g, torch.nan)
    assert upper_gradient(theta, g, mask, 0.7, scratch=scratch, out=g) is g
    assert torch.equal(g, expected)
    assert torch.equal(theta, before)
    assert torch.equal(scratch, masked)


def test_an_infinite_gamma_leaves_the_direct_part() -> None:
    theta, g = torch.randn(2, 3, 4)
    assert torch.equal(upper_gradient(theta, g, g > 0, math.inf), theta * g)


def test_upper_gradient_points_the_right_way_for_a_curved_loss() -> None:
    """The formula drops the Hessian; on logistic regression its direction still holds."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(40, 6, generator=generator, dtype=torch.float64)
    signs = torch.randn(40, generator=generator, dtype=torch.float64).sign()
    gamma = 1.0

    def loss(z: Tensor) -> Tensor:
        return nn.functional.softplus(-signs * (inputs @ z)).mean()

    def solve(m: Tensor) -> Tensor:
        theta = torch.zeros(6, dtype=torch.float64)
        for _ in range(300):
            z = (m * theta).requires_grad_()
            (g,) = torch.autograd.grad(loss(z), z)
            theta = theta - 0.5 * (m * g + gamma * theta)
        return theta

    mask = torch.tensor([1.0, 1, 1, 0, 1, 1], dtype=torch.float64)
    truth = central_difference(lambda m: loss(m * solve(m)), mask, 1e-5)
    theta = solve(mask)
    z = (mask * theta).requires_grad_()
    (g,) = torch.autograd.grad(loss(z), z)
    estimate = upper_gradient(theta, g, mask.bool(), gamma)
    assert torch.cosine_similarity(estimate, truth, dim=0) > 0.95


def test_gamma_to_infinity_is_the_direct_gradient() -> None:
    model, c = linear_problem([1.0, -2.0, 3.0, 4.0], [0.3, 0.5, -0.7, 1.1])
    far = Levels(copy.deepcopy(model), 0.5, gamma=1e300)
    direct = Levels(copy.deepcopy(model), 0.5, implicit_gradient=False)
    for opt in (far, direct):
        backward(opt.model, c)
        assert (opt.implicit_ratio() == 0.0) == (opt is direct)
        opt.upper_step()
    assert torch.equal(far.scores["weight"], direct.scores["weight"])


def test_implicit_ratio_by_hand() -> None:
    model, c = linear_problem([2.0, 0.5], [3.0, 4.0])
    opt = Levels(model, 0.5, gamma=2.0)
    backward(model, c)
    # Implicit m c c / gamma = (4.5, 0); direct theta c = (6, 2).
    assert opt.implicit_ratio() == pytest.approx(4.5 / 40**0.5)


@pytest.mark.parametrize("structure", ["weight", "filter", "channel"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("steps", "changes"),
    [
        (("lower", "upper"), {}),
        (("lower", "upper"), {"score_dead_rows": False}),
        (("lower", "lower", "upper"), {"score_momentum": 0.5, "lower_steps": 2}),
        (("lower", "upper"), {"score_momentum": 0.0}),
        (("lower", "upper"), {"implicit_gradient": False, "gamma": 1.0}),
    ],
)
def test_many_iterations_against_the_reference(
    conv_net: nn.Module,
    batches: list[tuple[Tensor, Tensor]],
    structure: str,
    layout: torch.memory_format,
    steps: tuple[str, ...],
    changes: dict[str, Any],
) -> None:
    """Masks equal and theta, scores and dense weights agree with Algorithm A1 spelt out.

    To the letter with `score_dead_rows`; without it the reference leaves these out as well.
    """
    settings = {
        "score_dead_rows": True,
        "lr": 0.05,
        "score_lr": 10.0,
        "gamma": 0.7,
        "momentum": 0.9,
        "weight_decay": 1e-3,
        **changes,
    }
    model = conv_net.double().to(memory_format=layout)  # pyright: ignore[reportCallIssue]
    for norm in ("norm1", "norm2"):  # at a bias of 0 the ReLU hides a pruned filter's gradient
        nn.init.constant_(model.get_parameter(f"{norm}.bias"), 0.3)
    target = Target(0.5, get_structure(structure))
    opt = Levels(copy.deepcopy(model), 0.5, structure, **settings)
    settings.pop("lower_steps", None)
    prunable = list(target.weights(model))
    reference = ReferenceBiP(model, prunable, 0.5, target.structure.dim, **settings)
    model = opt.model
    stream = itertools.cycle([(images.double(), labels) for images, labels in batches])
    first = opt.masks
    for _ in range(6):
        for step in steps:
            batch = next(stream)
            model.zero_grad()
            classification_loss(model, batch).backward()
            {"lower": opt.lower_step, "upper": opt.upper_step}[step]()
            getattr(reference, step)(batch)
        for name, theta in opt.theta.items():
            assert torch.equal(opt.masks[name].double(), reference.mask[name])
            assert torch.allclose(theta, reference.theta[name], atol=1e-11)
            assert torch.allclose(opt.scores[name], reference.scores[name], atol=1e-11)
        for name, value in reference.dense.items():
            assert torch.allclose(model.get_parameter(name), value, atol=1e-11)
    if structure != "filter" or settings["score_dead_rows"]:  # else kept ones only grow
        assert first != opt.masks  # the run was long enough to move the mask


def test_the_coupled_form_decays_theta_by_gamma() -> None:
    model, c = linear_problem([2.0, 1.0], [0.5, 0.0])
    opt = Levels(model, 0.5, lr=0.1, gamma=3.0, momentum=0.0, form="coupled")
    backward(model, c)
    opt.lower_step()
    # theta - 0.1 (m c + 3 theta), for the pruned weight too.
    expected = torch.tensor([[2.0 - 0.1 * (0.5 + 6.0), 1.0 - 0.1 * 3.0]], dtype=torch.float64)
    assert torch.allclose(opt.theta["weight"], expected)


@pytest.mark.parametrize(
    ("form", "scores"),
    # (2, 1) less half of (theta - m c / 2) c, where m is (1, 0), or the scores.
    [("binary", [1.25, 0.5]), ("relaxed", [1.5, 0.75]), ("clamped", [1.0, 0.75])],
)
def test_the_forms_of_the_m_step(form: str, scores: list[float]) -> None:
    model, c = linear_problem([2.0, 1.0], [1.0, 1.0])
    opt = Levels(model, 0.5, score_lr=0.5, gamma=2.0, form=form)
    backward(model, c)
    ratio = {"binary": 0.5 / 5**0.5, "relaxed": 0.5, "clamped": 0.5}[form]
    assert opt.implicit_ratio() == pytest.approx(ratio)  # of (m c c) / 2 to theta c = (2, 1)
    opt.upper_step()
    assert opt.scores["weight"].tolist() == [scores]
    assert opt.masks["weight"].tolist() == [[True, False]]


def scheme(name: str, lower_steps: int = 1, size: int = 3) -> list[list[int]]:
    method = BiP(batches=name, lower_steps=lower_steps)  # pyright: ignore[reportArgumentType]
    return [list(group) for group in method.groups(range(size), size)]  # pyright: ignore


def test_batch_schemes() -> None:
    assert scheme("different") == [[0, 1], [2, 0], [1, 2]]
    # Passes that hold whole groups swap the roles, so that both levels see every batch.
    assert scheme("different", size=4) == [[0, 1], [2, 3], [1, 0], [3, 2]]
    assert scheme("same") == [[0, 0], [1, 1], [2, 2]]
    assert scheme("reverse") == [[0, 2], [1, 1], [2, 0]]
    assert scheme("different", 2) == [[0, 1, 2], [1, 2, 0], [2, 0, 1]]
    assert scheme("same", 2) == [[0, 1, 1], [2, 0, 0], [1, 2, 2]]
    assert scheme("reverse", 2) == [[0, 1, 2], [2, 0, 1], [1, 2, 0]]


@pytest.mark.parametrize("name", ["different", "same"])
def test_the_mask_sees_every_batch_of_a_loader_that_keeps_its_order(name: str) -> None:
    for lower_steps, size in itertools.product((1, 2, 3, 5), range(1, 13)):
        groups = scheme(name, lower_steps, size)
        assert sorted(group[-1] for group in groups) == [*range(size)]
        lower = Counter(batch for group in groups for batch in group[:lower_steps])
        assert lower == dict.fromkeys(range(size), lower_steps)


def test_the_published_run_by_hand(
    conv_net: nn.Module, batches: list[tuple[Tensor, Tensor]]
) -> None:
    """Algorithm A1 on its schedule and batches, against the reference."""
    model, data = conv_net.double(), [(images.double(), labels) for images, labels in batches]
    rates = {"lr": 0.05, "score_lr": 10.0, "warmup_epochs": 1.0}
    method = BiP(epochs=2, score_dead_rows=True, **rates)
    ticket = biprune.prune(model, data, method, sparsity=0.8)
    settings = {"gamma": 1.0, "momentum": 0.9, "weight_decay": 5e-4, "lr": 0.0, "score_lr": 0.0}
    start = copy.deepcopy(model).train()
    reference = ReferenceBiP(start, list(ticket.masks), 0.8, None, **settings)
    first = reference.mask
    pairs = [(0, 1), (2, 3), (1, 0), (3, 2)] * 2  # lower and upper: each pass swaps them
    for number, (lower, upper) in enumerate(pairs):
        factor = min(1.0, number / 4) * (1 + math.cos(math.pi * number / 8)) / 2
        reference.lr, reference.score_lr = 0.05 * factor, 10.0 * factor
        reference.lower(data[lower])
        reference.upper(data[upper])
    assert any(not torch.equal(first[name], reference.mask[name]) for name in first)
    for name, mask in ticket.masks.items():
        assert torch.equal(mask.double(), reference.mask[name])
        z = reference.mask[name] * reference.theta[name]
        assert torch.allclose(ticket.model.get_parameter(name), z, atol=1e-10)


def test_history_tells_how_the_mask_moved(
    conv_net: nn.Module, batches: list[tuple[Tensor, Tensor]]
) -> None:
    method = BiP(epochs=3, score_lr=1.0)
    ticket = biprune.prune(conv_net, batches, method, sparsity=0.8, validate=lambda model: 7.0)
    assert [record["epoch"] for record in ticket.history] == [1, 2, 3]
    for record in ticket.history:
        assert record["accuracy"] == 7.0
        assert 0 < record["iou"] <= 1
        assert 0 <= record["flip_rate"] <= 0.4
        assert record["implicit_ratio"] > 0
        assert record["seconds"] > 0
        assert set(record["layer_sparsity"]) == set(ticket.masks)
    last = {name: count.sparsity for name, count in ticket.masks.per_layer().items()}
    assert ticket.history[-1]["layer_sparsity"] == last
    assert ticket.history[0]["flip_rate"] > 0


def test_a_gamma_that_nothing_uses_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`gamma` 0\.5 has no effect without `implicit_gradient`"):
        BiP(gamma=0.5, implicit_gradient=False)
    assert BiP(gamma=0.5, implicit_gradient=False, form="coupled").gamma == 0.5


def test_scaling_keeps_a_retraining() -> None:
    method = BiP(epochs=100, retrain_epochs=10, warmup_epochs=20, rewind_epoch=1).scaled(2)
    assert (method.epochs, method.retrain_epochs, method.warmup_epochs) == (2, 1, 0.4)
    assert BiP().scaled(2).retrain_epochs == 0


def test_retraining_is_training_under_the_found_mask(
    conv_net: nn.Module, batches: list[tuple[Tensor, Tensor]], same_state
) -> None:
    settings = {"momentum": 0.5, "weight_decay": 0.01}
    found = biprune.prune(conv_net, batches, BiP(epochs=1, **settings), sparsity=0.5)
    method = BiP(epochs=1, retrain_epochs=2, **settings)
    again = biprune.prune(conv_net, batches, method, sparsity=0.5)
    settings |= {"epochs": 2, "lr": 0.1}
    wanted = biprune.train(found.model, batches, masks=found.masks, **settings)
    assert again.masks == found.masks
    assert same_state(again.model, wanted.model)
    assert again.cost.backward_passes == method.data_passes(0.5) * len(batches) == 4 * len(batches)


def test_rewinding_study(conv_net: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> None:
    dense = biprune.train(conv_net, batches, epochs=4, lr=0.01, rewind_epochs=[0, 2])
    plain = biprune.prune(dense, batches, "bip", sparsity=0.5, epochs=2)
    again = biprune.prune(
        dense, batches, BiP(epochs=2, retrain_epochs=1, rewind_epoch=2), sparsity=0.5
    )
    assert again.masks == plain.masks
    assert [r.get("note") for r in again.history] == [None, None, "rewound to epoch 2", None]
    assert again.cost.backward_passes == plain.cost.backward_passes + 4
    expected = copy.deepcopy(dense.model)
    expected.load_state_dict(dense.states[2])
    retrained = biprune.train(expected, batches, epochs=1, masks=plain.masks)
    assert torch.equal(retrained.model.head.weight, again.model.head.weight)  # pyright: ignore
    late = BiP(epochs=1, retrain_epochs=1, rewind_epoch=3)
    with pytest.raises(ValueError, match=r"its state was not kept, only those of \[0, 2\]"):
        biprune.prune(dense, batches, late, sparsity=0.5, loss=never)


BAD = [
    ({"gamma": 0.0}, "`gamma` must be positive, got 0"),
    ({"batches": "both"}, "`batches` must be one of different, reverse, same, got 'both'"),
    ({"schedule": "linear"}, "`schedule` must be one of cosine, step, constant"),
    ({"lower_steps": 0}, "`lower_steps` must be at least 1, got 0"),
    ({"rewind_epoch": 2}, "`rewind_epoch` needs `retrain_epochs`"),
    ({"epochs": 0}, "`epochs` must be at least 1, got 0"),
    ({"gamma": float("nan")}, "`gamma` must be positive, got nan"),
    ({"warmup_epochs": -1.0}, r"`warmup_epochs` must be in \[0, 100\]"),
    ({"score_lr": -1.0}, "`score_lr` must be 0 or more, got -1"),
    ({"retrain_epochs": -1}, "`retrain_epochs` must be at least 0, got -1"),
    ({"score_momentum": -1.0}, "`score_momentum` must be 0 or more, got -1"),
    ({"form": "soft"}, "`form` must be one of binary, relaxed, clamped, coupled, got 'soft'"),
]


@pytest.mark.parametrize(("settings", "text"), BAD)
def test_bad_settings(conv_net: nn.Module, batches: list, settings: dict, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        biprune.prune(conv_net, batches, "bip", sparsity=0.5, **settings)


class HostReads(TorchDispatchMode):
    """Counts what would make the host wait for a device."""

    READS = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal")

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        by_mask = func.overloadpacket.__name__ in ("index", "index_put_") and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        self.count += by_mask or func.overloadpacket.__name__ in self.READS
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("structure", ["weight", "filter"])
@pytest.mark.parametrize(
    ("method", "count"), [(BiP(), 2), (BiPPlus(), 2), (GMP(), 1)], ids=["bip", "bip-plus", "gmp"]
)
def test_reads_of_a_step_where_the_device_is_not_the_host(
    conv_net: nn.Module,
    batches: list[tuple[Tensor, Tensor]],
    monkeypatch: pytest.MonkeyPatch,
    structure: str,
    method: MovingMask,
    count: int,
) -> None:
    """The loss, and of learned scores their size; run on the CPU by the path of other devices."""
    masks = []
    for on_host in (True, False):
        monkeypatch.setattr("biprune.core.selection.is_host", lambda tensor, own=on_host: own)
        monkeypatch.setattr("biprune.core.ranking.is_host", lambda tensor, own=on_host: own)
        monkeypatch.setattr("biprune.core.masked.is_host", lambda tensor, own=on_host: own)
        model = copy.deepcopy(conv_net)
        setup = Setup(batches, classification_loss)
        training = MaskTraining(method, model, setup, Target(0.8, get_structure(structure)))
        run = Passes(model, setup)
        for step, group in enumerate(training.groups(batches, 3)):
            with HostReads() as mode:
                training.step(run, group, Moment(0, step, epochs=10, steps=3))
            if not on_host and step < 2:  # an epoch's last step also reads the ratio for the record
                assert mode.count == count
        masks.append(training.rule.masks)
    assert masks[0] == masks[1]


def test_the_papers_settings() -> None:
    assert METHODS["bip"] is BiP
    assert BiP().settings == {
        "epochs": 100,
        "lr": 0.01,
        "warmup_epochs": 0.0,
        "schedule": "cosine",
        "score_lr": 0.1,
        "score_momentum": 0.9,
        "momentum": 0.9,
        "nesterov": False,
        "weight_decay": 5e-4,
        "optimizer": "sgd",
        "gamma": 1.0,
        "lower_steps": 1,
        "batches": "different",
        "implicit_gradient": True,
        "form": "binary",
        "score_dead_rows": False,  # ours; True is Algorithm A1 to the letter
        "retrain_epochs": 0,
        "rewind_epoch": None,
    }
    assert BiP().data_passes(0.9) == 200


def test_both_levels_by_hand_from_one_backward() -> None:
    """A lower step leaves the gradient whole, so that an upper step may follow on it."""
    model, c = linear_problem([3.0, -1.0, 2.0], [1.0, 2.0, -1.0])
    opt = Levels(model, 1 / 3, lr=0.5, score_lr=1.0, gamma=2.0, momentum=0.0, weight_decay=0.0)
    backward(model, c)
    opt.lower_step()
    opt.upper_step()
    assert opt.scores["weight"].tolist() == [[1.0, 3.0, 5.0]]
