"""`biprune compare`: methods x sparsities x seeds, and the page about them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from biprune.cli import options
from biprune.cli.settings import build_method
from biprune.cli.sweeps import check_report, print_results, run_sweep

if TYPE_CHECKING:
    from biprune import Method

EXAMPLES = """\
$ biprune compare resnet8 digits --sparsities 0.8,0.95 --passes 20 \\
    --dense-epochs 20 --report report.html
$ biprune compare resnet20 cifar10 --method bip-plus --method bip \\
    --method bip:gamma=10 --method imp --sparsities 0.9 --seeds 0,1,2 --workers 2
Run the same command again after a kill: what is recorded is not run again."""


def compare_command(
    model: options.ModelName,
    data: options.DataName,
    sparsities: Annotated[
        str, typer.Option(help="Fractions to remove, such as 0.5,0.9.", show_default=False)
    ],
    method: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:KEY=VALUE...]",
            help="A method, with settings of its own; repeatable.",
            show_default="bip-plus, bip, imp, omp, hydra, gmp",
        ),
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds, such as 0,1,2.")] = "0,1,2",
    structures: Annotated[str, typer.Option(help="Structures, such as weight,filter.")] = "weight",
    passes: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Passes over the data of each run; of each round for imp.",
            show_default="the method's",
        ),
    ] = None,
    dense_epochs: Annotated[int, typer.Option(help="Epochs of the dense runs.")] = 160,
    width: options.Width = None,
    model_option: options.ModelOptions = None,
    root: options.Root = None,
    subset: options.Subset = None,
    batch_size: options.BatchSize = None,
    store: options.StoreFolder = Path("runs/store"),
    workers: options.RunWorkers = 1,
    threads: options.Threads = None,
    device: options.Device = "cpu",
    report: options.ReportFile = None,
    as_json: options.AsJson = False,
) -> None:
    """Compare methods at equal cost, over sparsities and seeds, and show the table.

    Gradual magnitude pruning (gmp) is a row of every comparison.
    """
    from biprune.cli.device import check_device, use_machine
    from biprune.cli.models import find_model
    from biprune.report.compare import runs_of, stored_records

    check_device(device)
    use_machine(threads)
    own = options.model_options(model_option) | ({} if width is None else {"width": width})
    find_model(model)
    chosen = {"subset": subset, "batch_size": batch_size}
    check_report(report)
    specs, runner = runs_of(
        None if method is None else [_method(text) for text in method],
        data,
        model,
        sparsities=options.numbers("--sparsities", sparsities, float),
        seeds=options.numbers("--seeds", seeds, int),
        structures=structures.split(","),
        passes=passes,
        dense={"epochs": dense_epochs},
        model_options=own,
        data_options={name: value for name, value in chosen.items() if value is not None},
        store=store,
        root=root,
        device=device,
    )
    run_sweep(specs, runner, workers)
    print_results(stored_records(specs, runner.store), report, as_json=as_json)


def _method(text: str) -> Method:
    name, *settings = text.split(":")
    return build_method(name, settings, option="--method NAME:")
