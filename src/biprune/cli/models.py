"""Models for commands: of the registry, of a ticket, or the user's own from the current folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from biprune.cli.options import model_options

if TYPE_CHECKING:
    from torch import Tensor, nn

    from biprune import Dataset, Ticket


OwnModel = Annotated[
    str | None, typer.Option(help="package.module:factory, if the saved model is your own.")
]


def own_options(model: str | None, texts: Sequence[str] | None) -> dict[str, object]:
    """The `--model-option`s for the `--model` of a saved folder; without that there are none."""
    given = model_options(texts)
    if given and model is None:
        raise ValueError("`--model-option` goes with `--model`; saved models know their options.")
    return given


def model_argument(own: str | None) -> str:
    """How a command on a saved folder is told the user's own model."""
    return "" if own is None else f" --model {own}"


def check_model(name: str, options: Mapping[str, Any]) -> None:
    """Refuse an unknown model or option before any data is read."""
    from biprune import models

    models.check_model(name, options)
    find_model(name)


def find_model(name: str) -> None:
    """Let the user's own model be imported from the folder the command was called in."""
    if ":" in name and (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)


def build_model(
    name: str, data: Dataset | None, options: Mapping[str, Any], *, seed: int = 0
) -> nn.Module:
    """A model with the inputs and outputs that `data` needs, unless `options` say otherwise."""
    from biprune import create_model

    find_model(name)
    if data is None:
        return create_model(name, seed=seed, **options)
    sizes = {"num_classes": data.num_classes, "in_channels": data.in_channels}
    model = create_model(name, seed=seed, **{**sizes, **options})
    _check_fits(name, model, data)
    return model


def _check_fits(name: str, model: nn.Module, data: Dataset) -> None:
    """Refuse a model that does not run on the data before it is trained."""
    from biprune.pruning.request import example_of
    from biprune.structured.calls import check_runs

    inputs = example_of(data, model)
    assert inputs is not None
    called = f"images of {data.name!r}, {' x '.join(map(str, inputs.shape[1:]))}"
    advice = f"Choose another than {name!r}, or its options with `--model-option`."
    check_runs(model, (inputs,), called, advice)


def own_model(
    name: str | None,
    options: Mapping[str, Any],
    folder: Path,
    data: Dataset | None = None,
) -> nn.Module | None:
    """The user's own model, by the name given as `--model`, as it was built for `folder`.

    `options` replace those that the folder remembers. None without a name.
    """
    from biprune.files.artifact import read_metadata

    if name is None:
        return None
    saved = read_metadata(folder).get("model") or {}
    remembered = {key: value for key, value in saved.items() if key != "name"}
    return build_model(name, data, {**(remembered if saved.get("name") == name else {}), **options})


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
    """The ticket in `folder`; `model` names the function that builds the user's own."""
    from biprune import load_ticket

    return load_ticket(folder, own_model(model, own_options(model, model_option), folder))


def sample_input(ticket: Ticket, shape: str | None) -> Tensor:
    """Two samples of what the ticket's model takes; `shape` is that of one of them."""
    import torch

    from biprune.structured.calls import check_runs
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
