"""onnxruntime: whether it is here, and a file of it to call like a module."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

PACKAGES = ("onnx", "onnxscript", "onnxruntime")


def has_onnx() -> bool:
    """Whether the extra is installed."""
    return all(find_spec(package) is not None for package in PACKAGES)


def require_onnx() -> None:
    """Say how to get the extra if it is not there."""
    missing = [package for package in PACKAGES if find_spec(package) is None]
    if missing:
        raise ValueError(
            f"ONNX needs {', '.join(missing)}, not installed here: pip install 'biprune[onnx]'"
        )


class OnnxModel:
    """An ONNX file run by onnxruntime on the CPU; called like the module that it came from."""

    def __init__(self, path: Path | str, threads: int | None = None) -> None:
        require_onnx()
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors: its warnings are about its own optimizer
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
