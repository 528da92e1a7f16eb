"""The paper's own numbers, each with its place in the paper. Accuracies are in percent."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from biprune.core.selection import check_sparsity


@dataclass(frozen=True)
class ReferencePoint:
    """A reported accuracy in percent, drawn with our runs of the same model, data and structure.

    Args:
        method: By our name; "dense" is the accuracy before pruning.
        std: None where none was reported.
        source: What a reader needs to find the number.
        approximate: Whether it was read off a figure in which markers overlap.
    """

    method: str
    sparsity: float
    accuracy: float
    std: float | None
    model: str
    data: str
    source: str
    structure: str = "weight"
    approximate: bool = False

    def __post_init__(self) -> None:
        check_sparsity(self.sparsity)
        if not 0 <= self.accuracy <= 100:
            raise ValueError(f"`accuracy` must be in percent, 0 to 100, got {self.accuracy:g}.")
        if self.std is not None and not (math.isfinite(self.std) and self.std >= 0):
            raise ValueError(f"`std` must be 0 or more, or None, got {self.std:g}.")
        if not self.source.strip():
            raise ValueError("`source` must say where the number was published, got nothing.")


def paper_points(model: str, data: str) -> list[ReferencePoint]:
    """The paper's unstructured curves, after the dense accuracy at sparsity 0.

    ImageNet's curves are only printed as pictures: of it there are the winning tickets in a table.

    >>> [p.accuracy for p in paper_points("resnet20", "cifar10") if p.sparsity in (0, 0.738)]
    [92.12, 92.16, 90.08, 89.77, 91.69, 91.99]
    """
    dense = [
        ReferencePoint("dense", 0.0, column["dense"], None, model, data, column["source"])
        for column in _read("tickets", model, data)
    ]
    curves = [
        ReferencePoint(
            method=curve["method"],
            sparsity=sparsity,
            accuracy=accuracy,
            std=None,
            model=model,
            data=data,
            source=curve["source"],
            approximate=sparsity in curve["approximate"],
        )
        for curve in _read("trajectories", model, data)
        for sparsity, accuracy in curve["points"]
    ]
    return dense + (curves or [t for t in paper_tickets(model, data).values() if t is not None])


def paper_tickets(model: str, data: str) -> dict[str, ReferencePoint | None]:
    """The sparsest winning ticket of each method, None where the paper found none.

    Its sparsities are printed in whole percent: 0.74 is 0.738 of the ladder.
    """
    return {
        method: None
        if ticket is None
        else ReferencePoint(method, **ticket, model=model, data=data, source=column["source"])
        for column in _read("tickets", model, data)
        for method, ticket in column["tickets"].items()
    }


def _read(name: str, model: str, data: str) -> list[dict[str, Any]]:
    """The entries of a file for one model and data set."""
    text = files(__name__).joinpath(f"{name}.json").read_text(encoding="utf-8")
    return [e for e in json.loads(text) if (e["model"], e["data"]) == (model, data)]
