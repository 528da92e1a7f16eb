"""What a model returns, as tensors that can be compared."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import get_args

import torch
from torch import Tensor, nn

from biprune.core.files import first_line
from biprune.structured.calls import output_tensors
from biprune.structured.inputs import Draw, random_inputs
from biprune.training.evaluation import evaluation_mode
from biprune.training.seeding import forked_rng

PASS_ANOTHER = (
    "Pass an `example_input` that it runs on, with samples along the first dimension: a batch, or "
    "a tuple of arguments."
)


@torch.no_grad()
def outputs(model: nn.Module, inputs: tuple[Tensor, ...], seed: int) -> list[Tensor]:
    """The tensors that a forward returns; whatever it draws is drawn from `seed`."""
    with forked_rng(()):
        torch.manual_seed(seed)
        found = list(output_tensors(model(*inputs)))
    if not found:
        raise ValueError("The model returns no tensors, so that nothing can be compared.")
    return found


def check_runs(
    model: nn.Module, inputs: tuple[Tensor, ...], called: str = "", advice: str = ""
) -> None:
    """Refuse inputs that the model does not run on, `called` what the user knows them by."""
    try:
        with evaluation_mode(model):
            outputs(model, inputs, seed=0)
    except Exception as error:  # whatever a forward of the user's raises
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in inputs)
        raise ValueError(
            f"The model does not run on {called or f'`example_input` of shape {shapes}'} "
            f"({type(error).__name__}: {first_line(error)}). {advice or PASS_ANOTHER}"
        ) from error


def inputs_to_compare(
    model: nn.Module, inputs: tuple[Tensor, ...], wanted: int, seed: int, scale: float = 1.0
) -> tuple[Tensor, ...]:
    """Random samples like those of `inputs` for which the outputs of `model` are finite.

    `wanted` of them, or as many as in `inputs` if the model takes no other number. They are normal,
    times `scale`; but a model may take the logarithm of what it gets, and then they are within the
    range of `inputs`, or rows of it; see `random_inputs`. If none will do, `inputs` as they are.
    """
    for size in dict.fromkeys((wanted, len(inputs[0]))):
        for draw in get_args(Draw):
            try:
                drawn = random_inputs(inputs, size, seed, draw)
                if draw == "normal":
                    drawn = tuple(t * scale if t.is_floating_point() else t for t in drawn)
                found = outputs(model, drawn, seed)
            except Exception:  # whatever a forward of the user's raises
                continue
            if are_finite(found):
                return drawn
    return inputs


def are_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether every number of the tensors is finite."""
    return all(bool(tensor.isfinite().all()) for tensor in tensors)


def difference(expected: Sequence[Tensor], found: Sequence[Tensor]) -> float:
    """The largest difference, in parts of the largest number in its tensor.

    Infinite if shapes differ, nan if a number is nan.
    """
    if [tensor.shape for tensor in expected] != [tensor.shape for tensor in found]:
        return math.inf
    errors = [0.0]
    for one, other in zip(expected, found, strict=True):
        if one.numel():
            one, other = one.double(), other.double()
            scale = torch.maximum(one.abs().max(), other.abs().max())
            errors.append(float((one - other).abs().max() / torch.where(scale == 0, 1.0, scale)))
    return math.nan if any(map(math.isnan, errors)) else max(errors)
