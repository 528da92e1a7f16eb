"""`biprune list`: what the library knows by name."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from biprune.cli import options
from biprune.cli.printing import print_json, print_table

EXAMPLES = """\
$ biprune list
$ biprune list methods --sparsity 0.95
$ biprune list methods --json"""

FOR_PROGRAMS = ("retrains", "settings")  # in --json alone: too long for a table
Entries = dict[str, dict[str, Any]]


def list_command(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="KIND", help="methods, models, data or structures.", show_default="all"
        ),
    ] = None,
    sparsity: Annotated[
        float, typer.Option(help="The sparsity whose cost is shown for each method.")
    ] = 0.9,
    as_json: options.AsJson = False,
) -> None:
    """List the methods, models, data and structures that other commands take by name.

    A method's cost is given in forward and backward passes over the training data, at its default
    settings. Scoring and the dense model come on top.
    """
    found = {
        "methods": lambda: _methods(sparsity),
        "models": _models,
        "data": _data,
        "structures": _structures,
    }
    if kind is not None and kind not in found:
        raise ValueError(f"Unknown kind {kind!r}. Kinds: {', '.join(found)}.")
    entries = {name: find() for name, find in found.items() if kind in (None, name)}
    if as_json:
        print_json(entries)
        return
    for name, rows in entries.items():
        headers = [h for h in next(iter(rows.values())) if h not in FOR_PROGRAMS]
        print_table(
            ["name", *headers],
            [[key, *(_shown(row[header]) for header in headers)] for key, row in rows.items()],
            title=f"methods, and the passes to {sparsity:g}" if name == "methods" else name,
        )


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _methods(sparsity: float) -> Entries:
    from biprune import METHODS
    from biprune.core.selection import check_sparsity

    check_sparsity(sparsity)
    return {
        name: {
            "summary": method.summary,
            "start": method.starts_from,
            "passes": method().data_passes(sparsity),
            "citation": method.citation,
            "retrains": method.retrains,
            "settings": method().settings,
        }
        for name, method in METHODS.items()
    }


def _models() -> Entries:
    from biprune import MODELS

    return {name: {"description": entry.description} for name, entry in MODELS.items()}


def _data() -> Entries:
    from biprune import DATASETS

    return {
        name: {"description": entry.description, "files": entry.files}
        for name, entry in DATASETS.items()
    }


def _structures() -> Entries:
    from biprune.core.structure import STRUCTURES, UNITS

    scopes = {name: structure.scope for name, structure in STRUCTURES.items()}
    scopes |= {"group": "layer", "n:m": "m weights"}
    return {name: {"unit": unit, "scope": scopes[name]} for name, unit in UNITS.items()}
