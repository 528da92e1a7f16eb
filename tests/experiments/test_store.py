from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

import biprune
from biprune.experiments.record import RunRecord
from biprune.experiments.spec import RunSpec
from biprune.experiments.store import Store

SPEC = RunSpec(model="resnet8", data="digits", method="bip", sparsity=0.9)


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
    resolved["settings"]["gamma"] = 0.5
    store.put(RunRecord(spec=SPEC, resolved=resolved))
    with pytest.raises(ValueError, match=r"its settings\.gamma was 0\.5, now it is 1\.0"):
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
    monkeypatch.setattr(biprune.BiP, "settings_version", biprune.BiP.settings_version + 1)
    assert list(store) == []
    assert "1 records" in caplog.text
    new = RunSpec(**SPEC.model_dump())
    store.put(record(new, test_accuracy=90.0))
    assert [found.test_accuracy for found in store] == [90.0]


@pytest.mark.parametrize("text", ["", "{", '{"spec": 1}', "[]"])
def test_a_damaged_record_is_named(tmp_path: Path, text: str) -> None:
    store = Store(tmp_path)
    store.put(record())
    (file,) = tmp_path.glob("records/*.json")
    file.write_text(text)
    with pytest.raises(ValueError, match="cannot be read as a record") as caught:
        store.get(SPEC)
    assert str(file) in str(caught.value)


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
