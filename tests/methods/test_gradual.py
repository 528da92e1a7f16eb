"""When methods that raise the sparsity gradually draw a mask, and at which sparsity."""

from __future__ import annotations

import pytest

import biprune


@pytest.mark.parametrize(
    ("every", "end", "drawn"),
    [(1, 10, [*range(1, 11)]), (4, 10, [4, 8, 10]), (4, 8, [4, 8]), (50, 10, [10]), (3, 1, [1])],
)
def test_masks_are_drawn_regularly_and_at_the_end_of_the_ramp(
    every: int, end: int, drawn: list[int]
) -> None:
    """After the ramp only if they do not settle; the last step draws none for its own sake."""
    method, steps = biprune.GMP(mask_every=every, ramp=end / 20), range(1, 20)
    settled = [n for n in steps if method.draws_at(n, 20, settles=True)]
    moving = [n for n in steps if method.draws_at(n, 20, settles=False)]
    assert settled == drawn
    assert moving == drawn + [n for n in steps if n > end and n % every == 0]


def test_an_iteration_of_two_passes_draws_one_mask() -> None:
    method = biprune.BiPPlus(passes=2, ramp=0.5)
    assert [n for n in range(1, 21) if method.draws_at(n, 20, settles=True)] == [2, 4, 6, 8, 10]


def test_the_sparsity_follows_a_cubic_curve() -> None:
    sparsities = [biprune.GMP(ramp=0.5).sparsity_at(n, 20, 0.8) for n in (0, 5, 10, 18)]
    assert sparsities == pytest.approx([0, 0.8 * 7 / 8, 0.8, 0.8])
    assert biprune.GMP(ramp=0.5, initial_sparsity=0.4).sparsity_at(5, 20, 0.8) == pytest.approx(
        0.4 + 0.4 * 7 / 8
    )


@pytest.mark.parametrize(("ramp", "end"), [(0.01, 1), (0.6, 12), (1.0, 20)])
def test_the_ramp_ends_at_the_target(ramp: float, end: int) -> None:
    sparsities = [biprune.GMP(ramp=ramp).sparsity_at(n, 20, 0.8) for n in range(21)]
    assert sparsities.index(0.8) == end
    assert all(sparsity < 0.8 for sparsity in sparsities[:end])
