"""Runs in processes of their own: what a death costs, who ends whom, and how many threads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from biprune.experiments.record import RunRecord, RunSpec
from biprune.experiments.runner import Runner
from biprune.experiments.store import Store
from biprune.experiments.sweep import grid
from biprune.experiments.workers import THREAD_LIMITS, _undisturbed, run_in_workers
from biprune.training.loop import Event

TINY = {
    "model": "resnet8",
    "data": "digits",
    "model_options": {"width": 2},
    "data_options": {"subset": 200},
    "dense": {"epochs": 1},
}


def specs(seeds: int = 2, passes: int = 2) -> list[RunSpec]:
    return grid(["gmp"], sparsities=[0.5], seeds=range(seeds), passes=passes, **TINY)


@dataclass(frozen=True)
class Doomed(Runner):
    """Its process is killed at the fifth step of the run of seed 0, so many times."""

    deaths: int = 0

    def run(self, spec: RunSpec, *, wait: bool = True) -> RunRecord | None:
        steps = 0

        def progress(spec: RunSpec, event: Event) -> None:
            nonlocal steps
            steps += 1
            died = list(self.store.folder.glob("died-*"))
            if spec.method == "gmp" and spec.seed == 0 and steps == 5 and len(died) < self.deaths:
                (self.store.folder / f"died-{os.getpid()}").touch()
                os.kill(os.getpid(), signal.SIGKILL)

        return Runner(self.store, progress=progress).run(spec, wait=wait)


def timeless(record: RunRecord | None) -> RunRecord:
    assert record is not None
    history = [{k: v for k, v in e.items() if k != "seconds"} for e in record.history]
    return record.model_copy(update={"environment": {}, "seconds": 0.0, "history": history})


def test_the_run_of_a_killed_worker_is_tried_once_more(tmp_path: Path) -> None:
    doomed = Doomed(Store(tmp_path / "killed"), deaths=1)
    found = {spec.key: record for spec, record in run_in_workers(specs(), doomed, workers=2)}
    assert len(list((tmp_path / "killed").glob("died-*"))) == 1
    whole = Runner(Store(tmp_path / "whole"))
    for spec in specs():
        assert timeless(found[spec.key]) == timeless(whole.run(spec))


def test_a_run_whose_worker_is_killed_twice_ends_the_sweep_by_name(tmp_path: Path) -> None:
    doomed = Doomed(Store(tmp_path), deaths=2)
    said = r"run 'gmp 50 % weight seed 0' ended twice, at last by SIGKILL, perhaps for want"
    with pytest.raises(OSError, match=said):
        list(run_in_workers(specs(), doomed, workers=2))
    _, other = specs()
    assert doomed.finished(other) is not None  # it lost nothing


@dataclass(frozen=True)
class Counting(Runner):
    """Answers with the threads that its process computes with."""

    def run(self, spec: RunSpec, *, wait: bool = True) -> RunRecord | None:
        import sklearn.utils  # noqa: F401  # brings an OpenMP of its own
        from threadpoolctl import threadpool_info

        with torch.enable_grad():
            torch.randn(600, 600, requires_grad=True).matmul(torch.randn(600, 600)).sum().backward()
        np.ones((600, 600)) @ np.ones((600, 600))
        pools = {f"{i} {p['filepath']}": p["num_threads"] for i, p in enumerate(threadpool_info())}
        torch_own = {"intra": torch.get_num_threads(), "inter": torch.get_num_interop_threads()}
        return RunRecord(spec=spec, resolved={}, environment=pools | torch_own)


@pytest.mark.parametrize("share", [1, 3])
def test_each_worker_computes_with_its_share_of_the_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: int
) -> None:
    for name in THREAD_LIMITS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "7")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2 * share + 1)
    for _, record in run_in_workers(specs(), Counting(Store(tmp_path)), workers=2):
        assert record is not None
        assert max(record.environment.values()) == share  # some are not above the cores
        assert len(record.environment) > 3
    assert [os.environ.get(name) for name in THREAD_LIMITS] == [None, "7", None]


@dataclass(frozen=True)
class Refusing(Runner):
    """A store that cannot be written."""

    def run(self, spec: RunSpec, *, wait: bool = True) -> RunRecord | None:
        raise OSError("No space left on device.")


def test_an_error_outside_of_a_run_is_the_sweeps(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left on device"):
        list(run_in_workers(specs(), Refusing(Store(tmp_path)), workers=2))


def test_signals_are_heard_once_the_process_is_known() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    events: list[str] = []

    def start() -> None:
        with _undisturbed():
            os.kill(os.getpid(), signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            events.append("started")

    with pytest.raises(KeyboardInterrupt):
        start()
    assert events == ["started"]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())


LONG = """
import sys
from biprune.experiments.sweep import grid
from biprune.experiments.runner import Runner
from biprune.experiments.store import Store
from biprune.experiments.sweep import sweep
if __name__ == "__main__":
    specs = grid(["gmp"], model="resnet8", data=sys.argv[1], sparsities=[0.5], seeds=[0, 1],
        passes=1, dense={"epochs": 5000}, model_options={"width": 2},
        data_options={"image_size": 8} if "folder" in sys.argv[1] else {"subset": 200})
    list(sweep(specs, Runner(Store(sys.argv[2])), workers=2))
"""


@contextmanager
def long_sweep(folder: Path, data: str) -> Iterator[subprocess.Popen[bytes]]:
    """Two runs in two workers, both in the midst of it; nothing of them is left behind."""
    script = folder / "script.py"
    script.write_text(LONG, encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, script, data, folder / "store"],
        start_new_session=True,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        pattern = "store/unfinished/*"  # made as the first epoch begins
        deadline = time.monotonic() + 120
        while len(list(folder.glob(pattern))) < 2 and time.monotonic() < deadline:
            assert process.poll() is None
            time.sleep(0.05)
        assert len(list(folder.glob(pattern))) == 2
        time.sleep(0.5)
        yield process
    finally:
        if alive(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("read_by_processes", [False, True])
def test_workers_do_not_outlive_their_parent(tmp_path: Path, read_by_processes: bool) -> None:
    """Nor do those that read images for them."""
    data = "digits"
    if read_by_processes:
        data = f"folder:{tmp_path / 'images'}"
        for number in range(8):
            for split in ("train", "test"):
                folder = tmp_path / "images" / split / "ab"[number % 2]
                folder.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (8, 8), (30 * number, 0, 0)).save(folder / f"{number}.png")
    with long_sweep(tmp_path, data) as process:
        process.kill()
        process.wait()
        deadline = time.monotonic() + 20
        while alive(process.pid) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not alive(process.pid)
