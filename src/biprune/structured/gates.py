"""Where the output of a unit is linear in parameters: what its gate multiplies.

For each producer of a unit that is the weight and bias of the norms that follow it, if it goes to
norms only (a norm undoes the scale of what comes before it), else its own weight and bias. For
a unit that is multiplied with other activations, as heads are, it is what reads it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import fx

from biprune.core.groups import Role
from biprune.structured.labels import Key, Labels
from biprune.structured.trace import op_name

_NORMS = ("batch_norm", "instance_norm", "group_norm", "_native_batch_norm_legit_no_training")
_PRODUCTS = (
    *("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "mv"),
    *("conv1d", "conv2d", "conv3d", "convolution"),
    *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
)
_ENDS = (*_PRODUCTS, "layer_norm", "rms_norm", "scaled_dot_product_attention")


class Gates:
    """The gated parameters of each producer in a graph."""

    def __init__(self, labels: Labels, roles: Mapping[Key, Role]) -> None:
        self._labels, self._roles = labels, roles
        self._made_of = _sources(labels)
        self._producers: list[tuple[set[Key], set[Key], bool]] = []
        for node in labels.traced.module.graph.nodes:
            weights = self._weights(node)
            if any(roles.get(key) == "filter" for key in weights):
                norms, multiplied = self._after(node)
                self._producers.append((weights, norms, multiplied))

    def of(self, keys: Collection[Key]) -> set[Key]:
        """Which of a unit's slices are gated."""
        gated: set[Key] = set()
        mine = set(keys)
        readers = {key for key in mine if self._roles[key] == "input"}
        for own, norms, multiplied in self._producers:
            written = {key for key in own & mine if self._roles[key] != "input"}
            if not any(self._roles[key] == "filter" for key in written):
                continue
            if multiplied and readers:
                return readers
            gated |= (norms & mine) or written
        return gated

    def _weights(self, node: fx.Node) -> set[Key]:
        """The dimensions of parameters that a product or embedding takes as they are."""
        if op_name(node) not in (*_PRODUCTS, "embedding"):
            return set()
        return {key for operand in node.all_input_nodes for key in self._made_of.get(operand, ())}

    def _after(self, node: fx.Node) -> tuple[set[Key], bool]:
        """The norms that a result goes to, if it goes to norms only; whether it is multiplied
        with activations on its way."""
        norms: set[Key] = set()
        only, multiplied = True, False
        waiting, seen = list(node.users), {node}
        while waiting:
            after = waiting.pop()
            if after in seen:
                continue
            seen.add(after)
            name = op_name(after)
            if name in _NORMS:
                norms |= {k for n in after.all_input_nodes for k in self._made_of.get(n, ())}
            elif after.op == "output" or (name in _ENDS and not self._is_depthwise(after)):
                only = False
                multiplied |= name in _ENDS and after in self._labels.products
            else:
                waiting += after.users
        return (norms if only else set()), multiplied

    def _is_depthwise(self, node: fx.Node) -> bool:
        """A grouped convolution that loses groups does not mix units."""
        if not op_name(node).startswith("conv"):
            return False
        groups = 8 if op_name(node) == "convolution" else 6
        count = node.args[groups] if len(node.args) > groups else node.kwargs.get("groups", 1)
        channels = self._labels.traced.results[node.all_input_nodes[0]].shape[1]
        return isinstance(count, int) and count > 1 and count >= channels // count


def _sources(labels: Labels) -> dict[fx.Node, set[Key]]:
    """The parameters that constant nodes are made of."""
    found: dict[fx.Node, set[Key]] = {}
    for node in labels.traced.module.graph.nodes:
        if node.op == "get_attr":
            name = labels.traced.names.get(str(node.target))
            found[node] = {key for key in labels.owned if key[0] == name}
        elif node.op == "call_function" and node.all_input_nodes:
            made_of = [found.get(operand) for operand in node.all_input_nodes]
            if None not in made_of:
                found[node] = {key for keys in made_of if keys is not None for key in keys}
    return found
