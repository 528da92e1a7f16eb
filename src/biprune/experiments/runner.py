"""From a spec to its record: skip what is recorded, share dense runs, resume what was killed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from filelock import Timeout
from torch import nn

from biprune.data import Dataset, load_data
from biprune.experiments.environment import environment, revision
from biprune.experiments.record import TRAIN, RunRecord, RunSpec, covered_by
from biprune.experiments.store import Store
from biprune.files.artifact import is_saved
from biprune.files.dense import load_dense, save_dense
from biprune.models import create_model
from biprune.pruning.prune import prune
from biprune.pruning.ticket import Ticket
from biprune.training.loop import Event, Record
from biprune.training.train import TrainResult, train

# What `prune` is asked for by fields of a spec that have the names of its keywords.
ASKED = {"sparsity", "structure", "scope", "include", "exclude", "allow_empty", "seed"}


@dataclass(frozen=True)
class Runner:
    """Runs specs and puts their records into `store`; no field changes what a run computes.

    Args:
        root: The folder of the data's files.
        verify: As for `load_data`.
        progress: Hears an `Event` of every step.
    """

    store: Store
    root: Path | str | None = None
    verify: bool = True
    device: str = "cpu"
    progress: Callable[[RunSpec, Event], None] | None = None

    def finished(self, spec: RunSpec) -> RunRecord | None:
        """The record of a run that succeeded; None if there is none.

        A dense run needs its model too. Records may be copied without the models, which are then
        trained again where they are needed.
        """
        record = self.store.get(spec)
        if record is None or record.status != "done":
            return None
        return record if spec.method != TRAIN or is_saved(self.store.dense_folder(spec)) else None

    def check_data(self, specs: Iterable[RunSpec]) -> None:
        """Load each data set that unfinished runs need, so that a missing one is reported once."""
        missing = {spec.data: spec for spec in specs if self.finished(spec) is None}
        for spec in missing.values():
            self._data(spec)

    def run(self, spec: RunSpec, *, wait: bool = True) -> RunRecord | None:
        """The record of `spec`, run now if need be.

        A run that fails is recorded with its error, and is tried again by the next call. A dense
        run that failed is not tried again for the runs that start from it: run it first.

        Args:
            spec: The run.
            wait: Wait for another process that is at this run.

        Returns:
            None if another process is at it, and `wait` is False.
        """
        if record := self.finished(spec):
            return record
        try:
            with self.store.lock(spec).acquire(blocking=wait):
                if record := self.finished(spec):
                    return record
                return self._keep(self._attempt(spec))
        except Timeout:
            return None

    def _attempt(self, spec: RunSpec) -> RunRecord:
        revision()
        try:
            return self._train(spec) if spec.method == TRAIN else self._prune(spec)
        except Exception as error:
            return _failed(spec, f"{type(error).__name__}: {error}")

    def _keep(self, record: RunRecord) -> RunRecord:
        """Store a record, and drop the checkpoint of a run that has ended.

        A failure does not replace the record of a dense run that was repeated for its model.
        """
        before = self.store.get(record.spec)
        if record.error is not None and before is not None and before.status == "done":
            return record
        kept = self._put(record)
        if record.error is None:
            self.store.forget_checkpoint(record.spec)
        return kept

    def _put(self, record: RunRecord) -> RunRecord:
        """Store a record with where it was made."""
        made = record.model_copy(update={"environment": environment(self.device)})
        self.store.put(made)
        return made

    def _train(self, spec: RunSpec) -> RunRecord:
        data = self._data(spec)
        result = train(
            self._model(spec, data),
            data,
            seed=spec.seed,
            checkpoint=self.store.checkpoint_folder(spec),
            progress=self._progress(spec),
            **_keywords(spec.resolved["dense"]),
            **spec.training,
        )
        save_dense(result, self.store.dense_folder(spec), data=data.options)
        return _record(spec, result, test_accuracy=result.accuracy, dense_accuracy=result.accuracy)

    def _prune(self, spec: RunSpec) -> RunRecord:
        dense = self._dense(spec.dense_spec)
        ticket = prune(
            dense,
            self._data(spec),
            spec.build_method(),
            checkpoint=self.store.checkpoint_folder(spec),
            progress=self._progress(spec),
            **spec.model_dump(include=ASKED),
            **spec.training,
        )
        rounds = {passed.sparsity: passed for passed in ticket.rounds}
        for covered in covered_by(spec):
            if self.finished(covered) is None:
                self._put(_pruned(covered, rounds[covered.sparsity]))
        return _pruned(spec, ticket)

    def _dense(self, spec: RunSpec) -> TrainResult:
        record = self.store.get(spec)
        if record is None or record.status == "done":  # a sweep has tried a failed one before
            record = self.run(spec)
        assert record is not None
        if record.status == "failed":
            raise RuntimeError(f"The dense run failed: {record.error}")
        dense = load_dense(self.store.dense_folder(spec), self._model(spec, self._data(spec)))
        dense.model.to(self.device)
        return dense

    def _model(self, spec: RunSpec, data: Dataset) -> nn.Module:
        sizes = {"num_classes": data.num_classes, "in_channels": data.in_channels}
        model = create_model(spec.model, seed=spec.seed, **{**sizes, **spec.model_options})
        return model.to(self.device)

    def _data(self, spec: RunSpec) -> Dataset:
        options = json.dumps(spec.data_options, sort_keys=True)
        return _load(spec.data, spec.seed, self.root, self.verify, options)

    def _progress(self, spec: RunSpec) -> Callable[[Event], None] | None:
        observe = self.progress
        return None if observe is None else lambda event: observe(spec, event)


@lru_cache(maxsize=2)  # the runs of a seed come together
def _load(name: str, seed: int, root: Path | str | None, verify: bool, options: str) -> Dataset:
    return load_data(name, seed=seed, root=root, verify=verify, **json.loads(options))


def _keywords(options: dict[str, Any]) -> dict[str, Any]:
    """Options as `train` takes them: JSON has no tuples."""
    return {name: tuple(v) if isinstance(v, list) else v for name, v in options.items()}


def _failed(spec: RunSpec, error: str) -> RunRecord:
    return RunRecord(spec=spec, resolved=spec.resolved, status="failed", error=error)


def _pruned(spec: RunSpec, ticket: Ticket) -> RunRecord:
    return _record(
        spec,
        ticket,
        test_accuracy=ticket.accuracy,
        dense_accuracy=ticket.dense_accuracy,
        achieved_sparsity=ticket.masks.sparsity,
        weight_sparsity=ticket.masks.weight_sparsity,
        layers={n: (c.kept, c.total) for n, c in ticket.masks.per_layer().items()},
    )


def _record(spec: RunSpec, result: TrainResult | Ticket, **measured: Any) -> RunRecord:
    return RunRecord(
        spec=spec,
        resolved=spec.resolved,
        val_accuracy=_last_accuracy(result.history),
        forward_passes=result.cost.forward_passes,
        backward_passes=result.cost.backward_passes,
        seconds=result.cost.seconds,
        history=result.history,
        **measured,
    )


def _last_accuracy(history: list[Record]) -> float | None:
    return next((entry["accuracy"] for entry in reversed(history) if "accuracy" in entry), None)
