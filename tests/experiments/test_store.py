from __future__ import annotations

import json
import math
import multiprocessing
import os
import random
from pathlib import Path

import pytest

import biprune
from biprune.core.documents import write_document
from biprune.experiments.record import RunRecord, RunSpec
from biprune.experiments.store import Store

SPEC = RunSpec(model="resnet8", data="digits", method="bip-plus", sparsity=0.9)


def record(spec: RunSpec = SPEC, **fields: object) -> RunRecord:
    return RunRecord(spec=spec, resolved=spec.resolved, **fields)  # pyright: ignore


def test_what_is_put_comes_back(tmp_path: Path) -> None:
    store = Store(tmp_path / "new" / "store")
    assert store.get(SPEC) is None
    assert list(store) == []
    written = record(test_accuracy=91.25, layers={"conv.weight": (3, 30)}, history=[{"loss": 0.5}])
    store.put(written)
    assert store.get(SPEC) == written
    assert list(store) == [written]
    assert [path.name for path in (store.folder / "records").iterdir()] == [f"{SPEC.key}.json"]


def test_a_changed_default_is_an_error_not_a_hit(tmp_path: Path) -> None:
    store = Store(tmp_path)
    resolved = SPEC.resolved
    resolved["settings"]["kappa"] = 0.5
    store.put(RunRecord(spec=SPEC, resolved=resolved))
    with pytest.raises(ValueError, match=r"its settings\.kappa was 0\.5, now it is 3\.0"):
        store.get(SPEC)


def test_a_setting_that_came_later_is_no_difference(tmp_path: Path) -> None:
    store = Store(tmp_path)
    resolved = SPEC.resolved
    del resolved["settings"]["passes"], resolved["allow_empty"]
    store.put(RunRecord(spec=SPEC, resolved=resolved, test_accuracy=1.0))
    found = store.get(SPEC)
    assert found is not None
    assert found.test_accuracy == 1.0


def test_records_of_past_defaults_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path)
    old = RunSpec(**SPEC.model_dump())
    store.put(record(old, test_accuracy=50.0))
    past = biprune.BiPPlus.settings_version
    monkeypatch.setattr(biprune.BiPPlus, "settings_version", past + 1)
    assert list(store) == []
    assert "1 records" in caplog.text
    new = RunSpec(**SPEC.model_dump())
    store.put(record(new, test_accuracy=90.0))
    assert [found.test_accuracy for found in store] == [90.0]


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"spec": 1}', b"[]", b"\xff\xfe\x00", b'{"a": "\xe9"}']
)
def test_a_damaged_record_is_named(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    store, other = Store(tmp_path), RunSpec(**{**SPEC.model_dump(), "seed": 7})
    store.put(record())
    store.put(record(other))
    file = tmp_path / "records" / f"{SPEC.key}.json"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"is damaged.* Delete it to run it again") as caught:
        store.get(SPEC)
    assert str(file) in str(caught.value)
    assert [found.key for found in store] == [other.key]
    assert f"{str(file)!r} is damaged" in caplog.text


def test_no_changed_byte_of_a_record_is_a_result(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path)
    store.put(record(test_accuracy=91.25, history=[{"loss": 0.5}]))
    (file,) = tmp_path.glob("records/*.json")
    whole, draw = file.read_bytes(), random.Random(0)
    for place in [whole.index(b"91.25"), *(draw.randrange(len(whole)) for _ in range(300))]:
        changed = bytearray(whole)
        changed[place] ^= 1 << draw.randrange(8)
        file.write_bytes(changed)
        assert list(store) == []
        with pytest.raises(ValueError, match="is damaged"):
            store.get(SPEC)
    assert caplog.text.count("It is left out.") == 301


def test_a_sound_document_that_is_no_record_is_named(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = tmp_path / "records" / f"{SPEC.key}.json"
    whole = record().model_dump(mode="json")
    changes = ({"test_accuracy": "much"}, {"spec": 1}, {"\x1b[31m": 1}, {"layers": {"x": [1]}})
    for change in changes:
        write_document(path, {**whole, **change})
        with pytest.raises(ValueError, match="cannot be read as a record") as caught:
            store.get(SPEC)
        assert str(caught.value).isprintable()
        assert list(store) == []


@pytest.mark.parametrize(
    "change",
    [
        {"history": [{"loss": "x"}]},
        {"history": [{"iou": [1]}]},
        {"history": [{"loss": 1.0, "layer_sparsity": {"a": "x"}}]},
        {"history": [{"layer_sparsity": 3}]},
        {"spec": {**SPEC.model_dump(mode="json"), "settings": {"warmup_epochs": [1]}}},
        {"spec": {**SPEC.model_dump(mode="json"), "settings": {"epochs": "x"}}},
    ],
)
def test_a_record_that_no_report_can_show_is_named(change: dict, tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = tmp_path / "records" / f"{SPEC.key}.json"
    write_document(path, {**record().model_dump(mode="json"), **change})
    with pytest.raises(ValueError, match="Delete it to run it again") as caught:
        store.get(SPEC)
    assert type(caught.value) is ValueError
    assert str(path) in str(caught.value)
    assert list(store) == []


def test_numbers_that_json_lacks(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(record(test_accuracy=math.nan, history=[{"loss": math.inf}]))
    (file,) = tmp_path.glob("records/*.json")
    assert json.loads(file.read_text())["history"] == [{"loss": "Infinity"}]
    found = store.get(SPEC)
    assert found is not None
    assert math.isnan(found.test_accuracy or 0)
    assert found.history == [{"loss": math.inf}]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no pipes")
def test_a_pipe_among_the_records(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Store(tmp_path)
    store.put(record())
    os.mkfifo(tmp_path / "records" / "pipe.json")
    assert [found.key for found in store] == [SPEC.key]
    assert "pipe.json' is not a file that can be read" in caplog.text


def write_many(folder: Path, writer: int) -> None:
    store = Store(folder)
    for number in range(30):
        shared = record(history=[{"loss": float(writer)}] * 200, test_accuracy=float(writer))
        store.put(shared)
        own = SPEC.model_copy(update={"seed": 100 * writer + number})
        store.put(record(RunSpec(**own.model_dump())))


def test_many_writers_and_a_reader(tmp_path: Path) -> None:
    """Whoever is last wins, and nobody ever sees half a record."""
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write_many, args=(tmp_path, n)) for n in (1, 2, 3)]
    for writer in writers:
        writer.start()
    store, seen = Store(tmp_path), 0
    while any(writer.is_alive() for writer in writers):
        found = store.get(SPEC)
        if found is not None:
            seen += 1
            assert {entry["loss"] for entry in found.history} == {found.test_accuracy}
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert seen > 0
    assert len(list(store)) == 1 + 3 * 30


def test_a_lock_keeps_others_out(tmp_path: Path) -> None:
    from filelock import Timeout

    store = Store(tmp_path)
    with (
        store.lock(SPEC),
        pytest.raises(Timeout),
        Store(tmp_path).lock(SPEC).acquire(blocking=False),
    ):
        pass
    with Store(tmp_path).lock(SPEC).acquire(blocking=False):
        pass
