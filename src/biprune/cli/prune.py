"""`biprune prune`: a ticket from a dense run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from biprune.cli import options
from biprune.cli.models import OwnModel, model_argument, own_model, own_options
from biprune.cli.printing import print_budget, print_facts, print_json, print_lines, ticket_facts
from biprune.cli.running import output_folder, refuse_finished, resumable, show_progress

EXAMPLES = """\
$ biprune prune runs/dense --sparsity 0.9 --epochs 15 --out runs/pruned90
$ biprune prune runs/dense --method bip --sparsity 0.9 --out runs/published90
$ biprune prune runs/dense --sparsity 0.5 --structure filter --out runs/f50
$ biprune prune runs/dense --structure group --budget macs=0.5 --out runs/half
$ biprune prune runs/dense --structure 2:4 --out runs/two-of-four
$ biprune prune runs/dense --sparsity 0.9 --set kappa=1 --set ramp=0.8 \\
    --exclude head --out runs/tuned90
$ biprune prune runs/own --model mymodels:net --sparsity 0.8 --out runs/own80
Run the same command again after a kill: it goes on where it was."""

Dense = Annotated[
    Path, typer.Argument(metavar="DENSE", help="A folder written by `biprune train`.")
]
Sparsity = Annotated[
    float | None, typer.Option(help="Fraction of units to remove, in [0, 1).", show_default=False)
]
Budget = Annotated[
    str | None,
    typer.Option(
        metavar="macs=F|params=F", help="In place of --sparsity, for group: the fraction kept."
    ),
]
RoundTo = Annotated[int, typer.Option(help="Keep multiples of so many units of each group.")]
MethodName = Annotated[
    str,
    typer.Option(help="A name of `biprune list methods`; bip is BiP as published, bip-plus ours."),
]
StructureName = Annotated[str, typer.Option(help="A name of `biprune list structures`.")]
Scope = Annotated[
    options.Scope | None,
    typer.Option(help="Rank units together or in each layer.", show_default="the structure's"),
]
Epochs = Annotated[
    int | None,
    typer.Option(help="Epochs of the run, of each round for imp.", show_default="the method's"),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Setting of the method, such as lr=0.05; repeatable."
    ),
]
AttentionUnit = Annotated[options.Attention, typer.Option(help="What a unit of attention is.")]
Streams = Annotated[
    bool, typer.Option("--streams", help="Prune residual streams too; the small model is a graph.")
]
Include = Annotated[
    list[str] | None,
    typer.Option(metavar="PATTERN", help="Prune only these parameters; repeatable."),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(metavar="PATTERN", help="Leave these parameters dense; repeatable."),
]
AllowEmpty = Annotated[bool, typer.Option("--allow-empty", help="Let a layer lose all its units.")]


def prune_command(
    dense: Dense,
    out: options.Out,
    sparsity: Sparsity = None,
    method: MethodName = "bip-plus",
    structure: StructureName = "weight",
    scope: Scope = None,
    budget: Budget = None,
    round_to: RoundTo = 1,
    attention: AttentionUnit = "heads",
    streams: Streams = False,
    epochs: Epochs = None,
    settings: Settings = None,
    include: Include = None,
    exclude: Exclude = None,
    allow_empty: AllowEmpty = False,
    seed: options.Seed = 0,
    steps: options.Steps = None,
    optimizer: options.OptimizerName = None,
    clip_grad: options.ClipGrad = None,
    accumulate: options.Accumulate = 1,
    ema: options.Ema = None,
    model: OwnModel = None,
    model_option: options.ModelOptions = None,
    root: options.Root = None,
    download: options.Download = False,
    device: options.Device = None,
    threads: options.Threads = None,
    autocast: options.Autocast = False,
    compile: options.Compile = False,
    channels_last: options.ChannelsLast = None,
    force: options.Force = False,
    as_json: options.AsJson = False,
) -> None:
    """Prune a dense run to exactly the sparsity asked for, test once, and save the ticket."""
    given = locals()
    from biprune import load_data, load_dense, prune
    from biprune.cli.device import use_machine
    from biprune.files.artifact import check_fields, read_metadata
    from biprune.files.dense import DENSE_FIELDS

    kept = None if budget is None else _parsed_budget(budget)
    chosen = options.method_settings(method, settings)
    if twice := sorted(chosen.keys() & given.keys()):
        raise ValueError(f"`--set {twice[0]}=...` is an option of its own: --{twice[0]}.")
    model_options = own_options(model, model_option)
    use_machine(threads, device)
    source = read_metadata(dense, "dense")
    check_fields(source, dense, **DENSE_FIELDS)
    if dense.resolve() == out.resolve():
        raise ValueError(f"`--out` {str(out)!r} is the dense run itself. Choose another folder.")
    folder = output_folder(out, force=force)
    with resumable(folder, force=force) as checkpoint, show_progress(method) as progress:
        dataset = load_data(**data_options(source, dense, root), download=download)
        start = load_dense(dense, own_model(model, model_options, dense, dataset))
        others = {"budget": kept, "checkpoint": checkpoint, "progress": progress, **chosen}
        ticket = prune(start, dataset, method, **options.taken_by(prune, given, **others))
        refuse_finished(folder, force=force)
        ticket.save(folder)

    metadata = read_metadata(folder)
    if as_json:
        print_json(metadata)
        return
    print_facts({**ticket_facts(metadata, ticket.masks), "saved in": str(folder)})
    if groups := ticket.masks.structure.coupled:
        print_budget(ticket.masks, groups, ticket.sparsity)
    print_lines(*(f"Not pruned: {name}, {why}." for name, why in ticket.left_out.items()))
    follow = f"inspect {folder}"
    if groups:
        follow = f"shrink {folder}{model_argument(model)} --out {folder}-small"
    print_lines("", f"Next: biprune {follow}")


def _parsed_budget(text: str) -> dict[str, float]:
    name, _, value = text.partition("=")
    try:
        return {name.strip(): float(value)}
    except ValueError:
        raise ValueError(f"`--budget` must look like macs=0.5, got {text!r}.") from None


def data_options(source: Mapping[str, Any], dense: Path, root: Path | None) -> dict[str, Any]:
    """How to load the dense run's data again, from files that may have moved to `root`."""
    if source.get("data") is None:
        raise ValueError(
            f"{str(dense)!r} does not say which data it was trained on. Prune it from Python, "
            "with `biprune.load_dense` and `biprune.prune`."
        )
    data = dict(source["data"])
    if root is None:
        return data
    if str(data.get("name")).startswith("folder:"):
        return {**data, "name": f"folder:{root}"}
    return {**data, "root": str(root)}
