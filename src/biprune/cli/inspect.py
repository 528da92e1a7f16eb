"""`biprune inspect`: what is in a saved folder, without building its model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress_bar import ProgressBar

from biprune.cli import options
from biprune.cli.printing import (
    Metadata,
    dense_facts,
    print_certificate,
    print_facts,
    print_json,
    print_lines,
    print_table,
    ticket_facts,
)

if TYPE_CHECKING:
    from biprune import Masks

EXAMPLES = """\
$ biprune inspect runs/pruned90
$ biprune inspect runs/small
$ biprune inspect runs/dense --json"""

BAR_WIDTH = 12


def inspect_command(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="What `train`, `prune` or `shrink` wrote.")
    ],
    as_json: options.AsJson = False,
) -> None:
    """Show what a saved ticket, dense run or small model is, what it reached and what it cost."""
    from biprune.files.artifact import (
        check_fields,
        read_artifact,
        read_metadata,
        whole,
    )
    from biprune.files.dense import DENSE_FIELDS
    from biprune.pruning.ticket import saved_masks

    kind = read_metadata(folder)["format"].removeprefix("biprune ")
    metadata, tensors = read_artifact(folder, kind)
    if kind == "small":
        _show_small(metadata, folder, as_json=as_json)
        return
    masks = None
    if kind == "dense":
        check_fields(metadata, folder, **DENSE_FIELDS)
    else:
        masks = saved_masks(metadata, tensors, folder)
    with whole(folder):
        facts = dense_facts(metadata) if masks is None else ticket_facts(metadata, masks)
        history = _history(metadata["history"])
        notes = [f"note: {record['note']}" for record in metadata["history"] if "note" in record]
    if as_json:
        print_json(metadata if masks is None else {**metadata, "masks": _mask_document(masks)})
        return
    print_facts(facts)
    if masks is not None:
        _print_layers(masks)
    if history:
        headers = ("stage", "history", "first", "last", "epochs")
        print_table(headers, history, numeric=headers[2:])
    print_lines(*notes)


def _show_small(metadata: Metadata, folder: Path, *, as_json: bool) -> None:
    from biprune.files.artifact import whole
    from biprune.files.small import TRAINED, saved_certificate

    certificate = saved_certificate(metadata, folder)
    if as_json:
        print_json(metadata)
        return
    with whole(folder):
        model = "your own" if metadata["model"] is None else metadata["model"]["name"]
        facts, trained = {"model": f"{model}, made smaller"}, bool(metadata.get(TRAINED))
        print_certificate(certificate, facts, trained_since=trained)


def _mask_document(masks: Masks) -> dict[str, Any]:
    layers = masks.per_layer().items()
    return {
        "kept": masks.kept,
        "total": masks.total,
        "sparsity": masks.sparsity,
        "weight_sparsity": masks.weight_sparsity,
        "layers": {name: {"kept": count.kept, "total": count.total} for name, count in layers},
    }


def _print_layers(masks: Masks) -> None:
    rows = [
        (
            name,
            f"{count.kept:,}",
            f"{count.total:,}",
            f"{count.sparsity:.4f}",
            ProgressBar(total=1.0, completed=count.sparsity, width=BAR_WIDTH),
        )
        for name, count in masks.per_layer().items()
    ]
    headers = ("layer", "kept", "total", "sparsity", "")
    print_table(headers, rows, numeric=("kept", "total", "sparsity"))


def _history(history: Sequence[Metadata]) -> list[tuple[str, ...]]:
    """First and last value of what each stage recorded."""
    epochs = [record for record in history if "epoch" in record]
    rows = []
    for stage in dict.fromkeys(record["stage"] for record in epochs):
        records = [record for record in epochs if record["stage"] == stage]
        for title, key in (("loss", "loss"), ("validation, %", "accuracy"), ("mask IoU", "iou")):
            if key in records[0]:
                first, last = (f"{record[key]:.4f}" for record in (records[0], records[-1]))
                rows.append((str(stage), title, first, last, str(records[-1]["epoch"])))
    return rows
