"""Saved tickets for commands: loaded, with something to run them on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from biprune.cli.models import own_model, own_options

if TYPE_CHECKING:
    from torch import Tensor

    from biprune import Ticket

TicketFolder = Annotated[
    Path, typer.Argument(metavar="TICKET", help="A folder written by `biprune prune`.")
]
InputShape = Annotated[
    str | None,
    typer.Option(
        metavar="CxHxW",
        help="Shape of one sample, such as 3x32x32.",
        show_default="that of the ticket's data",
    ),
]


def open_ticket(folder: Path, model: str | None, model_option: Sequence[str] | None) -> Ticket:
    """The ticket in `folder`; `model` builds the user's own, from the current folder too."""
    from biprune import load_ticket

    return load_ticket(folder, own_model(model, own_options(model, model_option), folder))


def sample_input(ticket: Ticket, shape: str | None) -> Tensor:
    """Two samples of what the ticket's model takes, of `shape` if it is given."""
    import torch

    from biprune.structured.outputs import check_runs
    from biprune.training.batches import device_of

    if shape is not None:
        inputs = torch.zeros(2, *_sizes(shape), device=device_of(ticket.model))
        advice = "Pass the `--input-shape` of one sample of what it was trained on."
        check_runs(ticket.model, (inputs,), f"samples of {shape}", advice)
        return inputs
    if ticket.input_shape is None:
        raise ValueError(
            "The ticket does not say what its model takes. Pass `--input-shape`, such as 3x32x32."
        )
    return ticket.example_input(batch=2)


def _sizes(shape: str) -> list[int]:
    try:
        sizes = [int(size) for size in shape.split("x")]
    except ValueError:
        sizes = [0]
    if min(sizes) < 1:
        raise ValueError(f"`--input-shape` takes sizes such as 3x32x32, got {shape!r}.")
    return sizes
