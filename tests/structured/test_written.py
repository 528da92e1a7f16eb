"""Graphs as data: back as they were, and refused where a stranger put something else in."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adversarial
from biprune.structured.find import labels_of
from biprune.structured.graph import without_units
from biprune.structured.removing import tensors_of
from biprune.structured.written import from_data, to_data


def graph(name: str) -> nn.Module:
    model = adversarial.build(name)
    labels = labels_of(model, adversarial.MODULES[name][1])  # pyright: ignore[reportArgumentType]
    return without_units(labels, torch.zeros(len(labels.atoms.roots())).bool(), tensors_of(model))


@pytest.mark.parametrize("name", ["layers", "biased", "shuffle unit", "keywords", "shared"])
def test_data_comes_back_through_json(name: str) -> None:
    form: Any = graph(name)
    data = json.loads(json.dumps(to_data(form)))
    again = from_data(data, {n: t.clone() for n, t in form.state_dict().items()})
    example: Any = adversarial.MODULES[name][1]
    inputs = list(example.values()) if isinstance(example, dict) else [example]
    expected, found = form(*inputs), again(*inputs)
    assert type(expected) is type(found)
    for one, other in zip(_tensors(expected), _tensors(found), strict=True):
        assert torch.equal(one, other)
    assert to_data(again) == data
    assert not again.training


def _tensors(returned: Any) -> list[Tensor]:
    return list(returned.values()) if isinstance(returned, dict) else [returned]


class Counted(nn.Module):
    """An operation whose only keyword is a type."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).cumsum(1, dtype=torch.float32))


def test_keywords_that_are_called_as_kinds_of_values() -> None:
    model, x = Counted(), torch.randn(2, 5, 3)
    labels = labels_of(model, x)
    whole = torch.zeros(len(labels.atoms.roots())).bool()
    form = without_units(labels, whole, tensors_of(model))
    data = json.loads(json.dumps(to_data(form)))
    assert any(node[3] == {"dtype": {"dtype": "float32"}} for node in data["nodes"])
    assert torch.equal(from_data(data, form.state_dict())(x), model(x))


def test_an_operation_that_files_do_not_hold_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"holds aten\.lstm\.input, an operation that files do"):
        to_data(graph("recurrent"))  # pyright: ignore[reportArgumentType]


def _target(data: dict[str, Any], target: str) -> None:
    next(node for node in data["nodes"] if node[0] == "call_function")[1] = target


def _name(data: dict[str, Any], name: str) -> None:
    next(node for node in data["nodes"] if node[0] == "placeholder")[1] = name


def _size(data: dict[str, Any]) -> None:
    place = len(data["nodes"]) - 1
    made = ["call_function", "aten.zeros.default", [[1 << 20, 1 << 20]], {}]
    data["nodes"].insert(place, made)


def _keyword(data: dict[str, Any]) -> None:
    call = next(node for node in data["nodes"] if node[1].startswith("aten.linear"))
    call[3] = {"x) or exit(": 1}


DAMAGE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no operation": (lambda d: _target(d, "aten.nothing.default"), "no operation of the list"),
    "no overload": (lambda d: _target(d, "aten.linear.none"), "no operation of the list"),
    "another library": (lambda d: _target(d, "os.system.default"), "no operation of the list"),
    "an unlisted operation": (lambda d: _target(d, "aten.from_file.default"), "no operation"),
    "code for a name": (lambda d: _name(d, "x, y=print(1)"), "is no name"),
    "a keyword for a name": (lambda d: _name(d, "lambda"), "is no name"),
    "code for an argument": (_keyword, "takes no"),
    "sizes without end": (_size, "numbers"),
    "arguments that do not fit": (lambda d: d["nodes"][-2].__setitem__(2, []), "does not run"),
    "another node": (lambda d: d["nodes"][-2].__setitem__(0, "call_method"), "has a node"),
    "another type": (lambda d: d["dtypes"].__setitem__(0, "Tensor"), "is no dtype"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_what_a_stranger_wrote_is_refused(name: str) -> None:
    form: Any = graph("rotary")
    data = json.loads(json.dumps(to_data(form)))
    damage, reason = DAMAGE[name]
    damage(data)
    with pytest.raises(ValueError, match=reason):
        from_data(data, form.state_dict())


def test_tensors_that_are_missing_or_called_otherwise_are_refused() -> None:
    form: Any = graph("rotary")
    data, state = to_data(form), form.state_dict()
    with pytest.raises(ValueError, match=r"reads 'q\.weight', which is not there"):
        from_data(data, {name: t for name, t in state.items() if name != "q.weight"})
    wrong = {**state, "q.weight": torch.zeros(5, 5)}
    with pytest.raises(ValueError, match="does not run"):
        from_data(copy.deepcopy(data), wrong)
    with pytest.raises(ValueError, match="is no name"):
        from_data(data, {**state, "q.weight; exit()": torch.zeros(1)})
