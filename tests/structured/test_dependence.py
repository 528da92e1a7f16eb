"""What depends on the input, against what is seen to move with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from biprune.structured.removal import Dependence, UndecidedError

ZERO_FILTER = torch.ones(3, 2, 3, 3)
ZERO_FILTER[1] = 0
BIAS = torch.tensor([-1.0, 2.0, 3.0])
KINDS: dict[str, tuple[Callable[[Tensor], Tensor], list[bool]]] = {
    # What is done with 1 x 2 x 4 x 4 numbers, and which of the three channels then depend on them.
    "convolution": (lambda x: _conv(x), [True, False, True]),
    "relu": (lambda x: torch.relu(_conv(x)), [True, False, True]),
    "where": (lambda x: torch.where(_conv(x) > 0, 1.0, 0.0), [True, True, True]),
    "sign": (lambda x: torch.sign(_conv(x)), [True, False, True]),
    "nan_to_num": (lambda x: _conv(x).nan_to_num(), [True, False, True]),
    "in place": (lambda x: _conv(x).mul_(2).clamp_(min=0), [True, False, True]),
    "pool": (lambda x: functional.max_pool2d(_conv(x), 2), [True, False, True]),
    "pooled rows": (lambda x: functional.max_pool1d(_conv(x).flatten(2), 2), [True, False, True]),
    "resized": (
        lambda x: functional.interpolate(_conv(x), scale_factor=2, mode="bilinear"),
        [True, False, True],
    ),
    "gated": (lambda x: functional.glu(_conv(x), dim=3), [True, False, True]),
    "spread": (lambda x: _conv(x).var(dim=(2, 3)), [True, False, True]),
    "broadcast": (lambda x: _conv(x) + x.mean(dim=1, keepdim=True), [True, True, True]),
    "times zero": (
        lambda x: _conv(x) * torch.tensor([0.0, 1, 1])[:, None, None],
        [False] * 2 + [True],
    ),
    "written": (lambda x: _written(x), [True, False, False]),
    "mask": (lambda x: _masked(x), [True, True, True]),
    "whole numbers": (
        lambda x: torch.eye(3)[x.long().clamp(0, 2)[:, 0, 0, :3]][..., None],
        [True] * 3,
    ),
    "unknown": (lambda x: _conv(x).cumsum(dim=1), [True, True, True]),
    "random": (lambda x: _conv(x * 0) + torch.rand(1), [True, True, True]),
    "matrix": (
        lambda x: (x[:, 0] @ torch.diag(torch.tensor([1.0, 0, 1, 0])))[..., :3].mT[..., None],
        [True, False, True],
    ),
}


def _conv(x: Tensor) -> Tensor:
    return functional.conv2d(x, ZERO_FILTER, BIAS, padding=1)


def _written(x: Tensor) -> Tensor:
    canvas = torch.zeros(1, 3, 4, 4)
    canvas[:, 0] = x[:, 1]
    return canvas


def _masked(x: Tensor) -> Tensor:
    """A mask that is written a part at a time."""
    mask = torch.zeros(1, 3, 4, 4, dtype=torch.bool)
    mask[:, 1] = x[:, 1] > 0
    return torch.ones(1, 3, 4, 4).masked_fill(mask, 0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_dependent_is_nan_and_the_rest_is_what_it_always_is(kind: str) -> None:
    function, wanted = KINDS[kind]
    x = torch.randn(1, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        with Dependence([x]) as dependence:
            found = function(*dependence.inputs)
        channels = found.movedim(1, 0).flatten(1)
        assert channels.isnan().any(dim=1).tolist() == wanted
        for scale in (-100.0, 0.1, 100.0):
            torch.manual_seed(0)
            seen = function(x * scale)
            torch.testing.assert_close(seen[~found.isnan()], found[~found.isnan()])


def test_a_course_that_goes_by_numbers_is_not_decided() -> None:
    x = torch.ones(1, 2, 4, 4)
    courses: list[Callable[[Tensor], object]] = [
        lambda x: x if x.sum() > 0 else -x,
        lambda x: x[x > 0].sum(),
        lambda x: range(int(x.amax())),
    ]
    for course in courses:
        with pytest.raises(UndecidedError), torch.no_grad(), Dependence([x]) as dependence:
            course(*dependence.inputs)
