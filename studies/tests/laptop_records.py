"""Records by hand of what studies run."""

from __future__ import annotations

from typing import Any

from biprune.experiments.record import RunRecord, RunSpec
from hand_records import run, seeds


def of_spec(spec: RunSpec, **fields: Any) -> RunRecord:
    return run().model_copy(update={"spec": spec, "resolved": spec.resolved, **fields})


def of(
    method: str,
    sparsity: float,
    *accuracies: float,
    length: int = 20,
    made: dict[str, Any] | None = None,
    **fields: Any,
) -> list[RunRecord]:
    """A run for each accuracy, on the network, the data and the dense run of the laptop."""
    spec = {
        "model": "resnet8",
        "data": "cifar10",
        "settings": {"epochs": length},
        "data_options": {"subset": 10_000, "val_fraction": 0.0},
        "dense": {"epochs": 20},
    }
    return seeds(method, sparsity, *accuracies, spec=spec | (made or {}), **fields)
