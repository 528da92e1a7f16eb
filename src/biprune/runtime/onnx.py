"""ONNX files: exported, compared with the model before they are kept, and run by onnxruntime."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from biprune.core.checks import check_positive
from biprune.core.files import replaced
from biprune.core.parameters import unwrap
from biprune.structured.calls import (
    ByPosition,
    Inputs,
    batched,
    by_position,
    difference,
    outputs,
    random_inputs,
)
from biprune.training.batches import evaluation_mode
from biprune.training.checkpoint import only_tensors
from biprune.training.seeding import forked_rng

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from onnx import ModelProto


PACKAGES = ("onnx", "onnxscript", "onnxruntime")


def has_onnx() -> bool:
    """Whether the extra is installed."""
    return all(find_spec(package) is not None for package in PACKAGES)


def require_onnx() -> None:
    """Raise a ModuleNotFoundError that says how to install the extra if it is missing."""
    missing = [package for package in PACKAGES if find_spec(package) is None]
    if missing:
        raise ModuleNotFoundError(
            f"ONNX needs {', '.join(missing)}, not installed here: pip install 'biprune[onnx]'"
        )


class OnnxModel:
    """An ONNX file, run by onnxruntime on the CPU and called like the module it came from."""

    def __init__(self, path: Path | str, threads: int | None = None) -> None:
        require_onnx()
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors only: its warnings are about its own optimizer
        # Idle threads that spin would slow down whatever runs next, such as torch.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.intra_op_num_threads = torch.get_num_threads() if threads is None else threads
        self.session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        self.names = [each.name for each in self.session.get_inputs()]

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """The outputs, one after the other."""
        arrays = (tensor.cpu().numpy() for tensor in inputs)
        outputs: Sequence[Any] = self.session.run(None, dict(zip(self.names, arrays, strict=True)))
        return [torch.from_numpy(output) for output in outputs]


BATCHES = (1, 2, 7)
LIMIT = 2_000_000_000  # bytes; a protobuf cannot be longer than 2 GiB


@dataclass(frozen=True)
class OnnxCheck:
    """What was written, and how far onnxruntime is from PyTorch.

    `error` is the largest difference over all `batches`, as a fraction of the largest number in
    the output it is in.
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

    The file is checked before it is kept, by ONNX's own checker, and by running it at batch 1, 2
    and 7 on random inputs like `example_input`. Inputs and outputs are called "input" and "output",
    with a number where there are several; inputs given by name keep it. Of nested outputs the file
    has the tensors, without caches. `model` is left as it was.

    Args:
        model: Any module.
        path: The file to write.
        example_input: What the model takes.
        opset: The version of ONNX's operators; by default the exporter's.
        tolerance: How far an output may be from PyTorch's, as a fraction of its largest number.

    Returns:
        What was written, and how close it is.

    Raises:
        ValueError: The model cannot be exported, or an output is too far off; nothing is written.
        ModuleNotFoundError: The extra is missing: pip install 'biprune[onnx]'.
    """
    require_onnx()
    import onnx

    check_positive("tolerance", tolerance)
    called, inputs = by_position(unwrap(model), example_input)
    model = called.model
    size = sum(tensor.nbytes for tensor in only_tensors(model.state_dict()).values())
    if size > LIMIT:
        raise ValueError(
            f"The model's weights take {size / 1e9:.1f} GB, and an ONNX file holds at most 2 GB. "
            "Use `torch.onnx.export(..., external_data=True)`, which writes several."
        )
    with evaluation_mode(model), forked_rng(()), replaced(path) as temporary:
        samples = [_sample(called, inputs, size) for size in BATCHES]
        proto = _exported(called, inputs, len(samples[0][1]), opset)
        temporary.write_bytes(proto.SerializeToString())
        onnx.checker.check_model(str(temporary), full_check=True)
        written = OnnxModel(temporary)
        found = [output for batch, _ in samples for output in written(*batch)]
        error = difference([output for _, wanted in samples for output in wanted], found)
        if not error <= tolerance:
            raise ValueError(
                f"The ONNX file does not compute what the model does: its outputs differ by "
                f"{error:.2g} of the largest, and `tolerance` is {tolerance:.2g}. Nothing was "
                "written."
            )
    size = Path(path).stat().st_size
    version = next(each.version for each in proto.opset_import if not each.domain)
    return OnnxCheck(Path(path), size, version, BATCHES, error, tolerance)


def _sample(
    model: ByPosition, inputs: tuple[Tensor, ...], size: int
) -> tuple[tuple[Tensor, ...], list[Tensor]]:
    """A batch of `size` random samples, and what the model makes of it."""
    batch = random_inputs(inputs, size, seed=size)
    try:
        return batch, [output.cpu() for output in outputs(model, batch, seed=0)]
    except RuntimeError as error:
        raise ValueError(
            f"The model does not run on a batch of {size} like `example_input`: {error}"
        ) from error


def _exported(
    called: ByPosition, inputs: tuple[Tensor, ...], num_outputs: int, opset: int | None
) -> ModelProto:
    """The graph with its weights, for any batch size, without notes of where it came from."""
    # Two samples, since the exporter takes a size of one for a constant.
    example = random_inputs(inputs, 2, seed=0)
    batch = torch.export.Dim("batch")
    shapes = tuple({0: batch} if holds_samples else None for holds_samples in batched(inputs))
    with torch.no_grad():
        is_plain = not called.names and isinstance(called.returned(*example), Tensor)
    # The exporter writes attention as products, and checks views of the result by its strides. So
    # it must see the strides of the kernel that computes products, not of a fused one.
    try:
        with _quiet(), sdpa_kernel(SDPBackend.MATH):
            program = torch.onnx.export(
                called.model if is_plain else called,
                example,
                dynamo=True,
                verbose=False,
                dynamic_shapes=shapes if is_plain else (shapes,),
                input_names=[*called.names] or _numbered("input", len(inputs)),
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


def _clear_notes(message: Message) -> None:
    """Remove the notes from a message and from all that it holds."""
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
    """Silence what the exporter logs, warns of and prints, which is about its own internals."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    nowhere = io.StringIO()
    try:
        with warnings.catch_warnings(), redirect_stdout(nowhere), redirect_stderr(nowhere):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
