"""What a model takes: parameters, those that are not zero, multiply-accumulates, bytes on disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor, nn

from biprune.core.parameters import parameter_names, unwrap
from biprune.files.sparse import pack
from biprune.runtime.runtime import require_onnx
from biprune.structured.inputs import Inputs
from biprune.structured.macs import total_macs
from biprune.training.checkpoint import only_tensors


@dataclass(frozen=True)
class Footprint:
    """Sizes of one variant; `macs` is None where they cannot be counted.

    `bytes` are those of an ONNX file, or of the state as safetensors: without the zeros, as a saved
    ticket has it, where that is smaller.
    """

    parameters: int
    nonzero: int
    macs: int | None
    bytes: int


def footprint(variant: nn.Module | Path, example_input: Inputs) -> Footprint:
    """The sizes of a module or of an ONNX file. Tied parameters count once."""
    if isinstance(variant, Path):
        return _of_file(variant)
    model = unwrap(variant)
    parameters = parameter_names(model)
    is_sparse = any(p.layout != torch.strided for p in parameters.values())
    return Footprint(
        parameters=sum(p.numel() for p in parameters.values()),
        nonzero=sum(int(torch.count_nonzero(_values(p))) for p in parameters.values()),
        macs=None if is_sparse else total_macs(model, example_input),
        bytes=_sparse_bytes(model) if is_sparse else _bytes(model),
    )


def _of_file(path: Path) -> Footprint:
    require_onnx()
    import onnx
    from onnx.numpy_helper import to_array

    weights = [to_array(tensor) for tensor in onnx.load(path).graph.initializer]
    floats = [torch.tensor(array) for array in weights if array.dtype.kind == "f"]
    return Footprint(
        parameters=sum(tensor.numel() for tensor in floats),
        nonzero=sum(int(torch.count_nonzero(tensor)) for tensor in floats),
        macs=None,
        bytes=path.stat().st_size,
    )


def _bytes(model: nn.Module) -> int:
    state = only_tensors(model.state_dict())
    zeros = {name: p.detach() != 0 for name, p in parameter_names(model).items()}
    masks = {name: kept for name, kept in zeros.items() if name in state and not kept.all()}
    return min(_saved(state), _saved(pack(state, masks)))


def _sparse_bytes(model: nn.Module) -> int:
    """The state with sparse rows in three parts: where they start, columns, values."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in only_tensors(model.state_dict()).items():
        if tensor.layout == torch.strided:
            tensors[name] = tensor
        else:
            parts = tensor.crow_indices(), tensor.col_indices(), tensor.values()
            tensors |= {f"{name}.{number}": part for number, part in enumerate(parts)}
    return _saved(tensors)


def _saved(tensors: Mapping[str, Tensor]) -> int:
    # Clones, since safetensors refuses tensors that share memory.
    owned = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    return len(save(owned))


def _values(parameter: Tensor) -> Tensor:
    return parameter if parameter.layout == torch.strided else parameter.values()
