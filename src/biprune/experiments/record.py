"""What is known of a finished run: a value, written once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from biprune.core.plain import from_plain
from biprune.experiments.spec import RunSpec

# What reports show of a history; the rest is for people.
MEASURES: dict[str, Any] = {
    "stage": str,
    "epoch": int,
    "loss": float,
    "accuracy": float,
    "iou": float,
    "layer_sparsity": Mapping[str, float],
}


class RunRecord(BaseModel):
    """The outcome of one run; `error` says why there is none if it `failed`.

    Accuracies are in percent: `val_accuracy` of the last epoch, `test_accuracy` read once, at the
    end, `dense_accuracy` that of the dense run. `achieved_sparsity` counts units of the
    structure, `weight_sparsity` single weights of the prunable tensors; `layers` are kept and all
    units by name. Passes and seconds are those of training and pruning, without the dense run's.
    """

    # Whoever writes the JSON decides how it spells NaN.
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    spec: RunSpec
    resolved: dict[str, Any]
    status: Literal["done", "failed"] = "done"
    error: str | None = None
    test_accuracy: float | None = None
    val_accuracy: float | None = None
    dense_accuracy: float | None = None
    achieved_sparsity: float | None = None
    weight_sparsity: float | None = None
    layers: dict[str, tuple[int, int]] = Field(default_factory=dict)
    forward_passes: int = 0
    backward_passes: int = 0
    seconds: float = 0.0
    history: list[dict[str, Any]] = Field(default_factory=list)
    environment: dict[str, Any] = Field(default_factory=dict)

    @field_validator("history")
    @classmethod
    def _measured(cls, history: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for entry in history:
            for name in MEASURES.keys() & entry.keys():
                if entry[name] is not None:
                    from_plain(MEASURES[name], entry[name])
        return history

    @property
    def key(self) -> str:
        """The address of the run."""
        return self.spec.key
