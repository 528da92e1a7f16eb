"""Masks that follow the weights: the best of |theta| + scores, where the scores start at zero."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from itertools import cycle, islice
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import biprune
from architectures import CLASSES, build, images
from biprune.core.groups import Groups
from biprune.core.structure import Scope, get_structure
from biprune.methods import METHODS, BiP, BiPPlus
from biprune.methods.base import Target
from biprune.methods.bip_plus import AS_PUBLISHED, BiPPlusLevels
from biprune.training.batches import classification_loss
from hand_groups import TwoGroups, two_groups
from levels import bilevel
from linear_loss import backward, linear_problem
from oracles import ReferenceBiP, stable_top_k, top_k_with_floor

Batches = list[tuple[Tensor, Tensor]]
FORMS = [("both",), ("lower", "upper")]
forms = pytest.mark.parametrize("steps", FORMS, ids=["one pass", "two passes"])


def take(opt: BiPPlusLevels, step: str, batch: tuple[Tensor, Tensor]) -> None:
    opt.zero_grad()
    classification_loss(opt.model, batch).backward()
    {"lower": opt.lower_step, "upper": opt.upper_step, "both": opt.step}[step]()


def doubled(batches: Batches) -> Batches:
    return [(inputs.double(), labels) for inputs, labels in batches]


def small_net(seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return TwoGroups().double()


def small_batches(count: int) -> Batches:
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(count, 6, 3, 2, 2, generator=generator, dtype=torch.float64)
    return [(each, torch.arange(6) % 3) for each in inputs]


def test_by_hand() -> None:
    model, c = linear_problem([2.0, 1.75, 1.5], [2.0, 0.0, -0.25])
    own = {"lr": 0.5, "score_lr": 0.25, "gamma": 2.0, "momentum": 0.0, "weight_decay": 0.0}
    settings = {**AS_PUBLISHED, **own, "follow_weights": True}
    opt = biprune.BiPPlusOptimizer(model, 1 / 3, **settings)
    assert opt.scores["weight"].tolist() == [[0.0, 0.0, 0.0]]
    assert model.weight.tolist() == [[2.0, 1.75, 0.0]]
    backward(model, c)
    opt.lower_step()
    # theta moves by -0.5 m c; the mask waits for the next m-step.
    assert opt.theta["weight"].tolist() == [[1.0, 1.75, 1.5]]
    assert model.weight.tolist() == [[1.0, 1.75, 0.0]]
    backward(model, c)
    opt.upper_step()
    # Scores 0 less 0.25 (theta - m c / 2) c = ((1 - 1) 2, 0, 1.5 * -0.25) / 4.
    assert opt.scores["weight"].tolist() == [[0.0, 0.0, 0.09375]]
    assert model.weight.tolist() == [[0.0, 1.75, 1.5]]


def test_in_one_pass_the_mask_is_of_the_theta_that_the_step_leaves() -> None:
    """Without a rate of their own the scores stay 0, and masks are those of magnitudes."""
    model, c = linear_problem([2.0, 1.75, 1.5], [2.0, 0.0, 0.0])
    settings = {"momentum": 0.0, "weight_decay": 0.0, "follow_weights": True}
    opt = bilevel(model, 1 / 3, lr=0.5, score_lr=0.0, **settings)
    backward(model, c)
    opt.step()
    assert not opt.scores["weight"].any()
    assert model.weight.tolist() == [[0.0, 1.75, 1.5]]


def test_closed_form_for_a_linear_loss() -> None:
    """With l = g.z theta is a straight line, and the scores are its sum; all in exact binary."""
    start, g = [2.0, -3.0, 1.5, 0.25], [0.5, -0.25, -1.0, 0.125]
    lr, score_lr, count = 1 / 8, 1 / 32, 8
    model, c = linear_problem(start, g)
    opt = bilevel(
        model,
        0.25,
        lr=lr,
        score_lr=score_lr,
        momentum=0.0,
        weight_decay=0.0,
        implicit_gradient=False,
        follow_weights=True,
    )
    for _ in range(count):
        assert opt.masks["weight"].tolist() == [[True, True, True, False]]
        backward(model, c)
        opt.step()
    (scores,), (theta,) = opt.scores["weight"].tolist(), opt.theta["weight"].tolist()
    for i in range(3):
        path = [start[i] - lr * g[i] * t for t in range(count + 1)]
        assert theta[i] == path[-1]
        assert scores[i] == sum(-score_lr * value * g[i] for value in path[:-1])
        # What the module's docstring says they add up to, and the square of the steps taken.
        grown = score_lr / lr * (theta[i] ** 2 - start[i] ** 2) / 2
        assert scores[i] == grown - score_lr * lr * count * g[i] ** 2 / 2
    assert (theta[3], scores[3]) == (start[3], -score_lr * count * start[3] * g[3])


@forms
@pytest.mark.parametrize("implicit", [True, False], ids=["implicit", "direct"])
@pytest.mark.parametrize("structure", ["weight", "filter", "channel"])
@pytest.mark.parametrize("dead", [True, False], ids=["dead rows scored", "dead rows still"])
def test_many_steps_against_the_reference(
    conv_net: nn.Module,
    batches: Batches,
    structure: str,
    implicit: bool,
    dead: bool,
    steps: tuple[str, ...],
) -> None:
    """Masks are equal, and the rest agrees, after each step; the target rises on the way."""
    settings = {
        "lr": 0.3,
        "score_lr": 3.0,
        "gamma": 3.0 if implicit else 1.0,
        "momentum": 0.9,
        "weight_decay": 1e-3,
        "implicit_gradient": implicit,
        "follow_weights": True,
        "score_dead_rows": dead,
    }
    model = conv_net.double()
    for norm in ("norm1", "norm2"):  # at a bias of 0 the ReLU hides a pruned filter's gradient
        nn.init.constant_(model.get_parameter(f"{norm}.bias"), 0.3)
    target = Target(0.0, get_structure(structure))
    prunable = list(target.weights(model))
    start = {name: model.get_parameter(name).detach().abs() for name in prunable}
    reference = ReferenceBiP(copy.deepcopy(model), prunable, 0.0, target.structure.dim, **settings)
    opt = bilevel(model, 0.0, structure, **settings)
    stream, mattered = cycle(doubled(batches)), set[str]()
    for number in range(24):
        opt.sparsity = reference.sparsity = (1 + number // 6) / 6  # exact shares of 6 and 12
        for step in steps:
            batch = next(stream)
            take(opt, step, batch)
            getattr(reference, step)(batch)
            agree(opt, reference)
        moved = {name: theta.abs() for name, theta in reference.theta.items()}
        held = {name: start[name] + scores for name, scores in reference.scores.items()}
        mattered |= {
            part
            for part, other in (("scores", moved), ("theta", held))
            if not same(reference.best(other), reference.mask)
        }
    assert mattered == {"scores", "theta"}  # masks without one of the two would be others


def agree(opt: BiPPlusLevels, reference: ReferenceBiP) -> None:
    for name, theta in opt.theta.items():
        assert torch.equal(opt.masks[name].double(), reference.mask[name])
        assert torch.allclose(theta, reference.theta[name], atol=1e-11)
        assert torch.allclose(opt.scores[name], reference.scores[name], atol=1e-11)
        z = reference.mask[name] * reference.theta[name]
        assert torch.allclose(opt.model.get_parameter(name), z, atol=1e-11)
    for name, value in reference.dense.items():
        assert torch.allclose(opt.model.get_parameter(name), value, atol=1e-11)


@pytest.mark.parametrize("structure", ["weight", "filter", "channel"])
@pytest.mark.parametrize("mask_every", [1, 4])
def test_the_default_run_by_hand(
    conv_net: nn.Module, batches: Batches, mask_every: int, structure: str
) -> None:
    """`BiPPlus()` is one pass, a cubic ramp, two cosines, and masks that follow the weights.

    Those of filters and channels are fixed when the ramp ends, and scored only while they are kept.
    """
    model, data = conv_net.double(), doubled(batches)
    method = BiPPlus(epochs=3, mask_every=mask_every)
    single = structure == "weight"
    one_layer = None if single else "conv2*"  # whose share is exact at any sparsity
    ticket = biprune.prune(
        model, data, method, sparsity=0.8, structure=structure, include=one_layer
    )
    reference = ReferenceBiP(
        copy.deepcopy(model).train(),
        list(ticket.masks),
        0.0,
        get_structure(structure).dim,
        lr=method.lr,
        score_lr=method.score_lr,
        gamma=method.gamma,
        momentum=method.momentum,
        weight_decay=method.weight_decay,
        implicit_gradient=False,
        follow_weights=True,
        nesterov=True,
        freeze_pruned=True,
        score_pruned=single,
        score_dead_rows=False,
    )
    steps = 3 * len(data)
    end = round(method.ramp * steps)
    for number, batch in enumerate(islice(cycle(data), steps)):
        factor = (1 + math.cos(math.pi * number / steps)) / 2
        reference.lr, reference.score_lr = method.lr * factor, method.score_lr * factor
        left = 0.0 if number + 1 >= end else 1 - (number + 1) / steps / method.ramp
        reference.sparsity = 0.8 * (1 - left**3)
        before = reference.mask
        reference.both(batch)
        due = (number + 1) % mask_every == 0 and (single or number < end)
        if not due and number + 1 != end:
            reference.mask = before
    for name, mask in ticket.masks.items():
        assert torch.equal(mask.double(), reference.mask[name])
        z = reference.mask[name] * reference.theta[name]
        assert torch.allclose(ticket.model.get_parameter(name), z, atol=1e-10)
    assert ticket.cost.backward_passes == steps == method.data_passes(0.8) * len(data)


@forms
@pytest.mark.parametrize("scope", ["layer", "global"])
def test_filters_by_brute_force(
    conv_net: nn.Module, batches: Batches, scope: Scope, steps: tuple[str, ...]
) -> None:
    """|theta| + scores of each weight first, then the norm of what is positive in a filter."""
    settings = {"lr": 0.1, "score_lr": 100.0, "follow_weights": True}
    opt = bilevel(conv_net.double(), 0.5, "filter", scope=scope, **settings)
    stream = cycle(doubled(batches))
    for _ in range(5):
        for step in steps:
            take(opt, step, next(stream))
        sums = [theta.abs() + opt.scores[name] for name, theta in opt.theta.items()]
        assert any((each < 0).any() for each in sums)
        norms = [[_norm_of_positive(unit) for unit in each] for each in sums]
        found = [mask.flatten(1).all(1).tolist() for mask in opt.masks.values()]
        assert found == _best(norms, 0.5, scope)


@forms
@pytest.mark.parametrize("scope", ["layer", "global"])
def test_groups_by_brute_force(scope: Scope, steps: tuple[str, ...]) -> None:
    """The norm of a unit's filters, and one score moved by the sum over its gates."""
    rate = 3.0
    settings = {"lr": 0.2, "score_lr": rate, "momentum": 0.0, "implicit_gradient": False}
    opt = bilevel(small_net(0), 0.25, two_groups(scope=scope), follow_weights=True, **settings)
    scores = {"first.weight": [0.0] * 8, "second.weight": [0.0] * 12}
    others = []
    for number, batch in enumerate(small_batches(12)):
        opt.sparsity = 0.25 if number < 6 else 0.5
        if steps == ("lower", "upper"):
            take(opt, "lower", batch)
        moved = _gate_sums(opt, batch)
        opt.step() if steps == ("both",) else opt.upper_step()
        for name, sums in moved.items():
            scores[name] = [s - rate * g for s, g in zip(scores[name], sums, strict=True)]
            assert opt.scores[name].tolist() == pytest.approx(scores[name])
        norms = {name: [_norm(unit) for unit in opt.theta[name]] for name in scores}
        ranked = [_added(norms[name], scores[name]) for name in scores]
        assert isinstance(opt.masks.structure, Groups)
        units = opt.masks.structure.kept_units(opt.masks)
        best = _best(ranked, opt.sparsity, scope)
        assert [units[name].tolist() for name in scores] == best
        alone = (list(norms.values()), list(scores.values()))
        others.append([_best(part, opt.sparsity, scope) != best for part in alone])
    assert all(map(any, zip(*others, strict=True)))  # neither part alone gives these masks


@forms
def test_a_stream_that_many_write_by_brute_force(steps: tuple[str, ...]) -> None:
    """The mean square over its writers, the unit's score added behind the root."""
    settings = {**AS_PUBLISHED, "lr": 0.1, "score_lr": 3.0, "follow_weights": True}
    opt = biprune.BiPPlusOptimizer(
        build("residual").double().train(),
        0.5,
        "group",
        example_input=images().double(),
        **settings,
    )
    batch = images(16).double(), torch.arange(16) % CLASSES
    structure = opt.masks.structure
    assert isinstance(structure, Groups)
    assert max(len(group.filters) for group in structure.groups) > 1
    for _ in range(4):
        for step in steps:
            take(opt, step, batch)
        kept = structure.kept_units(opt.masks)
        for group in structure.groups:
            writers = [part.of(opt.theta[part.tensor]) for part in group.filters]
            values = [
                math.sqrt(sum(_norm(w[i]) ** 2 for w in writers) / len(writers))
                + float(opt.scores[group.name][i])
                for i in range(group.size)
            ]
            found = kept[group.name].tolist()
            assert 0 < sum(found) < group.size
            assert stable_top_k(values, sum(found)) == found


def _gate_sums(opt: BiPPlusLevels, batch: tuple[Tensor, Tensor]) -> dict[str, list[float]]:
    """d/dm of every unit, by a backward at the present point: theta * g over its gate."""
    opt.zero_grad()
    classification_loss(opt.model, batch).backward()
    g = {name: p.grad.clone() for name, p in opt.model.named_parameters() if p.grad is not None}
    product = {name: theta * g[name] for name, theta in opt.theta.items()}
    first = product["norm.weight"] + product["norm.bias"]
    second = product["second.weight"].flatten(1).sum(1) + product["second.bias"]
    return {"first.weight": first.tolist(), "second.weight": second.tolist()}


def _norm(values: Tensor) -> float:
    return math.sqrt(sum(value**2 for value in values.flatten().tolist()))


def _norm_of_positive(values: Tensor) -> float:
    return math.sqrt(sum(max(value, 0.0) ** 2 for value in values.flatten().tolist()))


def _added(one: list[float], other: list[float]) -> list[float]:
    return [mine + theirs for mine, theirs in zip(one, other, strict=True)]


def _best(layers: list[list[float]], sparsity: float, scope: Scope) -> list[list[bool]]:
    if scope == "global":
        return top_k_with_floor(layers, round((1 - sparsity) * sum(map(len, layers))))
    return [stable_top_k(layer, round((1 - sparsity) * len(layer))) for layer in layers]


@forms
@pytest.mark.parametrize("grouped", [False, True], ids=["weight", "group"])
def test_a_loaded_state_goes_on_bit_for_bit(grouped: bool, steps: tuple[str, ...]) -> None:
    settings = {"lr": 0.2, "score_lr": 5.0, "follow_weights": True}

    def start(seed: int, sparsity: float) -> BiPPlusLevels:
        structure = two_groups() if grouped else "weight"
        return bilevel(small_net(seed), sparsity, structure, **settings)

    data = small_batches(12)
    first = start(0, 0.25)
    for batch in data[:3]:
        for step in steps:
            take(first, step, batch)
    second = start(1, 0.0)  # of other weights, so that nothing is right by chance
    second.model.load_state_dict(first.model.state_dict())
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert (second.masks, second.sparsity) == (first.masks, 0.25)
    loaded = first.masks
    for number, batch in enumerate(data[3:]):
        for opt in (first, second):
            opt.sparsity = 0.25 if number < 6 else 0.5
            for step in steps:
                take(opt, step, batch)
        assert first.masks == second.masks
        assert same(first.theta, second.theta)
        assert same(first.scores, second.scores)
        assert same(first.model.state_dict(), second.model.state_dict())
        assert number != 5 or first.masks != loaded  # moved by more than the new target


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_nothing_shares_storage(conv_net: nn.Module) -> None:
    opt = bilevel(conv_net, 0.5, follow_weights=True)
    held = [opt._masked.weights, opt.theta, opt.scores, opt._ranked()]
    pointers = {tensor.data_ptr() for tensors in held for tensor in tensors.values()}
    assert len(pointers) == 4 * len(opt.theta)


@pytest.mark.parametrize("init", ["hydra", "random"])
def test_what_does_not_go_together_is_refused(init: Any) -> None:
    with pytest.raises(ValueError, match=f"`score_init` '{init}' needs follow_weights=False"):
        BiPPlus(score_init=init)
    assert BiPPlus(score_init=init, follow_weights=False).score_init == init


def test_a_refused_setting_costs_no_pass(conv_net: nn.Module, batches: Batches) -> None:
    def never(model: nn.Module, batch: object) -> Tensor:
        raise AssertionError("A pass was made.")

    with pytest.raises(ValueError, match="`score_init` 'random' needs"):
        biprune.prune(conv_net, batches, sparsity=0.5, score_init="random", loss=never)


PAPER = {
    "epochs": 100,
    "lr": 0.01,
    "warmup_epochs": 0.0,
    "schedule": "cosine",
    "score_lr": 0.1,
    "momentum": 0.9,
    "nesterov": False,
    "weight_decay": 5e-4,
    "gamma": 1.0,
    "lower_steps": 1,
    "batches": "different",
    "implicit_gradient": True,
    "form": "binary",
    "score_dead_rows": False,  # ours; True is Algorithm A1 to the letter
    "retrain_epochs": 0,
    "rewind_epoch": None,
}


def test_the_papers_settings() -> None:
    method = METHODS["bip"]()
    assert isinstance(method, BiP)
    assert method.settings == PAPER
    assert method.data_passes(0.9) == 200
    assert METHODS["bip-plus"]().data_passes(0.9) == 100


def test_what_ours_has_beside_the_published_settings() -> None:
    own = BiPPlus().settings.keys() - PAPER.keys()
    changed = {name for name in PAPER if BiPPlus().settings[name] != PAPER[name]}
    assert AS_PUBLISHED.keys() <= own | changed
    assert changed <= AS_PUBLISHED.keys()
    back = BiPPlus(**AS_PUBLISHED).settings
    assert {name: back[name] for name in PAPER} == PAPER


def test_the_optimizer_has_the_settings_of_its_method() -> None:
    assert biprune.BiPOptimizer(nn.Linear(4, 2), 0.5).method == BiP()
    fitted = BiPPlus().fitted(get_structure("weight"))
    assert biprune.BiPPlusOptimizer(nn.Linear(4, 2), 0.5).method == fitted
