"""The records behind docs/results.md are of runs that today's code would make the same way."""

from __future__ import annotations

from pathlib import Path

from biprune.experiments.presets import PRESETS
from biprune.experiments.store import Store

STORE = Store(Path(__file__).parents[2] / "docs/results/laptop")


def test_every_committed_record_is_found_again() -> None:
    """A default that changed without a new `settings_version` would be refused here."""
    records = list(STORE)
    assert records
    for record in records:
        assert STORE.get(record.spec) == record
        assert record.status == "done"


def test_every_committed_record_belongs_to_a_preset() -> None:
    known = {
        key
        for preset in PRESETS.values()
        for spec in preset.specs("laptop")
        for key in (spec.key, spec.dense_spec.key)
    }
    assert {record.key for record in STORE} <= known
