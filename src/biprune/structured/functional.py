"""An exported graph made plain: without regions and assertions, and with nothing in place."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten

_CHECKS = (aten._assert_tensor_metadata, aten._assert_scalar, aten._assert_async)
_REGIONS = ("wrap_with_set_grad_enabled", "wrap_with_autocast")


def drop_checks(module: fx.GraphModule) -> None:
    """Drop assertions, and tensors that nothing reads.

    A copy in float64 would fail the assertions about types; those about sizes are `Traced.sizes`.
    """
    for node in reversed(module.graph.nodes):
        packet = getattr(node.target, "overloadpacket", None)
        if (
            packet in _CHECKS
            or node.op == "call_module"
            or (node.op == "get_attr" and not node.users)
        ):
            module.graph.erase_node(node)


def inline(module: fx.GraphModule) -> None:
    """Put the bodies of `no_grad` and autocast regions in their place."""
    while regions := [n for n in module.graph.nodes if _is_region(n)]:
        for node in regions:
            place = next(i for i, a in enumerate(node.args) if _is_submodule(module, a))
            body = operator.attrgetter(node.args[place].target)(module)
            operands = node.args[place + 1 :]
            inputs = [n for n in body.graph.nodes if n.op == "placeholder"]
            mapping = dict(zip(inputs, operands, strict=True))
            with module.graph.inserting_before(node):
                results = _copy_into(module.graph, body.graph, mapping)
            for user in list(node.users):  # each takes one of the results
                user.replace_all_uses_with(results[user.args[1]])
                module.graph.erase_node(user)
            module.graph.erase_node(node)


def _is_region(node: fx.Node) -> bool:
    return node.op == "call_function" and getattr(node.target, "__name__", "") in _REGIONS


def _is_submodule(module: fx.GraphModule, argument: Any) -> bool:
    return (
        isinstance(argument, fx.Node)
        and argument.op == "get_attr"
        and isinstance(operator.attrgetter(str(argument.target))(module), fx.GraphModule)
    )


def _copy_into(into: fx.Graph, body: fx.Graph, mapping: dict[fx.Node, Any]) -> Any:
    for node in body.nodes:
        if node.op == "output":
            return fx.map_arg(node.args[0], lambda n: mapping[n])
        if node.op != "placeholder":
            mapping[node] = into.node_copy(node, lambda n: mapping[n])
    return ()


def _written(node: fx.Node) -> Any:
    """The functional form of an operation that writes into its first argument, else None."""
    packet = getattr(node.target, "overloadpacket", None)
    if packet is None or not packet.__name__.endswith("_") or packet.__name__.startswith("_"):
        return None
    return getattr(aten, packet.__name__[:-1], None)


def writes_into_views(graph: fx.Graph) -> bool:
    """Whether a write shows in a tensor that is read later under the name of another node.

    If none does, whatever reads later reads the result of the writing operation itself.
    """
    place = {node: index for index, node in enumerate(graph.nodes)}
    base: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        source = node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None
        shares = source is not None and (_is_view(node) or _written(node) is not None)
        base[node] = base[source] if shares else node  # pyright: ignore[reportArgumentType]
    for node in graph.nodes:
        if _written(node) is None:
            continue
        if base[node].op in ("placeholder", "get_attr"):
            return True
        for other, its_base in base.items():
            earlier = its_base is base[node] and place[other] < place[node]
            if earlier and any(place[user] > place[node] for user in other.users):
                return True
    return False


def _is_view(node: fx.Node) -> bool:
    if node.target is operator.getitem:
        return True
    packet = getattr(node.target, "overloadpacket", None)
    shared = (aten.reshape, aten.flatten, aten.contiguous, aten.to, aten.unflatten, aten.expand_as)
    return packet in shared or bool(getattr(node.target, "is_view", False))


def functional(graph: fx.Graph) -> None:
    """Replace operations that write in place by those that return their result."""
    for node in graph.nodes:
        packet = _written(node)
        if packet is not None:
            overload = node.target._overloadname
            if overload in packet.overloads():
                node.target = getattr(packet, overload)
