"""Modules made to mislead: whatever is offered can go, alone and together, and nothing differs."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

import adversarial
from biprune.structured.calls import ByPosition, by_position
from biprune.structured.certificate import raised
from biprune.structured.find import find_groups, found_in
from biprune.structured.graph import without_units
from biprune.structured.removal import gone_atoms, tensors_of, zero_
from biprune.structured.shrink import shrink

MODES = {
    "heads": {},
    "width": {"attention": "width"},
    "queries": {"attention": "queries"},
    "streams": {"streams": True},
}
NO_GRAPH = {"by numbers"}


def fresh(example: Any, samples: int, seed: int) -> dict[str, Tensor]:
    """Other inputs than any that the code under test draws."""
    named = example if isinstance(example, Mapping) else {"": example}
    generator = torch.Generator().manual_seed(1000 + seed)
    found = {}
    for name, tensor in named.items():
        shape = (samples, *tensor.shape[1:])
        if tensor.is_floating_point():
            found[name] = torch.randn(shape, generator=generator, dtype=torch.float64)
        else:
            found[name] = torch.randint(0, int(tensor.max()) + 1, shape, generator=generator)
    return found


def outputs(model: torch.nn.Module, inputs: Mapping[str, Tensor]) -> list[Tensor]:
    names = tuple(name for name in inputs if name)
    called = ByPosition(copy.deepcopy(model).double().eval(), names)
    with torch.no_grad(), raised(torch.float64):
        return list(called(*inputs.values()))


def distance(one: torch.nn.Module, other: torch.nn.Module, example: Any) -> float:
    worst = 0.0
    for samples in (5, 1):
        inputs = fresh(example, samples, samples)
        for a, b in zip(outputs(one, inputs), outputs(other, inputs), strict=True):
            worst = max(worst, float((a - b).abs().max() / a.abs().max().clamp(min=1e-30)))
    return worst


def kept(sizes: Mapping[str, int], seed: int, *, half: bool) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for name, size in sizes.items():
        found[name] = torch.ones(size, dtype=torch.bool)
        lost = torch.randperm(size, generator=generator)[: max(1, size // 2) if half else 1]
        found[name][lost] = False
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", [n for n in adversarial.MODULES if n not in NO_GRAPH])
def test_the_graph_without_units_is_the_masked_model(name: str, mode: str) -> None:
    example: Any = adversarial.MODULES[name][1]
    model = adversarial.build(name).double()
    options = {"attention": "heads", "streams": False, **MODES[mode]}
    found, labels = found_in(adversarial.build(name), example, **options, seed=0)
    sizes = {group.name: group.size for group in found.groups}
    cases = [kept(sizes, 0, half=True), kept(sizes, 1, half=False)]
    for group in found.groups:  # each alone, one unit and half of them
        whole = {n: torch.ones(size, dtype=torch.bool) for n, size in sizes.items()}
        cases += [{**whole, **kept({group.name: group.size}, 2, half=h)} for h in (False, True)]
    for keep in cases:
        masked = copy.deepcopy(model)
        zero_(masked, found.groups, keep)
        small = without_units(labels, gone_atoms(labels, found.groups, keep), tensors_of(masked))
        assert distance(masked, small, example) < 1e-12


@pytest.mark.parametrize("name", adversarial.MODULES)
def test_what_shrink_returns_is_certified_and_right(name: str) -> None:
    example: Any = adversarial.MODULES[name][1]
    model = adversarial.build(name)
    found = find_groups(model, example)
    keep = kept({group.name: group.size for group in found.groups}, 3, half=True)
    zero_(model, found.groups, keep)
    small = shrink(model, found, example)
    assert small.certificate.units_removed == sum(int((~units).sum()) for units in keep.values())
    assert small.certificate.max_error < 1e-12
    assert distance(model, small, example) < 1e-12
    called, tensors = by_position(small, example)
    assert [t.shape for t in called(*tensors)] == [
        t.shape for t in ByPosition(model, called.names)(*tensors)
    ]


def test_what_goes_by_numbers_is_followed_where_it_went_and_stays_a_module() -> None:
    model, example = adversarial.build("by numbers"), adversarial.MODULES["by numbers"][1]
    found = find_groups(model, example)  # pyright: ignore[reportArgumentType]
    assert {group.name: group.size for group in found.groups} == {"fc1.weight": 8, "fc2.weight": 8}
    zero_(model, found.groups, {group.name: torch.arange(8) > 2 for group in found.groups})
    small = shrink(model, found, example)  # pyright: ignore[reportArgumentType]
    assert type(small) is type(model)
    assert small.certificate.form == "module"
    with pytest.raises(ValueError, match=r"no graph that holds for other inputs \(.*\)\. Leave"):
        shrink(model, found, example, form="graph")  # pyright: ignore[reportArgumentType]
