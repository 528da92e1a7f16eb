"""The report as one HTML file that works without a server and without a network.

Everything that comes from records is escaped here.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

import altair as alt
import vl_convert

from biprune.experiments.record import RunRecord
from biprune.report.figures import Figure, figures_of
from biprune.report.results import Comparison
from biprune.report.summary import failure
from biprune.report.tables import Entry, Table, all_tables
from biprune.report.theme import DARK, LIGHT, dark_colours
from biprune.report.wording import (
    HoleLine,
    hole_lines,
    listed,
    method_labels,
    overview,
    percent_of,
    verdict_sentences,
)

_LETTER_WIDTH, _SYMBOL_WIDTH = 7, 38  # pixels of a legend's entry


def page_html(comparisons: Sequence[Comparison], title: str) -> str:
    """The page: an overview, then a section for each comparison."""
    sections: list[str] = []
    charts: dict[str, dict[str, Any]] = {}
    for number, comparison in enumerate(comparisons, start=1):
        figures = {f"chart-{number}-{figure.name}": figure for figure in figures_of(comparison)}
        sections.append(_section(_anchor(number), comparison, figures))
        longest = max(map(len, comparison.labels), default=0)
        for name, figure in figures.items():
            spec = figure.chart.to_dict()
            spec.pop("config", None)  # the page's theme replaces it
            charts[name] = {"spec": spec, "entry": _SYMBOL_WIDTH + _LETTER_WIDTH * longest}
    return Template(_part("page.html")).substitute(
        title=escape(title),
        overview=_text(overview(comparisons)),
        contents=_contents(comparisons),
        sections="\n".join(sections),
        style=_part("page.css"),
        script=_part("page.js"),
        vega=_vega(),
        charts=_embedded(charts),
        themes=_embedded({"light": LIGHT, "dark": DARK, "swaps": dark_colours()}),
    )


def _contents(comparisons: Sequence[Comparison]) -> str:
    if len(comparisons) < 2:
        return ""
    links = [
        f'<a href="#{_anchor(number)}">{escape(comparison.title)}</a>'
        for number, comparison in enumerate(comparisons, start=1)
    ]
    return f"<nav>{''.join(links)}</nav>"


def _section(anchor: str, comparison: Comparison, figures: Mapping[str, Figure]) -> str:
    sentences = "".join(f"<li>{_text(text)}</li>" for text in verdict_sentences(comparison))
    parts = [
        f"<h2>{escape(comparison.title)}</h2>",
        f'<ul class="verdict">{sentences}</ul>',
        *map(_table, all_tables(comparison)),
        f'<div class="charts">{"".join(_figure(*item) for item in figures.items())}</div>',
        _holes(hole_lines(comparison.holes)),
        details_html(comparison),
    ]
    return f'<section id="{anchor}">{"".join(parts)}</section>'


def _table(table: Table) -> str:
    """A table that scrolls sideways in its own box, with its notes below."""
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in table.columns)
    rows = "".join(
        f'<tr><th scope="row">{escape(label)}</th>{"".join(map(_entry, row))}</tr>'
        for label, row in table.rows.items()
    )
    notes = "".join(f"<li><b>{mark}</b> {escape(text)}</li>" for mark, text in table.notes.items())
    return (
        f'<figure class="table"><figcaption>{_text(table.caption)}</figcaption>'
        f'<div class="scroll"><table><thead><tr><th scope="col">method</th>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
        + (f'<ul class="notes">{notes}</ul>' if notes else "")
        + "</figure>"
    )


def _entry(entry: Entry) -> str:
    title = f' title="{escape(entry.error)}"' if entry.error else ""
    if not entry.text:
        return f'<td class="hole"{title}>hole</td>'
    number = f"<b>{escape(entry.text)}</b>" if entry.is_best else escape(entry.text)
    runs = "" if entry.n is None else f" <small>({entry.n})</small>"
    marks = f"<sup>{escape(' '.join(entry.marks))}</sup>" if entry.marks else ""
    return f"<td{title}>{number}{runs}{marks}</td>"


def _figure(name: str, figure: Figure) -> str:
    """A box for the chart `name`, which the page's script fills."""
    wide = " wide" if figure.name == "accuracy" else ""
    return (
        f'<figure class="chart{wide}"><h3>{escape(figure.title)}</h3>'
        f'<div class="vega" id="{escape(name)}"></div>'
        f"<figcaption>{_text(figure.caption)}</figcaption></figure>"
    )


def _holes(lines: Iterable[HoleLine]) -> str:
    items = "".join(
        f"<li><b>{escape(line.label)}</b> at {escape(line.where)}: "
        f"<code>{escape(line.error)}</code></li>"
        for line in lines
    )
    return f'<section class="holes"><h3>Holes</h3><ul>{items}</ul></section>' if items else ""


def details_html(comparison: Comparison) -> str:
    """A folded table of all runs; settings and versions that they share stand below it once."""
    runs = [*comparison.dense_runs, *comparison.runs]
    pruned = method_labels([run.spec for run in comparison.runs])
    labels = {run.key: pruned.get(run.key, "dense") for run in runs}
    versions = list(dict.fromkeys(_versions(run) for run in runs))
    blocks = [_block(title, text) for title, text in _settings(runs, labels)]
    blocks += [_block(f"Versions {n}", text) for n, text in enumerate(versions, start=1)]
    cells = [_run_cells(run, labels[run.key], versions) for run in runs]
    head = "".join(f'<th scope="col">{column}</th>' for column in cells[0])
    rows = "".join(map(_run_row, runs, cells))
    return (
        "<details><summary>Settings and versions of every run</summary>"
        f'<div class="scroll"><table class="runs"><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{''.join(blocks)}</details>"
    )


def _run_cells(run: RunRecord, label: str, versions: Sequence[str]) -> dict[str, str]:
    """The cells of a run by column."""
    reached, test, validation = run.achieved_sparsity, run.test_accuracy, run.val_accuracy
    return {
        "run": run.key,
        "method": label,
        "sparsity": percent_of(run.spec.sparsity),
        "reached": "-" if reached is None else percent_of(reached),
        "seed": str(run.spec.seed),
        "status": run.status,
        "test (%)": "-" if test is None else f"{test:.2f}",
        "validation (%)": "-" if validation is None else f"{validation:.2f}",
        "backward passes": f"{run.backward_passes:,}",
        "seconds": f"{run.seconds:,.1f}",
        "finished": str(run.environment.get("finished", "-")),
        "versions": str(versions.index(_versions(run)) + 1),
    }


def _run_row(run: RunRecord, cells: Mapping[str, str]) -> str:
    error = failure(run)
    title = f' class="hole" title="{escape(error)}"' if error else ""
    return f"<tr{title}>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells.values()) + "</tr>"


def _settings(runs: Iterable[RunRecord], labels: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    """A title and the settings that runs share, apart from seed and sparsity."""
    sparsities: defaultdict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for run in runs:
        shared = {n: v for n, v in run.resolved.items() if n not in ("seed", "sparsity")}
        sparsities[labels[run.key], _json(shared)][percent_of(run.spec.sparsity)] = None
    blocks = Counter(label for label, _ in sparsities)
    for (label, text), places in sparsities.items():
        where = f" at {listed(list(places))}" if blocks[label] > 1 else ""
        yield f"Settings of {label}{where}", text


def _block(title: str, text: str) -> str:
    return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>"


def _versions(run: RunRecord) -> str:
    return _json({name: v for name, v in run.environment.items() if name != "finished"})


def _anchor(number: int) -> str:
    return f"comparison-{number}"


def _text(text: str) -> str:
    """Escaped text in which a number and its percent sign stay on one line."""
    return escape(text).replace(" %", "&nbsp;%")


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=1, sort_keys=True, default=str)


def _embedded(content: object) -> str:
    """JSON that cannot end the script element around it."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")


@cache
def _vega() -> str:
    """Vega, Vega-Lite and vega-embed, in the version that Altair writes for."""
    version = alt.SCHEMA_VERSION.rpartition(".")[0]
    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=version)
    return bundle.replace("</script", "<\\/script")


def _part(name: str) -> str:
    return files("biprune.report").joinpath(name).read_text(encoding="utf-8")
