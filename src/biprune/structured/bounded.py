"""A run of a graph on shapes alone, which ends soon and takes no memory, whoever wrote it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode

from biprune.structured.calls import filled
from biprune.structured.form import GraphForm, held
from biprune.structured.trace import quiet

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
        ValueError: A result is larger than a machine holds, or is not what `filled` needs. What
            torch raises of arguments that do not fit is raised as it is.
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
    """Refuse anything but numbers: lists and texts may be multiplied, and numbers raised high."""
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
