from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from allocations import peak_bytes
from biprune.core import ranking
from biprune.core.ranking import queued_top_k_mask, top_k_mask
from oracles import stable_top_k

scores = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=30)


@given(scores, st.data())
def test_top_k_equals_a_stable_sort_whatever_the_ties(values: list[float], data) -> None:
    k = data.draw(st.integers(0, len(values)))
    assert top_k_mask(torch.tensor(values), k).tolist() == stable_top_k(values, k)


@given(st.integers(0, 2**32 - 1), st.integers(1, 400), st.integers(1, 40))
def test_narrowing_to_a_band_changes_nothing(seed: int, size: int, levels: int) -> None:
    """With a tiny sample every path is taken: bands that hold the answer and bands that miss it."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(levels, (size,), generator=generator).float().sort().values
    k = int(torch.randint(size + 1, (), generator=generator))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranking, "PER_SAMPLE", 4)
        patch.setattr(ranking, "CHUNK", 16)
        assert top_k_mask(values, k).tolist() == stable_top_k(values.tolist(), k)


def test_a_million_scores_equal_a_stable_sort() -> None:
    values = torch.randn(1_000_003, generator=torch.Generator().manual_seed(0))
    for scores in (values, values.abs(), values.mul(4).round()):
        for k in (1, 1000, 100_000, 999_000):
            order = scores.sort(descending=True, stable=True).indices[:k]
            expected = torch.zeros_like(scores, dtype=torch.bool)
            expected[order] = True
            assert torch.equal(top_k_mask(scores, k), expected)


def test_equal_scores_keep_the_first() -> None:
    assert top_k_mask(torch.ones(8), 4).tolist() == [True] * 4 + [False] * 4


@given(scores, st.data())
def test_the_answer_without_reading_back_is_the_same(values: list[float], data) -> None:
    if len(values) == 1:
        return
    k = data.draw(st.integers(1, len(values) - 1))
    assert queued_top_k_mask(torch.tensor(values), k).tolist() == stable_top_k(values, k)


@pytest.mark.parametrize("kind", ["continuous", "few levels", "all equal", "half equal"])
def test_memory_is_at_most_one_copy_of_the_scores(kind: str) -> None:
    values = torch.randn(1_000_000, generator=torch.Generator().manual_seed(0)).abs_()
    made: dict[str, Tensor] = {
        "continuous": values,
        "few levels": values.mul(4).round_(),
        "all equal": torch.ones_like(values),
        "half equal": values.clamp(max=0.67),
    }
    for k in (1_000, 100_000, 600_000):
        assert peak_bytes(lambda k=k: top_k_mask(made[kind], k)) <= values.nbytes


def test_nan_scores_are_refused() -> None:
    with pytest.raises(FloatingPointError, match="NaN"):
        top_k_mask(torch.tensor([1.0, float("nan"), 2.0]), 1)
