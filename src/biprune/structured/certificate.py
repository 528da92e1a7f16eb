"""The proof that a small model computes what the masked one does, and what was gained."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from biprune.core.documents import from_plain
from biprune.core.files import first_line, printable
from biprune.structured.calls import (
    ByPosition,
    are_finite,
    difference,
    inputs_to_compare,
    outputs,
)
from biprune.structured.form import GraphForm
from biprune.training.checkpoint import digest, only_tensors
from biprune.training.seeding import derive_seed


@contextmanager
def raised(dtype: torch.dtype) -> Iterator[None]:
    """With float64, keep in float64 what a model's own code casts to less."""
    if dtype != torch.float64:
        yield
        return
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with _Raised():
            yield
    finally:
        torch.set_default_dtype(before)


class _Raised(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named = {name: _more(value) for name, value in (kwargs or {}).items()}
        return func(*map(_more, args), **named)


def _more(value: Any) -> Any:
    low = (torch.float32, torch.float16, torch.bfloat16)
    return torch.float64 if isinstance(value, torch.dtype) and value in low else value


# In parts of the largest output. The two models add up the same numbers, but for zeros, in another
# order. A number of float64 is rounded at 1e-16 of itself; sums of thousands of terms through a
# hundred layers stay below 1e-11 of the output, and a unit that was missed shows far above.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}
BATCHES = ((1, 1.0), (3, 10.0))  # samples, and the scale of random inputs
LARGE = (8, 64)  # samples of the large batch, fewer the more a sample costs
LARGE_MACS = 1e10  # of the large batch, about
BLIND = 1e3  # outputs that differ between inputs by less than this times the tolerance show nothing

Indices = Mapping[str, Mapping[int, Sequence[int]]]
Form = Literal["module", "graph"]


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

    Attributes:
        form: "module" for the user's own class with smaller tensors, "graph" for its graph.
        max_error: The largest difference between outputs of the masked and the small model, in
            parts of the largest output.
        tolerance: What was allowed.
        spread: How far outputs differ between inputs.
        dtype: What both models ran in.
        batches: The numbers of samples in the batches that were compared.
        seed: Of these batches.
        units: How many units there were.
        units_removed: How many of them are gone.
        zeros: How many of the masked model's weights were zero.
        zeros_left: How many of these are left.
        before: The size of the masked model.
        after: The size of the small one.
        left_out: The layers in which no unit can be removed, with the reason.
        kept: The indices of the original's parameters and buffers that are left, by name and by
            dimension, where some are gone.
        numbers: What the small model's modules keep beside them, by module and by attribute.
        not_module: Of a graph, why it is not the user's own class.
        weights: A hash of the small model's tensors, which may be trained on.
    """

    form: Form
    max_error: float
    tolerance: float
    spread: float
    dtype: str
    batches: tuple[int, ...]
    seed: int
    units: int
    units_removed: int
    zeros: int
    zeros_left: int
    before: Size
    after: Size
    left_out: Mapping[str, str] = field(repr=False)
    kept: Indices = field(repr=False)
    numbers: Mapping[str, Mapping[str, int]] = field(repr=False)
    not_module: str = ""
    weights: str = field(default="", repr=False)

    @property
    def num_inputs(self) -> int:
        """How many inputs were compared."""
        return sum(self.batches)

    @property
    def is_blind(self) -> bool:
        """Whether outputs depend so little on the input that a mistake might not show."""
        return self.spread < BLIND * self.tolerance

    @property
    def blindness(self) -> str:
        """What `is_blind` says, in words."""
        return (
            f"Outputs hardly depend on the input: they differ by {self.spread:.1e}, which is too "
            "little for a comparison to see a mistake. Try inputs, or weights, for which they do."
        )

    def is_of(self, small: nn.Module) -> bool:
        """Whether the model is as it was when it was certified."""
        return self.weights == hash_of(small)

    def __str__(self) -> str:
        before, after = self.before, self.after
        lines = [
            f"{self.units_removed} of {self.units} units could be removed: "
            f"{before.parameters:,} -> {after.parameters:,} parameters, "
            f"{before.macs:,} -> {after.macs:,} multiply-accumulates, "
            f"{before.bytes:,} -> {after.bytes:,} bytes.",
            f"On batches of {', '.join(map(str, self.batches))} the outputs are those of the "
            f"masked model to {self.max_error:.1e} of their size (allowed {self.tolerance:.0e}, in "
            f"{self.dtype}); between inputs they differ by {self.spread:.1e}.",
        ]
        if self.is_blind:
            lines.append(self.blindness)
        if self.form == "graph":
            lines.append(f"The model is a graph: its own class {self.not_module}.")
        if self.zeros:
            gone = self.zeros - self.zeros_left
            lines.append(f"Of {self.zeros:,} zero weights {gone:,} are gone.")
        if self.zeros_left:
            lines.append(
                f"{self.zeros_left:,} stay: the rest of their unit is not zero, or gives the next "
                "layer numbers that are not zero for every input."
            )
        lines += [f"{name} stays whole: {reason}." for name, reason in self.left_out.items()]
        return "\n".join(map(printable, lines))  # names and reasons may be a file's

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Certificate:
        """Read what `to_json` wrote; a ValueError if it is no certificate."""
        return from_plain(Certificate, data)


def hash_of(model: nn.Module) -> str:
    """A hash of the model's tensors, whatever their memory format."""
    state = only_tensors(model.state_dict())
    return digest({name: state[name].flatten() for name in sorted(state)})


@dataclass(frozen=True)
class Comparison:
    """How far the outputs of two models differ, in parts of the largest output.

    `batches` are the numbers of samples. `reason` says the error in words, or why the small model
    does not run.
    """

    error: float
    batches: tuple[int, ...]
    reason: str


class Comparer:
    """Compares models with a masked one, on the example itself and on fresh inputs.

    Both run in float64, or in float32 if that is all that they or the device can do. In float64
    what the models' own code casts to less stays float64, so that rounding hides no difference.
    Kernels may go other ways for one sample and for many, so both are among the batches; `macs`
    is what a sample costs. `spread` is how far outputs differ between inputs: where that is small,
    little can be seen.
    """

    def __init__(
        self, masked: ByPosition, inputs: tuple[Tensor, ...], seed: int, macs: int
    ) -> None:
        self._seed, self._names = seed, masked.names
        self._batches = [inputs]
        large = int(min(max(LARGE_MACS / max(macs, 1), LARGE[0]), LARGE[1]))
        kinds = ((len(inputs[0]), 1.0), (large, 1.0), *BATCHES)
        for place, (samples, scale) in enumerate(kinds):
            own_seed = derive_seed(seed, 3, place)
            self._batches.append(inputs_to_compare(masked, inputs, samples, own_seed, scale))
        self.dtype = torch.float64
        try:
            self._expected = self._run(masked.model, self._batches)
        except Exception:  # whatever a forward of the user's raises
            self.dtype = torch.float32
            self._expected = self._run(masked.model, self._batches)
        if not all(are_finite(each) for each in self._expected):
            raise ValueError(
                "The model's output for `example_input` is not finite, so that it cannot be "
                "compared. Pass samples that the model is made for."
            )
        pairs = zip(self._expected, self._batches, strict=True)
        self.spread = max(_spread(each, len(batch[0])) for each, batch in pairs)

    def compare(self, small: nn.Module) -> Comparison:
        """The largest difference of outputs, on all batches that a graph was made for."""
        pairs = list(zip(self._batches, self._expected, strict=True))
        if isinstance(small, GraphForm):
            pairs = [(batch, expected) for batch, expected in pairs if small.fits(batch)]
        batches = tuple(len(batch[0]) for batch, _ in pairs)
        try:
            found = self._run(small, [batch for batch, _ in pairs])
        except Exception as error:  # whatever a forward of the user's raises
            line = first_line(error)
            return Comparison(math.inf, batches, f"does not run without the units ({line})")
        both = zip(pairs, found, strict=True)
        errors = [difference(expected, each) for (_, expected), each in both] or [math.inf]
        worst = math.nan if any(map(math.isnan, errors)) else max(errors)
        reason = f"gives other outputs without the units, by {worst:.1e} of their size"
        return Comparison(worst, batches, reason)

    def _run(self, model: nn.Module, batches: Sequence[tuple[Tensor, ...]]) -> list[list[Tensor]]:
        own = ByPosition(copy.deepcopy(model).to(self.dtype), self._names)
        cast = [
            tuple(t.to(self.dtype) if t.is_floating_point() else t for t in each)
            for each in batches
        ]
        with raised(self.dtype):
            return [outputs(own, batch, self._seed) for batch in cast]


def _spread(outputs: Sequence[Tensor], samples: int) -> float:
    """How far outputs differ between the samples of a batch, in parts of the largest."""
    spreads = [0.0]
    for output in outputs:
        if output.ndim and len(output) == samples > 1 and bool(output.abs().max() > 0):
            apart = (output.double() - output[:1].double()).abs().max()
            spreads.append(float(apart / output.double().abs().max()))
    return max(spreads)
