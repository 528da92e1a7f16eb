"""From a module to a graph: names, sizes, and what a model returns."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import adversarial
from biprune.structured.calls import Named, filled, output_tensors, template
from biprune.structured.trace import Size, op_name, trace


def operations(traced: Any) -> list[str]:
    return [op_name(node) for node in traced.module.graph.nodes if node.op == "call_function"]


def test_tied_tensors_go_by_their_first_name() -> None:
    traced = trace(adversarial.build("tied"), adversarial.MODULES["tied"][1])  # pyright: ignore
    assert set(traced.names.values()) == {
        *(f"{layer}.{name}" for layer in ("up", "down", "norm") for name in ("weight", "bias")),
        "embed.weight",
    }
    assert traced.exported
    assert traced.nesting == [0, None]  # a cache is no output


def test_sizes_are_free_fixed_or_the_same() -> None:
    example = {"left": torch.zeros(1, 6), "right": torch.zeros(1, 4)}
    (left, six), (right, four) = trace(adversarial.build("keywords"), example).sizes
    assert (six, four) == (Size(6, 6), Size(4, 4))
    assert left == right == Size(1, None, left.name)
    assert left.name


def test_the_branch_taken_is_recorded_where_export_refuses() -> None:
    model, example = adversarial.build("by numbers"), adversarial.MODULES["by numbers"][1]
    traced = trace(model, example)  # pyright: ignore[reportArgumentType]
    assert not traced.exported
    assert traced.refused
    assert operations(traced).count("linear") == 3
    assert "fc2.weight" in traced.names.values()


class Writing(nn.Module):
    def __init__(self, view: bool) -> None:
        super().__init__()
        self.fc, self.view = nn.Linear(4, 4), view

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x)
        if self.view:
            x[:, :2] = 0.0
        with torch.no_grad():
            scale = x.relu().mean()
        return x.relu_() * scale


def test_nothing_is_written_in_place_and_regions_are_open() -> None:
    for view in (False, True):
        names = operations(trace(Writing(view), torch.zeros(2, 4)))
        assert not [name for name in names if name.endswith("_")]
        assert ("slice_scatter" in names) is view
        assert "mean" in names  # it was in a region without gradients
        assert "wrap_with_set_grad_enabled" not in names


def test_nothing_of_the_model_changes() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).train()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    trace(model, torch.randn(2, 3, 8, 8, generator=torch.Generator()))
    assert model.training
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_nestings_are_filled_as_they_were() -> None:
    one, two = torch.zeros(1), torch.ones(1)
    returned = {"logits": one, "hidden": (two, None), "past_key_values": (one,), "size": 3}
    assert [id(tensor) for tensor in output_tensors(returned)] == [id(one), id(two)]
    nesting = template(returned)
    assert nesting == {"logits": 0, "hidden": [1, None], "size": None}
    again = filled(nesting, [one, two])
    assert isinstance(again, Named)
    assert again.logits is one
    assert again["hidden"] == (two, None)
    assert again[1] == (two, None)
