"""`biprune demo`: the main job on data that comes with scikit-learn."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from biprune.cli import options
from biprune.cli.printing import percent, print_json, print_lines, print_table, print_text
from biprune.cli.running import refuse_finished, resumable, show_progress

if TYPE_CHECKING:
    from biprune import Dataset, Ticket, TrainResult

EXAMPLES = """\
$ biprune demo
$ biprune demo --seed 1 --out biprune-demo-1"""

METHODS = ("bip-plus", "bip", "omp", "random")
SPARSITIES = (0.9, 0.97)
SAVED = ("bip-plus", 0.9)

Row = dict[str, Any]


def demo_command(
    out: Annotated[Path, typer.Option(help="Folder to write into.")] = Path("biprune-demo"),
    epochs: Annotated[int, typer.Option(help="Epochs of each run.", min=1)] = 40,
    seed: options.Seed = 0,
    force: options.Force = False,
    as_json: options.AsJson = False,
) -> None:
    """Train a small ResNet on handwritten digits and prune it by four methods: a minute."""
    from biprune import create_model, load_data, save_dense, train
    from biprune.cli.device import use_machine
    from biprune.core.files import writable_folder

    use_machine()
    dense_folder, ticket_folder = out / "dense", out / "bip-plus-90"
    for folder in (dense_folder, ticket_folder):
        refuse_finished(folder, force=force)
    writable_folder(out)
    data = load_data("digits", seed=seed)
    model = create_model("resnet8", in_channels=data.in_channels, seed=seed)
    with resumable(out, force=force) as checkpoints:
        with show_progress("dense") as report:
            checkpoint = checkpoints / "dense"
            dense = train(
                model, data, epochs=epochs, seed=seed, checkpoint=checkpoint, progress=report
            )
        tickets = _prune_all(dense, data, epochs, seed, checkpoints)
        for folder in (dense_folder, ticket_folder):
            refuse_finished(folder, force=force)
        save_dense(dense, dense_folder, data=data.options)
        tickets[SAVED].save(ticket_folder)

    rows = [_row(dense, "dense", tickets[SAVED].masks.total, 0.0)]
    rows += [_row(t, t.method, t.masks.kept, t.masks.sparsity) for t in tickets.values()]
    if as_json:
        folders = {"dense": str(dense_folder), "ticket": str(ticket_folder)}
        print_json({"seed": seed, "epochs": epochs, "runs": rows, **folders})
    else:
        num_test = sum(len(labels) for _, labels in data.test)
        _print_report(rows, num_test, dense_folder, ticket_folder)


def _prune_all(
    dense: TrainResult, data: Dataset, epochs: int, seed: int, checkpoints: Path
) -> dict[tuple[str, float], Ticket]:
    """Every method at every sparsity, with the same number of passes."""
    from biprune import prune
    from biprune.experiments.sweep import with_passes
    from biprune.methods import get_method

    tickets: dict[tuple[str, float], Ticket] = {}
    for sparsity, method in product(SPARSITIES, METHODS):
        with show_progress(f"{method} {_percentage(sparsity)}") as report:
            tickets[method, sparsity] = prune(
                dense,
                data,
                with_passes(get_method(method, {}), sparsity, epochs),
                sparsity=sparsity,
                seed=seed,
                checkpoint=checkpoints / f"{method}-{sparsity:g}",
                progress=report,
            )
    return tickets


def _row(result: TrainResult | Ticket, method: str, kept: int, sparsity: float) -> Row:
    return {
        "method": method,
        "sparsity": sparsity,
        "accuracy": result.accuracy,
        "kept": kept,
        "passes": result.cost.forward_passes,
        "seconds": result.cost.seconds,
    }


def _print_report(rows: list[Row], num_test: int, dense: Path, ticket: Path) -> None:
    numeric = ("sparsity", "test accuracy", "to dense", "kept weights", "passes", "seconds")
    print_table(
        ("method", *numeric),
        [
            (
                row["method"],
                _percentage(row["sparsity"]),
                percent(row["accuracy"]),
                "" if row is rows[0] else f"{row['accuracy'] - rows[0]['accuracy']:+.2f}",
                f"{row['kept']:,}",
                f"{row['passes']:,}",
                f"{row['seconds']:.1f}",
            )
            for row in rows
        ],
        numeric=numeric,
    )
    print_text(
        "All runs have equal passes. With one seed, and one of "
        f"{num_test} test images making {100 / num_test:.2f} %, small differences mean nothing."
    )
    print_lines(
        "",
        f"Saved: {dense}, and the ticket of {SAVED[0]} at {_percentage(SAVED[1])} in {ticket}.",
        "Next, in a shell and in Python:",
        f"  biprune inspect {ticket}",
        f"  biprune prune {dense} --sparsity 0.95 --epochs 20 --out runs/pruned95",
        f"  ticket = biprune.load_ticket({str(ticket)!r})",
    )


def _percentage(sparsity: float) -> str:
    return f"{100 * sparsity:.0f} %"
