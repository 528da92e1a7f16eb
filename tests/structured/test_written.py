"""Graphs as data: back as they were, and refused where a stranger put something else in."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adversarial
from biprune.files.small import load_small, save_small
from biprune.structured.find import labels_of
from biprune.structured.graph import without_units
from biprune.structured.removal import tensors_of
from biprune.structured.shrink import shrink
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
    """An operation whose only keyword is a type, and masks put together by their signs."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        masks = [((x > -1) & (x < 1)) | (x > 2), (x > 0) ^ (x < 2)]
        return self.head(self.body(x * masks[0] * masks[1]).cumsum(1, dtype=torch.float32))


def test_keywords_that_are_called_as_kinds_and_signs_between_masks() -> None:
    model, x = Counted(), torch.randn(2, 5, 3)
    labels = labels_of(model, x)
    whole = torch.zeros(len(labels.atoms.roots())).bool()
    form = without_units(labels, whole, tensors_of(model))
    data = json.loads(json.dumps(to_data(form)))
    assert any(node[3] == {"dtype": {"dtype": "float32"}} for node in data["nodes"])
    assert "aten.__and__.Tensor" in {node[1] for node in data["nodes"]}
    assert torch.equal(from_data(data, form.state_dict())(x), model(x))


def test_an_operation_that_files_do_not_hold_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"holds aten\.lstm\.input, an operation that files do"):
        to_data(graph("recurrent"))  # pyright: ignore[reportArgumentType]


def _target(data: dict[str, Any], target: str) -> None:
    next(node for node in data["nodes"] if node[0] == "call_function")[1] = target


def _name(data: dict[str, Any], name: str) -> None:
    next(node for node in data["nodes"] if node[0] == "placeholder")[1] = name


def _call(data: dict[str, Any], name: str, *arguments: Any, **named: Any) -> None:
    """One more operation, before the output."""
    data["nodes"].insert(-1, ["call_function", name, list(arguments), named])


def _split(data: dict[str, Any]) -> None:
    _call(data, "aten.zeros.default", [10**7])
    _call(data, "aten.split.Tensor", {"node": len(data["nodes"]) - 2}, 1)


def _keyword(data: dict[str, Any]) -> None:
    call = next(node for node in data["nodes"] if node[1].startswith("aten.linear"))
    call[3] = {"x) or exit(": 1}


_EMBEDDED = ({"node": 0}, {"node": 0})
DAMAGE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no operation": (lambda d: _target(d, "aten.nothing.default"), "no operation of the list"),
    "no overload": (lambda d: _target(d, "aten.linear.none"), "no operation of the list"),
    "another library": (lambda d: _target(d, "os.system.default"), "no operation of the list"),
    "an unlisted operation": (lambda d: _target(d, "aten.from_file.default"), "no operation"),
    "code for a name": (lambda d: _name(d, "x, y=print(1)"), "not a valid parameter name"),
    "a keyword for a name": (lambda d: _name(d, "lambda"), "not a valid parameter name"),
    "code for an argument": (_keyword, "takes no"),
    "sizes without end": (lambda d: _call(d, "aten.zeros.default", [1 << 40]), "numbers"),
    "parts without end": (_split, "more than 65,536 parts"),
    "a power without end": (lambda d: _call(d, "pow", 9, 10**9), "too large a power"),
    "a product without end": (lambda d: _call(d, "mul", 1 << 40, 1 << 40), "too large a number"),
    "a list that is multiplied": (lambda d: _call(d, "mul", [0], 10**10), "takes sizes"),
    "a text that is filled in": (lambda d: _call(d, "mod", "\x1b%99999999d", 1), "takes sizes"),
    "what torch asserts": (lambda d: _call(d, "aten.embedding.default", *_EMBEDDED), "not run"),
    "an operation that writes": (
        lambda d: _call(d, "aten.add_.Tensor", {"node": 0}, 1),
        "no operation of the list",
    ),
    "a second output": (lambda d: d["nodes"].append(d["nodes"][-1]), "goes on after its output"),
    "no output": (lambda d: d["nodes"].pop(), "has no output"),
    "an output that is no tensor": (lambda d: d["nodes"][-1].__setitem__(2, ["x"]), "no tensor"),
    "a nesting of other outputs": (lambda d: d.__setitem__("nesting", [0, 7]), "IndexError"),
    "more sizes than inputs": (lambda d: d["sizes"].append([[1, 1, ""]]), "as many inputs"),
    "a name of a size": (lambda d: d["sizes"][0][0].__setitem__(2, "\x1b[31m"), "is no name"),
    "a size that is none": (lambda d: d["sizes"][0][0].__setitem__(0, -1), "no range of sizes"),
    "one name for two inputs": (
        lambda d: d["nodes"].insert(0, ["placeholder", d["nodes"][-1][1], [], {}]),
        "as many inputs",
    ),
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
    with pytest.raises(ValueError, match=reason) as caught:
        from_data(data, form.state_dict())
    assert str(caught.value).isprintable()


def test_tensors_that_are_missing_or_called_otherwise_are_refused() -> None:
    form: Any = graph("rotary")
    data, state = to_data(form), form.state_dict()
    with pytest.raises(ValueError, match=r"reads 'q\.weight', which is not there"):
        from_data(data, {name: t for name, t in state.items() if name != "q.weight"})
    wrong = {**state, "q.weight": torch.zeros(5, 5)}
    with pytest.raises(ValueError, match="does not run"):
        from_data(copy.deepcopy(data), wrong)
    for name in ("\x1b[31m", "q..weight", ""):
        with pytest.raises(ValueError, match="is no name"):
            from_data(data, {**state, name: torch.zeros(1)})


def test_reading_says_nothing_of_torch_on_the_terminal(
    capfd: pytest.CaptureFixture[str],
) -> None:
    form: Any = graph("rotary")
    data = to_data(form)
    _call(data, "aten.add.Tensor", {"node": 0}, {"node": 1})
    data["sizes"][0] = [[3, 3, ""], [7, 7, ""]]
    with pytest.raises(ValueError, match="does not run"):
        from_data(data, form.state_dict())
    assert capfd.readouterr() == ("", "")


class Called(nn.Module):
    """A layer under any name that a module may have."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.head = name, nn.Linear(8, 3)
        self._modules[name] = nn.ModuleDict({name: nn.Linear(4, 8)})

    def forward(self, x: Tensor) -> Tensor:
        layer: Any = self._modules[self.name]
        return self.head(torch.relu(layer[self.name](x)))


@pytest.mark.parametrize("name", ["a-b", "größe", "a b", "ﬁ", "graph", "sizes", "_run"])
def test_a_small_model_comes_back_whatever_its_layers_are_called(name: str, tmp_path: Path) -> None:
    model = Called(name).eval()
    with torch.no_grad():
        next(p for n, p in model.named_parameters() if n == f"{name}.{name}.weight")[:3] = 0
    small = shrink(model, None, torch.randn(2, 4), form="graph")
    loaded = load_small(save_small(small, tmp_path))
    x = torch.randn(5, 4)
    assert torch.equal(loaded(x), small(x))
    assert loaded.state_dict().keys() == model.state_dict().keys()
    copied = copy.deepcopy(loaded)
    copied.load_state_dict(model.state_dict() | loaded.state_dict())
    assert torch.equal(copied(x), small(x))
