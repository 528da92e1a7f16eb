"""A trained dense model on disk, with the states that rewinding needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import NoneType
from typing import Any

from torch import nn

from biprune.files.artifact import (
    check_fields,
    prefixed,
    read_artifact,
    saved_as,
    saved_cost,
    under,
    write_artifact,
)
from biprune.files.rebuilding import check_shapes, fill_, fitting
from biprune.training.checkpoint import only_tensors
from biprune.training.loop import Cost
from biprune.training.train import TrainResult

DENSE_FIELDS = {
    "model": (dict, NoneType),
    "epochs": int,
    "settings": dict,
    "accuracy": (int, float, NoneType),
    "cost": dict,
    "rewind_epochs": list,
    "data": (dict, NoneType),
    "history": list,
}


def save_dense(
    result: TrainResult | nn.Module, folder: Path | str, *, data: dict[str, Any] | None = None
) -> Path:
    """Write what `train` returned, or a model that was trained elsewhere.

    Args:
        result: A model alone has no earlier states that methods could rewind to.
        folder: Where to write; what it held is replaced.
        data: How the data was loaded, as `load_data(...).options` says it. With this,
            `biprune prune` loads the same data again.

    Returns:
        The folder.
    """
    if isinstance(result, nn.Module):
        result = TrainResult(result, None, [], Cost(), states={}, epochs=0, settings={})
    metadata = {
        "model": getattr(result.model, "created_by", None),
        "epochs": result.epochs,
        "settings": result.settings,
        "accuracy": result.accuracy,
        "cost": asdict(result.cost),
        "rewind_epochs": sorted(result.states),
        "data": data,
        "history": result.history,
    }
    tensors = prefixed("state", only_tensors(result.model.state_dict()))
    for epoch, state in result.states.items():
        tensors |= prefixed(f"epoch-{epoch}", state)
    return write_artifact(folder, "dense", metadata, tensors)


def load_dense(folder: Path | str, model: nn.Module | None = None) -> TrainResult:
    """Read what `save_dense` wrote.

    Args:
        folder: Where it is.
        model: The module to fill a copy of, unless it is one of our registry, which is rebuilt.

    Raises:
        ValueError: The folder is damaged, or its weights do not fit the model.
    """
    metadata, tensors = read_artifact(folder, "dense")
    check_fields(metadata, folder, **DENSE_FIELDS)
    kept = saved_as(Sequence[int], "rewind_epochs", metadata, folder)
    states = {epoch: under(f"epoch-{epoch}", tensors) for epoch in kept}
    weights = under("state", tensors)
    shapes = {name: tensor.shape for name, tensor in weights.items()}
    built = fill_(fitting(metadata["model"], shapes, model, folder), weights)
    for state in states.values():
        check_shapes(built, {name: tensor.shape for name, tensor in state.items()}, "it", folder)
    return TrainResult(
        model=built,
        accuracy=metadata["accuracy"],
        history=metadata["history"],
        cost=saved_cost(metadata, folder),
        states=states,
        epochs=metadata["epochs"],
        settings=metadata["settings"],
    )
