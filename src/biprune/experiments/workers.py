"""Processes that do one run at a time: one that dies loses its own run and no other."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

import torch

from biprune.experiments.record import RunRecord, RunSpec
from biprune.experiments.runner import Runner
from biprune.training.process import keep_freed_memory

SPAWN = multiprocessing.get_context("spawn")
GRACE = 5.0  # seconds that a worker has to clean up before it is killed
THREAD_LIMITS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass
class _Worker:
    """A process, the pipe to it, and its current run, if it has one."""

    process: SpawnProcess
    pipe: Connection
    spec: RunSpec | None = None

    def give(self, spec: RunSpec) -> None:
        self.spec = spec
        with suppress(OSError):  # it is dead, as reading its answer will show
            self.pipe.send(spec)


def run_in_workers(
    specs: Sequence[RunSpec], runner: Runner, workers: int
) -> Iterator[tuple[RunSpec, RunRecord | None]]:
    """Run specs in processes that share out this one's threads.

    A run whose worker dies is tried once more after the others, from its checkpoint. Whatever ends
    this loop ends the workers, and if this process is killed they end by themselves.

    Args:
        specs: The runs.
        runner: Runs one of them without waiting for other processes.
        workers: How many processes there are.

    Yields:
        Each spec with what `Runner.run` returned, in the order in which runs end.

    Raises:
        OSError: Two workers died of the same run.
    """
    waiting, lost = deque(specs), set[str]()
    threads = max(1, torch.get_num_threads() // workers)
    crew: list[_Worker] = []

    def give_out() -> None:
        while waiting and len(crew) < workers:
            with _undisturbed():
                crew.append(_start(runner, threads))
            crew[-1].give(waiting.popleft())
        for worker in crew:
            if waiting and worker.spec is None:
                worker.give(waiting.popleft())

    try:
        while waiting or any(worker.spec for worker in crew):
            give_out()
            for worker in _with_news(crew):
                spec, worker.spec = worker.spec, None
                try:
                    answer = worker.pipe.recv()
                except (EOFError, OSError):
                    crew.remove(worker)
                    worker.process.join(GRACE)
                    if spec is not None:
                        if spec.key in lost:
                            raise OSError(_lost_twice(spec, worker.process.exitcode)) from None
                        lost.add(spec.key)
                        waiting.append(spec)
                    continue
                give_out()
                if isinstance(answer, Exception):
                    raise answer
                assert spec is not None
                yield spec, answer
    finally:
        _end(crew)


def _with_news(crew: Iterable[_Worker]) -> list[_Worker]:
    ready = wait([worker.pipe for worker in crew])
    return [worker for worker in crew if worker.pipe in ready]


def _lost_twice(spec: RunSpec, code: int | None) -> str:
    how = f"by {signal.Signals(-code).name}" if code and code < 0 else f"with exit code {code}"
    return (
        f"The worker process of the run {str(spec)!r} ended twice, at last {how}, perhaps for want "
        "of memory. What is finished is kept: run the same again, with fewer `workers`."
    )


def _start(runner: Runner, threads: int) -> _Worker:
    pipe, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=_work, args=(theirs, runner, threads))
    before = {name: os.environ.get(name) for name in THREAD_LIMITS}
    # Libraries read these as they are loaded, which is before the worker's first line.
    os.environ.update(dict.fromkeys(THREAD_LIMITS, str(threads)))
    try:
        process.start()
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
    theirs.close()
    return _Worker(process, pipe)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Put off Ctrl-C and SIGTERM until the new process is known and can be ended.

    The new process starts with Ctrl-C blocked, since a terminal sends that to it too; this process
    will end it.
    """
    if threading.current_thread() is not threading.main_thread():  # others get no signals
        yield
        return
    heard: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {n: signal.signal(n, lambda number, _: heard.append(number)) for n in numbers}
    if sys.platform != "win32":
        resource_tracker.ensure_running()  # its start would undo the mask
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        if sys.platform != "win32":
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in heard:
        signal.raise_signal(number)


def _end(crew: Iterable[_Worker]) -> None:
    for worker in crew:
        worker.process.terminate()
    deadline = time.monotonic() + GRACE
    for worker in crew:
        worker.process.join(max(0.0, deadline - time.monotonic()))
        worker.process.kill()
        worker.process.join()
        worker.pipe.close()


def _work(pipe: Connection, runner: Runner, threads: int) -> None:
    """The worker's life: take a spec, run it, answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    threading.Thread(target=_follow_parent, daemon=True).start()
    torch.set_num_threads(threads)
    with suppress(RuntimeError):  # the user's script, which is imported here, may have set it
        torch.set_num_interop_threads(threads)
    keep_freed_memory()
    with suppress(EOFError, ConnectionError):  # of a parent that is gone
        while True:
            spec = pipe.recv()
            try:
                answer = runner.run(spec, wait=False)
            except Exception as error:
                answer = error
            pipe.send(answer)


def _leave(number: int, frame: object) -> None:
    """Unwind, so that nothing half written stays; a second signal must not cut that short."""
    del frame
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(1)
