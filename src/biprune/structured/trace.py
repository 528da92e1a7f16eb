"""A model as a graph of aten operations, with the user's names for its tensors.

`torch.export` gives a graph that holds for every input like the example: the number of samples is
free, and so is the length of token sequences. Export refuses a forward whose course depends on
numbers. Then the operations of the one branch that the example takes are recorded instead; such a
graph only says which units belong together (`exported` is False).

The graph is functional: an operation that writes in place has become one that returns its result.
"""

from __future__ import annotations

import inspect
import io
import logging
import operator
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from biprune.core.files import first_line
from biprune.core.parameters import own_name, unwrap
from biprune.core.uses import slow_attention
from biprune.structured.calls import ByPosition, Inputs, by_position, template
from biprune.structured.functional import drop_checks, functional, inline, writes_into_views
from biprune.training.batches import evaluation_mode
from biprune.training.seeding import forked_rng

Shape = tuple[int, ...]
PICKED = 3  # stands for a size that depends on numbers: any number of two or more will do


@dataclass(frozen=True)
class Size:
    """The sizes that a dimension of an input may have; those of one name are the same number."""

    low: int
    high: int | None
    name: str = ""


@dataclass(frozen=True)
class Traced:
    """A graph and what is known of it.

    Attributes:
        module: The graph itself.
        names: The user's name of each tensor that a `get_attr` node reads.
        results: What each node gives on the example: the type of a tensor, the number that a size
            is, or a list of these.
        sizes: The sizes that each input may have.
        nesting: What the model returns; see `calls.template`.
        keywords: What the inputs are called.
        exported: Whether the graph holds for other inputs than the example.
        refused: Why export refused the model, if it did.
    """

    module: fx.GraphModule
    names: dict[str, str]
    results: dict[fx.Node, Any]
    sizes: list[list[Size]]
    nesting: Any
    keywords: tuple[str, ...]
    exported: bool
    refused: str = ""


@dataclass(frozen=True)
class TensorType:
    """Shape and type of the tensor that a node gives on the example."""

    shape: Shape
    dtype: torch.dtype


def trace(model: nn.Module, example_input: Inputs) -> Traced:
    """Trace `model` in eval mode; it is not changed.

    Costs no forward where export succeeds: it works on shapes.

    Raises:
        ValueError: The model cannot be followed at all.
    """
    called, inputs = by_position(unwrap(model), example_input)
    inputs = tuple(_at_least_two(inputs))
    returned: list[Any] = []
    called.note = lambda value: returned.append(template(value))
    with evaluation_mode(model), slow_attention(), forked_rng(()), quiet():
        try:
            module, sizes = _exported(called, inputs)
            refused = ""
        except Exception as error:  # export raises whatever the model, dynamo or a kernel raises
            refused = f"{type(error).__name__}: {first_line(error)}"
            module, sizes = _branch_taken(called, inputs, refused), []
    names = _names(called, module)
    drop_checks(module)
    keywords = called.names or _parameters_of(called.model, len(inputs))
    results = {node: _result(module, node) for node in module.graph.nodes}
    return Traced(module, names, results, sizes, returned[-1], keywords, not refused, refused)


def _parameters_of(model: nn.Module, count: int) -> tuple[str, ...]:
    """What the model's `forward` calls its first arguments."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
    declared = inspect.signature(model.forward).parameters.values()
    names = [parameter.name for parameter in declared if parameter.kind in kinds][:count]
    return (*names, *(f"input_{i}" for i in range(len(names), count)))


def op_name(node: fx.Node) -> str:
    """The name of the aten operation that a node calls; empty if it calls none."""
    return getattr(node.target, "_opname", "")


def argument(node: fx.Node, name: str) -> Any:
    """What a node is called with by this name, wherever it stands; else the operation's default."""
    target: Any = node.target
    for place, declared in enumerate(target._schema.arguments):
        if declared.name == name:
            given = node.args[place] if place < len(node.args) else declared.default_value
            return node.kwargs.get(name, given)
    return None


def _at_least_two(inputs: tuple[Tensor, ...]) -> Iterator[Tensor]:
    """The example with two samples or more: export takes a size of one for a constant."""
    samples = len(inputs[0])
    for tensor in inputs:
        single = samples == 1 and tensor.ndim and len(tensor) == 1
        yield torch.cat([tensor, tensor]) if single else tensor


def _exported(
    called: ByPosition, inputs: tuple[Tensor, ...]
) -> tuple[fx.GraphModule, list[list[Size]]]:
    from torch.export import export

    program = export(called, inputs, dynamic_shapes=(_dynamic(inputs),), strict=False)
    module = program.module()
    if writes_into_views(module.graph):
        module = program.run_decompositions({}).module()
    sizes = _sizes(module.graph, program.range_constraints)
    inline(module)
    functional(module.graph)
    return module, sizes  # pyright: ignore[reportReturnType]


def _sizes(graph: fx.Graph, ranges: Any) -> list[list[Size]]:
    """The sizes that inputs may have, by what export found."""
    found = []
    for node in graph.find_nodes(op="placeholder"):
        own = []
        for size in node.meta["val"].shape:
            if isinstance(size, int) or size.node.expr.is_number:
                own.append(Size(int(size), int(size)))
            else:
                bounds = ranges.get(size.node.expr)
                low = int(bounds.lower) if bounds else 0
                high = int(bounds.upper) if bounds and bounds.upper < sys.maxsize - 1 else None
                # Export assumes two or more of what is free; the certificate tries one.
                own.append(Size(low if low > 2 else 1, high, str(size)))
        found.append(own)
    return found


def _dynamic(inputs: tuple[Tensor, ...]) -> tuple[dict[int, Any], ...]:
    """Which sizes are free: the number of samples, and the length of sequences of tokens."""
    from torch.export import Dim

    first = inputs[0]
    tokens = [tensor for tensor in inputs if not tensor.is_floating_point()]
    lengths = {size for tensor in tokens for size in tensor.shape[1:]}
    return tuple(
        {
            dim: Dim.AUTO
            for dim, size in enumerate(tensor.shape)
            if (dim == 0 and size == len(first)) or (dim > 0 and size in lengths and size > 1)
        }
        for tensor in inputs
    )


def _branch_taken(called: ByPosition, inputs: tuple[Tensor, ...], refused: str) -> fx.GraphModule:
    """The operations that a forward on the example runs."""
    from torch.fx.experimental.proxy_tensor import make_fx

    record = make_fx(called, pre_dispatch=True, _error_on_data_dependent_ops=False)
    try:
        module = record(*inputs)
    except Exception as error:  # whatever the model or torch raises
        raise ValueError(
            f"The coupled groups of this model cannot be found ({refused}). Prune it by structure "
            "'filter' or 'weight'."
        ) from error
    functional(module.graph)
    return module


def _names(called: ByPosition, module: fx.GraphModule) -> dict[str, str]:
    """The user's name of each tensor that the graph reads; tied tensors go by their first one."""
    named: dict[int, str] = {}
    for name, tensor in [*called.model.named_parameters(), *called.model.named_buffers()]:
        named.setdefault(id(tensor), own_name(name))
    reads = {node.target for node in module.graph.nodes if node.op == "get_attr"}
    tensors = {target: operator.attrgetter(target)(module) for target in reads}
    return {target: named[id(t)] for target, t in tensors.items() if id(t) in named}


def _result(module: fx.GraphModule, node: fx.Node) -> Any:
    if node.op == "get_attr":
        return _concrete(operator.attrgetter(str(node.target))(module))
    return _concrete(node.meta.get("val"))


def _concrete(value: Any) -> Any:
    """Types of tensors and numbers for sizes, as they are on the example."""
    if isinstance(value, Tensor):
        return TensorType(tuple(_number(size) for size in value.shape), value.dtype)
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return _number(value)
    if isinstance(value, list | tuple):
        return [_concrete(each) for each in value]
    return value


def _number(size: Any) -> Any:
    """A size on the example, or a stand-in for one that depends on numbers."""
    from torch.fx.experimental.symbolic_shapes import optimization_hint

    if isinstance(size, torch.SymInt):
        return optimization_hint(size, fallback=PICKED)
    return size if isinstance(size, int) else size.node.hint


@contextmanager
def quiet() -> Iterator[None]:
    """Silence torch's warnings and logs about what it cannot export: the error says it."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
