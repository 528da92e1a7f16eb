"""A small net whose coupled groups are written down by hand."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from biprune.core.groups import GROUP, Group, Groups, Measure, Slice
from biprune.core.structure import Scope


class TwoGroups(nn.Module):
    """A convolution with a norm, one with a bias, and a head that reads four places a filter."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 12, 1)
        self.head = nn.Linear(48, 3)

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.relu(self.norm(self.first(images)))
        return self.head(torch.relu(self.second(hidden)).flatten(1))


def rows(count: int, each: int = 1) -> Tensor:
    return torch.arange(count * each).view(count, each)


def two_groups(*, scope: Scope = "layer", measure: Measure = "units", round_to: int = 1) -> Groups:
    first = (
        Slice("first.weight", 0, rows(8), "filter"),
        Slice("norm.weight", 0, rows(8), "other", gated=True),
        Slice("norm.bias", 0, rows(8), "other", gated=True),
        Slice("second.weight", 1, rows(8), "input"),
    )
    second = (
        Slice("second.weight", 0, rows(12), "filter", gated=True),
        Slice("second.bias", 0, rows(12), "other", gated=True),
        Slice("head.weight", 1, rows(12, each=4), "input"),
    )
    shapes = {name: tuple(p.shape) for name, p in TwoGroups().named_parameters()}
    macs = {"first.weight": 3 * 8 * 9 * 4, "second.weight": 8 * 12 * 4, "head.weight": 48 * 3}
    return Groups(
        *GROUP,
        scope=scope,
        groups=(Group("first.weight", first), Group("second.weight", second)),
        shapes=shapes,
        macs=macs,
        measure=measure,
        round_to=round_to,
    )


def cost(counts: tuple[int, int], measure: Measure) -> int:
    """What the net of `counts` filters costs, as anyone would work it out."""
    first, second = counts
    macs = 3 * first * 9 * 4 + first * second * 4 + second * 4 * 3
    params = 3 * first * 9 + 2 * first + first * second + second + second * 4 * 3 + 3
    return {"units": first + second, "macs": macs, "params": params}[measure]
