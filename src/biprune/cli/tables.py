"""What commands print on stdout: tables for people, one JSON document for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table

from biprune.core.files import printable
from biprune.core.sealed import finite

Cell = RenderableType


def print_json(document: Mapping[str, object]) -> None:
    """The whole of stdout under `--json`; numbers that JSON lacks are words, as in our files."""
    print(json.dumps(finite(document), indent=1, allow_nan=False))


def print_facts(facts: Mapping[str, str]) -> None:
    """Names and values, a pair a line."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts.items():
        grid.add_row(_shown(name), _shown(value))
    _console().print(grid)


def print_table(
    headers: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    title: str | None = None,
    numeric: Sequence[str] = (),
) -> None:
    """A table whose `numeric` columns are aligned to the right."""
    _console().print(new_table(headers, rows, title=title, numeric=numeric))


def new_table(
    headers: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    title: str | None = None,
    numeric: Sequence[str] = (),
) -> Table:
    """The same, to be shown among other things."""
    table = Table(
        box=box.SIMPLE_HEAD,
        title=None if title is None else _shown(title),
        title_justify="left",
        title_style="bold",
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for header in headers:
        table.add_column(
            _shown(header), justify="right" if header in numeric else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*(_shown(cell) if isinstance(cell, str) else cell for cell in row))
    return table


def print_text(text: RenderableType) -> None:
    """A paragraph, wrapped between words; a line break in `text` stays. Or a table."""
    _console().print(text)


def print_lines(*lines: str) -> None:
    """Lines to copy, such as commands: never wrapped."""
    for line in lines:
        _console().print(printable(line), soft_wrap=True)


def _shown(text: str) -> str:
    """Escape sequences spelled out, as files may hold them; line breaks may be ours."""
    return "\n".join(map(printable, text.split("\n")))


def _console() -> Console:
    # Paths and names are the user's: square brackets in them are no markup.
    return Console(markup=False, highlight=False, emoji=False)
