"""`attach` in the loops that people write: scalers, closures, wrappers, schedulers, compilation."""

from __future__ import annotations

import copy
import itertools
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW, Optimizer

import biprune

STEPS = 12
Batches = list[tuple[Tensor, Tensor]]
Same = Callable[[nn.Module, nn.Module], bool]


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return cross_entropy(model(batch[0]), batch[1])


def attach(model: nn.Module, optimizer: Any, **how: Any) -> biprune.Pruner:
    return biprune.attach(model, optimizer, **{"sparsity": 0.8, "steps": STEPS} | how)


def plain_loop(model: nn.Module, optimizer: Optimizer, batches: Batches, steps: int) -> None:
    for batch in itertools.islice(itertools.cycle(batches), steps):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()


def trained(model: nn.Module, batches: Batches, optimizer: Any, **how: Any) -> biprune.Pruner:
    """The run that others are compared with."""
    pruner = attach(model, optimizer, **how)
    plain_loop(model, optimizer, batches, STEPS)
    return pruner


def test_gradients_that_are_not_finite_move_no_mask(conv_net: nn.Module, batches: Batches) -> None:
    class Cautious(SGD):
        def step(self, closure: Any = None) -> None:  # pyright: ignore
            grads = [p.grad for group in self.param_groups for p in group["params"]]
            if all(g.isfinite().all() for g in grads):
                super().step()

    optimizer = Cautious(conv_net.parameters(), lr=0.01)
    pruner = attach(conv_net, optimizer)
    plain_loop(conv_net, optimizer, batches, 5)
    kept = copy.deepcopy(pruner.state_dict())
    loss_of(conv_net, batches[0]).backward()
    conv_net.get_parameter("conv1.weight").grad.view(-1)[0] = torch.nan  # pyright: ignore
    optimizer.step()
    assert str(pruner.state_dict()) == str(kept)


def test_weights_that_are_not_finite_are_told(conv_net: nn.Module, batches: Batches) -> None:
    optimizer = SGD(conv_net.parameters(), lr=0.01)
    attach(conv_net, optimizer)
    loss_of(conv_net, batches[0]).backward()
    conv_net.get_parameter("conv1.weight").grad.view(-1)[0] = torch.nan  # pyright: ignore
    with pytest.raises(FloatingPointError, match="After 0 steps the weights are not finite"):
        optimizer.step()


@pytest.mark.parametrize("method", ["bip-plus", "bip"])
@pytest.mark.parametrize("how", ["positional", "keyword", "after backward"])
def test_a_closure_runs_on_the_pruned_model(
    conv_net: nn.Module, batches: Batches, same_state: Same, method: str, how: str
) -> None:
    plain = copy.deepcopy(conv_net)
    trained(plain, batches, SGD(plain.parameters(), lr=0.05, momentum=0.9), method=method)
    optimizer = SGD(conv_net.parameters(), lr=0.05, momentum=0.9)
    pruner = attach(conv_net, optimizer, method=method)
    for batch in itertools.islice(itertools.cycle(batches), STEPS):

        def closure(batch: tuple[Tensor, Tensor] = batch) -> float:
            optimizer.zero_grad()
            loss = loss_of(conv_net, batch)
            loss.backward()
            for name, mask in pruner.masks.items():
                assert not conv_net.get_parameter(name)[~mask].any()
            return loss.item()

        if how == "after backward":  # as Lightning does in half precision
            loss = closure()
            assert optimizer.step(lambda loss=loss: loss) == loss
        elif how == "keyword":
            assert optimizer.step(closure=closure) is not None
        else:
            assert optimizer.step(closure) is not None
    assert same_state(plain, conv_net)


@pytest.mark.parametrize("method", ["bip-plus", "bip", "gmp", "movement"])
def test_gradients_are_left_alone(conv_net: nn.Module, batches: Batches, method: str) -> None:
    optimizer = AdamW(conv_net.parameters())
    attach(conv_net, optimizer, method=method)
    for batch in batches:
        optimizer.zero_grad()
        loss_of(conv_net, batch).backward()
        before = [p.grad.clone() for p in conv_net.parameters()]  # pyright: ignore
        optimizer.step()
        pairs = zip(before, conv_net.parameters(), strict=True)
        assert all(p.grad is not None and torch.equal(g, p.grad) for g, p in pairs)


def test_the_upper_level_of_bip_moves_masks_alone(conv_net: nn.Module, batches: Batches) -> None:
    optimizer = SGD(conv_net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    pruner = attach(conv_net, optimizer, method="bip", sparsity=0.5)
    plain_loop(conv_net, optimizer, batches, 3)
    state = copy.deepcopy(optimizer.state_dict())
    theta = {name: value.clone() for name, value in pruner.theta.items()}
    biases = conv_net.get_parameter("head.bias").clone()
    masks = pruner.masks
    plain_loop(conv_net, optimizer, batches, 1)
    assert str(optimizer.state_dict()) == str(state)
    assert all(torch.equal(pruner.theta[name], value) for name, value in theta.items())
    assert torch.equal(conv_net.get_parameter("head.bias"), biases)
    assert pruner.masks != masks


def test_clipping_and_accumulation_are_the_users(conv_net: nn.Module, batches: Batches) -> None:
    """The mask moves by what the optimizer is given: clipped sums over micro-batches."""
    optimizer = SGD(conv_net.parameters(), lr=0.05)
    pruner = attach(conv_net, optimizer, steps=4)
    for batch in batches:
        loss_of(conv_net, batch).backward()
    nn.utils.clip_grad_norm_(conv_net.parameters(), 0.1)
    gradient = conv_net.get_parameter("head.weight").grad.double()  # pyright: ignore
    others = [n for n in pruner.masks if n != "head.weight"]
    optimizer.step()
    theta = {name: value.double() for name, value in pruner.theta.items()}
    products = {n: theta[n] * conv_net.get_parameter(n).grad.double() for n in others}  # pyright: ignore
    products["head.weight"] = theta["head.weight"] * gradient
    mean = sum(float(p.abs().sum()) for p in products.values()) / pruner.masks.total
    assert pruner.step == 1
    for name, product in products.items():
        scores = pruner.state_dict()["scores"][name].double()
        torch.testing.assert_close(scores, -3 * product / (4 * mean), rtol=1e-4, atol=1e-6)


def test_the_rate_of_scores_follows_the_scheduler(conv_net: nn.Module, batches: Batches) -> None:
    """A warm-up that says its peak by `initial_lr` is known from the first step."""
    optimizer = SGD(conv_net.parameters(), lr=0.1)
    pruner = attach(conv_net, optimizer, sparsity=0.0, steps=8)
    factors = [0.25, 0.5, 1.0, 0.1]
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: factors[min(t, 3)])
    for factor, batch in zip(factors, batches, strict=True):
        before = pruner.state_dict()["scores"]["head.weight"].clone()
        optimizer.zero_grad()
        loss_of(conv_net, batch).backward()
        optimizer.step()
        product = pruner.theta["head.weight"] * conv_net.get_parameter("head.weight").grad  # pyright: ignore
        moved = pruner.state_dict()["scores"]["head.weight"] - before
        mean = pruner.state_dict()["mean"]
        expected = -3 * factor * product / (8 * mean)
        torch.testing.assert_close(moved, expected, rtol=1e-4, atol=1e-6)
        scheduler.step()


def test_parameters_added_later_are_left_alone(conv_net: nn.Module, batches: Batches) -> None:
    optimizer = SGD(conv_net.parameters(), lr=0.1)
    pruner = attach(conv_net, optimizer, steps=2)
    extra = nn.Parameter(torch.ones(3, 3))
    optimizer.add_param_group({"params": [extra], "lr": 0.5})
    for batch in batches:
        optimizer.zero_grad()
        (loss_of(conv_net, batch) + extra.sum()).backward()
        optimizer.step()
    assert torch.equal(extra, torch.full((3, 3), -1.0))
    assert pruner.ticket().sparsity == 0.8


def test_a_subclass_whose_hooks_fire_twice_steps_once(
    conv_net: nn.Module, batches: Batches, same_state: Same
) -> None:
    class Outer(SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    plain = copy.deepcopy(conv_net)
    pruner = trained(plain, batches, SGD(plain.parameters(), lr=0.05))
    fired = []
    optimizer = Outer(conv_net.parameters(), lr=0.05)
    optimizer.register_step_post_hook(lambda *_: fired.append(1))
    other = trained(conv_net, batches, optimizer)
    assert len(fired) == 2 * STEPS
    assert other.step == STEPS
    assert same_state(plain, conv_net)
    assert pruner.masks == other.masks


class Lookahead(Optimizer):
    """An optimizer within an optimizer, which moves the weights once more behind the inner one."""

    def __init__(self, inner: Optimizer) -> None:
        self.optimizer = inner
        super().__init__([p for g in inner.param_groups for p in g["params"]], {})
        self.slow = [p.detach().clone() for g in inner.param_groups for p in g["params"]]

    def step(self, closure: Any = None) -> None:  # pyright: ignore
        self.optimizer.step()
        with torch.no_grad():
            for slow, p in zip(self.slow, self.param_groups[0]["params"], strict=True):
                p.copy_(slow.lerp_(p, 0.5))


def test_what_wraps_the_optimizer_cannot_bring_pruned_weights_back(
    conv_net: nn.Module, batches: Batches
) -> None:
    optimizer = Lookahead(SGD(conv_net.parameters(), lr=0.05))
    pruner = attach(conv_net, optimizer)
    plain_loop(conv_net, optimizer, batches, STEPS)
    assert pruner.step == STEPS
    for name, mask in pruner.masks.items():
        assert not conv_net.get_parameter(name)[~mask].any()


class Accelerated(Optimizer):
    """A wrapper without hooks of its own, in the shape of Accelerate's."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    @property
    def param_groups(self) -> Any:  # pyright: ignore
        return self.optimizer.param_groups

    def step(self, closure: Any = None) -> None:  # pyright: ignore
        self.optimizer.step(None)  # pyright: ignore

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)


@pytest.mark.parametrize("method", ["bip-plus", "bip"])
def test_a_wrapper_without_hooks_is_looked_into(
    conv_net: nn.Module, batches: Batches, same_state: Same, method: str
) -> None:
    plain = copy.deepcopy(conv_net)
    trained(plain, batches, SGD(plain.parameters(), lr=0.05), method=method)
    optimizer = Accelerated(SGD(conv_net.parameters(), lr=0.05))
    assert trained(conv_net, batches, optimizer, method=method).step == STEPS
    assert same_state(plain, conv_net)


def test_a_step_that_raises_is_not_counted_and_the_next_one_is(
    conv_net: nn.Module, batches: Batches
) -> None:
    optimizer = SGD(conv_net.parameters(), lr=0.05)
    pruner = attach(conv_net, optimizer, method="bip")

    def closure() -> float:
        raise RuntimeError("out of memory")

    for count in range(4):
        with pytest.raises(RuntimeError, match="out of memory"):
            optimizer.step(closure)
        assert pruner.step == count
        plain_loop(conv_net, optimizer, batches, 1)
        assert pruner.step == count + 1


def test_a_state_that_the_optimizer_loads_does_not_loosen_the_hooks(
    conv_net: nn.Module, batches: Batches, same_state: Same
) -> None:
    plain = copy.deepcopy(conv_net)
    trained(plain, batches, AdamW(plain.parameters(), lr=0.01))
    optimizer = AdamW(conv_net.parameters(), lr=0.01)
    attach(conv_net, optimizer)
    for batch in itertools.islice(itertools.cycle(batches), STEPS):
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        plain_loop(conv_net, optimizer, [batch], 1)
    assert same_state(plain, conv_net)


def test_maximizing_is_minimizing_the_negative(
    conv_net: nn.Module, batches: Batches, same_state: Same
) -> None:
    plain = copy.deepcopy(conv_net)
    pruner = trained(plain, batches, SGD(plain.parameters(), lr=0.05))
    optimizer = SGD(conv_net.parameters(), lr=0.05, maximize=True)
    other = attach(conv_net, optimizer)
    for batch in itertools.islice(itertools.cycle(batches), STEPS):
        optimizer.zero_grad()
        (-loss_of(conv_net, batch)).backward()
        optimizer.step()
    assert same_state(plain, conv_net)
    assert pruner.masks == other.masks


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, as it compiles
@pytest.mark.parametrize("what", ["model", "step"])
def test_compiled_is_the_same(
    conv_net: nn.Module, batches: Batches, same_state: Same, what: str
) -> None:
    plain = copy.deepcopy(conv_net)
    trained(plain, batches, SGD(plain.parameters(), lr=0.05))
    optimizer = SGD(conv_net.parameters(), lr=0.05)
    compiled = torch.compile(conv_net, backend="eager") if what == "model" else conv_net
    pruner = attach(compiled, optimizer)
    step = torch.compile(optimizer.step, backend="eager") if what == "step" else optimizer.step
    for batch in itertools.islice(itertools.cycle(batches), STEPS):
        optimizer.zero_grad()
        loss_of(compiled, batch).backward()
        step()
    torch._dynamo.reset()
    assert pruner.step == STEPS
    assert same_state(plain, conv_net)


def test_steps_that_run_out_leave_the_mask_as_it_is(
    conv_net: nn.Module, batches: Batches, caplog: pytest.LogCaptureFixture
) -> None:
    optimizer = SGD(conv_net.parameters(), lr=0.1)
    pruner = trained(conv_net, batches, optimizer)
    masks, before = pruner.masks, conv_net.get_parameter("conv2.weight").clone()
    with caplog.at_level(logging.WARNING):
        plain_loop(conv_net, optimizer, batches, 5)
    assert pruner.masks is masks
    assert pruner.step == STEPS
    assert not torch.equal(conv_net.get_parameter("conv2.weight"), before)
    assert not conv_net.get_parameter("conv2.weight")[~masks["conv2.weight"]].any()
    assert [record.message for record in caplog.records] == [
        "All 12 `steps` are taken: the mask is fixed from now on."
    ]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_types_keep_their_bits(batches: Batches, dtype: torch.dtype) -> None:
    """Scores are float32 at least: what a step adds to them would be lost in a half type."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 3)).to(dtype)
    model[3].float()
    optimizer = SGD(model.parameters(), lr=0.05)
    pruner = attach(model, optimizer, steps=200)
    model[2].register_forward_hook(lambda *args: args[2].float())
    plain_loop(model, optimizer, [(x.to(dtype), y) for x, y in batches], 200)
    scores = pruner.state_dict()["scores"]["1.weight"]
    assert scores.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert pruner.theta["1.weight"].dtype == dtype
    for name, mask in pruner.masks.items():
        weight = model.get_parameter(name)
        assert torch.equal(weight[mask], pruner.theta[name][mask])
        assert not weight[~mask].any()
    assert pruner.masks.kept == round(0.2 * (64 * 16 + 48))


def test_layouts_in_memory_do_not_matter(
    conv_net: nn.Module, batches: Batches, same_state: Same
) -> None:
    with (
        torch.no_grad()
    ):  # a weight with gaps, and one in another order than dimension by dimension
        conv_net.head.weight = nn.Parameter(torch.randn(3, 24)[:, ::2])  # pyright: ignore
    plain = copy.deepcopy(conv_net)
    plain.head.weight = nn.Parameter(plain.head.weight.detach().contiguous())  # pyright: ignore
    conv_net.conv2.to(memory_format=torch.channels_last)  # pyright: ignore
    pruner = trained(plain, batches, AdamW(plain.parameters(), lr=0.01))
    other = trained(conv_net, batches, AdamW(conv_net.parameters(), lr=0.01))
    assert other.masks.overlap(pruner.masks) > 0.95  # convolutions differ in their last bits
    for name, mask in other.masks.items():
        assert torch.equal(conv_net.get_parameter(name)[mask], other.theta[name][mask])
