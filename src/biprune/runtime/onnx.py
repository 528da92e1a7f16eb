"""ONNX files: one file, any batch size, compared with the model before it is there.

The exporter notes in every node which line of which file it came from. That is taken out: the file
is as large as its weights and its graph, and says nothing of the machine it was made on.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from biprune.core.checks import check_positive
from biprune.core.files import replaced
from biprune.core.parameters import unwrap
from biprune.runtime.runtime import OnnxModel, require_onnx
from biprune.structured.inputs import Inputs, as_inputs, batched, random_inputs
from biprune.structured.outputs import difference, outputs
from biprune.training.batches import tensors_in
from biprune.training.checkpoint import only_tensors
from biprune.training.evaluation import evaluation_mode
from biprune.training.seeding import forked_rng

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from onnx import ModelProto

BATCHES = (1, 2, 7)
LIMIT = 2_000_000_000  # bytes; a protobuf cannot be longer than 2 GiB


@dataclass(frozen=True)
class OnnxCheck:
    """What was written, and how far onnxruntime is from PyTorch.

    `error` is the largest difference over all `batches`, in parts of the largest number in its
    output.
    """

    path: Path
    bytes: int
    opset: int
    batches: tuple[int, ...]
    error: float
    tolerance: float


def export_onnx(
    model: nn.Module,
    path: Path | str,
    example_input: Inputs,
    *,
    opset: int | None = None,
    tolerance: float = 1e-4,
) -> OnnxCheck:
    """Write `model` in eval mode as one ONNX file, weights inside, for batches of any size.

    The file passes ONNX's own checker and is run by onnxruntime on random inputs like
    `example_input` at batch 1, 2 and 7; if an output is further than `tolerance` from PyTorch's,
    a ValueError gives the figures and nothing is written. Inputs and outputs are called "input" and
    "output", with a number where there are several; of a nest of outputs the file has the tensors.
    `opset` defaults to the exporter's. The model is as before afterwards. Needs the extra:
    pip install 'biprune[onnx]'.
    """
    require_onnx()
    import onnx

    check_positive("tolerance", tolerance)
    model, inputs = unwrap(model), as_inputs(example_input)
    size = sum(tensor.nbytes for tensor in only_tensors(model.state_dict()).values())
    if size > LIMIT:
        raise ValueError(
            f"The model's weights take {size / 1e9:.1f} GB, and one ONNX file holds at most 2 GB. "
            "Use `torch.onnx.export(..., external_data=True)`, which writes several."
        )
    with evaluation_mode(model), forked_rng(()), replaced(path) as temporary:
        samples = [_sample(model, inputs, size) for size in BATCHES]
        proto = _exported(model, inputs, len(samples[0].outputs), opset)
        temporary.write_bytes(proto.SerializeToString())
        onnx.checker.check_model(str(temporary), full_check=True)
        written = OnnxModel(temporary)
        found = [output for sample in samples for output in written(*sample.inputs)]
        error = difference([output for sample in samples for output in sample.outputs], found)
        if not error <= tolerance:
            raise ValueError(
                f"The ONNX file does not compute what the model does: its outputs differ by "
                f"{error:.2g} of the largest, and `tolerance` is {tolerance:.2g}. Nothing was "
                "written."
            )
    size, version = Path(path).stat().st_size, _opset(proto)
    return OnnxCheck(Path(path), size, version, BATCHES, error, tolerance)


@dataclass(frozen=True)
class _Sample:
    """A random batch, and what the model makes of it."""

    inputs: tuple[Tensor, ...]
    outputs: list[Tensor]


class _Flat(nn.Module):
    """A model that returns the tensors of its outputs, and nothing that is no tensor."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensors_in(self.model(*inputs)))


def _sample(model: nn.Module, inputs: tuple[Tensor, ...], size: int) -> _Sample:
    batch = random_inputs(inputs, size, seed=size)
    try:
        return _Sample(batch, [output.cpu() for output in outputs(model, batch, seed=0)])
    except RuntimeError as error:
        raise ValueError(
            f"The model does not run on a batch of {size} like `example_input`: {error}"
        ) from error


def _exported(
    model: nn.Module, inputs: tuple[Tensor, ...], num_outputs: int, opset: int | None
) -> ModelProto:
    """The graph with its weights, batch size left open, not a word about where it came from."""
    # Two samples: the exporter takes a size of one for a constant.
    example = random_inputs(inputs, 2, seed=0)
    batch = torch.export.Dim("batch")
    shapes = tuple({0: batch} if holds_samples else None for holds_samples in batched(inputs))
    with torch.no_grad():
        is_plain = isinstance(model(*example), Tensor)
    try:
        with _quiet():
            program = torch.onnx.export(
                model if is_plain else _Flat(model),
                example,
                dynamo=True,
                verbose=False,
                dynamic_shapes=shapes if is_plain else (shapes,),
                input_names=_numbered("input", len(inputs)),
                output_names=_numbered("output", num_outputs),
                opset_version=opset,
            )
    except torch.onnx.OnnxExporterError as error:
        reason = str(error.__cause__ or error).strip().partition("\n")[0]
        raise ValueError(f"The model cannot be exported to ONNX: {reason}") from error
    assert program is not None
    proto = program.model_proto
    for given, dims in zip(proto.graph.input, shapes, strict=True):
        if dims is not None and not given.type.tensor_type.shape.dim[0].dim_param:
            raise ValueError(
                "The model cannot be exported to ONNX for batches of any size: its forward makes "
                "the size of the batch a plain number, as `len(x)`, `int(x.shape[0])`, a loop over "
                "samples or a branch on their number does. Use `x.shape[0]` in place of `len(x)`."
            )
    _clear_notes(proto)
    return proto


def _opset(proto: ModelProto) -> int:
    return next(each.version for each in proto.opset_import if not each.domain)


def _clear_notes(message: Message) -> None:
    """Take the notes out of a message and of all that it holds."""
    for note in {"metadata_props", "doc_string"} & {*message.DESCRIPTOR.fields_by_name}:
        message.ClearField(note)
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if isinstance(value, Sequence) else [value]:
                _clear_notes(part)


def _numbered(name: str, count: int) -> list[str]:
    return [name] if count == 1 else [f"{name}_{number}" for number in range(count)]


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporter logs, warns of and prints, which is about its own insides."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    nowhere = io.StringIO()
    try:
        with warnings.catch_warnings(), redirect_stdout(nowhere), redirect_stderr(nowhere):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
