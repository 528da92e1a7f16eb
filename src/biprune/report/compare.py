"""compare(): methods x sparsities x seeds, run into a store, as tables and a page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from biprune.data import Dataset
from biprune.experiments.record import DATA_OPTIONS, RunRecord, RunSpec
from biprune.experiments.runner import Runner
from biprune.experiments.store import Store
from biprune.experiments.sweep import grid, sweep
from biprune.methods import Method, get_method
from biprune.models import check_model
from biprune.training.loop import Event

DEFAULT = ("bip-plus", "bip", "imp", "omp", "hydra", "gmp")  # where no method is named
RIVAL = "gmp"  # cheap and strong: a comparison without it flatters the others


@dataclass(frozen=True)
class CompareResult:
    """The runs of a comparison; `records` are read from the store, failed ones too.

    Reports are imported where they are asked for: charts and statistics take long to import.
    """

    specs: list[RunSpec]
    store: Store

    @property
    def records(self) -> list[RunRecord]:
        """What the store has of these runs and of the dense ones that they start from."""
        return stored_records(self.specs, self.store)

    def table(self) -> str:
        """Test accuracy, mean and standard deviation over seeds, and cost, in Markdown."""
        from biprune.report import markdown_tables, summarise

        return markdown_tables(summarise(self.records))

    def report(self, path: Path | str, **outputs: Any) -> Path:
        """Write the page, and what else `write_report` is told to write."""
        from biprune.report import write_report

        return write_report(self.records, path, **outputs)


def compare(
    methods: Iterable[str | Method] | None,
    data: str | Dataset,
    model: str,
    *,
    sparsities: Sequence[float],
    seeds: Sequence[int] = (0, 1, 2),
    structures: Sequence[str] = ("weight",),
    passes: int | None = None,
    dense: Mapping[str, Any] | None = None,
    model_options: Mapping[str, Any] | None = None,
    data_options: Mapping[str, Any] | None = None,
    store: Path | str = "runs/store",
    root: Path | str | None = None,
    workers: int = 1,
    device: str = "cpu",
    progress: Callable[[RunSpec, Event], None] | None = None,
) -> CompareResult:
    """Run every method at every sparsity, structure and seed, but for what `store` already has.

    `methods` None is BiP in both forms and its closest rivals. `data` is a name, with
    `data_options` for `load_data`, or what `load_data` returned; its split follows each run's seed.
    `passes` gives every method that many passes over the data, and IMP as many in each round; None
    leaves each its own length. `dense` are options of `train`, such as `{"epochs": 30}`. Gradual
    magnitude pruning is always among the methods. A run that fails is recorded with its error, and
    the others go on. With `workers` above 1 call this from a script's
    `if __name__ == "__main__":`, since they import it.

    >>> import tempfile, biprune
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = biprune.compare(["omp"], "digits", "resnet8", sparsities=[0.5], seeds=[0],
    ...         passes=1, dense={"epochs": 1}, model_options={"width": 2},
    ...         data_options={"subset": 200}, store=folder)
    ...     sorted(record.spec.method for record in result.records)
    ['gmp', 'omp', 'train']
    """
    specs, runner = runs_of(
        methods,
        data,
        model,
        sparsities=sparsities,
        seeds=seeds,
        structures=structures,
        passes=passes,
        dense=dense,
        model_options=model_options,
        data_options=data_options,
        store=store,
        root=root,
        device=device,
        progress=progress,
    )
    for _ in sweep(specs, runner, workers=workers):
        pass
    return CompareResult(specs, runner.store)


def runs_of(
    methods: Iterable[str | Method] | None,
    data: str | Dataset,
    model: str,
    *,
    store: Path | str,
    root: Path | str | None,
    device: str,
    model_options: Mapping[str, Any] | None,
    data_options: Mapping[str, Any] | None,
    progress: Callable[[RunSpec, Event], None] | None = None,
    **options: Any,
) -> tuple[list[RunSpec], Runner]:
    """What `compare` runs, checked before anything is run, and what runs it."""
    check_model(model, model_options or {})
    name, data_options, root = _data_of(data, data_options, root)
    chosen = with_rival(DEFAULT if methods is None else methods)
    specs = grid(
        chosen,
        model=model,
        data=name,
        model_options=model_options,
        data_options=data_options,
        **options,
    )
    verify = data.options["verify"] if isinstance(data, Dataset) else True
    runner = Runner(Store(store), root=root, verify=verify, device=device, progress=progress)
    runner.check_data(specs)
    return specs, runner


def with_rival(methods: Iterable[str | Method]) -> list[Method]:
    """The methods, and gradual magnitude pruning if it is not one of them."""
    chosen = [get_method(method, {}) for method in methods]
    if not any(method.name == RIVAL for method in chosen):
        chosen.append(get_method(RIVAL, {}))
    return chosen


def stored_records(specs: Iterable[RunSpec], store: Store) -> list[RunRecord]:
    """The records of `specs` and of their dense runs, as far as they are there."""
    wanted = {s.key: s for spec in specs for s in (spec.dense_spec, spec)}
    found = (store.get(spec) for spec in wanted.values())
    return [record for record in found if record is not None]


def _data_of(
    data: str | Dataset, options: Mapping[str, Any] | None, root: Path | str | None
) -> tuple[str, dict[str, Any], Path | str | None]:
    if isinstance(data, str):
        return data, dict(options or {}), root
    if options:
        raise ValueError("`data_options` go with the name of a data set; this one is loaded.")
    own = {name: data.options[name] for name in DATA_OPTIONS}
    return data.name, own, data.options["root"] if root is None else root
