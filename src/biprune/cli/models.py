"""Models for commands: of the registry, or the user's own from the current folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from biprune.cli.options import model_options

if TYPE_CHECKING:
    from torch import nn

    from biprune import Dataset

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
    """What a command on a saved folder needs to know the user's own model by."""
    return "" if own is None else f" --model {own}"


def check_model(name: str, options: Mapping[str, Any]) -> None:
    """Refuse an unknown model or option before any data is read; let the user's own be found."""
    from biprune import models

    models.check_model(name, options)
    if ":" in name:
        _look_here()


def build_model(
    name: str, data: Dataset | None, options: Mapping[str, Any], *, seed: int = 0
) -> nn.Module:
    """A model with the inputs and outputs that `data` needs, or `options` say."""
    from biprune import create_model

    if ":" in name:
        _look_here()
    if data is None:
        return create_model(name, seed=seed, **options)
    sizes = {"num_classes": data.num_classes, "in_channels": data.in_channels}
    model = create_model(name, seed=seed, **{**sizes, **options})
    _check_fits(name, model, data)
    return model


def _check_fits(name: str, model: nn.Module, data: Dataset) -> None:
    """Refuse a model that does not run on the data before it is trained."""
    from biprune.pruning.request import example_of
    from biprune.structured.outputs import check_runs

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
    """The user's own model, called `--model name`, as it was built for what `folder` holds.

    The `options` go before what the folder remembers. None without a name.
    """
    from biprune.files.artifact import read_metadata

    if name is None:
        return None
    saved = read_metadata(folder).get("model") or {}
    remembered = {key: value for key, value in saved.items() if key != "name"}
    return build_model(name, data, {**(remembered if saved.get("name") == name else {}), **options})


def _look_here() -> None:
    """Let the user's own modules be imported from where the command was called."""
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
