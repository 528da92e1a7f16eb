"""`biprune train`: a dense model to prune later."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from biprune.cli import options
from biprune.cli.outputs import output_folder, refuse_finished, resumable
from biprune.cli.printing import dense_facts, print_facts, print_json, print_lines
from biprune.cli.progress import show_progress

EXAMPLES = """\
$ biprune train resnet20 digits --epochs 30 --out runs/dense
$ biprune train resnet20 cifar10 --root data --epochs 160 --out runs/cifar
$ biprune train resnet20 digits --model-option shortcut=B --out runs/b
$ biprune train mymodels:net digits --epochs 10 --out runs/own
Run the same command again after a kill: it goes on where it was."""


Epochs = Annotated[int, typer.Option(help="Passes over the training data.")]
LearningRate = Annotated[float, typer.Option(help="Learning rate.")]
Momentum = Annotated[float, typer.Option(help="Momentum of SGD.")]
WeightDecay = Annotated[float, typer.Option(help="Weight decay.")]
Schedule = Annotated[options.Shape, typer.Option(help="Shape of the rate's decay.")]
Nesterov = Annotated[bool, typer.Option("--nesterov", help="Nesterov's form of the momentum.")]
WarmupEpochs = Annotated[float, typer.Option(help="Linear warm-up.")]
RewindEpochs = Annotated[
    str | None,
    typer.Option(
        help="States to keep for rewinding, e.g. 0,2.", show_default="0 and 5 % of the run"
    ),
]


def train_command(
    model: options.ModelName,
    data: options.DataName,
    out: options.Out,
    epochs: Epochs = 160,
    lr: LearningRate = 0.1,
    momentum: Momentum = 0.9,
    weight_decay: WeightDecay = 5e-4,
    schedule: Schedule = "step",
    warmup_epochs: WarmupEpochs = 0.0,
    nesterov: Nesterov = False,
    rewind_epochs: RewindEpochs = None,
    seed: options.Seed = 0,
    width: options.Width = None,
    model_option: options.ModelOptions = None,
    root: options.Root = None,
    download: options.Download = False,
    subset: options.Subset = None,
    batch_size: options.BatchSize = None,
    val_fraction: options.ValFraction = 0.1,
    image_size: options.ImageSize = None,
    workers: options.Workers = 2,
    device: options.Device = "cpu",
    threads: options.Threads = None,
    autocast: options.Autocast = False,
    compile: options.Compile = False,
    channels_last: options.ChannelsLast = None,
    force: options.Force = False,
    as_json: options.AsJson = False,
) -> None:
    """Train a dense model by SGD, test it once, and save it with the states to rewind to."""
    from biprune import load_data, save_dense, train
    from biprune.cli.device import check_device, use_machine
    from biprune.cli.models import build_model, check_model, model_argument
    from biprune.files.artifact import read_metadata
    from biprune.training.train import Recipe

    recipe = Recipe(
        epochs,
        lr,
        momentum,
        weight_decay,
        schedule,
        warmup_epochs=warmup_epochs,
        nesterov=nesterov,
    )
    kept_epochs = None
    if rewind_epochs is not None:
        kept_epochs = options.numbers("--rewind-epochs", rewind_epochs, int)
    model_options = {"width": width, **options.model_options(model_option)}
    check_model(model, model_options)
    check_device(device)
    use_machine(threads)
    folder = output_folder(out, force=force)
    dataset = load_data(
        data,
        seed=seed,
        root=root,
        batch_size=batch_size,
        val_fraction=val_fraction,
        subset=subset,
        image_size=image_size,
        workers=workers,
        download=download,
    )
    network = build_model(model, dataset, model_options, seed=seed).to(device)
    with resumable(folder, force=force) as checkpoints:
        with show_progress("train") as report:
            result = train(
                network,
                dataset,
                **asdict(recipe),
                seed=seed,
                rewind_epochs=kept_epochs,
                channels_last=channels_last,
                autocast=autocast,
                compile=compile,
                checkpoint=checkpoints,
                progress=report,
            )
        refuse_finished(folder, force=force)
        save_dense(result, folder, data=dataset.options)

    metadata = read_metadata(folder)
    if as_json:
        print_json(metadata)
        return
    print_facts({**dense_facts(metadata), "saved in": str(folder)})
    own = model_argument(model if ":" in model else None)
    print_lines("", f"Next: biprune prune {folder}{own} --sparsity 0.9 --out runs/pruned")
