"""Many runs: the grid of them, and running what the store lacks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from pydantic import ValidationError

from biprune.core.checks import check_whole
from biprune.experiments.record import TRAIN, RunRecord, RunSpec, covered_by
from biprune.experiments.runner import Runner
from biprune.experiments.workers import run_in_workers
from biprune.methods import METHODS, Method, get_method
from biprune.training.process import check_one_process


def grid(
    methods: Iterable[str | Method],
    *,
    model: str,
    data: str,
    sparsities: Sequence[float],
    seeds: Sequence[int] = (0,),
    structures: Sequence[str] = ("weight",),
    passes: int | None = None,
    dense: Mapping[str, Any] | None = None,
    training: Mapping[str, Any] | None = None,
    model_options: Mapping[str, Any] | None = None,
    data_options: Mapping[str, Any] | None = None,
) -> list[RunSpec]:
    """A spec for every cell, those of a seed together.

    IMP stops at every sparsity of the grid, so that one deep run passes them all. A method that
    does not prune is at sparsity 0 alone.

    Args:
        methods: Names, or objects of the methods in `METHODS`.
        model: As for `RunSpec`, and so are the other fields of one.
        data: The same.
        sparsities: The fractions to remove.
        seeds: Those of each cell.
        structures: What units are.
        passes: Passes over the data that each method gets, IMP in each of its rounds. None: its
            own length.
        dense: The recipe of the dense runs.
        training: What dense runs and pruning share.
        model_options: For the model's function.
        data_options: For `load_data`.

    Returns:
        The specs, each once.

    Raises:
        ValueError: A field is not what a run can have.
    """
    if passes is not None:
        check_whole("passes", passes, at_least=1)
    chosen = [_known(method) for method in methods]
    specs = [
        _spec(
            model=model,
            data=data,
            method=method.name,
            sparsity=sparsity if method.prunes else 0.0,
            structure=structure,
            seed=seed,
            settings=_over(method, sparsity, passes).covering(sparsities, below=sparsity).settings,
            model_options=dict(model_options or {}),
            data_options=dict(data_options or {}),
            dense=dict(dense or {}),
            training=dict(training or {}),
        )
        for seed, structure, sparsity, method in product(seeds, structures, sparsities, chosen)
    ]
    return list({spec.key: spec for spec in specs}.values())


def _known(method: str | Method) -> Method:
    """A method whose name and settings are enough to make it again, as a spec must."""
    built = get_method(method, {})
    if METHODS.get(built.name) is not type(built):
        raise ValueError(
            f"`methods` has a {type(built).__name__}, whose name {built.name!r} stands for another "
            "method in METHODS. Give it a name of its own and add it there."
        )
    return built


def _spec(**fields: Any) -> RunSpec:
    try:
        return RunSpec(**fields)
    except ValidationError as error:
        first = error.errors()[0]
        said = first.get("ctx", {}).get("error", first["msg"])  # what our own check said
        raise ValueError(str(said)) from None


def with_passes(method: Method, sparsity: float, passes: int) -> Method:
    """The method over as many epochs as `passes` over the data allow, and at least one."""
    share = method.data_passes(sparsity) / max(getattr(method, "epochs", 1), 1)
    if share == 0:
        return method
    return method.scaled(max(1, math.floor(passes / share + 1e-9)))


def _over(method: Method, sparsity: float, passes: int | None) -> Method:
    if passes is None:
        return method
    return method.scaled(passes) if method.has_rounds else with_passes(method, sparsity, passes)


def sweep(specs: Iterable[RunSpec], runner: Runner, *, workers: int = 1) -> Iterator[RunRecord]:
    """Run what the store lacks. Dense runs come first, since several specs share each of them.

    Finished runs are in the store, so after a kill the same call goes on.

    Args:
        specs: The runs; a repeated one is run once.
        runner: Runs a single spec.
        workers: Runs at a time, each in a process with its share of this one's threads. With more
            than one, the runner's `progress` hears nothing.

    Yields:
        The record of every spec as it comes, the stored ones first.
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
            # What a failed run would have passed on its way may be reached without it.
            again += [spec for spec in passed if spec.key not in {r.key for r in done}][-1:]
        wave = again


def _run(specs: Sequence[RunSpec], runner: Runner, workers: int) -> Iterator[RunRecord]:
    """Records in the order in which runs end; runs of other processes are waited for last."""
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
