"""Tables for a README or an issue."""

from __future__ import annotations

import re
from collections.abc import Sequence

from biprune.experiments.reference import ReferencePoint
from biprune.report.comparison import Comparison
from biprune.report.holes import hole_lines
from biprune.report.settings import published_for
from biprune.report.tables import Entry, Table, all_tables


def markdown_tables(comparisons: Sequence[Comparison], paper: Sequence[ReferencePoint] = ()) -> str:
    """The tables of every comparison, and its holes."""
    parts = []
    for comparison in comparisons:
        published = published_for(comparison.setting, paper)
        parts += [
            f"## {_escaped(comparison.title)}",
            *map(_table, all_tables(comparison, published)),
        ]
        if lines := hole_lines(comparison.holes):
            parts.append("Holes:\n\n" + "\n".join(f"- {_escaped(str(line))}" for line in lines))
    return "\n\n".join(parts) + "\n"


def _table(table: Table) -> str:
    lines = [
        _escaped(table.caption),
        "",
        _line(["method", *table.columns]),
        _line(["---", *("---:" for _ in table.columns)]),
        *(_line([_escaped(label), *map(_text, row)]) for label, row in table.rows.items()),
    ]
    notes = [f"{_escaped(mark)} {_escaped(text)}" for mark, text in table.notes.items()]
    return "\n".join([*lines, "", "; ".join(notes) + "."] if notes else lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _text(entry: Entry) -> str:
    if not entry.text:
        return "*hole*"
    number = f"**{entry.text}**" if entry.is_best else entry.text
    runs = "" if entry.n is None else f" ({entry.n})"
    return f"{number}{runs}{_escaped(''.join(entry.marks))}"


def _escaped(text: str) -> str:
    """On one line, and without a meaning of its own in markdown or HTML."""
    return re.sub(r"([\\`*_|&<>\[\]#])", r"\\\1", " ".join(text.split()))
