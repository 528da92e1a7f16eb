from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from biprune.deploy.surgery.resize import resize_


def at(*places: int) -> Tensor:
    return torch.tensor(places)


def outputs_of(conv: nn.Module, channels: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(2, channels, 5, 5, generator=torch.Generator().manual_seed(0))
    return x, conv(x).detach()


def test_a_convolution_keeps_rows_and_columns() -> None:
    conv = nn.Conv2d(4, 6, 3)
    x, before = outputs_of(conv, 4)
    x[:, [0, 3]] = 0
    before = conv(x).detach()
    resize_(conv, {"weight": {0: at(1, 4), 1: at(1, 2)}, "bias": {0: at(1, 4)}})
    assert (conv.in_channels, conv.out_channels, tuple(conv.weight.shape)) == (2, 2, (2, 2, 3, 3))
    torch.testing.assert_close(conv(x[:, 1:3]), before[:, [1, 4]])


@pytest.mark.parametrize("kind", [nn.Conv2d, nn.ConvTranspose2d])
def test_a_grouped_convolution_loses_groups_or_positions(kind: type[nn.Conv2d]) -> None:
    whole = kind(8, 8, 3, groups=4)
    x, before = outputs_of(whole, 8)
    resize_(whole, {"weight": {0: at(2, 3, 6, 7)}, "bias": {0: at(2, 3, 6, 7)}})
    assert (whole.groups, whole.in_channels, whole.out_channels) == (2, 4, 4)
    kept = [2, 3, 6, 7]
    torch.testing.assert_close(whole(x[:, kept]), before[:, kept])

    positions = kind(8, 8, 3, groups=2)
    x, before = outputs_of(positions, 8)
    kept = [0, 2, 4, 6]
    if kind is nn.Conv2d:  # the outputs at the positions 0 and 2 of both groups
        resize_(positions, {"weight": {0: at(*kept)}, "bias": {0: at(*kept)}})
        assert (positions.groups, positions.in_channels, positions.out_channels) == (2, 8, 4)
    else:
        resize_(positions, {"weight": {1: at(0, 2)}, "bias": {0: at(*kept)}})
        assert (positions.groups, positions.in_channels, positions.out_channels) == (2, 8, 4)
    torch.testing.assert_close(positions(x), before[:, kept])

    with pytest.raises(ValueError, match="can lose whole groups or the same channels of each"):
        resize_(kind(8, 8, 3, groups=2), {"weight": {0: at(0, 1, 2, 3, 4)}})


def test_norms_and_activations_follow() -> None:
    net = nn.Sequential(
        nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.PReLU(4), nn.InstanceNorm2d(4, affine=True)
    )
    net[0].running_mean.copy_(torch.arange(4.0))
    net[0].running_var.copy_(torch.arange(4.0) + 1)
    resize_(net, {name: {0: at(2, 3)} for name, _ in net.named_parameters()})
    assert net[0].num_features == 2
    assert net[0].running_mean.tolist() == [2, 3]
    assert net[0].running_var.tolist() == [3, 4]
    assert (net[1].num_groups, net[1].num_channels) == (1, 2)
    assert (net[2].num_parameters, net[3].num_features) == (2, 2)
    assert net(torch.ones(1, 2, 3, 3)).shape == (1, 2, 3, 3)


def test_layout_trainability_and_ties_are_kept() -> None:
    first, second = nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3)
    second.weight = first.weight
    net = nn.Sequential(first, second).to(memory_format=torch.channels_last)  # pyright: ignore
    first.weight.requires_grad_(False)
    first.weight.grad = torch.ones_like(first.weight)
    resize_(net, {"0.weight": {0: at(0, 2, 3)}})
    assert first.weight is second.weight
    assert first.weight.grad is None
    assert not first.weight.requires_grad
    assert first.weight.is_contiguous(memory_format=torch.channels_last)
    assert (first.out_channels, second.out_channels) == (3, 3)


def test_names_are_the_users() -> None:
    net = nn.DataParallel(nn.Sequential(nn.Linear(3, 4)))
    resize_(net, {"0.weight": {0: at(1)}, "0.bias": {0: at(1)}})
    assert net.module[0].out_features == 1


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.arange(3.0))


def test_owners_that_are_not_known() -> None:
    own = Scaled()
    resize_(own, {"scale": {0: at(1, 2)}})
    assert own.scale.tolist() == [1, 2]
    with pytest.raises(ValueError, match=r"'weight_ih_l0' belongs to nn\.LSTM, which biprune"):
        resize_(nn.LSTM(3, 4), {"weight_ih_l0": {1: at(0)}})
    with pytest.raises(ValueError, match="'weight' belongs to a norm whose statistics are over"):
        resize_(nn.LayerNorm(4), {"weight": {0: at(0)}})


@pytest.mark.parametrize("index", [at(), at(2, 1), at(0, 4), at(-1, 0), at(1, 1)])
def test_indices_must_be_some_of_the_parameters(index: Tensor) -> None:
    with pytest.raises(ValueError, match="kept indices of 'weight' along dimension 0 must be"):
        resize_(nn.Linear(3, 4), {"weight": {0: index}})
    with pytest.raises(ValueError, match="no parameter 'wieght' to cut"):
        resize_(nn.Linear(3, 4), {"wieght": {0: index}})
