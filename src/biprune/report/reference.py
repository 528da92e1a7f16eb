"""Which published numbers stand beside which of ours."""

from __future__ import annotations

from collections.abc import Iterable

from biprune.experiments.reference import ReferencePoint
from biprune.experiments.spec import RunSpec


def published_for(spec: RunSpec, paper: Iterable[ReferencePoint]) -> list[ReferencePoint]:
    """The points for the model, data and structure of `spec`."""
    ours = spec.model, spec.data, spec.structure
    return [point for point in paper if (point.model, point.data, point.structure) == ours]
