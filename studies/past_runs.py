"""Records from before 2026-11-18, when the scores of dead rows were learned too.

They stand under `score_dead_rows=True`, which gives the same computation today. Pages show them,
marked, in the place of runs with today's default until these have been made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from biprune.experiments.record import RunRecord, RunSpec

MARK = "†"
NOTE = (
    f"{MARK} runs from before 2026-11-18, in which the scores of dead rows were learned "
    "(`score_dead_rows=True`); they will be run again."
)
SETTING = "score_dead_rows"
LEARNING_SCORES = ("bip-plus", "bip", "hydra")


def past(spec: RunSpec) -> RunSpec:
    """The run as it was made before; the same one for methods that learn no scores."""
    if spec.method not in LEARNING_SCORES:
        return spec
    fields: dict[str, Any] = spec.model_dump()
    fields["settings"] = {**spec.settings, SETTING: True}
    return RunSpec(**fields)


def recorded(records: Mapping[str, RunRecord], spec: RunSpec) -> RunRecord | None:
    """The record of a run, or of what stands in its place."""
    return records.get(spec.key) or records.get(past(spec).key)


def mark(records: Iterable[RunRecord]) -> str:
    """The mark, if some of the records are of the past."""
    return MARK if any(r.spec.settings.get(SETTING) for r in records) else ""
