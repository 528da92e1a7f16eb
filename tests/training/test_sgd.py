"""SGD against torch's own unfused steps, whatever the layouts."""

import itertools

import pytest
import torch

import biprune
from biprune.training.optimizers import make_sgd
from levels import Levels

LAYOUTS = (torch.contiguous_format, torch.channels_last)
SHAPE = (6, 4, 3, 3)
OPTIONS = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}


def gradients(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(SHAPE, generator=generator) for _ in range(count)]


def stepped(optimizer: torch.optim.Optimizer, parameter: torch.Tensor, layout) -> torch.Tensor:
    for gradient in gradients(3):
        parameter.grad = gradient.to(memory_format=layout)
        optimizer.step()
    return parameter


@pytest.fixture
def start() -> torch.Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def wanted(start: torch.Tensor) -> torch.Tensor:
    plain = start.clone()
    reference = torch.optim.SGD([plain], foreach=False, fused=False, **OPTIONS)
    return stepped(reference, plain, torch.contiguous_format)


@pytest.mark.parametrize(("own", "other"), list(itertools.product(LAYOUTS, LAYOUTS)))
def test_gradients_of_any_layout(start, wanted, own, other):
    parameter = start.clone(memory_format=own)
    stepped(make_sgd([parameter], start.device, **OPTIONS), parameter, other)
    torch.testing.assert_close(parameter, wanted, rtol=1e-6, atol=1e-7)


def test_nesterov_without_momentum_is_plain(start):
    options = {**OPTIONS, "momentum": 0.0}
    one, other = start.clone(), start.clone()
    stepped(make_sgd([one], start.device, nesterov=True, **options), one, LAYOUTS[0])
    stepped(make_sgd([other], start.device, **options), other, LAYOUTS[0])
    assert torch.equal(one, other)
    assert not torch.equal(one, start)


def test_a_slice_with_gaps(start, wanted):
    wide = torch.zeros(6, 8, 3, 3)
    parameter = wide[:, ::2].copy_(start)
    stepped(make_sgd([parameter], start.device, **OPTIONS), parameter, LAYOUTS[0])
    torch.testing.assert_close(parameter, wanted, rtol=1e-6, atol=1e-7)
    assert wide[:, 1::2].count_nonzero() == 0


@pytest.mark.parametrize(("own", "other"), list(itertools.product(LAYOUTS, LAYOUTS)))
def test_a_state_from_another_layout_goes_on_as_if_it_were_its_own(start, wanted, own, other):
    first, *rest = gradients(3)
    before = start.clone(memory_format=other)
    optimizer = make_sgd([before], start.device, **OPTIONS)
    before.grad = first
    optimizer.step()
    parameter = before.detach().clone(memory_format=own)
    resumed = make_sgd([parameter], start.device, **OPTIONS)
    resumed.load_state_dict(optimizer.state_dict())
    for gradient in rest:
        parameter.grad = gradient
        resumed.step()
    torch.testing.assert_close(parameter, wanted, rtol=1e-6, atol=1e-7)


def test_without_momentum_or_gradient():
    moved, still = torch.ones(3), torch.ones(2)
    optimizer = make_sgd([moved, still], moved.device, lr=0.5, momentum=0.0)
    moved.grad = torch.full((3,), 2.0)
    optimizer.step()
    assert moved.tolist() == [0.0, 0.0, 0.0]
    assert still.tolist() == [1.0, 1.0]


def test_a_closure_is_called_and_its_loss_returned():
    weight = torch.ones(2, requires_grad=True)
    optimizer = make_sgd([weight], weight.device, lr=0.5, momentum=0.9)

    def closure():
        loss = weight.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 2.0
    assert weight.tolist() == [0.0, 0.0]


FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("nesterov", [False, True])
def test_every_entry_of_every_type_moves_as_by_plain_sgd(dtype, nesterov):
    """Sizes from below to far above a vector register's, in one group; bit for bit in half types.

    The fused kernel of wider types orders its sums otherwise, within a unit or two in the last
    place.
    """
    options = {**OPTIONS, "nesterov": nesterov}
    generator = torch.Generator().manual_seed(0)
    sizes = (1, 15, 16, 17, 31, 32, 64, 65, 100, 1000, 4099)
    own = [torch.randn(size, generator=generator).to(dtype) for size in sizes]
    plain = [parameter.clone() for parameter in own]
    optimizer = make_sgd(own, own[0].device, **options)
    reference = torch.optim.SGD(plain, foreach=False, fused=False, **options)
    for _ in range(4):
        for mine, other in zip(own, plain, strict=True):
            mine.grad = torch.randn(mine.shape, generator=generator).to(dtype)
            other.grad = mine.grad.clone()
        optimizer.step()
        reference.step()
        close = {"rtol": 0.0, "atol": 0.0} if dtype.itemsize < 4 else {}
        torch.testing.assert_close(own, plain, **close)


def two_layers(dtype: torch.dtype) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(16, 40), torch.nn.ReLU(), torch.nn.Linear(40, 3, bias=False)
    ).to(dtype)


def batches_of(dtype: torch.dtype) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(3, (5, 8), generator=generator)
    inputs = torch.randn(5, 8, 16, generator=generator).to(dtype)
    return list(zip(inputs, labels, strict=True))


def plainly_trained(dtype: torch.dtype) -> torch.nn.Module:
    model = two_layers(dtype)
    optimizer = torch.optim.SGD(model.parameters(), foreach=False, fused=False, **OPTIONS)
    for inputs, labels in batches_of(dtype):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    return model


def by_train(dtype: torch.dtype) -> torch.nn.Module:
    recipe = {**OPTIONS, "schedule": "constant"}
    return biprune.train(two_layers(dtype), batches_of(dtype), epochs=1, **recipe).model


def by_prune(dtype: torch.dtype) -> torch.nn.Module:
    method = biprune.Magnitude(epochs=1, schedule="constant", **OPTIONS)
    return biprune.prune(two_layers(dtype), batches_of(dtype), method, sparsity=0.0).model


def by_bip_plus(dtype: torch.dtype) -> torch.nn.Module:
    method = biprune.BiPPlus(epochs=1, schedule="constant", nesterov=False, **OPTIONS)
    return biprune.prune(two_layers(dtype), batches_of(dtype), method, sparsity=0.0).model


def by_bip(dtype: torch.dtype) -> torch.nn.Module:
    """Its steps of theta alone: at a sparsity of 0 the others change nothing."""
    model = two_layers(dtype)
    optimizer = Levels(model, 0.0, **OPTIONS)
    for inputs, labels in batches_of(dtype):
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.lower_step()
        optimizer.upper_step()
    return model


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("trained", [by_train, by_prune, by_bip_plus, by_bip])
def test_a_run_of_any_type_is_plain_sgd_where_nothing_is_pruned(trained, dtype):
    found, wanted = trained(dtype), plainly_trained(dtype)
    close = {"rtol": 0.0, "atol": 0.0} if dtype.itemsize < 4 else {}
    for name, parameter in found.named_parameters():
        start = two_layers(dtype).get_parameter(name)
        assert parameter.dtype == dtype
        assert (parameter != start).float().mean() > 0.7  # a half type swallows small steps
        torch.testing.assert_close(parameter.data, wanted.get_parameter(name).data, **close)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_scores_are_at_least_float32_and_move_as_by_plain_sgd(dtype):
    model = two_layers(dtype)
    optimizer = Levels(model, 0.5, implicit_gradient=False, score_lr=0.1, momentum=0.9)
    scores = {name: score.clone() for name, score in optimizer.scores.items()}
    reference = torch.optim.SGD(scores.values(), lr=0.1, momentum=0.9, foreach=False, fused=False)
    for inputs, labels in batches_of(dtype):
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        for name, theta in optimizer.theta.items():
            g = model.get_parameter(name).grad
            gradient = theta.to(scores[name].dtype) * g.to(scores[name].dtype)
            gradient[~optimizer.masks[name].any(dim=1)] = 0.0  # dead rows
            scores[name].grad = gradient
        reference.step()
        optimizer.upper_step()
    for name, score in scores.items():
        assert score.dtype == (dtype if dtype.itemsize == 8 else torch.float32)
        torch.testing.assert_close(optimizer.scores[name], score)
