"""Many specs, one after the other or in several processes that share the cores."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace

import torch

from biprune.experiments.record import RunRecord
from biprune.experiments.runner import Runner
from biprune.experiments.spec import TRAIN, RunSpec, covered_by
from biprune.heap import keep_freed_memory


def sweep(specs: Iterable[RunSpec], runner: Runner, *, workers: int = 1) -> Iterator[RunRecord]:
    """The record of every spec, as it comes: those at hand first, then those that are run.

    Dense runs that several specs share come first, so that no two processes wait for the same.
    What is done is in the store: after a kill the same call goes on. With several `workers` the
    threads of this process are shared out among them, and each epoch's progress is not heard.
    """
    wanted = {spec.key: spec for spec in specs}
    missing: list[RunSpec] = []
    for spec in wanted.values():
        record = runner.finished(spec)
        if record is None:
            missing.append(spec)
        else:
            yield record
    awaited = {spec.key for spec in missing}
    on_the_way = {passed.key for spec in missing for passed in covered_by(spec)}
    to_run = [spec for spec in missing if spec.key not in on_the_way]
    dense = {spec.dense_spec.key: spec.dense_spec for spec in to_run}
    yield from (r for r in _run(list(dense.values()), runner, workers) if r.key in awaited)
    wave = [spec for spec in to_run if spec.method != TRAIN]
    while wave:
        again: list[RunSpec] = []
        for record in _run(wave, runner, workers):
            yield record
            passed = [spec for spec in covered_by(record.spec) if spec.key in awaited]
            done = [stored for spec in passed if (stored := runner.finished(spec)) is not None]
            yield from done
            # What a failed run would have left on its way may be reached without it.
            again += [spec for spec in passed if spec.key not in {r.key for r in done}][-1:]
        wave = again


def _run(specs: Sequence[RunSpec], runner: Runner, workers: int) -> Iterator[RunRecord]:
    """Records in the order in which runs end; what another process is at comes last."""
    busy: list[RunSpec] = []
    for spec, record in _attempts(specs, runner, min(workers, len(specs))):
        if record is None:
            busy.append(spec)
        else:
            yield record
    for spec in busy:
        record = runner.run(spec)
        assert record is not None
        yield record


def _attempts(
    specs: Sequence[RunSpec], runner: Runner, workers: int
) -> Iterator[tuple[RunSpec, RunRecord | None]]:
    if workers <= 1:
        yield from ((spec, runner.run(spec, wait=False)) for spec in specs)
        return
    threads = max(1, torch.get_num_threads() // workers)
    silent = replace(runner, progress=None)  # what listens lives in this process
    context = multiprocessing.get_context("spawn")
    others = multiprocessing.active_children()
    try:
        with ProcessPoolExecutor(workers, context, _start_worker, (threads,)) as pool:
            futures = {pool.submit(silent.run, spec, wait=False): spec for spec in specs}
            own = [child for child in multiprocessing.active_children() if child not in others]
            try:
                for future in as_completed(futures):
                    yield futures[future], future.result()
            except BaseException:
                # The pool finds itself broken, drops what waits, and is left once all have ended.
                for child in own:
                    child.terminate()
                raise
    except BrokenProcessPool:
        raise OSError(
            "A worker process died, perhaps for want of memory. What is finished is kept: run the "
            "same again, with fewer `workers`."
        ) from None


def _start_worker(threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends us
    torch.set_num_threads(threads)
    keep_freed_memory()
