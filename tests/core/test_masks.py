from __future__ import annotations

import pytest
import torch

from biprune.core.masks import LayerCount, Masks
from biprune.core.structure import get_structure


def masks(first: list[bool], second: list[bool]) -> Masks:
    tensors = {"a": torch.tensor(first), "b": torch.tensor(second)}
    return Masks(tensors, get_structure("weight"))


def test_counts_by_hand() -> None:
    one = masks([True, False, True, False], [False, True])
    assert (one.kept, one.total, one.sparsity, one.weight_sparsity) == (3, 6, 0.5, 0.5)
    assert one.per_layer() == {"a": LayerCount(2, 4), "b": LayerCount(1, 2)}
    assert one.per_layer()["a"].sparsity == 0.5


def test_filters_count_as_units_and_as_weights() -> None:
    mask = torch.zeros(4, 3, 2, 2, dtype=torch.bool)
    mask[1] = True
    by_filter = Masks({"conv": mask}, get_structure("filter"))
    assert (by_filter.kept, by_filter.total) == (1, 4)
    mask = torch.zeros(4, 3, 2, 2, dtype=torch.bool)
    mask[:, :2] = True
    by_channel = Masks({"conv": mask}, get_structure("channel"))
    assert (by_channel.kept, by_channel.total) == (2, 3)
    assert by_channel.weight_sparsity == pytest.approx(1 / 3)


def test_overlap_and_flips_by_hand() -> None:
    one = masks([True, True, False, False], [True, False])
    other = masks([True, False, True, False], [True, False])
    assert one.overlap(other) == 2 / 4
    assert one.flip_rate(other) == 2 / 6
    assert one.overlap(one) == 1.0
    assert one == masks([True, True, False, False], [True, False])
    assert one != other


def test_masks_of_other_tensors_do_not_compare() -> None:
    one = masks([True], [True])
    with pytest.raises(ValueError, match=r"\['b'\] are in one of them only"):
        one.overlap(Masks({"a": torch.tensor([True])}, get_structure("weight")))


def test_masks_are_bool() -> None:
    with pytest.raises(TypeError, match=r"'a' must be a bool tensor, got torch\.float32"):
        Masks({"a": torch.ones(2)}, get_structure("weight"))
