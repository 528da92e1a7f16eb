"""The walk of labels through a graph: every node once, and again while that ties more.

The work is bounded: each walk but the last ties atoms, of which there are finitely many, and after
`MOST_WALKS` nothing is offered.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from torch import fx

from biprune.structured.atoms import Carried, Plane, spread, varies
from biprune.structured.calls import Attention
from biprune.structured.labels import NOT_KNOWN, Labels, Planes
from biprune.structured.rules import is_moving, may_read_table, rule_of
from biprune.structured.trace import TensorType, Traced

MOST_WALKS = 20
IS_OUTPUT = "it is the model's output"


class Walk(Labels):
    """Labels that are carried through a graph until nothing more is tied.

    Args:
        traced: The graph.
        parameters: Names of what is masked: zero in units that are gone.
        buffers: Names of tensors that are not masked but have to be cut along.
        attention: What a unit of attention is; see `find_groups`.
        streams: Whether units may run through norms over all of them.
    """

    def __init__(
        self,
        traced: Traced,
        parameters: Collection[str],
        buffers: Collection[str],
        attention: Attention = "heads",
        streams: bool = False,
    ) -> None:
        super().__init__(traced, attention, streams)
        self._masked, self._cut = set(parameters), {*parameters, *buffers}
        self._constant = _constants(traced.module.graph)
        self.tables = _tables(traced, self._constant, self._masked)
        self._until_settled()

    def tie_at(self, node: fx.Node) -> bool:
        """Tie what varies along several dimensions at a node or where it comes from.

        Returns:
            Whether there was something to tie. The labels have walked again then.
        """
        tied = self._keep_longest([node, *node.all_input_nodes])
        if tied:
            self._until_settled()
        return tied

    def _until_settled(self) -> None:
        for _ in range(MOST_WALKS):
            before = self.atoms.num_ties
            self.atoms.thaw()
            self.products.clear()
            self.normed.clear()
            for node in self.traced.module.graph.nodes:
                self.node = node
                self.carried[node] = self._visit(node)
            if self.atoms.num_ties == before and not self._tie_what_is_no_product():
                return
        for node in self.carried:  # not seen to happen: then nothing is offered
            self.freeze(self.tensors(node), "its ties could not be settled")

    def _visit(self, node: fx.Node) -> Any:
        if node.op == "get_attr":
            return self._tensor(node) if isinstance(self.given, TensorType) else None
        if node.op == "output":
            self.freeze(self._operands(node), IS_OUTPUT)
            return None
        if node.op != "call_function":
            return self._result(self.given, (), node)
        if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
            source = self.carried.get(node.args[0])
            place: Any = node.args[1]
            return source[place] if isinstance(source, list) else source
        return self._result(self.given, self._planes(node), node)

    def _planes(self, node: fx.Node) -> Planes | list[Planes]:
        rule, name = rule_of(node)
        if rule is not None:
            args, kwargs = (self._values(node, own) for own in (node.args, node.kwargs))
            try:
                planes = rule(self, *args, **kwargs)
                if isinstance(planes, list) == isinstance(self.given, list):
                    return planes
            except Exception as error:  # arguments that no rule foresaw: as if it were not known
                name = f"{name} ({type(error).__name__})"
        self.freeze(self._operands(node), f"it runs through {name}, {NOT_KNOWN}")
        return ()

    def _values(self, node: fx.Node, arguments: Any) -> Any:
        """Arguments of a node with what they carry, or are, in place of nodes."""

        def value(argument: fx.Node) -> Any:
            known = self.carried.get(argument)
            if isinstance(known, Carried) and (node, argument) in self.tables:
                return self.copy(known, (node, argument))
            return self.traced.results[argument] if known is None else known

        return fx.map_arg(arguments, value)

    def _operands(self, node: fx.Node) -> Iterator[Carried]:
        for argument in node.all_input_nodes:
            yield from self.tensors(argument)

    def _result(self, given: Any, planes: Any, node: fx.Node) -> Any:
        if isinstance(given, TensorType):
            return Carried(given.shape, given.dtype, tuple(planes), self._constant[node])
        if isinstance(given, list):
            each = planes if isinstance(planes, list) else [()] * len(given)
            return [self._result(g, p, node) for g, p in zip(given, each, strict=True)]
        return None

    def _tensor(self, node: fx.Node) -> Carried:
        """A tensor of the model: one plane for each dimension of more than one index."""
        name, shape = self.traced.names.get(str(node.target)), self.shape
        planes: list[Plane] = []
        if name in self._cut and self.given.dtype.is_floating_point:
            for dim, size in enumerate(shape):
                if size > 1:
                    line = self.owned[name, dim] = self.atoms.of((name, dim), size)
                    planes.append(Plane(spread(line, dim, shape), zero=name in self._masked))
        return Carried(shape, self.given.dtype, tuple(planes), constant=True)

    def _tie_what_is_no_product(self) -> bool:
        """Tie planes that vary along several dimensions where something computes on them.

        What is left of such units is no box, so that no smaller tensor holds it. Moving operations
        are exempt: a selection can stand for several of them; see `runs`.
        """
        nodes = self.traced.module.graph.nodes
        computing = [n for n in nodes if n.op == "call_function" and not is_moving(n)]
        return self._keep_longest(near for n in computing for near in (*n.all_input_nodes, n))

    def _keep_longest(self, nodes: Iterable[fx.Node]) -> bool:
        """Tie the planes at nodes along all that they vary in but their longest dimension."""
        before = self.atoms.num_ties
        for node in nodes:
            for tensor in self.tensors(node):
                for plane in tensor.planes:
                    labels = self.atoms.settled(plane.labels)
                    dims = varies(labels)
                    if len(dims) > 1:
                        longest = max(dims, key=lambda dim: labels.shape[dim])
                        self.atoms.collapse(labels, [dim for dim in dims if dim != longest])
        return self.atoms.num_ties != before


def _constants(graph: fx.Graph) -> dict[fx.Node, bool]:
    """Which nodes depend on no input of the model."""
    found: dict[fx.Node, bool] = {}
    for node in graph.nodes:
        is_size = getattr(node.target, "__name__", "") == "sym_size.int"
        computed = node.op == "call_function" and all(found[n] for n in node.all_input_nodes)
        found[node] = node.op == "get_attr" or is_size or computed
    return found


def _tables(
    traced: Traced, constant: dict[fx.Node, bool], parameters: Collection[str]
) -> set[tuple[fx.Node, fx.Node]]:
    """Which nodes read which tables that other modules read as well, as rotary embeddings are.

    A table is made of the model's tensors alone: it is a buffer, or computed from some tensors.
    Parameters that modules share as they are stay tied.
    """
    sources: dict[fx.Node, set[str]] = {}
    raw: dict[fx.Node, bool] = {}
    readers: dict[str, set[str]] = {}
    edges: list[tuple[fx.Node, fx.Node]] = []
    for node in traced.module.graph.nodes:
        if node.op == "get_attr":
            name = traced.names.get(str(node.target))
            sources[node] = {name} if name else set()
            raw[node] = name in parameters
        elif constant[node]:
            made_of = [n for n in node.all_input_nodes if sources.get(n)]
            sources[node] = set().union(*(sources[n] for n in made_of))
            raw[node] = is_moving(node) and all(raw[n] for n in made_of)
        elif may_read_table(node):
            for operand in node.all_input_nodes:
                if constant[operand] and sources[operand] and not raw[operand]:
                    edges.append((node, operand))
                    for name in sources[operand]:
                        readers.setdefault(name, set()).add(module_path(node))
    shared = {name for name, paths in readers.items() if len(paths) > 1}
    return {(reader, table) for reader, table in edges if sources[table] & shared}


def module_path(node: fx.Node) -> str:
    """Where in the traced module a node comes from; empty if that is not known."""
    stack = node.meta.get("nn_module_stack") or {}
    return str(list(stack.values())[-1][0]) if stack else ""
