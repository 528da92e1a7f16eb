"""The options that commands share, each declared once, and what their texts mean.

Importing this must not import torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import typer

# Repeated from modules that import torch; a test compares them.
Shape = Literal["cosine", "step", "constant"]
Scope = Literal["global", "layer"]
Attention = Literal["heads", "queries", "width"]
Optimizer = Literal["sgd", "adamw"]
Number = TypeVar("Number", int, float)

_MODEL, _DATA, _TRAINING, _SPEED = "Model", "Data", "Training", "Speed"
_BOOLEANS = {"true": True, "false": False}

Out = Annotated[Path, typer.Option(help="Folder to write into.", show_default=False)]
Force = Annotated[bool, typer.Option("--force", help="Replace a finished result in --out.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
Seed = Annotated[int, typer.Option(help="Seed of everything that is drawn.")]

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
    typer.Option(help="Images in a batch.", rich_help_panel=_DATA, show_default="the paper's"),
]
ValFraction = Annotated[
    float, typer.Option(help="Part of train cut for validation.", rich_help_panel=_DATA)
]
ImageSize = Annotated[
    int | None,
    typer.Option(help="For imagenet and folder:PATH.", rich_help_panel=_DATA, show_default=False),
]
Workers = Annotated[int, typer.Option(help="Processes that decode images.", rich_help_panel=_DATA)]

Steps = Annotated[
    int | None,
    typer.Option(
        help="Optimizer steps in all, in place of --epochs.",
        rich_help_panel=_TRAINING,
        show_default=False,
    ),
]
OptimizerName = Annotated[
    Optimizer | None,
    typer.Option(
        help="What trains the weights.",
        rich_help_panel=_TRAINING,
        show_default="adamw for transformers, else sgd",
    ),
]
ClipGrad = Annotated[
    float | None,
    typer.Option(
        help="Largest norm of a gradient.",
        rich_help_panel=_TRAINING,
        show_default="1 for adamw, else none",
    ),
]
Accumulate = Annotated[
    int, typer.Option(help="Batches that make one gradient.", rich_help_panel=_TRAINING)
]
Ema = Annotated[
    float | None,
    typer.Option(
        help="Decay of a moving average of the weights, e.g. 0.999, to keep in their place.",
        rich_help_panel=_TRAINING,
        show_default=False,
    ),
]

Device = Annotated[
    str | None,
    typer.Option(
        help="Where to compute, e.g. cuda.", rich_help_panel=_SPEED, show_default="the CPU"
    ),
]
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
        show_default="for models of biprune",
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


def taken_by(
    function: Callable[..., object], given: Mapping[str, object], **others: object
) -> dict[str, Any]:
    """The keywords for a function of the library, from a command's options of the same names.

    Args:
        function: What is to be called.
        given: Every option of the command, by name.
        others: What goes before these, such as an option whose text has been read.
    """
    keywords = (p.name for p in signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY)
    return {**{name: given[name] for name in keywords if name in given}, **others}


def numbers(option: str, text: str, kind: Callable[[str], Number]) -> list[Number]:
    """The numbers of a list such as "0,2"."""
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        example = "0,2" if kind is int else "0.5,0.9"
        raise ValueError(f"`{option}` takes numbers such as {example}, got {text!r}.") from None


def model_options(texts: Sequence[str] | None) -> dict[str, object]:
    """Options for a model's function: numbers, true and false as in JSON, the rest as text."""
    options: dict[str, object] = {}
    for key, value in _pairs("--model-option", texts).items():
        try:
            options[key] = json.loads(value)
        except ValueError:
            options[key] = value
    return options


def method_settings(
    name: str, texts: Sequence[str] | None, *, option: str = "--set"
) -> dict[str, Any]:
    """The settings that `option` gives to the method `name`, read by the types of its fields."""
    from biprune.methods import METHODS, get_method

    hints = get_type_hints(METHODS[name]) if name in METHODS else {}
    # A setting that the method lacks is left as text, for `get_method` to refuse.
    settings = {
        key: _read(key, text, hints.get(key, str)) for key, text in _pairs(option, texts).items()
    }
    get_method(name, settings)
    return settings


def _pairs(option: str, texts: Sequence[str] | None) -> dict[str, str]:
    """KEY=VALUE arguments as a dict; a later value replaces an earlier one."""
    pairs: dict[str, str] = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise ValueError(f"`{option}` takes KEY=VALUE, got {text!r}.")
        pairs[key.strip()] = value.strip()
    return pairs


def _read(key: str, text: str, hint: Any) -> object:
    """`text` as a value of the type `hint`."""
    if alternatives := [kind for kind in get_args(hint) if kind is not NoneType]:
        if NoneType in get_args(hint):
            return None if text.lower() == "none" else _read(key, text, alternatives[0])
        if get_origin(hint) is Literal:
            if text not in alternatives:
                raise ValueError(f"`{key}` must be one of {', '.join(alternatives)}, got {text!r}.")
            return text
        if get_origin(hint) is tuple:
            return tuple(_read(key, part.strip(), alternatives[0]) for part in text.split(","))
    if hint is bool:
        if text.lower() not in _BOOLEANS:
            raise ValueError(f"`{key}` must be true or false, got {text!r}.")
        return _BOOLEANS[text.lower()]
    if hint is str:
        return text
    if hint not in (int, float):
        raise ValueError(f"`{key}` cannot be set from the command line; use it from Python.")
    try:
        return hint(text)
    except ValueError:
        kind = "an integer" if hint is int else "a number"
        raise ValueError(f"`{key}` must be {kind}, got {text!r}.") from None
