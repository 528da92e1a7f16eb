"""The packed records are whole, of runs that today's code would make the same way, and movable."""

from __future__ import annotations

import gzip
import logging
import math
from functools import cache
from pathlib import Path

import pytest

import biprune
from biprune.experiments.presets.base import SIZES
from biprune.experiments.record import RunRecord
from biprune.experiments.store import Store
from hand_records import failed, run
from studies.archive import (
    FOLDER,
    SUFFIX,
    load,
    pack,
    read,
    studies_of_keys,
    unpack,
    write,
)
from studies.laptop_runs import Runs
from studies.past_methods import PAST
from studies.presets import STUDIES
from studies.tests.laptop_records import of_spec

records = cache(load)


def test_every_record_is_found_again_in_a_store(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A default that changed without a new `settings_version` would be refused here."""
    store = Store(tmp_path)
    assert unpack(store) == len(records()) > 700
    assert unpack(store) == 0
    with caplog.at_level(logging.WARNING):
        assert pack(store) == 0
    assert caplog.text == ""
    assert {record.status for record in records().values()} == {"done"}


def test_every_record_is_in_the_file_of_its_study() -> None:
    homes, total = studies_of_keys(), 0
    for file in FOLDER.glob(f"*{SUFFIX}"):
        documents = read(file)
        found = {homes[key] for key in documents if key in homes}
        assert found <= {file.name.removesuffix(SUFFIX)}
        assert list(documents) == sorted(documents)
        total += len(documents)
    assert total == len(records())


def test_what_has_no_study_is_of_past_methods_or_defaults() -> None:
    homes = studies_of_keys()
    left = [record.spec for key, record in records().items() if key not in homes]
    for spec in left:
        dense = spec.method == "train" and spec.seed >= 100  # of the study of settings
        assert dense or spec.method in PAST or spec.settings["score_dead_rows"]


def some(study: str, count: int) -> list[RunRecord]:
    """Records of a study by hand, among them numbers that JSON does not have."""
    history = [{"loss": math.inf, "iou": 0.5}]
    return [of_spec(spec, history=history) for spec in STUDIES[study].specs("laptop")[:count]]


def test_the_same_records_are_the_same_bytes(tmp_path: Path) -> None:
    documents = {r.key: r.model_dump(mode="json") for r in some("claims", 3)}
    for name, keys in (("one", sorted(documents)), ("other", sorted(documents)[::-1])):
        write(tmp_path / name, {key: documents[key] for key in keys})
    content = (tmp_path / "one").read_bytes()
    assert content == (tmp_path / "other").read_bytes()
    assert content[4:8] == bytes(4)  # no date
    assert len(gzip.decompress(content).splitlines()) == 3
    assert read(tmp_path / "one") == documents


def test_pack_takes_in_what_is_finished_and_of_a_study(tmp_path: Path) -> None:
    store, folder = Store(tmp_path / "store"), tmp_path / "records"
    first, second, third = some("claims", 3)
    whole = some("full-size", 1)[0]
    broken = third.model_copy(update={"status": "failed", "error": "it broke"})
    for record in (first, whole, broken, run("gmp", 0.123), failed("gmp", 0.5)):
        store.put(record)
    assert pack(store, folder) == 2
    home = studies_of_keys()[first.key]
    assert {file.name for file in folder.iterdir()} == {f"{home}{SUFFIX}", f"full-size{SUFFIX}"}
    other = Store(tmp_path / "other")
    again = first.model_copy(update={"test_accuracy": 12.0})
    for record in (second, again):
        other.put(record)
    assert pack(other, folder) == 2
    assert load(folder) == {r.key: r for r in sorted((again, second, whole), key=lambda r: r.key)}
    assert unpack(store, folder) == 1  # the store keeps its own
    assert store.get(first.spec) == first


def test_records_of_past_defaults_are_left_out(tmp_path: Path) -> None:
    now, before = some("claims", 2)
    documents = {now.key: now.model_dump(mode="json"), "0" * 24: before.model_dump(mode="json")}
    write(tmp_path / f"claims{SUFFIX}", documents)
    assert [*load(tmp_path)] == [now.key]


def test_all_methods_prune_one_dense_network_a_seed() -> None:
    found: dict[str, set[float]] = {}
    for record in records().values():
        if record.dense_accuracy is not None:
            found.setdefault(record.spec.dense_spec.key, set()).add(record.dense_accuracy)
    assert len(found) > 5
    assert {len(accuracies) for accuracies in found.values()} == {1}


def test_equal_passes_are_equal() -> None:
    """But for those of scoring: SynFlow's hundred, of a single input, are the most."""
    passes = SIZES["laptop"].passes
    steps = passes * math.ceil(10_000 / 64)
    runs, checked = Runs(records().values()), 0
    for spec in STUDIES["methods"].specs("laptop"):
        length = spec.settings["epochs"]
        if spec.method != "imp" and length <= passes:
            for record in runs.get(spec.method, spec.sparsity, epochs=length):
                assert steps <= record.backward_passes <= steps + 100, spec
                checked += 1
    assert checked > 50


def test_past_methods_have_records_and_no_runs() -> None:
    assert {record.spec.method for record in records().values()} & PAST.keys() == PAST.keys()
    data = biprune.load_data("digits", subset=200, seed=0)
    model = biprune.create_model("resnet8", in_channels=1, width=2, seed=0)
    with pytest.raises(ValueError, match=r"kept .* Today's method is 'bip-plus'"):
        biprune.prune(model, data, "bip-plus-0.1", sparsity=0.5)
