"""SGD against torch's own unfused steps, whatever the layouts."""

import itertools

import pytest
import torch

from biprune.sgd import make_sgd, unscale_

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


def test_an_overflow_among_sparse_gradients_is_seen():
    embedding = torch.nn.Embedding(4, 2, sparse=True)
    (embedding(torch.tensor([1, 1])).sum() * 8).backward()
    assert unscale_(embedding.parameters(), 8.0)
    assert embedding.weight.grad.to_dense()[1].tolist() == [2.0, 2.0]
    (embedding(torch.tensor([1])).sum() * torch.inf).backward()
    assert not unscale_(embedding.parameters(), 8.0)


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
