"""A trained dense model on disk, with the states that rewinding needs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from biprune.deploy.artifact import prefixed, read_artifact, rebuild, under, write_artifact
from biprune.loop import Cost
from biprune.training import TrainResult


def save_dense(
    result: TrainResult, folder: Path | str, *, data: dict[str, Any] | None = None
) -> Path:
    """Write a training result into `folder`; `data` says how its dataset was loaded."""
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
    tensors = prefixed("state", result.model.state_dict())
    for epoch, state in result.states.items():
        tensors |= prefixed(f"epoch-{epoch}", state)
    return write_artifact(folder, "dense", metadata, tensors)


def load_dense(folder: Path | str, model: nn.Module | None = None) -> TrainResult:
    """Read a training result back; `model` as for `load_ticket`."""
    metadata, tensors = read_artifact(folder, "dense")
    try:
        return TrainResult(
            model=rebuild(metadata["model"], under("state", tensors), model),
            accuracy=metadata["accuracy"],
            history=metadata["history"],
            cost=Cost(**metadata["cost"]),
            states={e: under(f"epoch-{e}", tensors) for e in metadata["rewind_epochs"]},
            epochs=metadata["epochs"],
            settings=metadata["settings"],
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"The dense run in {str(folder)!r} is incomplete: {error}.") from None
