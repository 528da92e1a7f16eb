"""`attach` to optimizers that are wrapped, copied, loaded, or step in a way of their own."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from loops import METHODS, Batches, Same, attached, loss_of, shows_z, train, trained
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, AdamW, Optimizer

import biprune

STEPS = 12


def test_parameters_added_later_are_left_alone(conv_net: nn.Module, batches: Batches) -> None:
    optimizer = SGD(conv_net.parameters(), lr=0.1)
    pruner = attached(conv_net, [optimizer], steps=2)
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
    pruner = trained(plain, SGD(plain.parameters(), lr=0.05), batches)
    fired = []
    optimizer = Outer(conv_net.parameters(), lr=0.05)
    optimizer.register_step_post_hook(lambda *_: fired.append(1))
    other = trained(conv_net, optimizer, batches)
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


@pytest.mark.parametrize("method", METHODS)
def test_what_wraps_the_optimizer_cannot_bring_pruned_weights_back(
    conv_net: nn.Module, batches: Batches, method: str
) -> None:
    optimizer = Lookahead(SGD(conv_net.parameters(), lr=0.05))
    pruner = trained(conv_net, optimizer, batches, method)
    assert pruner.step == STEPS
    assert shows_z(conv_net, pruner)


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


@pytest.mark.parametrize("method", METHODS)
def test_a_wrapper_without_hooks_is_looked_into(
    conv_net: nn.Module, batches: Batches, same_state: Same, method: str
) -> None:
    plain = copy.deepcopy(conv_net)
    trained(plain, SGD(plain.parameters(), lr=0.05), batches, method)
    optimizer = Accelerated(SGD(conv_net.parameters(), lr=0.05))
    assert trained(conv_net, optimizer, batches, method).step == STEPS
    assert same_state(plain, conv_net)


def test_a_state_that_the_optimizer_loads_does_not_loosen_the_hooks(
    conv_net: nn.Module, batches: Batches, same_state: Same
) -> None:
    plain = copy.deepcopy(conv_net)
    trained(plain, AdamW(plain.parameters(), lr=0.01), batches)
    optimizer = AdamW(conv_net.parameters(), lr=0.01)
    attached(conv_net, [optimizer])
    for batch in itertools.islice(itertools.cycle(batches), STEPS):
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        train(conv_net, [optimizer], [batch], 1)
    assert same_state(plain, conv_net)


def test_maximizing_is_minimizing_the_negative(
    conv_net: nn.Module, batches: Batches, same_state: Same
) -> None:
    plain = copy.deepcopy(conv_net)
    pruner = trained(plain, SGD(plain.parameters(), lr=0.05), batches)
    optimizer = SGD(conv_net.parameters(), lr=0.05, maximize=True)
    other = attached(conv_net, [optimizer])
    for batch in itertools.islice(itertools.cycle(batches), STEPS):
        optimizer.zero_grad()
        (-loss_of(conv_net, batch)).backward()
        optimizer.step()
    assert same_state(plain, conv_net)
    assert pruner.masks == other.masks


@pytest.mark.parametrize("how", ["by name", "rate in a tensor"])
def test_parameters_and_rates_come_in_other_forms(
    conv_net: nn.Module, batches: Batches, same_state: Same, how: str
) -> None:
    plain = copy.deepcopy(conv_net)
    pruner = trained(plain, AdamW(plain.parameters(), lr=0.01), batches)
    if how == "by name":
        optimizer = AdamW(conv_net.named_parameters(), lr=0.01)
    else:
        optimizer = AdamW(conv_net.parameters(), lr=torch.tensor(0.01, dtype=torch.float64))
    other = trained(conv_net, optimizer, batches)
    assert same_state(plain, conv_net)
    assert pruner.masks == other.masks


@pytest.mark.parametrize("method", METHODS)
def test_a_closure_that_is_called_again_and_again_sees_the_pruned_model(
    conv_net: nn.Module, batches: Batches, method: str
) -> None:
    optimizer = LBFGS(conv_net.parameters(), lr=0.1, max_iter=4)
    pruner = attached(conv_net, [optimizer], method)
    calls = []
    for batch in itertools.islice(itertools.cycle(batches), STEPS):

        def closure(batch: tuple[Tensor, Tensor] = batch) -> Tensor:
            assert shows_z(conv_net, pruner)
            calls.append(1)
            optimizer.zero_grad()
            loss = loss_of(conv_net, batch)
            loss.backward()
            return loss

        optimizer.step(closure)  # pyright: ignore[reportArgumentType]
        assert shows_z(conv_net, pruner)
    assert pruner.step == STEPS
    assert len(calls) > 2 * STEPS


class Breaking(SGD):
    """Fails in the middle of a step, when told to."""

    fails = False

    def step(self, closure: Any = None) -> Any:
        if self.fails:
            with torch.no_grad():
                self.param_groups[0]["params"][0].add_(1.0)
            raise RuntimeError("out of memory")
        return super().step(closure)


@pytest.mark.parametrize("after", ["next step", "state", "detach"])
@pytest.mark.parametrize("method", METHODS)
def test_a_step_that_fails_leaves_z(
    conv_net: nn.Module, batches: Batches, method: str, after: str
) -> None:
    """As soon as something is asked of the pruner, or the next step begins; it is not counted."""
    optimizer = Breaking(conv_net.parameters(), lr=0.05)
    pruner = attached(conv_net, [optimizer], method)
    for number in range(6):  # both levels of `bip`, where the ramp is on its way
        optimizer.fails = True
        with pytest.raises(RuntimeError, match="out of memory"):
            train(conv_net, [optimizer], batches, 1)
        optimizer.fails = False
        assert pruner.step == number
        if after == "state":
            assert pruner.state_dict()["step"] == number
            assert shows_z(conv_net, pruner)
        elif after == "detach":
            pruner.detach()
            assert shows_z(conv_net, pruner)
            assert not shares_memory(conv_net, pruner)
            return
        train(conv_net, [optimizer], batches, 1)
        assert pruner.step == number + 1
        assert shows_z(conv_net, pruner)
        assert all(p.grad is not None for p in conv_net.parameters())


def shares_memory(model: nn.Module, pruner: biprune.Pruner) -> bool:
    pairs = ((model.get_parameter(name), theta) for name, theta in pruner.theta.items())
    return any(p.untyped_storage().data_ptr() == t.untyped_storage().data_ptr() for p, t in pairs)


@pytest.mark.parametrize("method", METHODS)
def test_copies_are_ordinary(
    conv_net: nn.Module, batches: Batches, same_state: Same, method: str
) -> None:
    """Of the model and of the optimizer; what is copied goes on as it was."""
    optimizer = AdamW(conv_net.parameters(), lr=0.01)
    pruner = attached(conv_net, [optimizer], method)
    train(conv_net, [optimizer], batches)
    model, other = copy.deepcopy((conv_net, optimizer))
    assert same_state(model, conv_net)
    assert not any(module._forward_hooks for module in model.modules())
    train(model, [other], batches)
    assert not shows_z(model, pruner)
    assert pruner.step == len(batches)
    assert shows_z(conv_net, pruner)


def test_in_data_parallel_training_names_and_bits_are_the_same(
    conv_net: nn.Module, batches: Batches, same_state: Same, tmp_path: Path
) -> None:
    """The gradients are views of the buckets then."""
    from torch import distributed as dist

    starts = {method: (copy.deepcopy(conv_net), copy.deepcopy(conv_net)) for method in METHODS}
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        for method, (plain, own) in starts.items():
            pruner = trained(plain, AdamW(plain.parameters(), lr=0.01), batches, method)
            spread = nn.parallel.DistributedDataParallel(own, gradient_as_bucket_view=True)
            other = trained(spread, AdamW(spread.parameters(), lr=0.01), batches, method)
            assert pruner.masks == other.masks
            assert same_state(plain, own)
            assert type(other.ticket().model) is type(conv_net)
    finally:
        dist.destroy_process_group()
