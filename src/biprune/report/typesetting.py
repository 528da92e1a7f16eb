"""Tables in Markdown for a README, in LaTeX for a paper, and cells in csv for programs."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any

from biprune.core.files import printable
from biprune.report.results import Cell, Comparison, Hole
from biprune.report.tables import INCOMPLETE, OTHER_BUDGET, UNCLEAR, Entry, Table, all_tables
from biprune.report.wording import hole_lines

COLUMNS: tuple[str, ...] = (
    *("model", "data", "structure", "comparison", "method", "label", "sparsity", "status"),
    *("n", "mean", "std", "values", "dense_mean", "dense_std", "dense_n"),
    *("wins_by_mean", "wins_by_bound", "bound", "backward_passes", "seconds", "budget_ratio"),
    *("seed", "error"),
)

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")  # what a spreadsheet may begin one with


def csv_table(comparisons: Iterable[Comparison]) -> str:
    """A line for every cell (status "done") and for every missing run (status "hole").

    Sparsities are fractions, accuracies percent. `values` are the accuracies of the runs in order
    of their seeds, separated by spaces. What is unknown is left empty.
    """
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for comparison in comparisons:
        for line in [*map(_cell, comparison.cells), *map(_hole, comparison.holes)]:
            line = {**_setting(comparison), **line}
            writer.writerow({name: _short(value) for name, value in line.items()})
    return text.getvalue()


def _short(value: Any) -> Any:
    """Numbers with six digits; text on one line, and quoted where it could be a formula."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, str):
        is_formula = value.startswith(_FORMULA) and not _is_numbers(value)
        return f"'{printable(value)}" if is_formula else printable(value)
    return value


def _is_numbers(text: str) -> bool:
    try:
        list(map(float, text.split(" ")))
    except ValueError:
        return False
    return True


def _setting(comparison: Comparison) -> dict[str, Any]:
    spec, dense = comparison.setting, comparison.dense
    known = {"dense_mean": dense.mean, "dense_std": dense.std, "dense_n": dense.n} if dense else {}
    return {
        "model": spec.model,
        "data": spec.data,
        "structure": spec.structure,
        "comparison": comparison.title,
        **known,
    }


def _cell(cell: Cell) -> dict[str, Any]:
    return {
        "method": cell.method,
        "label": cell.label,
        "sparsity": cell.sparsity,
        "status": "done",
        "n": cell.accuracy.n,
        "mean": cell.accuracy.mean,
        "std": cell.accuracy.std,
        "values": " ".join(map(str, cell.accuracy.values)),
        "wins_by_mean": cell.verdict.by_mean,
        "wins_by_bound": cell.verdict.by_bound,
        "bound": cell.verdict.bound,
        "backward_passes": cell.passes,
        "seconds": cell.seconds,
        "budget_ratio": cell.budget_ratio,
    }


def _hole(hole: Hole) -> dict[str, Any]:
    return {
        "method": hole.label.split()[0],
        "label": hole.label,
        "sparsity": hole.sparsity,
        "status": "hole",
        "seed": hole.seed,
        "error": hole.error,
    }


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
    """The tables of every comparison, for booktabs; holes stand below the first table."""
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
