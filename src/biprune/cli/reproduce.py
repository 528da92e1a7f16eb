"""`biprune reproduce`: a figure or table of the paper by name, at a size to choose."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from biprune.cli import options
from biprune.cli.printing import print_json, print_lines
from biprune.cli.sweeps import check_report, print_results, run_sweep
from biprune.experiments.costs import SPEEDS, Scale, listed

if TYPE_CHECKING:
    from biprune.experiments.paper import ReferencePoint
    from biprune.experiments.record import RunSpec

EXAMPLES = """\
$ biprune reproduce --list
$ biprune reproduce trajectory-cifar10-resnet20 --scale smoke --report report.html
$ biprune reproduce snapshot --scale laptop --root data --workers 2
Run the same command again after a kill: what is recorded is not run again."""


def reproduce_command(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME...", help="Names of --list, or all.", show_default=False),
    ] = None,
    scale: Annotated[
        Scale,
        typer.Option(help="The paper's settings; hours on two cores; seconds on the digits."),
    ] = "laptop",
    list_names: Annotated[bool, typer.Option("--list", help="What can be repeated.")] = False,
    root: options.Root = None,
    store: options.StoreFolder = Path("runs/store"),
    workers: options.RunWorkers = 1,
    device: options.Device = "cpu",
    threads: options.Threads = None,
    report: options.ReportFile = None,
    as_json: options.AsJson = False,
) -> None:
    """Repeat a figure or table of the BiP paper: run what is missing, print tables, write a page.

    At scale paper the page shows the paper's own accuracies beside ours.
    """
    if list_names:
        _print_list(as_json)
        return
    from biprune.cli.device import use_machine
    from biprune.experiments.presets import PRESETS, get_preset
    from biprune.experiments.runner import Runner
    from biprune.experiments.store import Store
    from biprune.report.compare import stored_records

    if not names:
        raise ValueError("Name what to repeat; `biprune reproduce --list` shows the names.")
    use_machine(threads, device)
    presets = [get_preset(name) for name in (PRESETS if names == ["all"] else names)]
    specs = [spec for preset in presets for spec in preset.specs(scale)]
    check_report(report)
    runner = Runner(Store(store), root=root, device=device or "cpu")
    runner.check_data(specs)
    run_sweep(specs, runner, workers)
    title = presets[0].summary if len(presets) == 1 else "Repeated figures and tables"
    print_results(
        stored_records(specs, runner.store),
        report,
        as_json=as_json,
        title=f"{title} (scale: {scale})",
        paper=_paper_points(specs) if scale == "paper" else (),
    )


def _print_list(as_json: bool) -> None:
    presets = listed()
    if as_json:
        print_json({name: asdict(preset) for name, preset in presets.items()})
        return
    for name, preset in presets.items():
        times = [f"{scale} {preset.cost[scale].time(speed)}" for scale, speed in SPEEDS.items()]
        print_lines(name, f"    {preset.source}: {preset.summary}", f"    {', '.join(times)}")


def _paper_points(specs: Iterable[RunSpec]) -> list[ReferencePoint]:
    """The paper's numbers for these models and data."""
    from biprune.experiments.paper import paper_points

    pairs = dict.fromkeys((spec.model, spec.data) for spec in specs)
    return [point for pair in pairs for point in paper_points(*pair)]
