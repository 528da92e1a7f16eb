from __future__ import annotations

import torch

from biprune.core.layout import flattened, is_dense, logical_places, side_by_side, views_like


def tensors() -> dict[str, torch.Tensor]:
    conv = torch.arange(24.0).view(2, 3, 2, 2).to(memory_format=torch.channels_last)
    return {"conv": conv, "head": torch.arange(6.0).view(2, 3)}


def test_side_by_side_copies_are_one_view() -> None:
    before = tensors()
    laid = side_by_side(before)
    flat = flattened(list(laid.values()))
    assert flat.data_ptr() == laid["conv"].data_ptr()
    for name, tensor in laid.items():
        assert torch.equal(tensor, before[name])
        assert tensor.stride() == before[name].stride()
        assert tensor.data_ptr() != before[name].data_ptr()
    flat.fill_(7.0)
    assert all(bool((tensor == 7.0).all()) for tensor in laid.values())


def test_scattered_tensors_are_copied_in_the_order_of_memory() -> None:
    before = tensors()
    flat = flattened(list(before.values()))
    assert flat.data_ptr() != before["conv"].data_ptr()
    assert flat[:4].tolist() == [0.0, 4.0, 8.0, 1.0]  # the channels of the first pixel lie together
    back = views_like(before, flat)
    assert all(torch.equal(back[name], tensor) for name, tensor in before.items())
    swapped = list(side_by_side(before).values())[::-1]
    assert flattened(swapped)[:6].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_tensors_with_gaps_stay_apart() -> None:
    gaps = {"a": torch.arange(6.0).view(2, 3)[:, :2], "b": torch.ones(2)}
    assert not is_dense(gaps["a"])
    laid = side_by_side(gaps)
    assert torch.equal(laid["a"], gaps["a"])


def test_logical_places_against_the_layout_itself() -> None:
    shape = (2, 3, 4, 5)
    for permutation in ((0, 1, 2, 3), (0, 2, 3, 1), (3, 1, 0, 2)):
        dense = torch.empty([shape[d] for d in permutation])
        back = [permutation.index(d) for d in range(4)]
        tensor = dense.permute(back)
        assert tensor.shape == shape
        tensor.copy_(torch.arange(120.0).view(shape))
        places = torch.arange(120)
        assert logical_places(places, tensor).tolist() == dense.flatten().long().tolist()
