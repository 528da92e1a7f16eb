from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

import pytest
import torch

import biprune
from biprune.experiments.record import RunRecord, RunSpec, covered_by
from biprune.experiments.runner import Runner
from biprune.experiments.store import Store
from biprune.experiments.sweep import grid, sweep
from biprune.training.loop import Event

TINY: dict[str, Any] = {
    "model": "resnet8",
    "data": "digits",
    "model_options": {"width": 2},
    "data_options": {"subset": 200},
    "dense": {"epochs": 2},
}


def spec(method: str, sparsity: float = 0.8, **settings: object) -> RunSpec:
    return RunSpec(**TINY, method=method, sparsity=sparsity, settings={"epochs": 2, **settings})


def timeless(record: RunRecord | None) -> dict[str, Any]:
    """All that must be equal between two runs of one spec."""
    assert record is not None
    content = record.model_dump(exclude={"seconds", "environment"})
    for entry in content["history"]:
        entry.pop("seconds", None)
    return content


def test_a_record_says_what_was_asked_and_what_was_got(tmp_path: Path) -> None:
    runner = Runner(Store(tmp_path))
    record = runner.run(spec("bip"))
    assert record is not None
    assert (record.status, record.error) == ("done", None)
    assert record.resolved["settings"]["gamma"] == 1.0
    assert record.achieved_sparsity == pytest.approx(0.8, abs=1e-3)
    kept, total = (sum(counts) for counts in zip(*record.layers.values(), strict=True))
    assert kept == round(0.2 * total)
    assert record.forward_passes == record.backward_passes == 2 * 2 * 3  # three batches of 180
    assert record.val_accuracy == record.history[-1]["accuracy"]
    assert {"torch", "biprune", "revision", "threads", "finished"} <= record.environment.keys()
    assert record.environment["device"] == "cpu"
    assert record.environment["kernels"] == torch.backends.cpu.get_cpu_capability()
    assert Store(tmp_path).get(record.spec) == record
    dense = runner.finished(record.spec.dense_spec)
    assert dense is not None
    assert dense.test_accuracy == record.dense_accuracy
    assert not list(tmp_path.glob("unfinished/*"))


def test_a_run_is_what_its_spec_says(tmp_path: Path) -> None:
    fields = {"seed": 3, "scope": "layer", "exclude": ("head",), "settings": {"epochs": 1}}
    record = Runner(Store(tmp_path)).run(RunSpec(**TINY, method="omp", sparsity=0.5, **fields))
    assert record is not None
    data = biprune.load_data("digits", seed=3, subset=200)
    model = biprune.create_model("resnet8", seed=3, in_channels=1, width=2)
    dense = biprune.train(model, data, epochs=2, seed=3)
    options = {"sparsity": 0.5, "scope": "layer", "exclude": "head", "epochs": 1}
    ticket = biprune.prune(dense, data, "omp", seed=3, **options)
    assert (record.test_accuracy, record.dense_accuracy) == (ticket.accuracy, dense.accuracy)
    assert record.layers == {n: (c.kept, c.total) for n, c in ticket.masks.per_layer().items()}
    assert record.weight_sparsity == ticket.masks.weight_sparsity
    assert [e.get("loss") for e in record.history] == [e.get("loss") for e in ticket.history]


def test_what_another_process_runs_is_waited_for(tmp_path: Path) -> None:
    mine, theirs = spec("gmp", 0.5), spec("omp", 0.5)
    store = Store(tmp_path)
    Runner(store).run(mine.dense_spec)
    lock = store.lock(theirs)
    lock.acquire()
    assert Runner(store).run(theirs, wait=False) is None
    freeing = Runner(store, progress=lambda spec, event: lock.release(force=True))
    assert [record.spec for record in sweep([theirs, mine], freeing)] == [mine, theirs]


def test_what_is_recorded_is_not_run_again(tmp_path: Path) -> None:
    steps: list[str] = []
    runner = Runner(Store(tmp_path), progress=lambda spec, event: steps.append(spec.method))
    first = runner.run(spec("omp"))
    assert steps.count("train") == steps.count("omp") == 2 * 3
    steps.clear()
    assert runner.run(spec("omp")) == first
    assert steps == []
    runner.run(spec("gmp"))
    assert set(steps) == {"gmp"}  # the dense run is shared


def test_records_that_came_without_their_dense_models(tmp_path: Path) -> None:
    runner = Runner(Store(tmp_path))
    before = runner.run(spec("omp"))
    assert before is not None
    shutil.rmtree(tmp_path / "dense")
    assert runner.run(spec("omp")) == before
    assert not (tmp_path / "dense").exists()  # nothing needed it
    (record,) = sweep([spec("gmp")], runner)
    assert (record.status, record.dense_accuracy) == ("done", before.dense_accuracy)
    shutil.rmtree(tmp_path / "dense")
    assert timeless(runner.run(spec("random")))["status"] == "done"


def test_a_dense_run_that_was_done_is_not_lost_to_a_later_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = Runner(Store(tmp_path))
    dense = spec("omp").dense_spec
    before = runner.run(dense)
    shutil.rmtree(tmp_path / "dense")

    def broken(*_: object, **__: object) -> None:
        raise FileNotFoundError("the disk is elsewhere")

    monkeypatch.setattr("biprune.experiments.runner.train", broken)
    record = runner.run(spec("omp"))
    assert record is not None
    assert "The dense run failed: FileNotFoundError: the disk is elsewhere" in (record.error or "")
    assert runner.store.get(dense) == before


def test_a_dense_model_that_was_not_written_to_its_end_is_trained_again(tmp_path: Path) -> None:
    runner = Runner(Store(tmp_path))
    dense = spec("omp").dense_spec
    before = runner.run(dense)
    (runner.store.dense_folder(dense) / "biprune.json").unlink()
    assert runner.finished(dense) is None
    assert timeless(runner.run(dense)) == timeless(before)
    assert runner.finished(dense) is not None


def test_each_record_comes_once(tmp_path: Path) -> None:
    runner = Runner(Store(tmp_path))
    first = grid(["imp"], sparsities=[0.3], passes=1, **TINY)
    list(sweep(first, runner))
    specs = [first[0].dense_spec, *grid(["imp"], sparsities=[0.3, 0.6], passes=1, **TINY)]
    keys = [record.key for record in sweep(specs, runner)]
    assert sorted(keys) == sorted(spec.key for spec in specs)


def test_one_deep_run_of_imp_fills_its_curve(tmp_path: Path) -> None:
    specs = grid(["imp"], sparsities=[0.3, 0.5, 0.6], passes=1, **TINY)
    deep = Runner(Store(tmp_path / "deep"))
    records = {r.spec.sparsity: r for r in sweep(specs, deep)}
    assert sorted(records) == [0.3, 0.5, 0.6]
    assert [s.sparsity for s in covered_by(specs[-1])] == [0.3, 0.5]
    alone = Runner(Store(tmp_path / "alone"))
    for single in specs:
        assert timeless(alone.run(single)) == timeless(records[single.sparsity])


def test_a_deep_run_of_imp_leaves_what_is_recorded_as_it_is(tmp_path: Path) -> None:
    first, deep = grid(["imp"], sparsities=[0.3, 0.5], passes=1, **TINY)
    runner = Runner(Store(tmp_path))
    elsewhere = RunRecord(spec=first, resolved=first.resolved, test_accuracy=12.5)
    runner.store.put(elsewhere)
    assert runner.run(deep) is not None
    assert runner.store.get(first) == elsewhere


def test_a_failing_run_is_recorded_and_the_sweep_goes_on(tmp_path: Path) -> None:
    broken = spec("bip-plus", lr=1e30)
    specs = [broken, spec("omp")]
    runner = Runner(Store(tmp_path))
    first, second = sweep(specs, runner)
    assert (first.spec, first.status) == (broken, "failed")
    assert "FloatingPointError" in (first.error or "")
    assert second.status == "done"
    assert runner.finished(broken) is None  # it is tried again next time


def test_a_failing_imp_run_leaves_holes_at_its_stops(tmp_path: Path) -> None:
    specs = grid(["imp"], sparsities=[0.3, 0.6], passes=1, **TINY)
    specs = [RunSpec(**s.model_dump() | {"settings": {**s.settings, "lr": 1e30}}) for s in specs]
    records = list(sweep(specs, Runner(Store(tmp_path))))
    assert [r.status for r in records] == ["failed", "failed"]


def test_a_stop_that_can_be_reached_is_not_lost_with_the_deeper_run(tmp_path: Path) -> None:
    specs = grid(["imp"], sparsities=[0.3, 0.5, 0.99], structures=["filter"], passes=1, **TINY)
    records = {r.spec.sparsity: r for r in sweep(specs, Runner(Store(tmp_path)))}
    assert len(records) == 3
    assert "too few" in (records[0.99].error or "")
    assert [records[s].status for s in (0.3, 0.5)] == ["done", "done"]


def test_a_failing_dense_run_is_tried_once(tmp_path: Path) -> None:
    lost: dict[str, Any] = {**TINY, "dense": {"epochs": 1, "lr": 1e30}}
    specs = [RunSpec(**lost, method=name, sparsity=0.5) for name in ("omp", "gmp", "bip-plus")]
    epochs: list[Event] = []
    runner = Runner(Store(tmp_path), progress=lambda spec, event: epochs.append(event))
    records = list(sweep(specs, runner))
    assert all("The dense run failed" in (record.error or "") for record in records)
    assert len(records) == 3
    assert len(epochs) <= 3


def test_workers_give_the_same_records(tmp_path: Path) -> None:
    specs = grid(["bip-plus", "imp", "omp"], sparsities=[0.3, 0.6], passes=1, **TINY)
    serial = {r.key: timeless(r) for r in sweep(specs, Runner(Store(tmp_path / "one")))}
    shared = Runner(Store(tmp_path / "two"))
    parallel = {r.key: timeless(r) for r in sweep(specs, shared, workers=2)}
    assert parallel == serial
    assert len(serial) == 6


def test_a_sweep_that_is_broken_off_ends_its_own_processes_alone(tmp_path: Path) -> None:
    bystander = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,))
    bystander.start()
    try:
        (short,) = grid(["omp"], sparsities=[0.5], passes=1, **TINY)
        (long,) = grid(["gmp"], sparsities=[0.5], passes=300, **TINY)
        runner = Runner(Store(tmp_path))
        runs = sweep([short, long], runner, workers=2)
        assert next(runs).spec == short
        cast(Generator[RunRecord, None, None], runs).close()
        assert multiprocessing.active_children() == [bystander]
        assert runner.finished(long) is None  # it was ended, not waited for
    finally:
        bystander.terminate()
        bystander.join()


KILLED = """
import os, signal, sys
import torch
torch.set_num_threads(1)
from biprune.experiments.runner import Runner
from biprune.experiments.record import RunSpec, covered_by
from biprune.experiments.store import Store
spec = RunSpec.model_validate_json(sys.argv[2])
left = int(sys.argv[3])
def progress(spec, event):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
Runner(Store(sys.argv[1]), progress=progress).run(spec)
"""


@pytest.mark.parametrize("method", ["bip-plus", "imp"])
def test_a_killed_run_resumed_equals_an_uninterrupted_one(tmp_path: Path, method: str) -> None:
    """Killed inside the dense run, between epochs, inside a later epoch, and in another round."""
    killed = spec(method, 0.4)
    expected = timeless(Runner(Store(tmp_path / "whole")).run(killed))
    folder = tmp_path / "killed"
    for steps in (2, 5, 4, 7, 3):
        command = [sys.executable, "-c", KILLED, folder, killed.model_dump_json(), str(steps)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode in (-signal.SIGKILL, 0), done.stderr
    resumed = Runner(Store(folder), root="elsewhere")  # where files lie is not what a run is
    assert timeless(resumed.run(killed)) == expected
    assert not list(folder.glob("unfinished/*"))
    assert os.listdir(folder / "dense") == [killed.dense_spec.key]
