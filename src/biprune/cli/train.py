"""`biprune train`: a dense model to prune later."""

from __future__ import annotations

from typing import Annotated

import typer

from biprune.cli import options
from biprune.cli.printing import dense_facts, print_facts, print_json, print_lines
from biprune.cli.running import output_folder, refuse_finished, resumable, show_progress

EXAMPLES = """\
$ biprune train resnet20 digits --epochs 30 --out runs/dense
$ biprune train resnet20 cifar10 --root data --epochs 160 --out runs/cifar
$ biprune train resnet20 digits --model-option shortcut=B --out runs/b
$ biprune train mymodels:vit digits --optimizer adamw --steps 2000 --out runs/own
Run the same command again after a kill: it goes on where it was."""

Epochs = Annotated[int, typer.Option(help="Passes over the training data.")]
LearningRate = Annotated[
    float | None, typer.Option(help="Learning rate.", show_default="0.1; 0.001 for adamw")
]
Momentum = Annotated[float, typer.Option(help="Momentum of SGD.")]
WeightDecay = Annotated[
    float | None, typer.Option(help="Weight decay.", show_default="5e-4; 0.05 for adamw")
]
Schedule = Annotated[
    options.Shape | None,
    typer.Option(help="Shape of the rate's decay.", show_default="step; cosine for adamw"),
]
Nesterov = Annotated[bool, typer.Option("--nesterov", help="Nesterov's form of the momentum.")]
WarmupEpochs = Annotated[
    float | None,
    typer.Option(help="Epochs of linear warm-up.", show_default="0; 5 % of the run for adamw"),
]
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
    lr: LearningRate = None,
    momentum: Momentum = 0.9,
    weight_decay: WeightDecay = None,
    schedule: Schedule = None,
    warmup_epochs: WarmupEpochs = None,
    nesterov: Nesterov = False,
    rewind_epochs: RewindEpochs = None,
    seed: options.Seed = 0,
    steps: options.Steps = None,
    optimizer: options.OptimizerName = None,
    clip_grad: options.ClipGrad = None,
    accumulate: options.Accumulate = 1,
    ema: options.Ema = None,
    width: options.Width = None,
    model_option: options.ModelOptions = None,
    root: options.Root = None,
    download: options.Download = False,
    subset: options.Subset = None,
    batch_size: options.BatchSize = None,
    val_fraction: options.ValFraction = 0.1,
    image_size: options.ImageSize = None,
    workers: options.Workers = 2,
    device: options.Device = None,
    threads: options.Threads = None,
    autocast: options.Autocast = False,
    compile: options.Compile = False,
    channels_last: options.ChannelsLast = None,
    force: options.Force = False,
    as_json: options.AsJson = False,
) -> None:
    """Train a dense model, test it once, and save it with the states to rewind to."""
    given = locals()
    from biprune import load_data, save_dense, train
    from biprune.cli.device import use_machine
    from biprune.cli.models import build_model, check_model, model_argument
    from biprune.files.artifact import read_metadata

    kept = None
    if rewind_epochs is not None:
        kept = options.numbers("--rewind-epochs", rewind_epochs, int)
    model_options = {"width": width, **options.model_options(model_option)}
    check_model(model, model_options)
    use_machine(threads, device)
    folder = output_folder(out, force=force)
    with resumable(folder, force=force) as checkpoint, show_progress("train") as progress:
        dataset = load_data(data, **options.taken_by(load_data, given))
        network = build_model(model, dataset, model_options, seed=seed)
        others = {"rewind_epochs": kept, "checkpoint": checkpoint, "progress": progress}
        result = train(network, dataset, **options.taken_by(train, given, **others))
        refuse_finished(folder, force=force)
        save_dense(result, folder, data=dataset.options)

    metadata = read_metadata(folder)
    if as_json:
        print_json(metadata)
        return
    print_facts({**dense_facts(metadata), "saved in": str(folder)})
    own = model_argument(model if ":" in model else None)
    print_lines("", f"Next: biprune prune {folder}{own} --sparsity 0.9 --out runs/pruned")
