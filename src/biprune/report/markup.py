"""Parts of the page as HTML. Everything that comes from records is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from biprune.report.gallery import Figure
from biprune.report.holes import HoleLine
from biprune.report.tables import Entry, Table


def text_html(text: str) -> str:
    """Escaped text in which a number keeps its percent sign on its line."""
    return escape(text).replace(" %", "&nbsp;%")


def sentences_html(sentences: Iterable[str]) -> str:
    """A list of sentences."""
    items = "".join(f"<li>{text_html(sentence)}</li>" for sentence in sentences)
    return f'<ul class="verdict">{items}</ul>'


def table_html(table: Table) -> str:
    """A table that scrolls sideways in its own box, with its notes below."""
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in table.columns)
    rows = "".join(
        f'<tr><th scope="row">{escape(label)}</th>{"".join(map(_entry_html, row))}</tr>'
        for label, row in table.rows.items()
    )
    notes = "".join(f"<li><b>{mark}</b> {escape(text)}</li>" for mark, text in table.notes.items())
    return (
        f'<figure class="table"><figcaption>{text_html(table.caption)}</figcaption>'
        f'<div class="scroll"><table><thead><tr><th scope="col">method</th>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
        + (f'<ul class="notes">{notes}</ul>' if notes else "")
        + "</figure>"
    )


def _entry_html(entry: Entry) -> str:
    title = f' title="{escape(entry.error)}"' if entry.error else ""
    if not entry.text:
        return f'<td class="hole"{title}>hole</td>'
    number = f"<b>{escape(entry.text)}</b>" if entry.is_best else escape(entry.text)
    runs = "" if entry.n is None else f" <small>({entry.n})</small>"
    marks = f"<sup>{escape(' '.join(entry.marks))}</sup>" if entry.marks else ""
    return f"<td{title}>{number}{runs}{marks}</td>"


def figure_html(figure: Figure, name: str) -> str:
    """A place for the chart `name`, which the page's script fills."""
    wide = " wide" if figure.name == "accuracy" else ""
    return (
        f'<figure class="chart{wide}"><h3>{escape(figure.title)}</h3>'
        f'<div class="vega" id="{escape(name)}"></div>'
        f"<figcaption>{text_html(figure.caption)}</figcaption></figure>"
    )


def holes_html(lines: Sequence[HoleLine]) -> str:
    """What is missing and why; nothing where nothing is."""
    items = "".join(
        f"<li><b>{escape(line.label)}</b> at {escape(line.where)}: "
        f"<code>{escape(line.error)}</code></li>"
        for line in lines
    )
    return f'<section class="holes"><h3>Holes</h3><ul>{items}</ul></section>' if items else ""
