"""`biprune compare`: methods x sparsities x seeds, and the page about them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from biprune.cli import options
from biprune.cli.sweeps import check_report, print_results, run_sweep

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
    optimizer: options.OptimizerName = None,
    clip_grad: options.ClipGrad = None,
    accumulate: options.Accumulate = 1,
    ema: options.Ema = None,
    width: options.Width = None,
    model_option: options.ModelOptions = None,
    root: options.Root = None,
    subset: options.Subset = None,
    batch_size: options.BatchSize = None,
    store: options.StoreFolder = Path("runs/store"),
    workers: options.RunWorkers = 1,
    device: options.Device = "cpu",
    threads: options.Threads = None,
    autocast: options.Autocast = False,
    report: options.ReportFile = None,
    as_json: options.AsJson = False,
) -> None:
    """Compare methods at equal cost, over sparsities and seeds, and show the table.

    Gradual magnitude pruning (gmp) is a row of every comparison.
    """
    given = locals()
    from biprune import compare
    from biprune.cli.device import use_machine
    from biprune.cli.models import find_model

    own = options.model_options(model_option) | ({} if width is None else {"width": width})
    chosen = {"subset": subset, "batch_size": batch_size}
    lists = {
        "sparsities": options.numbers("--sparsities", sparsities, float),
        "seeds": options.numbers("--seeds", seeds, int),
        "structures": structures.split(","),
        "dense": {"epochs": dense_epochs},
        "model_options": own,
        "data_options": {name: value for name, value in chosen.items() if value is not None},
    }
    methods = None if method is None else [_method(text) for text in method]
    use_machine(threads, device)
    find_model(model)
    check_report(report)
    compared = options.taken_by(compare, given, **lists, run=run_sweep)
    result = compare(methods, data, model, **compared)
    print_results(result.records, report, as_json=as_json)


def _method(text: str) -> tuple[str, Mapping[str, Any]]:
    name, *settings = text.split(":")
    return name, options.method_settings(name, settings, option="--method NAME:")
