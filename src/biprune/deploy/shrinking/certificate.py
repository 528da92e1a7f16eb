"""The proof that a small model computes what the masked one does, and what was gained."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from biprune.checkpoint import digest, only_tensors
from biprune.deploy.outputs import are_finite, difference, inputs_to_compare, outputs
from biprune.seeding import derive_seed

# In parts of the largest output. The two models add up the same numbers, but for zeros, in another
# order. A number of float64 is rounded at 1e-16 of itself; sums of thousands of terms through a
# hundred layers stay below 1e-11 of the output, and a unit that was missed shows far above.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}
SAMPLES = 4
SCALES = (1.0, 1.0, 10.0)  # of the random inputs, one batch each

Indices = Mapping[str, Mapping[int, Sequence[int]]]


@dataclass(frozen=True)
class Size:
    """Parameters, multiply-accumulates for one sample, and bytes of the state."""

    parameters: int
    macs: int
    bytes: int

    @staticmethod
    def of(model: nn.Module, macs: int) -> Size:
        """Measure a model that takes `macs`."""
        state = only_tensors(model.state_dict()).values()
        return Size(
            sum(parameter.numel() for parameter in model.parameters()),
            macs,
            sum(tensor.numel() * tensor.element_size() for tensor in state),
        )


@dataclass(frozen=True)
class Certificate:
    """What `shrink` found out; on the model that it returns.

    `max_error` is the largest difference between outputs of the masked and the small model on
    `num_inputs` inputs, in parts of the largest output; both ran in `dtype`. `kept` are the indices
    of the original's parameters that the small model has, by name and dimension, where some are
    gone. `weights` is a hash of the small model's, which may be trained on. `zeros` of the masked
    model's weights were zero and `zeros_left` still are. `left_out` are the layers in which no unit
    can be removed, with the reason; `replaced` the modules of attention that were put together
    anew, with their former class.
    """

    max_error: float
    tolerance: float
    dtype: str
    num_inputs: int
    seed: int
    units: int
    units_removed: int
    zeros: int
    zeros_left: int
    before: Size
    after: Size
    left_out: Mapping[str, str] = field(repr=False)
    replaced: Mapping[str, str] = field(repr=False)
    kept: Indices = field(repr=False)
    weights: str = field(default="", repr=False)  # files of before have none

    def is_of(self, small: nn.Module) -> bool:
        """Whether the model is as it was when it was certified, as far as is known."""
        return self.weights in ("", hash_of(small))

    def __str__(self) -> str:
        before, after = self.before, self.after
        lines = [
            f"{self.units_removed} of {self.units} units could be removed: "
            f"{before.parameters:,} -> {after.parameters:,} parameters, "
            f"{before.macs:,} -> {after.macs:,} multiply-accumulates, "
            f"{before.bytes:,} -> {after.bytes:,} bytes.",
            f"On {self.num_inputs} inputs the outputs are those of the masked model to "
            f"{self.max_error:.1e} of their size (allowed {self.tolerance:.0e}, in {self.dtype}).",
        ]
        if self.zeros:
            gone = self.zeros - self.zeros_left
            lines.append(f"Of {self.zeros:,} zero weights {gone:,} are gone.")
        if self.zeros_left:
            lines.append(
                f"{self.zeros_left:,} stay: the rest of their unit is not zero, or gives the next "
                "layer numbers that are not zero for every input."
            )
        lines += [f"{name} stays whole: {reason}." for name, reason in self.left_out.items()]
        lines += [f"{name} is no {kind} any more." for name, kind in self.replaced.items()]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Certificate:
        """The certificate that `to_json` wrote; ValueError or TypeError if it is none."""
        kept = {
            name: {int(dim): [int(i) for i in index] for dim, index in dims.items()}
            for name, dims in data["kept"].items()
        }
        sizes = {name: Size(**data[name]) for name in ("before", "after")}
        return Certificate(**{**data, "kept": kept, **sizes})


def hash_of(model: nn.Module) -> str:
    """A hash of the model's tensors, whatever their memory format."""
    state = only_tensors(model.state_dict())
    return digest({name: tensor.flatten() for name, tensor in state.items()})


def certified_error(
    masked: nn.Module, small: nn.Module, inputs: tuple[Tensor, ...], seed: int
) -> tuple[float, torch.dtype, int]:
    """The largest difference of outputs, in parts of the largest; the precision; how many inputs.

    Inputs are the example itself and random batches. Both models run in float64, or in float32 if
    that is all that they or the device can do. Costs about five forwards of the small and ten of
    the masked model.
    """
    batches = [inputs]
    for place, scale in enumerate(SCALES):
        own_seed = derive_seed(seed, 3, place)
        batches.append(inputs_to_compare(masked, inputs, SAMPLES, own_seed, scale))
    num_inputs = sum(len(batch[0]) for batch in batches)
    try:
        expected, dtype = _run(masked, batches, torch.float64, seed), torch.float64
    except Exception:  # whatever a forward of the user's raises
        expected, dtype = _run(masked, batches, torch.float32, seed), torch.float32
    if not are_finite(expected):
        raise ValueError(
            "The model's output for `example_input` is not finite, so that it cannot be compared. "
            "Pass samples that the model is made for."
        )
    try:
        found = _run(small, batches, dtype, seed)
    except Exception:  # whatever a forward of the user's raises
        return math.inf, dtype, num_inputs
    return difference(expected, found), dtype, num_inputs


def _run(
    model: nn.Module, batches: Sequence[tuple[Tensor, ...]], dtype: torch.dtype, seed: int
) -> list[Tensor]:
    """The outputs for all batches."""
    model = copy.deepcopy(model).to(dtype)
    cast = [tuple(t.to(dtype) if t.is_floating_point() else t for t in each) for each in batches]
    return [tensor for batch in cast for tensor in outputs(model, batch, seed)]
