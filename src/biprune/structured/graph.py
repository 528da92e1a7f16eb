"""The graph without units that are gone: a module of its own, with the user's parameter names.

It computes exactly what the masked model does: sizes that the traced graph says become those that
are left, statistics of norms are over the full width, and scales stay what they were.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from biprune.structured.atoms import Carried, spread
from biprune.structured.form import GraphForm, put
from biprune.structured.labels import Labels
from biprune.structured.rules import is_moving
from biprune.structured.runs import (
    Kept,
    Step,
    box,
    chains,
    left,
    moved_by,
    picked,
    resized,
    selection,
    step,
    steps,
)
from biprune.structured.smaller import SMALLER
from biprune.structured.trace import op_name

aten = torch.ops.aten


def without_units(
    labels: Labels,
    gone: Tensor,
    tensors: Mapping[str, Tensor],
    dtype: torch.dtype | None = None,
) -> GraphForm:
    """Build the graph of a traced model without the atoms for which `gone` is True.

    Args:
        labels: Of the model.
        gone: For every atom whether it is gone, with all that it is tied to.
        tensors: Parameters and buffers by the user's names, of which copies are cut.
        dtype: Of the floating-point copies, if it is to be another.

    Returns:
        The graph as a module, in eval mode.

    Raises:
        NoBoxError: What is left of a tensor is no box and cannot be selected.
    """
    return Smaller(labels, gone, tensors, dtype).build()


class NoBoxError(ValueError):
    """What is left of the result of a node is no tensor."""

    def __init__(self, node: fx.Node) -> None:
        super().__init__(f"what is left at {node.name} is no tensor")
        self.node = node


class Smaller:
    """The smaller graph while it is built, node by node; `env` has the new node of each old one."""

    def __init__(
        self,
        labels: Labels,
        gone: Tensor,
        tensors: Mapping[str, Tensor],
        dtype: torch.dtype | None,
    ) -> None:
        self.labels, self.gone, self.tensors, self.dtype = labels, gone, tensors, dtype
        self.graph = fx.Graph()
        self.root = nn.Module()
        self.env: dict[fx.Node, fx.Node] = {}
        self._kept: dict[fx.Node, Any] = {}
        self._numbers = itertools.count()

    def build(self) -> GraphForm:
        """The whole graph as a module."""
        traced = self.labels.traced
        keywords, dtypes = iter(traced.keywords), []
        for node in traced.module.graph.nodes:
            if node.op == "placeholder":
                self.env[node] = self.graph.placeholder(next(keywords))
                dtypes.append(traced.results[node].dtype)
            elif node.op == "get_attr":
                self._tensor(node)
            elif node.op == "output":
                found = fx.map_arg(node.args[0], self.env.__getitem__)
                self.graph.output(tuple(found) if isinstance(found, list | tuple) else (found,))
            elif is_moving(node):
                self._move(node)
            else:
                self._compute(node)
        return GraphForm(self.root, self.graph, traced.sizes, dtypes, traced.nesting)

    # What is left of the results of a node.

    def shape(self, node: fx.Node) -> tuple[int, ...]:
        """The shape on the example, when nothing is gone."""
        return self.labels.traced.results[node].shape

    def kept(self, node: fx.Node) -> Any:
        """What is left along dimensions that lose something; None if that is no box."""
        if node not in self._kept:
            carried = self.labels.carried.get(node)
            if isinstance(carried, list):
                each = [box(self.labels, c, self.gone) if c else {} for c in carried]
                self._kept[node] = None if None in each else each
            else:
                self._kept[node] = {} if carried is None else box(self.labels, carried, self.gone)
        return self._kept[node]

    def count(self, node: fx.Node, dim: int) -> int:
        """How many indices are left along a dimension."""
        kept, shape = self.kept(node), self.shape(node)
        dim %= len(shape)
        return len(kept[dim]) if dim in kept else shape[dim]

    def share(self, node: fx.Node, dims: Sequence[int]) -> float:
        """The part of all indices along these dimensions that is left."""
        part = 1.0
        for dim in dims:
            part *= self.count(node, dim) / self.shape(node)[dim]
        return part

    # New nodes.

    def call(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        """A call of an operation."""
        return self.graph.call_function(target, args, kwargs)

    def constant(self, value: Tensor) -> fx.Node:
        """A tensor of the graph's own."""
        name = f"_constant_{next(self._numbers)}"
        self.root.register_buffer(name, value.detach().clone())
        return self.graph.get_attr(name)

    def copy(self, node: fx.Node, changed: Mapping[int, Any] | None = None) -> fx.Node:
        """A copy of a node, with other arguments in these places."""
        copied = self.graph.node_copy(node, lambda n: self.operand(node, n))
        for place, value in (changed or {}).items():
            copied.update_arg(place, fx.map_arg(value, lambda n: self.env.get(n, n)))
        return copied

    def operand(self, reader: fx.Node, node: fx.Node) -> fx.Node:
        """What a node reads: of a table that others read as well, its own part."""
        found = self.env[node]
        if (reader, node) in self.labels.tables:
            copied = self.labels.copy(self.labels.carried[node], (reader, node))
            for dim, index in (box(self.labels, copied, self.gone) or {}).items():
                found = self.call(aten.index_select.default, found, dim, self.constant(index))
        return found

    def _tensor(self, node: fx.Node) -> None:
        name = self.labels.traced.names.get(str(node.target))
        if name is None:
            value = operator.attrgetter(str(node.target))(self.labels.traced.module)
            self.env[node] = self.constant(value)
            return
        value = self.tensors[name]
        cut = left(value.detach(), {d: i.to(value.device) for d, i in self.kept(node).items()})
        dtype = self.dtype if cut.is_floating_point() else None
        small = cut.to(dtype or cut.dtype, copy=True, memory_format=torch.preserve_format)
        if isinstance(value, nn.Parameter):
            small = nn.Parameter(small, requires_grad=value.requires_grad)
        put(self.root, name, small)
        self.env[node] = self.graph.get_attr(name)

    def _compute(self, node: fx.Node) -> None:
        for operand in node.all_input_nodes:
            if self.kept(operand) is None or (operand not in self.env and operand.op != "get_attr"):
                raise NoBoxError(operand)
        write = SMALLER.get(op_name(node))
        made = None if write is None else write(self, node)
        self.env[node] = self.copy(node) if made is None else made

    # Moving operations.

    def _move(self, node: fx.Node) -> None:
        source = node.args[0]
        if isinstance(source, fx.Node) and source in self.env:
            before = self.labels.carried.get(source)
            stays = not isinstance(before, Carried) or not (
                self._changes(source) or self._changes(node)
            )
            if stays or op_name(node) == "expand_as":
                self.env[node] = self.copy(node)
                return
            if (after := self.kept(node)) is not None:
                own = step(self.labels, node)
                made = self._moved(
                    own, self.env[source], self.shape(source), self.kept(source), after
                )
                if made is not None:
                    self.env[node] = made
                    return
        if self.kept(node) is not None and isinstance(self.labels.carried.get(node), Carried):
            self._select(node)
        # Else it is no box yet: whoever reads it goes back to where there was one.

    def _changes(self, node: fx.Node) -> bool:
        kept = self.kept(node)
        return kept is None or (any(kept) if isinstance(kept, list) else bool(kept))

    def _moved(
        self, own: Step, source: fx.Node, shape: tuple[int, ...], before: Kept, after: Any
    ) -> fx.Node | None:
        """A moving operation on what is left; None if that is not what is left of its result."""
        try:
            new = resized(own, shape, before, after)
            for dim, size in enumerate(shape):
                whole = spread(torch.arange(size), dim, shape)
                expected = moved_by(self.labels, own, whole)
                if size > 1 and not _same(
                    expected, moved_by(self.labels, new, left(whole, before)), after
                ):
                    return None
        except (RuntimeError, ValueError, IndexError):
            return None
        rest = tuple(self.constant(a) if isinstance(a, Tensor) else a for a in new.rest)
        rest = fx.map_arg(rest, lambda n: self.env.get(n, n))
        return self.call(new.target, source, *rest, **fx.map_arg(new.kwargs, self.env.__getitem__))

    def _select(self, node: fx.Node) -> None:
        """A selection for the run of moving operations that ends here, or before it.

        It begins at the last box before the node or, if none of it can be said in that way, at an
        earlier one.
        """
        for run in chains(self.labels, node, self._is_box):
            if (made := self._selection(node, run)) is not None:
                self.env[node] = made
                return
        raise NoBoxError(node)

    def _is_box(self, node: fx.Node) -> bool:
        return node in self.env and self.kept(node) is not None

    def _selection(self, node: fx.Node, run: list[fx.Node]) -> fx.Node | None:
        start: Any = run[0].args[0]
        way, shape = steps(self.labels, run), self.shape(start)
        found = selection(self.labels, shape, way)
        if found is not None:
            dim, line = found
            return self._selected(start, dim, line[self.kept(node).get(dim, slice(None))])
        for dim in self.kept(start):
            picks = picked(self.labels, shape, way, self.kept(start), dim, self.kept(node))
            if picks is None:
                continue
            chosen, on_the_way = picks
            here: Any = self._selected(start, dim, chosen)
            before = {**self.kept(start), dim: chosen}
            for own, after in zip(way, on_the_way, strict=True):
                here = here and self._moved(own, here, shape, before, after)
                before, shape = after, own.shape
            if here is not None:
                return here
        return None

    def _selected(self, start: fx.Node, dim: int, line: Tensor) -> fx.Node | None:
        """What is left of a node at these indices; None if one of them is gone.

        Indices are as they were when nothing was gone.
        """
        size, count = self.shape(start)[dim], self.count(start, dim)
        place = torch.full((size,), -1)
        place[self.kept(start).get(dim, torch.arange(size))] = torch.arange(count)
        chosen = place[line]
        if bool((chosen < 0).any()):
            return None
        if torch.equal(chosen, torch.arange(count)):
            return self.env[start]
        return self.call(aten.index_select.default, self.env[start], dim, self.constant(chosen))


def _same(expected: Any, found: Any, kept: Any) -> bool:
    if isinstance(expected, (list, tuple)):
        triples = zip(expected, found, kept, strict=True)
        return len(expected) == len(found) and all(_same(*each) for each in triples)
    return torch.equal(left(expected, kept), found)
