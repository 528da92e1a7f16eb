"""Tables for a paper, with booktabs."""

from __future__ import annotations

from collections.abc import Sequence

from biprune.experiments.reference import ReferencePoint
from biprune.report.comparison import Comparison
from biprune.report.holes import hole_lines
from biprune.report.settings import published_for
from biprune.report.tables import (
    INCOMPLETE,
    OTHER_BUDGET,
    UNCLEAR,
    Entry,
    Table,
    all_tables,
)

_MARKS = {
    "*": "*",
    "**": "**",
    OTHER_BUDGET: r"\dagger",
    INCOMPLETE: r"\ddagger",
    UNCLEAR: UNCLEAR,
}
_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def latex_tables(comparisons: Sequence[Comparison], paper: Sequence[ReferencePoint] = ()) -> str:
    """The tables of every comparison; its holes stand below the first."""
    parts = ["% Needs \\usepackage{booktabs}."]
    for comparison in comparisons:
        published = published_for(comparison.setting, paper)
        holes = [f"Hole: {line}" for line in hole_lines(comparison.holes)]
        for place, table in enumerate(all_tables(comparison, published)):
            parts.append(_table(table, holes if place == 0 else []))
    return "\n\n".join(parts) + "\n"


def latex_text(text: str) -> str:
    r"""Plain text for LaTeX, on one line.

    >>> print(latex_text("50 % of a_b"))
    50 \% of a\_b
    """
    return "".join(_SPECIAL.get(character, character) for character in " ".join(text.split()))


def _table(table: Table, remarks: Sequence[str]) -> str:
    notes = [f"{_marks([mark])} {latex_text(text)}." for mark, text in table.notes.items()]
    notes += [latex_text(remark) for remark in remarks]
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{latex_text(table.caption)}}}",
        rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        r"\toprule",
        _line(["method", *table.columns]),
        r"\midrule",
        *(_row(label, row) for label, row in table.rows.items()),
        r"\bottomrule",
        r"\end{tabular}",
        *(rf"\par{{\footnotesize {note}}}" for note in notes),
        r"\end{table}",
    ]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return " & ".join(map(latex_text, cells)) + r" \\"


def _row(label: str, entries: Sequence[Entry]) -> str:
    return " & ".join([latex_text(label), *map(_text, entries)]) + r" \\"


def _text(entry: Entry) -> str:
    if not entry.text:
        return r"\emph{hole}"
    number = latex_text(entry.text)
    number = rf"\textbf{{{number}}}" if entry.is_best else number
    runs = "" if entry.n is None else f" ({entry.n})"
    return f"{number}{runs}{_marks(entry.marks)}"


def _marks(marks: Sequence[str]) -> str:
    return f"$^{{{' '.join(_MARKS[mark] for mark in marks)}}}$" if marks else ""
