import pytest
import torch

from biprune.data.dataset import balanced_subset, split_train, stratified_cut

UNEVEN = torch.tensor([0] * 50 + [1] * 30 + [2] * 20)


@pytest.mark.parametrize("fraction", [0.1, 0.2, 0.5, 0.73])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_cut_is_a_partition_in_proportion(fraction, seed):
    stay, cut = stratified_cut(UNEVEN, fraction, seed=seed)
    assert sorted(stay.tolist() + cut.tolist()) == list(range(100))
    assert len(cut) == round(100 * fraction)
    counts = torch.bincount(UNEVEN[cut], minlength=3)
    assert ((counts - fraction * torch.tensor([50, 30, 20])).abs() <= 1).all()


def test_cut_of_equal_parts_is_exact():
    _, cut = stratified_cut(torch.arange(10).repeat(50), 0.1, seed=3)
    assert torch.bincount(torch.arange(10).repeat(50)[cut]).tolist() == [5] * 10


def test_choices_follow_the_seed():
    for choose in (
        lambda seed: stratified_cut(UNEVEN, 0.2, seed=seed)[1].tolist(),
        lambda seed: balanced_subset(UNEVEN, 30, seed=seed).tolist(),
    ):
        assert choose(0) == choose(0)
        assert choose(0) != choose(1)


def test_choices_leave_the_global_rng_alone():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    stratified_cut(UNEVEN, 0.2, seed=0)
    balanced_subset(UNEVEN, 30, seed=0)
    assert torch.rand(1) == expected


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (3, [1, 1, 1]),
        (30, [10, 10, 10]),
        (60, [20, 20, 20]),
        (90, [40, 30, 20]),
        (100, [50, 30, 20]),
    ],
)
def test_subset_is_balanced_until_a_class_runs_out(count, expected):
    chosen = balanced_subset(UNEVEN, count, seed=0)
    assert len(set(chosen.tolist())) == count
    assert torch.bincount(UNEVEN[chosen]).tolist() == expected


def test_subset_remainder_differs_by_one():
    counts = torch.bincount(UNEVEN[balanced_subset(UNEVEN, 32, seed=0)])
    assert sorted(counts.tolist()) == [10, 11, 11]


def test_validation_is_cut_from_the_subset():
    kept = set(balanced_subset(UNEVEN, 30, seed=7).tolist())
    train, val = split_train(UNEVEN, 3, subset=30, val_fraction=0.2, seed=7)
    assert val is not None
    assert not set(train.tolist()) & set(val.tolist())
    assert set(train.tolist()) | set(val.tolist()) == kept
    assert torch.bincount(UNEVEN[val]).tolist() == [2, 2, 2]


def test_no_validation():
    train, val = split_train(UNEVEN, 3, subset=None, val_fraction=0, seed=0)
    assert val is None
    assert train.tolist() == list(range(100))


@pytest.mark.parametrize("subset", [2, 101])
def test_impossible_subset(subset):
    with pytest.raises(ValueError, match=f"`subset` must be from 3.* to 100.*got {subset}"):
        split_train(UNEVEN, 3, subset=subset, val_fraction=0.1, seed=0)


def test_empty_validation_is_refused():
    with pytest.raises(ValueError, match="leaves 3 for training and 0 for validation"):
        split_train(UNEVEN, 3, subset=3, val_fraction=0.1, seed=0)
