"""A published number, to stand beside ours."""

from __future__ import annotations

import math
from dataclasses import dataclass

from biprune.core.selection import check_sparsity


@dataclass(frozen=True)
class ReferencePoint:
    """An accuracy in percent that someone reported; `std` None where they gave none.

    It is drawn with the runs of the same model, data and structure, so their names are ours.
    `method` "dense" is the reported accuracy before pruning. `source` is what a reader needs to
    find the number; `approximate` where it was read off a figure in which markers overlap.
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
