"""Multiply-accumulates of a model, by the weight that does them, and of products of activations.

The forward runs once, and every product of tensors in it is seen as it reaches a kernel, whoever
wrote the call. So modules that are called twice count twice, and functional code counts as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_flop

from biprune.core.groups import Group
from biprune.core.parameters import parameter_names, unwrap
from biprune.core.uses import slow_attention
from biprune.structured.atoms import along, varies
from biprune.structured.calls import Inputs, by_position
from biprune.structured.labels import CONVOLUTIONS, Labels, Product
from biprune.structured.rules import is_moving
from biprune.structured.trace import op_name
from biprune.training.batches import evaluation_mode
from biprune.training.seeding import forked_rng


def count_macs(model: nn.Module, example_input: Inputs) -> dict[str, int]:
    """Count the multiply-accumulates of one forward for one sample, by weight, in model order.

    A product of two activations, as there are two in attention, counts to the weight that was used
    last before it: `in_proj_weight` in nn.MultiheadAttention. Convolutions count the padding.
    Biases, norms, activations and weights that are not used have no entry.

    Costs a forward in eval mode. Mode, buffers and the caller's random generators stay as they are.

    Args:
        model: Any module.
        example_input: One batch of any size, samples along its first dimension. What is counted is
            divided by that size.

    Returns:
        Multiply-accumulates by the weight's name.

    >>> count_macs(nn.Sequential(nn.Conv2d(3, 8, 3, padding=1)), torch.zeros(2, 3, 4, 4))
    {'0.weight': 3456}
    """
    counter, samples = _counted(model, example_input)
    counts = {name: flops // (2 * samples) for name, flops in counter.flops.items()}
    return {name: count for name, count in counts.items() if count}


def total_macs(model: nn.Module, example_input: Inputs) -> int:
    """Multiply-accumulates of one forward for one sample; see `count_macs`."""
    return sum(count_macs(model, example_input).values())


def macs_of_units(
    model: nn.Module, example_input: Inputs, labels: Labels, groups: Sequence[Group]
) -> tuple[dict[str, int], dict[str, int]]:
    """The multiply-accumulates that the cost of coupled groups follows from.

    Args:
        model: The model that the groups are of.
        example_input: As for `count_macs`.
        labels: The labels that the groups were found by.
        groups: The groups.

    Returns:
        Those of products by a weight, by its name; and those of products of activations, by the
        group that they grow with, or "" for none.
    """
    counter, samples = _counted(model, example_input)
    alone = {name: flops - counter.products[name] for name, flops in counter.flops.items()}
    whole = sum(counter.products.values()) // (2 * samples)
    by_weight = {name: flops // (2 * samples) for name, flops in alone.items() if flops}
    return by_weight, _by_group(labels, groups, whole) if whole else {}


def _by_group(labels: Labels, groups: Sequence[Group], whole: int) -> dict[str, int]:
    """All the multiply-accumulates of products of activations, shared out among groups.

    A product that grows along several dimensions counts to the first, and there to each group by
    the part that it has of it.
    """
    roots = labels.atoms.roots()
    owner: dict[int, str] = {}
    for group in groups:
        first = group.slices[0]
        own = roots[labels.owned[first.tensor, first.dim]][first.places[:, 0]]
        owner.update(dict.fromkeys(own.tolist(), group.name))
    shares: dict[str, int] = {}
    products = [*labels.products.values(), *_by_computed_weights(labels)]
    for product in products:
        lines = ([owner.get(root) for root in roots[line].tolist()] for line in product.lines)
        owners = next((line for line in lines if any(line)), [])
        for name in filter(None, dict.fromkeys(owners)):
            share = product.macs * owners.count(name) // len(owners)
            shares[name] = shares.get(name, 0) + share
    # What is counted here is of a batch, and may leave out some products by weights.
    samples = next(r.shape[0] for n, r in labels.traced.results.items() if n.op == "placeholder")
    total = max(sum(product.macs for product in products), whole * samples)
    found = {name: macs * whole // total for name, macs in shares.items()}
    return {**found, "": whole - sum(found.values())}


def _by_computed_weights(labels: Labels) -> Iterator[Product]:
    """Products by weights that are computed of parameters, as weight norm does.

    Each grows with the channels that it writes and reads. Those of weights that are parameters
    count to these.
    """
    for node in labels.traced.module.graph.nodes:
        if op_name(node) not in CONVOLUTIONS or not isinstance(node.args[1], fx.Node):
            continue
        source = node.args[1]
        while is_moving(source) and isinstance(source.args[0], fx.Node):
            source = source.args[0]
        if source.op == "get_attr":
            continue
        result, weight = labels.carried[node], labels.carried[node.args[1]]
        channel = len(result.shape) - len(weight.shape) + 1
        planes = (*result.planes, *labels.carried[node.all_input_nodes[0]].planes)
        settled = (labels.atoms.settled(plane.labels) for plane in planes)
        lines = [along(own, channel) for own in settled if varies(own) == (channel,)]
        written = 1 if "transpose" in op_name(node) else 0
        macs = prod(result.shape) * prod(weight.shape) // weight.shape[written]
        yield Product(macs, lines)


def _counted(model: nn.Module, example_input: Inputs) -> tuple[_Counter, int]:
    """What one forward does, and on how many samples."""
    called, inputs = by_position(unwrap(model), example_input)
    model = called.model
    counter = _Counter({name: p for name, p in parameter_names(model).items() if p.ndim >= 2})
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    named = dict(zip(called.names, inputs, strict=True)) if called.names else {}
    args = () if called.names else inputs
    with evaluation_mode(model), slow_attention(), forked_rng(()), torch.no_grad(), counter:
        functional_call(model, buffers, args, named)
    return counter, len(inputs[0])


class _Counter(TorchDispatchMode):
    """Adds up the flops of each operation that has a formula, two to a multiply-accumulate."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.flops = dict.fromkeys(weights, 0)
        self.products = dict.fromkeys(weights, 0)  # of activations, after each weight
        self._weights = weights
        self._last: str | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        formula = _FORMULAS.get(func.overloadpacket)
        if formula is None:
            # Inference tensors bring whole operations such as linear here: look into those.
            with self:
                inner = func.decompose(*args, **kwargs)
            return func(*args, **kwargs) if inner is NotImplemented else inner
        result = func(*args, **kwargs)
        flops, weight = formula(*args, **kwargs, out_val=result), self._weight_among(args)
        self._last = weight or self._last
        if self._last is not None:
            self.flops[self._last] += flops
            if weight is None:
                self.products[self._last] += flops
        return result

    def _weight_among(self, args: tuple[Any, ...]) -> str | None:
        """The weight that an operation multiplies by, or a view of it: the last such argument."""
        for tensor in reversed([arg for arg in args if isinstance(arg, Tensor)]):
            storage, start = _place(tensor)
            for name, weight in self._weights.items():
                own_storage, own_start = _place(weight)
                if storage == own_storage and 0 <= start - own_start < weight.numel():
                    return name
        return None


def _place(tensor: Tensor) -> tuple[int, int]:
    """The storage and where in it a tensor begins; tensors without memory have one as well."""
    return tensor.untyped_storage()._cdata, int(tensor.storage_offset())


def _bilinear_flop(*args: Any, out_val: Tensor, **kwargs: Any) -> int:
    return 2 * prod(out_val.shape[:-1]) * args[1].numel()


# Torch's own formulas, and those of two operations that it has none for.
_FORMULAS: dict[Any, Callable[..., int]] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: sdpa_flop,
    torch.ops.aten._trilinear: _bilinear_flop,
    **flop_registry,
}
