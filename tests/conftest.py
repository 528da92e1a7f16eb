"""Fixed threads and seeds, no network but loopback, and the small models that tests share."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from disks import small_disk as small_disk

collect_ignore_glob = ["*conftest.py"]  # without doctests, and several under one name
torch.set_num_threads(1)  # the networks are tiny, and other processes may want the cores
_connect = socket.socket.connect


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    """A test that draws weights and passes does so on every machine, alone or among others."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def loopback_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(self: socket.socket, address: object) -> None:
        host = address[0] if isinstance(address, tuple) else "localhost"
        if host not in ("127.0.0.1", "::1", "localhost"):
            raise AssertionError(f"A test tried to reach {address!r}.")
        _connect(self, address)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(socket.socket, "connect", connect)


class ConvNet(nn.Module):
    """Two convolutions with BatchNorm and a classifier: 8 x 8 images of `channels`."""

    def __init__(self, channels: int = 1, width: int = 6, classes: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(2 * width)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.relu(self.norm1(self.conv1(images)))
        hidden = torch.relu(self.norm2(self.conv2(hidden)))
        return self.head(hidden.mean(dim=(2, 3)))


@pytest.fixture
def conv_net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return ConvNet()


@pytest.fixture
def batches() -> list[tuple[Tensor, Tensor]]:
    """Four batches of eight images, whose class shows in their brightness."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(3, (4, 8), generator=generator)
    images = torch.randn(4, 8, 1, 8, 8, generator=generator) + labels[..., None, None, None]
    return list(zip(images, labels, strict=True))


@pytest.fixture
def same_state() -> Callable[[nn.Module, nn.Module], bool]:
    """Whether two models hold the same bits."""

    def same(one: nn.Module, other: nn.Module) -> bool:
        mine, theirs = one.state_dict(), other.state_dict()
        return mine.keys() == theirs.keys() and all(torch.equal(mine[n], theirs[n]) for n in mine)

    return same
