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
from biprune.methods.base import Target
from biprune.methods.bip import BiP, BiPLevels, upper_gradient
from biprune.methods.bip_plus import AS_PUBLISHED, BiPPlus
from biprune.training.batches import classification_loss
from biprune.training.loop import Passes, Setup
from biprune.training.schedule import Moment
from levels import bilevel, published
from linear_loss import backward, linear_problem
from oracles import ReferenceBiP, central_difference


def never(model: nn.Module, batch: object) -> Tensor:
    """The loss of a run that must be refused before its first pass."""
    raise AssertionError("A pass was made.")


def test_one_iteration_by_hand() -> None:
    model, c = linear_problem([3.0, -1.0, 2.0], [1.0, 2.0, -1.0])
    opt = published(model, 1 / 3, lr=0.5, score_lr=1.0, gamma=2.0, momentum=0.0, weight_decay=0.0)
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
    expected, masked, kept = upper_gradient(theta, g, mask, 0.7), mask * g, (theta + 0, mask * g)
    assert upper_gradient(theta, g, mask, 0.7, masked=masked, out=g) is g
    assert torch.equal(g, expected)
    assert torch.equal(theta, kept[0])
    assert torch.equal(masked, kept[1])


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
    far = published(copy.deepcopy(model), 0.5, gamma=1e300)
    direct = published(copy.deepcopy(model), 0.5, implicit_gradient=False)
    for opt in (far, direct):
        backward(opt.model, c)
        assert (opt.implicit_ratio() == 0.0) == (opt is direct)
        opt.upper_step()
    assert torch.equal(far.scores["weight"], direct.scores["weight"])


def test_implicit_ratio_by_hand() -> None:
    model, c = linear_problem([2.0, 0.5], [3.0, 4.0])
    opt = published(model, 0.5, gamma=2.0)
    backward(model, c)
    # Implicit m c c / gamma = (4.5, 0); direct theta c = (6, 2).
    assert opt.implicit_ratio() == pytest.approx(4.5 / 40**0.5)


@pytest.mark.parametrize("init", ["magnitude", "hydra", "random"])
def test_theta_and_scores_never_share_storage(conv_net: nn.Module, init: str) -> None:
    opt = bilevel(conv_net, 0.5, score_init=init)  # pyright: ignore[reportArgumentType]
    for name, weight in opt._masked.weights.items():
        pointers = {t.data_ptr() for t in (weight, opt.theta[name], opt.scores[name])}
        assert len(pointers) == 3
        theta = opt.theta[name].clone()
        opt.scores[name].add_(1.0)
        assert torch.equal(opt.theta[name], theta)


def test_score_inits(conv_net: nn.Module) -> None:
    theta = conv_net.get_parameter("conv2.weight").detach().clone()
    bound = (6 / (6 * 9)) ** 0.5
    hydra = bilevel(copy.deepcopy(conv_net), 0.5, score_init="hydra").scores
    assert torch.allclose(hydra["conv2.weight"], bound * theta.abs() / theta.abs().max())
    random = bilevel(copy.deepcopy(conv_net), 0.5, score_init="random", seed=3).scores
    again = bilevel(copy.deepcopy(conv_net), 0.5, score_init="random", seed=3).scores
    assert torch.equal(random["conv2.weight"], again["conv2.weight"])
    assert 0 <= random["conv2.weight"].min() < random["conv2.weight"].max() <= bound


@pytest.mark.parametrize("structure", ["weight", "filter", "channel"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("steps", "changes"),
    [
        (("lower", "upper"), {}),
        (("lower", "upper"), {"score_dead_rows": False}),
        (("lower", "lower", "upper"), {"score_momentum": 0.5, "freeze_pruned": True}),
        (("both",), {}),
        (("both",), {"score_momentum": 0.0, "nesterov": True}),
        (("both",), {"nesterov": True, "freeze_pruned": True}),
        (("both",), {"freeze_pruned": True, "score_dead_rows": False}),
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
    reference = ReferenceBiP(
        copy.deepcopy(model), list(target.weights(model)), 0.5, target.structure.dim, **settings
    )
    opt = bilevel(model, 0.5, structure, **settings)
    stream = itertools.cycle([(images.double(), labels) for images, labels in batches])
    first = opt.masks
    for _ in range(6):
        for step in steps:
            batch = next(stream)
            opt.zero_grad()
            classification_loss(model, batch).backward()
            {"lower": opt.lower_step, "upper": opt.upper_step, "both": opt.step}[step]()
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
    opt = published(model, 0.5, lr=0.1, gamma=3.0, momentum=0.0, form="coupled")
    backward(model, c)
    opt.lower_step()
    # theta - 0.1 (m c + 3 theta), for the pruned weight too.
    expected = torch.tensor([[2.0 - 0.1 * (0.5 + 6.0), 1.0 - 0.1 * 3.0]], dtype=torch.float64)
    assert torch.allclose(opt.theta["weight"], expected)


def test_frozen_weights_come_back_as_they_were() -> None:
    """What is pruned neither decays nor drifts by the momentum it had."""
    model, c = linear_problem([2.0, 1.0], [1.0, 2.0])
    settings = {"lr": 0.1, "momentum": 0.5, "weight_decay": 0.1, "freeze_pruned": True}
    opt = bilevel(model, 0.0, score_lr=0.0, **settings)
    for sparsity in (0.5, 0.5, 0.0):  # each is that of the mask after the step
        backward(model, c)
        opt.sparsity = sparsity
        opt.step()
    # Both step once; the larger goes on by v <- v / 2 + 1 + theta / 10, and the other waits.
    larger, speed = 2.0, 0.0
    for _ in range(3):
        speed = speed / 2 + 1.0 + 0.1 * larger
        larger -= 0.1 * speed
    waiting = 1.0 - 0.1 * (2.0 + 0.1)
    expected = torch.tensor([[larger, waiting]], dtype=torch.float64)
    assert torch.allclose(opt.theta["weight"], expected)
    assert torch.equal(opt.theta["weight"], model.get_parameter("weight"))
    backward(model, c)
    opt.lower_step()  # it is back, its momentum is not
    assert opt.theta["weight"][0, 1].item() == pytest.approx(waiting - 0.1 * (2.0 + 0.1 * waiting))


def test_adam_moves_scores_by_the_sign_of_a_steady_gradient() -> None:
    model, c = linear_problem([3.0, -1.0, 2.0], [1.0, 2.0, -1.0])
    opt = bilevel(model, 1 / 3, score_lr=0.25, score_optimizer="adam", implicit_gradient=False)
    for _ in range(3):  # theta * g is (3, -2, -2) throughout: the upper level leaves theta alone
        backward(model, c)
        opt.upper_step()
    expected = torch.tensor([[3.0 - 0.75, 1.0 + 0.75, 2.0 + 0.75]], dtype=torch.float64)
    assert torch.allclose(opt.scores["weight"], expected)


@pytest.mark.parametrize(
    ("form", "scores"),
    # (2, 1) less half of (theta - m c / 2) c, where m is (1, 0), or the scores.
    [("binary", [1.25, 0.5]), ("relaxed", [1.5, 0.75]), ("clamped", [1.0, 0.75])],
)
def test_the_forms_of_the_m_step(form: str, scores: list[float]) -> None:
    model, c = linear_problem([2.0, 1.0], [1.0, 1.0])
    opt = published(model, 0.5, score_lr=0.5, gamma=2.0, form=form)
    backward(model, c)
    ratio = {"binary": 0.5 / 5**0.5, "relaxed": 0.5, "clamped": 0.5}[form]
    assert opt.implicit_ratio() == pytest.approx(ratio)  # of (m c c) / 2 to theta c = (2, 1)
    opt.upper_step()
    assert opt.scores["weight"].tolist() == [scores]
    assert opt.masks["weight"].tolist() == [[True, False]]


def test_the_forms_are_of_the_published_method() -> None:
    with pytest.raises(ValueError, match="`form` 'relaxed' is of the published method: use 'bip'"):
        BiPPlus(form="relaxed")
    with pytest.raises(ValueError, match="`form` must be one of binary, relaxed, clamped, coupled"):
        BiP(form="soft")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("structure", ["weight", "filter", "2:4"])
def test_with_the_published_settings_ours_is_the_published_method(
    conv_net: nn.Module, batches: list[tuple[Tensor, Tensor]], structure: str, same_state
) -> None:
    amount = {} if structure == "2:4" else {"sparsity": 0.7}
    common: dict[str, Any] = {"epochs": 2, "score_dead_rows": True}
    one, same, other = (
        biprune.prune(conv_net, batches, method, structure=structure, **amount)
        for method in (
            BiP(**common),
            BiPPlus(**{**AS_PUBLISHED, **common}),
            BiPPlus(**{**AS_PUBLISHED, **common, "passes": 1}),
        )
    )
    assert one.masks == same.masks
    assert same_state(one.model, same.model)
    assert one.cost.backward_passes == same.cost.backward_passes == 2 * other.cost.backward_passes
    assert not same_state(one.model, other.model)


@pytest.mark.parametrize("scale", [1024.0, torch.tensor(1024.0)])
@pytest.mark.parametrize("steps", [("lower_step", "upper_step"), ("step",)])
def test_a_loss_scale_is_removed_before_either_step(
    conv_net: nn.Module,
    batches: list[tuple[Tensor, Tensor]],
    steps: tuple[str, ...],
    scale: float | Tensor,
) -> None:
    plain = bilevel(copy.deepcopy(conv_net), 0.8)
    scaled = bilevel(copy.deepcopy(conv_net), 0.8)
    for batch in batches:
        for step in steps:
            plain.zero_grad()
            classification_loss(plain.model, batch).backward()
            assert getattr(plain, step)()
            scaled.zero_grad()
            (classification_loss(scaled.model, batch) * scale).backward()
            assert getattr(scaled, step)(loss_scale=scale)
    # A power of two only moves exponents, so the two runs agree to the bit.
    for name in plain.theta:
        assert torch.equal(plain.theta[name], scaled.theta[name])
        assert torch.equal(plain.scores[name], scaled.scores[name])
    assert plain.masks == scaled.masks


def test_an_overflow_under_a_loss_scale_skips_the_step() -> None:
    model, c = linear_problem([2.0, 1.0], [1.0, 1.0])
    opt = published(model, 0.5)
    for step in (opt.lower_step, opt.upper_step):
        backward(model, c * torch.inf)
        assert not step(loss_scale=8.0)
    assert opt.theta["weight"].tolist() == [[2.0, 1.0]]
    assert opt.scores["weight"].tolist() == [[2.0, 1.0]]


def test_torch_schedulers_attach_to_both_levels(conv_net: nn.Module) -> None:
    opt = biprune.BiPOptimizer(conv_net, sparsity=0.9)
    lower = torch.optim.lr_scheduler.StepLR(opt.lower, step_size=1, gamma=0.5)
    upper = torch.optim.lr_scheduler.CosineAnnealingLR(opt.upper, T_max=2)
    conv_net(torch.zeros(2, 1, 8, 8)).sum().backward()
    opt.lower_step()
    opt.upper_step()
    lower.step()
    upper.step()
    assert opt.lower.param_groups[0]["lr"] == pytest.approx(0.005)
    assert opt.upper.param_groups[0]["lr"] == pytest.approx(0.05)


def test_state_dict_carries_everything(
    conv_net: nn.Module, batches: list[tuple[Tensor, Tensor]]
) -> None:
    def iterate(opt: BiPLevels, batch: tuple[Tensor, Tensor]) -> None:
        for step in (opt.lower_step, opt.upper_step):
            opt.zero_grad()
            classification_loss(opt.model, batch).backward()
            step()

    first = biprune.BiPOptimizer(copy.deepcopy(conv_net), sparsity=0.8)
    iterate(first, batches[0])
    model = copy.deepcopy(conv_net)
    second = biprune.BiPOptimizer(model, sparsity=0.1)
    model.load_state_dict(first.model.state_dict())
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for opt in (first, second):
        iterate(opt, batches[1])
        iterate(opt, batches[2])
    assert first.masks == second.masks
    first.redraws = False
    second.load_state_dict(first.state_dict())
    assert not second.redraws
    for name, value in first.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name])
    other = biprune.BiPOptimizer(nn.Linear(2, 2), sparsity=0.5)
    with pytest.raises(ValueError, match="of other tensors than the model's prunable ones"):
        other.load_state_dict(first.state_dict())


def test_a_step_needs_gradients(conv_net: nn.Module) -> None:
    opt = biprune.BiPOptimizer(conv_net, sparsity=0.9)
    for step in (opt.lower_step, opt.upper_step):
        with pytest.raises(ValueError, match=r"no gradients to step by: call loss\.backward"):
            step()


def test_the_optimizer_ends_in_a_ticket(conv_net: nn.Module) -> None:
    opt = biprune.BiPOptimizer(conv_net, sparsity=0.9, structure="filter")
    ticket = opt.ticket()
    assert ticket.model is conv_net
    assert ticket.masks.sparsity == pytest.approx(1 - 2 / 18)
    assert not ticket.model.training
    assert (ticket.method, ticket.settings) == ("bip", BiP().settings)
    ours = biprune.BiPPlusOptimizer(copy.deepcopy(conv_net), 0.9, gamma=2.0, implicit_gradient=True)
    assert (ours.ticket().method, ours.ticket().settings["gamma"]) == ("bip-plus", 2.0)
    assert ticket.chosen == {"include": None, "exclude": None, "allow_empty": False}
    with torch.no_grad():
        conv_net.get_parameter("conv1.weight").fill_(1.0)
    with pytest.raises(ValueError, match=r"Pruned weights of 'conv1\.weight' are not zero"):
        opt.ticket()


def test_a_ticket_before_the_mask_follows_the_sparsity_is_refused(conv_net: nn.Module) -> None:
    opt = biprune.BiPOptimizer(conv_net, sparsity=0.5)
    opt.sparsity = 0.9
    with pytest.raises(ValueError, match=r"`sparsity` is 0\.9 now.*Take a step"):
        opt.ticket()


def test_mistakes_with_the_optimizer(conv_net: nn.Module) -> None:
    with pytest.raises(TypeError, match=r"'bip' has no setting 'nestrov'\. Settings: epochs, lr"):
        biprune.BiPOptimizer(conv_net, 0.9, nestrov=True)
    opt = biprune.BiPOptimizer(conv_net, 0.9)
    with pytest.raises(ValueError, match=r"`sparsity` must be in \[0, 1\), got 95\."):
        opt.sparsity = 95
    assert opt.sparsity == 0.9
    with pytest.raises(ValueError, match="did not come from `state_dict`: it has no 'lower'"):
        opt.load_state_dict({"a": 1})


def scheme(name: str, lower_steps: int = 1, size: int = 3, passes: int = 2) -> list[list[int]]:
    how: dict[str, Any] = {"batches": name, "lower_steps": lower_steps}
    method = BiP(**how) if passes == 2 else BiPPlus(**how)
    model = nn.Linear(4, 2)
    data = list(range(size))
    setup = Setup(data, classification_loss)
    target = Target(0.5, get_structure("weight"))
    algorithm = method.algorithm(method, model, setup, target)
    return [list(group) for group in algorithm.groups(data, size)]  # pyright: ignore


def test_batch_schemes() -> None:
    assert scheme("different") == [[0, 1], [2, 0], [1, 2]]
    # Passes that hold whole groups swap the roles, so that both levels see every batch.
    assert scheme("different", size=4) == [[0, 1], [2, 3], [1, 0], [3, 2]]
    assert scheme("same") == [[0, 0], [1, 1], [2, 2]]
    assert scheme("reverse") == [[0, 2], [1, 1], [2, 0]]
    assert scheme("different", 2) == [[0, 1, 2], [1, 2, 0], [2, 0, 1]]
    assert scheme("same", 2) == [[0, 1, 1], [2, 0, 0], [1, 2, 2]]
    assert scheme("reverse", 2) == [[0, 1, 2], [2, 0, 1], [1, 2, 0]]
    assert scheme("different", 2, size=2, passes=1) == [[0, 1], [1, 0]]


@pytest.mark.parametrize(("name", "passes"), [("different", 2), ("same", 2), ("different", 1)])
def test_the_mask_sees_every_batch_of_a_loader_that_keeps_its_order(name: str, passes: int) -> None:
    for lower_steps, size in itertools.product((1, 2, 3, 5), range(1, 13)):
        groups = scheme(name, lower_steps, size, passes)
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


def test_random_scores_follow_the_seed(
    conv_net: nn.Module, batches: list[tuple[Tensor, Tensor]]
) -> None:
    method = BiPPlus(**{**AS_PUBLISHED, "score_init": "random", "score_lr": 0.0, "epochs": 1})
    one, other = (
        biprune.prune(conv_net, batches, method, sparsity=0.5, seed=seed).masks for seed in (0, 1)
    )
    assert one.overlap(other) == pytest.approx(1 / 3, abs=0.08)  # of independent halves


@pytest.mark.parametrize(("shape", "power"), [("cubic", 3), ("linear", 1)])
@pytest.mark.parametrize("changes", [{}, AS_PUBLISHED], ids=["default", "as published"])
def test_a_gradual_schedule_goes_from_dense_to_the_target(
    conv_net: nn.Module,
    batches: list[tuple[Tensor, Tensor]],
    changes: dict[str, Any],
    shape: str,
    power: int,
) -> None:
    changes = {**changes, "sparsity_schedule": shape}
    ticket = biprune.prune(conv_net, batches, sparsity=0.9, epochs=4, ramp=0.75, **changes)
    reached = [record["sparsity"] for record in ticket.history]
    # After epochs 1, 2, 3 of 4: 0.9 (1 - (1 - t / 0.75)^power) at t = 1/4, 1/2, 3/4.
    assert reached[:3] == pytest.approx(
        [0.9 * (1 - (2 / 3) ** power), 0.9 * (1 - (1 / 3) ** power), 0.9], abs=2e-3
    )
    assert reached[3] == reached[2]
    late = biprune.prune(conv_net, batches, sparsity=0.9, epochs=1, ramp=1.0, **changes)
    assert late.masks.kept == round(0.1 * late.masks.total)


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
    for make in (BiPPlus, lambda gamma: BiP(gamma=gamma, implicit_gradient=False)):
        with pytest.raises(ValueError, match=r"`gamma` 0\.5 would change nothing.*implicit_grad"):
            make(gamma=0.5)
    assert BiPPlus(gamma=0.5, implicit_gradient=True).gamma == 0.5
    assert BiP(gamma=0.5, implicit_gradient=False, form="coupled").gamma == 0.5
    assert BiPPlus(gamma=1.0) == BiPPlus()


@pytest.mark.parametrize("name", ["follow_weights", "freeze_pruned"])
def test_a_state_of_another_kind_is_refused(conv_net: nn.Module, name: str) -> None:
    one, other = (bilevel(conv_net, 0.5, **{name: value}) for value in (True, False))
    state = one.state_dict()
    with pytest.raises(ValueError, match=f"to an optimizer with {name}=True; this one has False"):
        other.load_state_dict(state)
    one.load_state_dict(state)


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


def test_the_optimizer_prunes_what_it_is_offered(conv_net: nn.Module) -> None:
    offered = {
        "conv2.weight": {"include": "conv2"},
        "conv1.weight conv2.weight": {"exclude": "head"},
    }
    for names, chosen in offered.items():
        opt = biprune.BiPOptimizer(copy.deepcopy(conv_net), 0.5, **chosen)
        assert list(opt.masks) == names.split()
        everything = {"include": None, "exclude": None, "allow_empty": False}
        assert opt.ticket().chosen == everything | chosen
    conv_net.get_parameter("conv1.weight").data.mul_(100)
    for scope, counts in (("layer", [3, 6]), ("global", [6, 3])):
        opt = biprune.BiPOptimizer(copy.deepcopy(conv_net), 0.5, "filter", scope=scope)
        assert [count.kept for count in opt.masks.per_layer().values()] == counts
    inputs = torch.zeros(2, 1, 8, 8)
    grouped = {"structure": "group", "budget": {"macs": 0.5}, "example_input": inputs}
    opt = biprune.BiPOptimizer(copy.deepcopy(conv_net), round_to=3, **grouped)
    assert all(count.kept % 3 == 0 for count in opt.masks.per_layer().values())


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
    with pytest.raises(ValueError, match=r"epoch 3, to rewind to, was not kept; kept: \[0, 2\]"):
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
]
BAD_FOR_OURS = [
    ({"sparsity_schedule": "up"}, "`sparsity_schedule` must be one of direct, cubic, linear"),
    ({"score_optimizer": "lion"}, "`score_optimizer` must be one of sgd, adam, got 'lion'"),
    ({"score_momentum": -1.0}, "`score_momentum` must be 0 or more, got -1"),
    ({"score_schedule": "linear"}, "`schedule` must be one of cosine, step, constant"),
    ({"mask_every": 0}, "`mask_every` must be"),
    ({"score_init": "zero"}, "`score_init` must be one of magnitude, hydra, random"),
    ({"ramp": 0.0}, r"`ramp` must be in \(0, 1\], got 0"),
]


@pytest.mark.parametrize(
    ("method", "settings", "text"),
    [("bip", *bad) for bad in BAD] + [("bip-plus", *bad) for bad in (*BAD, *BAD_FOR_OURS)],
)
def test_bad_settings(
    conv_net: nn.Module, batches: list, method: str, settings: dict, text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        biprune.prune(conv_net, batches, method, sparsity=0.5, **settings)


def test_an_interrupted_step_leaves_no_gradient_in_the_weights(
    conv_net: nn.Module, batches: list[tuple[Tensor, Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    opt = bilevel(conv_net, 0.8)

    def interrupted() -> None:
        raise KeyboardInterrupt

    for step in (opt.lower_step, opt.upper_step, opt.step):
        classification_loss(conv_net, batches[0]).backward()
        with monkeypatch.context() as patch:
            patch.setattr(opt.lower, "step", interrupted)
            patch.setattr(opt.upper, "step", interrupted)
            with pytest.raises(KeyboardInterrupt):
                step()
        for name, theta in opt.theta.items():
            z = torch.where(opt.masks[name], theta, 0.0)
            assert torch.equal(conv_net.get_parameter(name), z)


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
    "method",
    [BiPPlus(**{**AS_PUBLISHED, "passes": 1}), BiP(), BiPPlus()],
    ids=["one pass", "two passes", "default"],
)
def test_one_read_a_step_where_the_device_is_not_the_host(
    conv_net: nn.Module,
    batches: list[tuple[Tensor, Tensor]],
    monkeypatch: pytest.MonkeyPatch,
    structure: str,
    method: BiP,
) -> None:
    """The loss; run on the CPU by the path of other devices, with the same masks."""
    masks = []
    for on_host in (True, False):
        monkeypatch.setattr("biprune.core.selection.is_host", lambda tensor, own=on_host: own)
        monkeypatch.setattr("biprune.core.ranking.is_host", lambda tensor, own=on_host: own)
        monkeypatch.setattr("biprune.core.masked.is_host", lambda tensor, own=on_host: own)
        model = copy.deepcopy(conv_net)
        setup = Setup(batches, classification_loss)
        target = Target(0.8, get_structure(structure))
        algorithm = method.algorithm(method, model, setup, target)
        run = Passes(model, setup)
        reads = []
        for step, group in enumerate(algorithm.groups(batches, 3)):
            with HostReads() as mode:
                algorithm.step(run, group, Moment(0, step, epochs=10, steps=3))
            reads.append(mode.count)
        masks.append(algorithm.masks)
        if not on_host:
            assert reads[:2] == [1, 1]  # an epoch's last step also reads the ratio for the record
    assert masks[0] == masks[1]


def test_one_pass_an_iteration(conv_net: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> None:
    method = BiPPlus(passes=1, epochs=3, lower_steps=2)
    assert method.data_passes(0.9) == 6
    ticket = biprune.prune(conv_net, batches, method, sparsity=0.8)
    assert ticket.cost.backward_passes == 3 * 2 * len(batches)
    assert BiPPlus(passes=1, epochs=3).data_passes(0.9) == 3
    with pytest.raises(ValueError, match="`batches` 'reverse' needs `passes` 2"):
        BiPPlus(passes=1, batches="reverse")
    with pytest.raises(ValueError, match="`passes` must be 1 or 2, got 3"):
        BiPPlus(passes=3)


def test_one_pass_by_hand() -> None:
    model, c = linear_problem([3.0, -1.0, 2.0], [1.0, 2.0, -1.0])
    own = {"lr": 0.5, "score_lr": 1.0, "gamma": 2.0, "momentum": 0.0, "weight_decay": 0.0}
    opt = biprune.BiPPlusOptimizer(model, 1 / 3, **{**AS_PUBLISHED, **own})
    backward(model, c)
    opt.step()
    # theta as after a lower step; scores (3, 1, 2) less (theta - m c / 2) c at the theta before:
    # ((3 - .5) 1, -1 * 2, (2 + .5) * -1).
    assert opt.theta["weight"].tolist() == [[2.5, -1.0, 2.5]]
    assert opt.scores["weight"].tolist() == [[0.5, 3.0, 4.5]]
    assert model.weight.tolist() == [[0.0, -1.0, 2.5]]
    with pytest.raises(ValueError, match="no gradients to step by"):
        opt.step()


def test_both_levels_by_hand_from_one_backward() -> None:
    """A lower step leaves the gradient whole, so that an upper step may follow on it."""
    model, c = linear_problem([3.0, -1.0, 2.0], [1.0, 2.0, -1.0])
    opt = published(model, 1 / 3, lr=0.5, score_lr=1.0, gamma=2.0, momentum=0.0, weight_decay=0.0)
    backward(model, c)
    opt.lower_step()
    opt.upper_step()
    assert opt.scores["weight"].tolist() == [[1.0, 3.0, 5.0]]
