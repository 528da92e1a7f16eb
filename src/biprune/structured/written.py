"""A graph as plain data and back: operations by name, from a list of ours, and no code.

What is read is a stranger's until it is checked: names are words and not code, operations are those
that rules know, arguments are those of their schema, and a run on shapes alone shows that they fit
and that none of the results is larger than a machine holds.
"""

from __future__ import annotations

import copy
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import astuple
from keyword import iskeyword
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from biprune.structured.form import GraphForm, put
from biprune.structured.rules import is_known
from biprune.structured.trace import Size

LARGEST = 1 << 34  # elements of one result
_ON_SIZES: dict[str, Callable[..., Any]] = {
    **{
        name: getattr(operator, name)
        for name in ("getitem", "add", "sub", "mul", "floordiv", "mod")
    },
    **{name: getattr(operator, name) for name in ("truediv", "neg", "pow", "eq", "ge", "le")},
    **{name: getattr(torch, name) for name in ("sym_max", "sym_min", "sym_int", "sym_float")},
}
_KINDS: dict[str, type] = {
    "dtype": torch.dtype,
    "layout": torch.layout,
    "memory_format": torch.memory_format,
}


def to_data(form: GraphForm) -> dict[str, Any]:
    """The graph as lists, words and numbers; its tensors are in the form's state.

    Raises:
        ValueError: It holds an operation that files do not.
    """
    if form.training:
        form = copy.deepcopy(form).eval()
    places: dict[fx.Node, int] = {}
    nodes = []
    for node in form.graph.nodes:
        places[node] = len(nodes)
        args, kwargs = _plain(node.args, places), _plain(node.kwargs, places)
        nodes.append([node.op, _target_name(node), args, kwargs])
    return {
        "nodes": nodes,
        "sizes": [[list(astuple(size)) for size in each] for each in form.sizes],
        "dtypes": [str(dtype).removeprefix("torch.") for dtype in form.dtypes],
        "nesting": form.nesting,
        "trained": {name: p.requires_grad for name, p in form.named_parameters()},
    }


def _target_name(node: fx.Node) -> str:
    if node.op != "call_function":
        return str(node.target)
    for name, function in _ON_SIZES.items():
        if node.target is function:
            return name
    if not is_known(node.target):
        raise ValueError(
            f"The model is a graph that holds {node.target}, an operation that files do not hold."
        )
    return f"aten.{node.target._opname}.{node.target._overloadname}"  # pyright: ignore


def _plain(argument: Any, places: Mapping[fx.Node, int]) -> Any:
    if isinstance(argument, fx.Node):
        return {"node": places[argument]}
    if isinstance(argument, (list, tuple)):
        return [_plain(part, places) for part in argument]
    if isinstance(argument, dict):
        return {name: _plain(part, places) for name, part in argument.items()}
    if isinstance(argument, torch.device):
        return {"device": str(argument)}
    for kind, own in _KINDS.items():
        if isinstance(argument, own):
            return {kind: str(argument).removeprefix("torch.")}
    if argument is None or isinstance(argument, bool | int | float | str):
        return argument
    raise ValueError(f"The model is a graph with a {type(argument).__name__} among its arguments.")


def from_data(data: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> GraphForm:
    """The form that `to_data` wrote, in eval mode.

    Raises:
        ValueError: It is none, or holds what it must not.
    """
    root, graph = nn.Module(), fx.Graph()
    for name, tensor in tensors.items():
        _check_word(name, dotted=True)
        trained = data["trained"].get(name)
        put(root, name, tensor if trained is None else nn.Parameter(tensor, bool(trained)))
    made: list[fx.Node] = []
    for op, target, args, kwargs in data["nodes"]:
        named = {str(name): _real(value, made) for name, value in kwargs.items()}
        made.append(_node(graph, op, target, _real(args, made), named, tensors))
    sizes = [
        [Size(int(low), None if high is None else int(high), str(name)) for low, high, name in each]
        for each in data["sizes"]
    ]
    dtypes = [_named(torch.dtype, name) for name in data["dtypes"]]
    form = GraphForm(root, graph, sizes, dtypes, data["nesting"])
    _run_on_shapes(form)
    return form


def _node(graph: fx.Graph, op: str, target: str, args: Any, kwargs: Any, tensors: Any) -> fx.Node:
    if op == "placeholder":
        _check_word(target)
        return graph.placeholder(target)
    if op == "get_attr":
        if target not in tensors:
            raise ValueError(f"the graph reads {target!r}, which is not there")
        return graph.get_attr(target)
    if op == "output":
        return graph.output(tuple(args[0]))
    if op != "call_function":
        raise ValueError(f"the graph has a node {op!r}")
    function = _function(target)
    if hasattr(function, "_schema"):
        unknown = kwargs.keys() - {argument.name for argument in function._schema.arguments}
        if unknown:
            raise ValueError(f"{target} takes no {sorted(unknown)}")
    elif kwargs:
        raise ValueError(f"{target} takes no keywords")
    return graph.call_function(function, tuple(args), kwargs)


def _function(target: str) -> Any:
    if target in _ON_SIZES:
        return _ON_SIZES[target]
    space, name, overload = target.split(".")
    packet = getattr(torch.ops.aten, name, None) if space == "aten" else None
    function = getattr(packet, overload, None) if overload in _overloads(packet) else None
    if function is None or not is_known(function):
        raise ValueError(f"the graph holds {target!r}, which is no operation of the list")
    return function


def _overloads(packet: Any) -> list[str]:
    return packet.overloads() if isinstance(packet, torch._ops.OpOverloadPacket) else []


def _real(argument: Any, made: list[fx.Node]) -> Any:
    if isinstance(argument, list):
        return [_real(part, made) for part in argument]
    if isinstance(argument, dict):
        kind, *others = argument or {"": None}
        value = argument.get(kind)
        if not others and kind == "node":
            return made[int(str(value))]
        if not others and kind == "device":
            return torch.device(str(value))
        if not others and kind in _KINDS:
            return _named(_KINDS[kind], str(value))
        return {str(name): _real(part, made) for name, part in argument.items()}
    return argument


def _named(kind: type, name: str) -> Any:
    value = getattr(torch, name, None)
    if not isinstance(value, kind):
        raise ValueError(f"{name!r} is no {kind.__name__}")
    return value


def _check_word(name: str, *, dotted: bool = False) -> None:
    """A name in the code that is made of a graph must be a word, or words with dots."""
    fine = re.fullmatch(r"\w+(\.\w+)*", name) if dotted else name.isidentifier()
    if not fine or not name.isascii() or iskeyword(name):
        raise ValueError(f"{name!r} is no name")


class _Bounded(fx.Interpreter):
    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        for each in result if isinstance(result, (list, tuple)) else [result]:
            if isinstance(each, Tensor) and each.numel() > LARGEST:
                raise ValueError(f"{n.name} has {each.numel():,} numbers")
        return result


def _run_on_shapes(form: GraphForm) -> None:
    """Run the graph without numbers, on inputs of the smallest sizes that it takes."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        inputs = [
            torch.zeros(
                [max(size.low, 2) if size.high is None else size.low for size in sizes], dtype=dtype
            )
            for sizes, dtype in zip(form.sizes, form.dtypes, strict=True)
        ]
        try:
            _Bounded(form, graph=form.graph).run(*inputs)
        except (RuntimeError, TypeError, IndexError, AttributeError) as error:
            reason = (str(error).strip().splitlines() or [""])[0]
            raise ValueError(f"the graph does not run ({reason})") from None
