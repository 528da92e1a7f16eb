"""The options that commands share, each declared once. Importing this must not import torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import typer

# As in `training.schedule` and `core.structure`, which import torch; a test compares them.
Shape = Literal["cosine", "step", "constant"]
Scope = Literal["global", "layer"]
Attention = Literal["heads", "queries", "width"]
Number = TypeVar("Number", int, float)

_MODEL = "Model"
_DATA = "Data"
_SPEED = "Speed"

Out = Annotated[Path, typer.Option(help="Folder to write into.", show_default=False)]
Force = Annotated[bool, typer.Option("--force", help="Replace a finished result in --out.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
Seed = Annotated[int, typer.Option(help="Seed of all that is random.")]

ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="A name of `biprune list models`, or your own package.module:factory."
    ),
]
Width = Annotated[
    int | None,
    typer.Option(help="Channels of the first stage.", rich_help_panel=_MODEL, show_default=False),
]
ModelOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--model-option",
        metavar="KEY=VALUE",
        help="Option of the model's function, e.g. shortcut=B; repeatable.",
        rich_help_panel=_MODEL,
    ),
]

DataName = Annotated[
    str,
    typer.Argument(
        metavar="DATA", help="A name of `biprune list data`, such as digits or folder:PATH."
    ),
]
Root = Annotated[
    Path | None,
    typer.Option(help="Folder of the data's files.", rich_help_panel=_DATA, show_default="./data"),
]
Download = Annotated[
    bool, typer.Option(help="Fetch missing files, where allowed.", rich_help_panel=_DATA)
]
Subset = Annotated[
    int | None,
    typer.Option(help="Keep this many training images.", rich_help_panel=_DATA, show_default="all"),
]
BatchSize = Annotated[
    int | None,
    typer.Option(help="Images a batch.", rich_help_panel=_DATA, show_default="the paper's"),
]
ValFraction = Annotated[
    float, typer.Option(help="Part of train cut for validation.", rich_help_panel=_DATA)
]
ImageSize = Annotated[
    int | None,
    typer.Option(help="For imagenet and folder:PATH.", rich_help_panel=_DATA, show_default=False),
]
Workers = Annotated[int, typer.Option(help="Processes that decode images.", rich_help_panel=_DATA)]

Device = Annotated[str, typer.Option(help="Where to compute, e.g. cuda.", rich_help_panel=_SPEED)]
Threads = Annotated[
    int | None,
    typer.Option(
        help="Threads on the CPU.", rich_help_panel=_SPEED, show_default="the cores at hand"
    ),
]
Autocast = Annotated[
    bool, typer.Option("--autocast", help="Compute in bfloat16.", rich_help_panel=_SPEED)
]
Compile = Annotated[
    bool, typer.Option("--compile", help="Use torch.compile.", rich_help_panel=_SPEED)
]
ChannelsLast = Annotated[
    bool | None,
    typer.Option(
        help="Lay convolutions out for speed.",
        rich_help_panel=_SPEED,
        show_default="models of biprune",
    ),
]


StoreFolder = Annotated[
    Path, typer.Option("--store", help="Folder of the records; runs found there are not repeated.")
]
RunWorkers = Annotated[
    int, typer.Option("--workers", min=1, help="Runs at a time, which share the threads.")
]
ReportFile = Annotated[
    Path | None, typer.Option("--report", help="Write a page with charts.", show_default=False)
]


def split_pairs(option: str, texts: Sequence[str] | None) -> dict[str, str]:
    """KEY=VALUE arguments as a dict; a later value replaces an earlier one."""
    pairs: dict[str, str] = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise ValueError(f"`{option}` takes KEY=VALUE, got {text!r}.")
        pairs[key.strip()] = value.strip()
    return pairs


def model_options(texts: Sequence[str] | None) -> dict[str, object]:
    """Options for a model's function: numbers, true and false as in JSON, the rest as text."""
    options: dict[str, object] = {}
    for key, value in split_pairs("--model-option", texts).items():
        try:
            options[key] = json.loads(value)
        except ValueError:
            options[key] = value
    return options


def numbers(option: str, text: str, kind: Callable[[str], Number]) -> list[Number]:
    """The numbers of a list such as "0,2"."""
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        example = "0,2" if kind is int else "0.5,0.9"
        raise ValueError(f"`{option}` takes numbers such as {example}, got {text!r}.") from None
