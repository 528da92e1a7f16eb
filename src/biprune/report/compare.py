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
from biprune.methods import Method, suited
from biprune.models import create_model, skeleton
from biprune.training.loop import Event
from biprune.training.recipes import OptimizerName, Recipe, settings_for

DEFAULT = ("bip-plus", "bip", "imp", "omp", "hydra", "gmp")  # where no method is named
RIVAL = "gmp"  # cheap and strong: a comparison without it flatters the others
Named = tuple[str | Method, Mapping[str, Any]]  # a method and its settings


@dataclass(frozen=True)
class CompareResult:
    """The runs of a comparison, whose records are read from the store."""

    specs: list[RunSpec]
    store: Store

    @property
    def records(self) -> list[RunRecord]:
        """What the store has of these runs and their dense ones, failed runs included."""
        return stored_records(self.specs, self.store)

    def table(self) -> str:
        """Test accuracy, mean and standard deviation over seeds, and cost, in Markdown."""
        from biprune.report import markdown_tables, summarise  # statistics, which runs do not need

        return markdown_tables(summarise(self.records))

    def report(self, path: Path | str, **outputs: Any) -> Path:
        """Write the page, and what `write_report` can write beside it; returns the page's path."""
        from biprune.report import write_report

        return write_report(self.records, path, **outputs)


def compare(
    methods: Iterable[str | Method | Named] | None,
    data: str | Dataset,
    model: str,
    *,
    sparsities: Sequence[float],
    seeds: Sequence[int] = (0, 1, 2),
    structures: Sequence[str] = ("weight",),
    passes: int | None = None,
    dense: Mapping[str, Any] | None = None,
    optimizer: OptimizerName | None = None,
    clip_grad: float | None = None,
    accumulate: int = 1,
    ema: float | None = None,
    autocast: bool = False,
    model_options: Mapping[str, Any] | None = None,
    data_options: Mapping[str, Any] | None = None,
    store: Path | str = "runs/store",
    root: Path | str | None = None,
    workers: int = 1,
    device: str = "cpu",
    progress: Callable[[RunSpec, Event], None] | None = None,
    run: Callable[..., Iterable[RunRecord]] = sweep,
) -> CompareResult:
    """Run every method at every sparsity, structure and seed, but for what `store` already has.

    Gradual magnitude pruning is always among the methods. A run that fails is recorded with its
    error, and the others go on.

    Example:
        >>> import tempfile, biprune
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = biprune.compare(["omp"], "digits", "resnet8", sparsities=[0.5], seeds=[0],
        ...         passes=1, dense={"epochs": 1}, model_options={"width": 2},
        ...         data_options={"subset": 200}, store=folder)
        ...     sorted(record.spec.method for record in result.records)
        ['gmp', 'omp', 'train']

    Args:
        methods: Names, method objects, or names with settings such as ("bip", {"gamma": 10.0}).
            None: both forms of BiP, and its closest rivals.
        data: A name, or what `load_data` returned; its split follows each run's seed.
        model: A name of `MODELS`, or your own "package.module:factory".
        sparsities: The fractions to remove.
        seeds: Of the data split, the initial weights and all runs.
        structures: What units are, as for `prune`.
        passes: Passes over the data that every method gets, IMP in each round. None: its own
            length.
        dense: Options of `train` for the dense runs, such as {"epochs": 30}.
        optimizer: "sgd" or "adamw", of the dense runs and of all methods but objects. By default
            AdamW for transformers and SGD for all else.
        clip_grad: Of all runs, as for `train`; so are `accumulate`, `ema` and `autocast`.
        model_options: For the model's function.
        data_options: For `load_data`, if `data` is a name.
        store: The folder of the records. What is found there is not run again.
        root: The folder of the data's files.
        workers: Runs at a time, each in a process. With more than one, call this under
            `if __name__ == "__main__":`, since the processes import your script.
        device: Where to compute.
        progress: Hears of every step of runs in this process.
        run: Runs the specs and yields their records, as `sweep` does.

    Returns:
        The records, with the table and the page made of them.

    Raises:
        ValueError: Something asked for is unknown or does not go together; nothing was run.
    """
    own = dict(model_options or {})
    # A network of the registry takes no memory here; your own may not be ready for that.
    network = create_model(model, **own) if ":" in model else skeleton(model, **own)
    name, data_options, found = _data_of(data, data_options)
    dense = {} if dense is None else dict(dense)
    recipe = settings_for(optimizer, network, dense.get("epochs", Recipe.epochs))
    by = recipe.get("optimizer", Recipe.optimizer)
    specs = grid(
        [
            method if isinstance(method, Method) else suited(method, network, settings, None, by)
            for method, settings in _with_rival(DEFAULT if methods is None else methods)
        ],
        model=model,
        data=name,
        sparsities=sparsities,
        seeds=seeds,
        structures=structures,
        passes=passes,
        dense=recipe | dense,
        training={
            "clip_grad": clip_grad,
            "accumulate": accumulate,
            "ema": ema,
            "autocast": autocast,
        },
        model_options=own,
        data_options=data_options,
    )
    runner = Runner(
        Store(store),
        root=found if root is None else root,
        verify=data.options["verify"] if isinstance(data, Dataset) else True,
        device=device,
        progress=progress,
    )
    runner.check_data(specs)
    for _ in run(specs, runner, workers=workers):
        pass
    return CompareResult(specs, runner.store)


def _with_rival(
    methods: Iterable[str | Method | Named],
) -> list[Named]:
    """The methods with their settings, and gradual magnitude pruning if it is not one of them."""
    chosen: list[Named] = [m if isinstance(m, tuple) else (m, {}) for m in methods]
    names = [getattr(method, "name", method) for method, _ in chosen]
    return chosen if RIVAL in names else [*chosen, (RIVAL, {})]


def stored_records(specs: Iterable[RunSpec], store: Store) -> list[RunRecord]:
    """The records of `specs` and of their dense runs, as far as they are there."""
    wanted = {s.key: s for spec in specs for s in (spec.dense_spec, spec)}
    found = (store.get(spec) for spec in wanted.values())
    return [record for record in found if record is not None]


def _data_of(
    data: str | Dataset, options: Mapping[str, Any] | None
) -> tuple[str, dict[str, Any], Path | str | None]:
    """The name of a data set, its options and the folder of its files."""
    if isinstance(data, str):
        return data, dict(options or {}), None
    if options:
        raise ValueError("`data_options` go with the name of a data set; this one is loaded.")
    return data.name, {name: data.options[name] for name in DATA_OPTIONS}, data.options["root"]
