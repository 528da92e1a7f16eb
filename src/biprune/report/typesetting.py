"""Tables in Markdown, for a README or an issue, and in LaTeX, for a paper."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from biprune.report.comparison import Comparison
from biprune.report.tables import INCOMPLETE, OTHER_BUDGET, UNCLEAR, Entry, Table, all_tables
from biprune.report.wording import hole_lines

_LATEX_MARKS = {
    "*": "*",
    "**": "**",
    OTHER_BUDGET: r"\dagger",
    INCOMPLETE: r"\ddagger",
    UNCLEAR: UNCLEAR,
}
_LATEX_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def markdown_tables(comparisons: Sequence[Comparison]) -> str:
    """The tables and holes of every comparison, under its title."""
    parts = []
    for comparison in comparisons:
        parts.append(f"## {_markdown_text(comparison.title)}")
        parts += [_markdown_table(table) for table in all_tables(comparison)]
        if holes := [f"- {_markdown_text(str(line))}" for line in hole_lines(comparison.holes)]:
            parts.append("Holes:\n\n" + "\n".join(holes))
    return "\n\n".join(parts) + "\n"


def latex_tables(comparisons: Sequence[Comparison]) -> str:
    """The tables of every comparison, for booktabs; its holes stand below the first one."""
    parts = ["% Needs \\usepackage{booktabs}."]
    for comparison in comparisons:
        remarks = [f"Hole: {line}" for line in hole_lines(comparison.holes)]
        for table in all_tables(comparison):
            parts.append(_latex_table(table, remarks))
            remarks = []
    return "\n\n".join(parts) + "\n"


def _markdown_table(table: Table) -> str:
    lines = [
        _markdown_text(table.caption),
        "",
        _markdown_line(["method", *table.columns]),
        _markdown_line(["---", *("---:" for _ in table.columns)]),
    ]
    for label, row in table.rows.items():
        lines.append(_markdown_line([_markdown_text(label), *map(_markdown_entry, row)]))
    if notes := [f"{_markdown_text(m)} {_markdown_text(t)}" for m, t in table.notes.items()]:
        lines += ["", "; ".join(notes) + "."]
    return "\n".join(lines)


def _markdown_line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown_entry(entry: Entry) -> str:
    if not entry.text:
        return "*hole*"
    number = f"**{entry.text}**" if entry.is_best else entry.text
    return f"{number}{_runs(entry)}{_markdown_text(''.join(entry.marks))}"


def _markdown_text(text: str) -> str:
    """Text on one line, without characters that Markdown or HTML would interpret."""
    return re.sub(r"([\\`*_|&<>\[\]#])", r"\\\1", " ".join(text.split()))


def _latex_table(table: Table, remarks: Sequence[str]) -> str:
    notes = [f"{_latex_marks([mark])} {latex_text(text)}." for mark, text in table.notes.items()]
    notes += [latex_text(remark) for remark in remarks]
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{latex_text(table.caption)}}}",
        rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        r"\toprule",
        _latex_line(map(latex_text, ["method", *table.columns])),
        r"\midrule",
        *(
            _latex_line([latex_text(label), *map(_latex_entry, row)])
            for label, row in table.rows.items()
        ),
        r"\bottomrule",
        r"\end{tabular}",
        *(rf"\par{{\footnotesize {note}}}" for note in notes),
        r"\end{table}",
    ]
    return "\n".join(lines)


def _latex_line(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _latex_entry(entry: Entry) -> str:
    if not entry.text:
        return r"\emph{hole}"
    number = latex_text(entry.text)
    number = rf"\textbf{{{number}}}" if entry.is_best else number
    return f"{number}{_runs(entry)}{_latex_marks(entry.marks)}"


def _latex_marks(marks: Sequence[str]) -> str:
    return f"$^{{{' '.join(_LATEX_MARKS[mark] for mark in marks)}}}$" if marks else ""


def latex_text(text: str) -> str:
    r"""Plain text for LaTeX, on one line.

    >>> print(latex_text("50 % of a_b"))
    50 \% of a\_b
    """
    return "".join(_LATEX_SPECIAL.get(character, character) for character in " ".join(text.split()))


def _runs(entry: Entry) -> str:
    return "" if entry.n is None else f" ({entry.n})"
