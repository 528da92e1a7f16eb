from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from biprune.core import ranking
from biprune.core.selection import select, select_units
from biprune.core.structure import get_structure, num_kept, share_out
from oracles import stable_top_k, top_k_with_floor

WEIGHT = get_structure("weight")
scores = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=30)


def test_counts_round_as_python_does() -> None:
    # (1 - 0.9) * 10 is 0.9999999999999998, which truncation would make 0; 2.5 rounds to even.
    assert num_kept(0.9, 10) == 1
    assert num_kept(0.5, 5) == 2
    assert num_kept(0.9, 268_336) == 26_834


@given(
    st.lists(scores, min_size=1, max_size=5),
    st.floats(0, 0.99),
)
def test_global_selection_against_brute_force(layers: list[list[float]], sparsity: float) -> None:
    units = {f"layer{i}": torch.tensor(layer) for i, layer in enumerate(layers)}
    k = num_kept(sparsity, sum(map(len, layers)))
    flat = stable_top_k([s for layer in layers for s in layer], k)
    free = select_units(units, sparsity, WEIGHT, allow_empty=True)
    assert torch.cat(list(free.values())).tolist() == flat
    if k >= len(layers):
        floored = select_units(units, sparsity, WEIGHT)
        assert [mask.tolist() for mask in floored.values()] == top_k_with_floor(layers, k)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.floats(0, 0.99))
def test_layer_scope_is_even_and_exact_in_total(sizes: list[int], sparsity: float) -> None:
    units = {f"layer{i}": torch.rand(size) for i, size in enumerate(sizes)}
    total = num_kept(sparsity, sum(sizes))
    kept = select_units(units, sparsity, get_structure("filter"), allow_empty=True)
    counts = [int(mask.sum()) for mask in kept.values()]
    assert sum(counts) == total
    priorities = [(-size / (2 * n + 1), i) for i, size in enumerate(sizes) for n in range(size)]
    given = [i for _, i in sorted(priorities)[:total]]
    assert counts == [given.count(i) for i in range(len(sizes))]
    if total >= len(sizes):
        floored = select_units(units, sparsity, get_structure("filter"))
        assert sum(int(mask.sum()) for mask in floored.values()) == total
        assert all(mask.any() for mask in floored.values())


@given(st.lists(st.integers(1, 60), min_size=1, max_size=8), st.integers(0, 1))
def test_no_layer_gains_when_the_total_falls(sizes: list[int], at_least: int) -> None:
    before = list(sizes)
    for total in range(sum(sizes), at_least * len(sizes) - 1, -1):
        counts = share_out(total, sizes, at_least)
        assert sum(counts) == total
        assert all(at_least <= now <= then for now, then in zip(counts, before, strict=True))
        before = counts


def test_shares_by_hand() -> None:
    # Quotas 1.6, 3.1, 6.3 of 11 round to 2, 3, 6.
    assert share_out(11, [16, 32, 64], at_least=1) == [2, 3, 6]
    assert share_out(4, [16, 32, 64], at_least=0) == [1, 1, 2]
    assert share_out(3, [2, 2, 100], at_least=1) == [1, 1, 1]


def test_a_layer_that_would_be_empty_keeps_its_best() -> None:
    layers = {"big": torch.tensor([5.0, 6.0, 7.0, 8.0]), "small": torch.tensor([0.1, 0.3, 0.2])}
    masks = select_units(layers, 4 / 7, WEIGHT)
    assert masks["big"].tolist() == [False, False, True, True]
    assert masks["small"].tolist() == [False, True, False]
    assert not select_units(layers, 4 / 7, WEIGHT, allow_empty=True)["small"].any()


def test_ties_go_by_logical_order_not_by_storage() -> None:
    weight = torch.ones(2, 3, 2, 2)
    strided = weight.to(memory_format=torch.channels_last)
    for tensor in (weight, strided):
        mask = select({"w": tensor}, 0.75, WEIGHT)["w"]
        assert mask.flatten().nonzero().flatten().tolist() == list(range(6))


@pytest.mark.parametrize("levels", [3, 10_000])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "transposed"])
def test_the_order_in_memory_does_not_matter(levels: int, layout: str) -> None:
    """With many ties and with few; the masks lie in memory as the scores do where they can."""
    generator = torch.Generator().manual_seed(0)
    plain = {
        name: torch.randint(levels, shape, generator=generator).float()
        for name, shape in (("conv", (8, 4, 3, 3)), ("head", (5, 7)))
    }
    laid = dict(plain)
    if layout == "channels_last":
        laid["conv"] = plain["conv"].to(memory_format=torch.channels_last)
    elif layout == "transposed":
        laid["head"] = plain["head"].t().contiguous().t()
    for sparsity in (0.0, 0.3, 0.9, 0.97):
        flat = torch.cat([score.flatten() for score in plain.values()]).tolist()
        masks = select(laid, sparsity, WEIGHT, allow_empty=True)
        expected = stable_top_k(flat, num_kept(sparsity, len(flat)))
        assert masks.units().tolist() == expected
        # Where the head would be empty it keeps its best.
        low = {"conv": laid["conv"] + 10 * levels, "head": laid["head"]}
        kept = top_k_with_floor([s.flatten().tolist() for s in low.values()], sum(expected))
        assert select(low, sparsity, WEIGHT).units().tolist() == [
            bit for row in kept for bit in row
        ]
    if levels > 3 and layout == "channels_last":
        assert select(laid, 0.3, WEIGHT)["conv"].stride() == laid["conv"].stride()


def test_filters_rank_by_the_norm_of_positive_scores() -> None:
    score = torch.tensor([[3.0, 0.0], [-9.0, 1.0], [2.0, 2.5]]).view(3, 2, 1, 1)
    mask = select({"w": score}, 2 / 3, get_structure("filter"))["w"]
    assert mask[:, 0, 0, 0].tolist() == [False, False, True]
    assert mask[2].all()


@pytest.mark.parametrize(
    ("sparsity", "text"),
    [
        (90, "`sparsity` must be in [0, 1), got 90. Did you mean 0.9?"),
        (1.0, "`sparsity` must be in [0, 1), got 1."),
        (-0.1, "`sparsity` must be in [0, 1), got -0.1."),
        (float("nan"), "`sparsity` must be in [0, 1), got nan."),
    ],
)
def test_a_sparsity_that_is_no_fraction(sparsity: float, text: str) -> None:
    with pytest.raises(ValueError, match=r"`sparsity`") as caught:
        select_units({"w": torch.rand(4)}, sparsity, WEIGHT)
    assert str(caught.value) == text


def test_too_few_units_for_the_layers() -> None:
    with pytest.raises(ValueError, match="keeps 0 of 4 weight units, too few for one in each of 2"):
        select_units({"a": torch.rand(2), "b": torch.rand(2)}, 0.9, WEIGHT)


@settings(deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([5, 10_000]),
    st.sampled_from([0.5, 0.9, 0.92, 0.99]),
    st.booleans(),
)
def test_whole_models_against_brute_force(
    seed: int, levels: int, sparsity: float, allow_empty: bool
) -> None:
    """With narrow bands, few ties and many, and a layer that is often empty."""
    generator = torch.Generator().manual_seed(seed)
    conv = torch.rand(8, 16, 3, 3, generator=generator).to(memory_format=torch.channels_last)
    head = torch.rand(5, 16, generator=generator) / 2
    laid = {"conv": (conv * levels).round(), "head": (head * levels).round() - levels}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranking, "PER_SAMPLE", 16)
        masks = select(laid, sparsity, WEIGHT, allow_empty=allow_empty)
    layers = [score.flatten().tolist() for score in laid.values()]
    k = num_kept(sparsity, conv.numel() + head.numel())
    expected = stable_top_k([s for layer in layers for s in layer], k)
    if not allow_empty:
        expected = [bit for layer in top_k_with_floor(layers, k) for bit in layer]
    assert masks.units().tolist() == expected
