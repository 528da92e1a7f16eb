"""`attach` in the loops that people write."""

from __future__ import annotations

import copy
import itertools
import logging
from typing import Any

import pytest
import torch
from loops import METHODS, Batches, Same, attached, loss_of, same_content, shows_z, train, trained
from torch import Tensor, nn
from torch.optim import SGD, AdamW

STEPS = 12


def test_gradients_that_are_not_finite_move_no_mask(conv_net: nn.Module, batches: Batches) -> None:
    class Cautious(SGD):
        def step(self, closure: Any = None) -> None:  # pyright: ignore
            grads = [p.grad for group in self.param_groups for p in group["params"]]
            if all(g.isfinite().all() for g in grads):
                super().step()

    optimizer = Cautious(conv_net.parameters(), lr=0.01)
    pruner = attached(conv_net, [optimizer])
    train(conv_net, [optimizer], batches, 5)
    kept = copy.deepcopy(pruner.state_dict())
    loss_of(conv_net, batches[0]).backward()
    conv_net.get_parameter("conv1.weight").grad.view(-1)[0] = torch.nan  # pyright: ignore
    optimizer.step()
    assert same_content(pruner.state_dict(), kept)


def test_weights_that_are_not_finite_are_told(conv_net: nn.Module, batches: Batches) -> None:
    optimizer = SGD(conv_net.parameters(), lr=0.01)
    attached(conv_net, [optimizer])
    loss_of(conv_net, batches[0]).backward()
    conv_net.get_parameter("conv1.weight").grad.view(-1)[0] = torch.nan  # pyright: ignore
    with pytest.raises(FloatingPointError, match="After 0 steps the weights are not finite"):
        optimizer.step()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("how", ["positional", "keyword", "after backward"])
def test_a_closure_runs_on_the_pruned_model(
    conv_net: nn.Module, batches: Batches, same_state: Same, method: str, how: str
) -> None:
    plain = copy.deepcopy(conv_net)
    trained(plain, SGD(plain.parameters(), lr=0.05, momentum=0.9), batches, method)
    optimizer = SGD(conv_net.parameters(), lr=0.05, momentum=0.9)
    pruner = attached(conv_net, [optimizer], method=method)
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


@pytest.mark.parametrize("method", METHODS)
def test_gradients_are_left_alone(conv_net: nn.Module, batches: Batches, method: str) -> None:
    optimizer = AdamW(conv_net.parameters())
    attached(conv_net, [optimizer], method=method)
    for batch in batches:
        optimizer.zero_grad()
        loss_of(conv_net, batch).backward()
        before = [p.grad.clone() for p in conv_net.parameters()]  # pyright: ignore
        optimizer.step()
        pairs = zip(before, conv_net.parameters(), strict=True)
        assert all(p.grad is not None and torch.equal(g, p.grad) for g, p in pairs)


def test_the_upper_level_of_bip_moves_masks_alone(conv_net: nn.Module, batches: Batches) -> None:
    optimizer = SGD(conv_net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    pruner = attached(conv_net, [optimizer], method="bip", sparsity=0.5)
    train(conv_net, [optimizer], batches, 3)
    state = copy.deepcopy(optimizer.state_dict())
    theta = {name: value.clone() for name, value in pruner.theta.items()}
    biases = conv_net.get_parameter("head.bias").clone()
    masks = pruner.masks
    train(conv_net, [optimizer], batches, 1)
    assert same_content(optimizer.state_dict(), state)
    assert all(torch.equal(pruner.theta[name], value) for name, value in theta.items())
    assert torch.equal(conv_net.get_parameter("head.bias"), biases)
    assert pruner.masks != masks


def test_clipping_and_accumulation_are_the_users(conv_net: nn.Module, batches: Batches) -> None:
    """The mask moves by what the optimizer is given: clipped sums over micro-batches."""
    optimizer = SGD(conv_net.parameters(), lr=0.05)
    pruner = attached(conv_net, [optimizer], steps=4)
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
    pruner = attached(conv_net, [optimizer], sparsity=0.0, steps=8)
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


def test_a_step_that_raises_is_not_counted_and_the_next_one_is(
    conv_net: nn.Module, batches: Batches
) -> None:
    optimizer = SGD(conv_net.parameters(), lr=0.05)
    pruner = attached(conv_net, [optimizer], method="bip")

    def closure() -> float:
        raise RuntimeError("out of memory")

    for count in range(4):
        with pytest.raises(RuntimeError, match="out of memory"):
            optimizer.step(closure)
        assert pruner.step == count
        train(conv_net, [optimizer], batches, 1)
        assert pruner.step == count + 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, as it compiles
@pytest.mark.parametrize("what", ["model", "step"])
def test_compiled_is_the_same(
    conv_net: nn.Module, batches: Batches, same_state: Same, what: str
) -> None:
    plain = copy.deepcopy(conv_net)
    trained(plain, SGD(plain.parameters(), lr=0.05), batches)
    optimizer = SGD(conv_net.parameters(), lr=0.05)
    compiled = torch.compile(conv_net, backend="eager") if what == "model" else conv_net
    pruner = attached(compiled, [optimizer])
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
    pruner = trained(conv_net, optimizer, batches)
    masks, before = pruner.masks, conv_net.get_parameter("conv2.weight").clone()
    with caplog.at_level(logging.WARNING):
        train(conv_net, [optimizer], batches, 5)
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
    pruner = attached(model, [optimizer], steps=200)
    model[2].register_forward_hook(lambda *args: args[2].float())
    train(model, [optimizer], [(x.to(dtype), y) for x, y in batches], 200)
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
    pruner = trained(plain, AdamW(plain.parameters(), lr=0.01), batches)
    other = trained(conv_net, AdamW(conv_net.parameters(), lr=0.01), batches)
    assert other.masks.overlap(pruner.masks) > 0.95  # convolutions differ in their last bits
    assert shows_z(conv_net, other)


@pytest.mark.parametrize("method", METHODS)
def test_what_the_loop_does_to_kept_weights_between_steps_counts(
    conv_net: nn.Module, batches: Batches, method: str
) -> None:
    """Clipped, decayed by hand or loaded from the best epoch: theta follows."""
    optimizer = SGD(conv_net.parameters(), lr=0.05)
    pruner = attached(conv_net, [optimizer], method, sparsity=0.5)
    train(conv_net, [optimizer], batches)
    best = copy.deepcopy(conv_net.state_dict())
    train(conv_net, [optimizer], batches)
    for changed in (best, {name: value / 2 for name, value in best.items()}):
        conv_net.load_state_dict(changed)
        shown = {n: mask & (best[n] != 0) for n, mask in pruner.masks.items()}
        optimizer.param_groups[0]["lr"] = 0.0
        train(conv_net, [optimizer], batches, 1)
        for name, mask in pruner.masks.items():
            both = mask & shown[name]
            assert both.any()
            assert torch.equal(conv_net.get_parameter(name)[both], changed[name][both])


@pytest.mark.parametrize("method", METHODS)
def test_weights_stay_where_they_are_in_memory(
    conv_net: nn.Module, batches: Batches, method: str
) -> None:
    """Graphs that were captured of forward and backward read and write there."""
    places = {name: p.data_ptr() for name, p in conv_net.named_parameters()}
    optimizer = AdamW(conv_net.parameters(), lr=0.01)
    attached(conv_net, [optimizer], method)
    for batch in batches:
        train(conv_net, [optimizer], [batch])
        assert {name: p.data_ptr() for name, p in conv_net.named_parameters()} == places


@pytest.mark.parametrize("method", ["bip-plus", "movement"])
def test_moments_of_pruned_weights_do_not_move_theta(
    conv_net: nn.Module, batches: Batches, method: str
) -> None:
    optimizer = AdamW(conv_net.parameters(), lr=0.01, weight_decay=0.1)
    train(conv_net, [optimizer], batches)  # which fills the moments of all
    pruner = attached(conv_net, [optimizer], method, initial_sparsity=0.7)
    for batch in batches * 2:
        pruned = {name: ~mask for name, mask in pruner.masks.items()}
        before = {name: theta.clone() for name, theta in pruner.theta.items()}
        train(conv_net, [optimizer], [batch])
        for name, theta in pruner.theta.items():
            assert optimizer.state[conv_net.get_parameter(name)]["exp_avg"][pruned[name]].any()
            assert torch.equal(theta[pruned[name]], before[name][pruned[name]])
            assert not torch.equal(theta, before[name])
