"""A graph as plain data and back.

What a stranger wrote cannot do harm: operations are from a list of ours, nothing is code, and a
trial run without numbers is bounded.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Mapping
from dataclasses import astuple
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from biprune.core.files import first_line
from biprune.structured.calls import filled
from biprune.structured.form import GraphForm, held, put
from biprune.structured.rules import is_known
from biprune.structured.trace import Size, quiet

ON_SIZES: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "floordiv", "mod")},
    **{name: getattr(operator, name) for name in ("truediv", "neg", "pow", "eq", "ge", "le")},
    **{name: getattr(torch, name) for name in ("sym_max", "sym_min", "sym_int", "sym_float")},
}
LARGEST = 1 << 34  # elements of one result
LARGEST_NUMBER = 1 << 62
LARGEST_POWER = 64
MOST_PARTS = 1 << 16  # tensors that all the splits together give
_SPLITS = ("unbind", "split", "unsafe_split", "split_with_sizes", "unsafe_split_with_sizes")
_SPLITS += ("tensor_split", "chunk", "unsafe_chunk")


def run_on_shapes(form: GraphForm) -> None:
    """Run the graph without numbers, on inputs of the smallest sizes that it takes.

    Raises:
        ValueError: A result is larger than a machine holds, or the outputs do not fit the nesting.
            Whatever torch raises for arguments that do not fit is raised as it is.
    """
    with quiet(), FakeTensorMode(allow_non_fake_inputs=True):
        inputs = [
            torch.zeros(
                [max(size.low, 2) if size.high is None else size.low for size in sizes], dtype=dtype
            )
            for sizes, dtype in zip(form.sizes, form.dtypes, strict=True)
        ]
        outputs = _Bounded(form, graph=form.graph).run(*inputs)
        if not all(isinstance(output, Tensor) for output in outputs):
            raise ValueError("the graph gives what is no tensor")
        filled(form.nesting, outputs)


class _Bounded(fx.Interpreter):
    _parts = 0

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        """A tensor by its name, whatever that is."""
        return held(self.module, str(target))

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """What a node computes, unless that would take for ever."""
        if target in ON_SIZES.values():
            _check_numbers(target, args)
        self._parts += _num_parts(target, args, kwargs)
        if self._parts > MOST_PARTS:
            raise ValueError(f"the graph splits tensors into more than {MOST_PARTS:,} parts")
        return super().call_function(target, args, kwargs)

    def run_node(self, n: fx.Node) -> Any:
        """What a node gives, if a machine can hold that."""
        result = super().run_node(n)
        for each in result if isinstance(result, (list, tuple)) else [result]:
            if isinstance(each, Tensor) and each.numel() > LARGEST:
                raise ValueError(f"{n.name} has {each.numel():,} numbers")
            if isinstance(each, int) and abs(each) > LARGEST_NUMBER:
                raise ValueError(f"{n.name} is too large a number")
        return result


def _check_numbers(function: Callable[..., Any], args: Any) -> None:
    """Refuse anything but small powers of numbers: even a list can be multiplied without end."""
    if not all(isinstance(each, int | float) for each in args):
        raise ValueError(f"{function.__name__} takes sizes, and no more than that")
    if function is operator.pow and abs(args[-1]) > LARGEST_POWER:
        raise ValueError(f"{args[-1]} is too large a power")


def _num_parts(target: Any, args: Any, kwargs: Any) -> int:
    """How many tensors come of a split; 0 for any other operation."""
    name = getattr(target, "_opname", "")
    if name not in _SPLITS:
        return 0
    names = [argument.name for argument in target._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    tensor, how = given.pop("self"), next(iter(given.values()), 1)
    if isinstance(how, (list, tuple)):
        return len(how) + 1
    length = tensor.shape[given.get("dim", 0)]
    if name == "unbind":
        return length
    return length // max(how, 1) + 1 if name in ("split", "unsafe_split") else how


_PLAIN = {"getitem": operator.getitem, **ON_SIZES}  # functions that are no operations of torch
_KINDS: dict[str, type] = {
    "dtype": torch.dtype,
    "layout": torch.layout,
    "memory_format": torch.memory_format,
}


def to_data(form: GraphForm) -> dict[str, Any]:
    """Write the graph as lists, words and numbers; its tensors are in the form's state.

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
    for name, function in _PLAIN.items():
        if node.target is function:
            return name
    if not _is_allowed(node.target):
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
    """Make the form that `to_data` wrote, in eval mode.

    Args:
        data: What `to_data` gave.
        tensors: The form's state.

    Raises:
        ValueError: The data is no graph, or holds what it must not.
    """
    try:
        form = _form(data, tensors)
        run_on_shapes(form)
    except ValueError as error:  # to which torch adds the node's text
        raise ValueError(first_line(error)) from None
    except Exception as error:  # whatever torch raises of what is no graph
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise ValueError(f"the graph does not run ({reason})") from None
    return form


def _form(data: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> GraphForm:
    root, graph = nn.Module(), fx.Graph()
    for name, tensor in tensors.items():
        if not (name.isprintable() and all(name.split("."))):
            raise ValueError(f"{name!r} is no name")
        trained = data["trained"].get(name)
        put(root, name, tensor if trained is None else nn.Parameter(tensor, bool(trained)))
    made: list[fx.Node] = []
    for op, target, args, kwargs in data["nodes"]:
        if made and made[-1].op == "output":
            raise ValueError("the graph goes on after its output")
        named = {str(name): _real(value, made) for name, value in kwargs.items()}
        made.append(_node(graph, op, target, _real(args, made), named, tensors))
    if not made or made[-1].op != "output":
        raise ValueError("the graph has no output")
    sizes = [[_size(*size) for size in each] for each in data["sizes"]]
    dtypes = [_named(torch.dtype, name) for name in data["dtypes"]]
    if not len(graph.find_nodes(op="placeholder")) == len(sizes) == len(dtypes):
        raise ValueError("the graph does not have as many inputs as sizes")
    return GraphForm(root, graph, sizes, dtypes, data["nesting"])


def _size(low: Any, high: Any, name: Any) -> Size:
    if type(low) is not int or not isinstance(high, int | None) or low < 0:
        raise ValueError(f"{[low, high]} is no range of sizes")
    if name and not str(name).isidentifier():
        raise ValueError(f"{name!r} is no name")
    return Size(low, high, str(name))


def _node(graph: fx.Graph, op: str, target: str, args: Any, kwargs: Any, tensors: Any) -> fx.Node:
    if op == "placeholder":
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
    if target in _PLAIN:
        return _PLAIN[target]
    space, name, overload = target.split(".")
    packet = getattr(torch.ops.aten, name, None) if space == "aten" else None
    function = getattr(packet, overload, None) if overload in _overloads(packet) else None
    if function is None or not _is_allowed(function):
        raise ValueError(f"the graph holds {target!r}, which is no operation of the list")
    return function


def _is_allowed(function: Any) -> bool:
    """Whether an operation is one that rules know, and that writes into none of its arguments."""
    return is_known(function) and not function._schema.is_mutable


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
