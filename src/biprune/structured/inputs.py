"""Example inputs: what a model is run on when only the shapes matter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import torch
from torch import Tensor

# What a unit of attention is: a head with the queries that share its key and value, one head of
# queries, or index d of all heads.
Attention = Literal["heads", "queries", "width"]
Draw = Literal["normal", "range", "rows"]
Inputs = Tensor | tuple[Tensor, ...] | Mapping[str, Tensor]


def check_attention(attention: object) -> None:
    """Refuse a unit of attention that there is not."""
    if attention not in get_args(Attention):
        allowed = ", ".join(map(repr, get_args(Attention)))
        raise ValueError(f"`attention` must be one of {allowed}, got {attention!r}.")


def as_inputs(example_input: Inputs) -> tuple[Tensor, ...]:
    """The arguments of a forward; the first must hold samples along its first dimension."""
    if isinstance(example_input, Mapping):
        raise ValueError(
            "`example_input` must be a tensor or a tuple of them here, not a mapping of keyword "
            "arguments: pass the arguments in their order."
        )
    inputs = (example_input,) if isinstance(example_input, Tensor) else tuple(example_input)
    if inputs and isinstance(inputs[0], Tensor) and inputs[0].ndim and len(inputs[0]):
        return inputs
    shapes = [tuple(i.shape) if isinstance(i, Tensor) else type(i).__name__ for i in inputs]
    raise ValueError(
        "`example_input` must be a batch of samples along the first dimension, or a tuple that "
        f"begins with one, got {', '.join(map(str, shapes)) or 'an empty tuple'}."
    )


def batched(inputs: tuple[Tensor, ...]) -> list[bool]:
    """Which of the arguments hold samples: those that are as long as the first."""
    return [tensor.ndim > 0 and len(tensor) == len(inputs[0]) for tensor in inputs]


def random_inputs(
    inputs: tuple[Tensor, ...], size: int, seed: int, draw: Draw = "normal"
) -> tuple[Tensor, ...]:
    """`size` samples like those of `inputs`.

    Floats are "normal" numbers, or uniform within the "range" of the argument, or "rows" of it.
    Integers and booleans are always rows. Rows are the same of all arguments: they may belong
    together, as tokens and their mask do.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(len(inputs[0]), (size,), generator=generator)

    def drawn(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point() or draw == "rows":
            return tensor[rows.to(tensor.device)]
        shape = (size, *tensor.shape[1:])
        if draw == "normal":
            return torch.randn(shape, generator=generator, dtype=tensor.dtype).to(tensor.device)
        share = torch.rand(shape, generator=generator, dtype=tensor.dtype).to(tensor.device)
        return torch.lerp(tensor.min(), tensor.max(), share)

    pairs = zip(inputs, batched(inputs), strict=True)
    return tuple(drawn(tensor) if holds_samples else tensor for tensor, holds_samples in pairs)
