"""Many specs, one after the other or in several processes that share the cores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from biprune.experiments.record import RunRecord
from biprune.experiments.runner import Runner
from biprune.experiments.spec import TRAIN, RunSpec, covered_by
from biprune.experiments.workers import run_in_workers
from biprune.training.distributed import check_one_process


def sweep(specs: Iterable[RunSpec], runner: Runner, *, workers: int = 1) -> Iterator[RunRecord]:
    """The record of every spec, as it comes: those at hand first, then those that are run.

    Dense runs that several specs share come first, so that no two processes wait for the same.
    What is done is in the store: after a kill the same call goes on. With several `workers` the
    threads of this process are shared out among them, and each epoch's progress is not heard.
    """
    check_one_process("compare")
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
    silent = replace(runner, progress=None)  # what listens lives in this process
    yield from run_in_workers(specs, silent, workers)
