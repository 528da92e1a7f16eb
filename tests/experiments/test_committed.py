"""The records behind docs/results.md are of runs that today's code would make the same way."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import pytest

from biprune.experiments.presets import PRESETS
from biprune.experiments.spec import covered_by
from biprune.experiments.store import Store
from past_runs import past, recorded

STORE = Store(Path(__file__).parents[2] / "docs/results/laptop")


def test_every_committed_record_is_found_again(caplog: pytest.LogCaptureFixture) -> None:
    """A default that changed without a new `settings_version` would be refused here."""
    with caplog.at_level(logging.WARNING):
        records = list(STORE)
    assert records
    assert "is damaged" not in caplog.text
    for record in records:
        assert STORE.get(record.spec) == record
        assert record.status == "done"


def test_every_committed_record_belongs_to_a_preset() -> None:
    """It is of one, or left on the way by one of IMP's, or was one's before."""
    known = {
        own.key
        for preset in PRESETS.values()
        for spec in preset.specs("laptop")
        for own in (spec, past(spec), spec.dense_spec, *covered_by(spec))
    }
    assert {record.key for record in STORE} <= known


def test_all_methods_prune_one_dense_network_a_seed() -> None:
    found: dict[str, set[float | None]] = {}
    for record in STORE:
        if record.dense_accuracy is not None:
            found.setdefault(record.spec.dense_spec.key, set()).add(record.dense_accuracy)
    assert len(found) > 5
    assert {len(accuracies) for accuracies in found.values()} == {1}


def test_equal_passes_are_equal() -> None:
    """But for those of scoring: SynFlow's hundred, of a single input, are the most."""
    specs = PRESETS["methods"].specs("laptop")
    usual = [s for s in specs if s.method != "imp" and s.settings["epochs"] <= 20]
    records = [record for spec in usual if (record := recorded(STORE, spec)) is not None]
    assert len(records) > 50
    steps = 20 * math.ceil(10_000 / 64)
    assert {
        r.spec.method for r in records if not steps <= r.backward_passes <= steps + 100
    } == set()
