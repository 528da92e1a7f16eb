"""Which channels of which layers are tied, as torch-pruning's dependency graph sees it.

The graph says how an index at one layer's output continues at the next layer's input, through
concatenations, splits, residual sums and reshapes. Here these ties are closed to components, so
that every channel is in one, whichever layer one comes from. The graph takes whatever it does not
know for an elementwise operation; `trial` finds out where that is wrong.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from biprune.batches import tensors_in
from biprune.deploy.outputs import first_line
from biprune.deploy.surgery.layers import Side, loses_groups


class Channel(NamedTuple):
    """An index at the input or output of a node: of a layer, a parameter or an operation."""

    node: int
    side: Side
    position: int


class Components:
    """Sets that are merged as ties are found (union-find)."""

    def __init__(self) -> None:
        self._parent: dict[Any, Any] = {}

    def find(self, item: Any) -> Any:
        """The representative of the set that an item is in."""
        parent = self._parent.setdefault(item, item)
        while parent != item:
            grand = self._parent[parent]
            self._parent[item] = grand
            item, parent = parent, grand
        return item

    def tie(self, one: Any, other: Any) -> None:
        """Merge the sets of two items."""
        self._parent[self.find(one)] = self.find(other)

    def items(self) -> list[Any]:
        """Everything that is in a set, as of now."""
        return list(self._parent)

    def sets(self) -> list[list[Any]]:
        """All sets."""
        found = defaultdict(list)
        for item in self._parent:
            found[self.find(item)].append(item)
        return list(found.values())


class Traced(NamedTuple):
    """The channels of a model, tied, and what the numbers of their nodes stand for.

    `layers` has the module or parameter behind a node; `dims` the dimension that the index of a
    parameter is along; `outputs` the nodes whose results the model returns; `norms` the norms that
    a layer's output goes to, if it goes to norms only.
    """

    components: Components
    layers: dict[int, nn.Module | nn.Parameter]
    dims: dict[int, int]
    outputs: set[int]
    norms: dict[int, list[nn.Module]]


def trace(
    model: nn.Module, inputs: tuple[Tensor, ...], is_root: Callable[[nn.Module], bool]
) -> Traced:
    """Follow every output channel of the layers that `is_root` names through the model.

    Costs a forward, and time in the number of channels. All parameters must require gradients.
    """
    graph = _graph(model, inputs)
    nodes = list(graph.module2node.values())
    number = {id(node): place for place, node in enumerate(nodes)}
    roots = [n for n in nodes if isinstance(n.module, _ConvNd | nn.Linear) and is_root(n.module)]
    return Traced(
        _tied_channels(graph, roots, number),
        {number[id(node)]: node.module for node in nodes},
        {number[id(node)]: node.pruning_dim for node in nodes},
        {number[id(node)] for node in nodes if not node.outputs},
        {number[id(node)]: _norms_after(node) for node in nodes},
    )


def _tied_channels(graph: Any, roots: list[Any], number: Mapping[int, int]) -> Components:
    """All channels that can be reached from the outputs of `roots`."""
    components = Components()
    reached: set[Channel] = set()

    def end(node: Any, function: Any) -> tuple[int, Side]:
        """The end of a node that a function of torch-pruning's works on."""
        into = graph.get_pruner_of_module(node.module).prune_in_channels
        return number[id(node)], "in" if function == into else "out"

    waiting: list[tuple[Any, Any, Iterable[int]]] = []
    for root in roots:
        function = graph.get_pruner_of_module(root.module).prune_out_channels
        waiting.append((root, function, range(graph.get_out_channels(root))))
    while waiting:
        node, function, indices = waiting.pop()
        here = end(node, function)
        new = [index for index in indices if Channel(*here, index) not in reached]
        reached.update(Channel(*here, index) for index in new)
        for index in new:
            components.find(Channel(*here, index))
        for dependency in node.dependencies if new else ():
            if dependency.is_triggered_by(function):
                there = end(dependency.target, dependency.handler)
                pairs = list(_mapped(dependency, new))
                for source, target in pairs:
                    components.tie(Channel(*here, source), Channel(*there, target))
                waiting.append((dependency.target, dependency.handler, [t for _, t in pairs]))
    return components


def _norms_after(node: Any) -> list[nn.Module]:
    """The norms that a node's output goes to, if it goes to norms only.

    Directly or through operations and activations: most of them keep a scale or nearly so, and the
    norm undoes it; where they do not, the unit's output is linear in the norm all the same.
    """
    norms, waiting, seen = [], list(node.outputs), {id(node)}
    while waiting:
        after = waiting.pop()
        if id(after) in seen:
            continue
        seen.add(id(after))
        if isinstance(after.module, _NormBase | nn.GroupNorm):
            norms.append(after.module)
        elif after.outputs and _is_operation(after.module):
            waiting += after.outputs
        else:
            return []
    return norms


def _is_operation(module: nn.Module) -> bool:
    """Whether a node of the graph is no layer, or one that does not mix units."""
    if isinstance(module, _ConvNd):
        return loses_groups(module)
    return isinstance(module, nn.PReLU) or type(module).__module__.startswith("torch_pruning")


def _mapped(dependency: Any, indices: list[int]) -> Iterator[tuple[int, int]]:
    """Index at the source and at the target of a dependency."""
    from torch_pruning._helpers import _HybridIndex

    moved = [_HybridIndex(idx=index, root_idx=index) for index in indices]
    for mapping in dependency.index_mapping:
        if mapping is not None:
            moved = mapping(moved)
    yield from ((each.root_idx, each.idx) for each in moved if each.root_idx is not None)


def _graph(model: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # it warns of parameters and operations that are not its own
        import torch_pruning

        graph = torch_pruning.DependencyGraph()
        try:
            with torch.enable_grad():
                graph.build_dependency(model, inputs, output_transform=_tensors, verbose=False)
        except Exception as error:
            raise ValueError(
                f"The coupled groups of this model cannot be found ({type(error).__name__}: "
                f"{first_line(error)}). Prune it by structure 'filter' or 'weight'."
            ) from error
    return graph


def _tensors(output: object) -> list[Tensor]:
    """The tensors in what a model returned, that gradients reach."""
    return [tensor for tensor in tensors_in(output) if tensor.grad_fn is not None]
