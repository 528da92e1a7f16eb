"""The report as one HTML file that needs nothing else: no server, no network."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import altair as alt
import vl_convert

from biprune.experiments.record import RunRecord
from biprune.experiments.reference import ReferencePoint
from biprune.files import write_text
from biprune.report.comparison import Comparison
from biprune.report.details import details_html
from biprune.report.gallery import Figure, gallery
from biprune.report.holes import hole_lines
from biprune.report.markup import (
    figure_html,
    holes_html,
    sentences_html,
    table_html,
    text_html,
)
from biprune.report.sentences import overview, verdict_sentences
from biprune.report.settings import published_for
from biprune.report.summary import summarise
from biprune.report.tables import all_tables
from biprune.report.theme import DARK, LIGHT, dark_colours

_LETTER_WIDTH, _SYMBOL_WIDTH = 7, 38  # pixels of a legend's entry


def write_page(
    records: Iterable[RunRecord],
    path: Path | str,
    *,
    title: str | None = None,
    paper: Sequence[ReferencePoint] | None = None,
) -> Path:
    """Write the report of `records` to `path` and return it.

    `paper` are published numbers, drawn and listed with the runs of the same setting.
    """
    comparisons = summarise(records)
    if not comparisons:
        raise ValueError("`records` must hold at least one record, got none.")
    figures = [gallery(c, published_for(c.setting, paper or ())) for c in comparisons]
    charts = {
        _chart_id(place, figure): _chart(figure, comparison)
        for place, (comparison, shown) in enumerate(zip(comparisons, figures, strict=True))
        for figure in shown
    }
    sections = [
        _section(place, comparison, figures[place], published_for(comparison.setting, paper or ()))
        for place, comparison in enumerate(comparisons)
    ]
    title = title or "Pruning methods compared"
    page = Template(_part("page.html")).substitute(
        title=escape(title),
        overview=text_html(overview(comparisons)),
        contents=_contents(comparisons),
        sections="\n".join(sections),
        style=_part("page.css"),
        script=_part("page.js"),
        vega=_vega(),
        charts=_embedded(charts),
        themes=_embedded({"light": LIGHT, "dark": DARK, "swaps": dark_colours()}),
    )
    write_text(path, page)
    return Path(path)


def _section(
    place: int,
    comparison: Comparison,
    figures: Sequence[Figure],
    paper: Sequence[ReferencePoint],
) -> str:
    tables = all_tables(comparison, paper)
    charts = [figure_html(figure, _chart_id(place, figure)) for figure in figures]
    parts = [
        f"<h2>{escape(comparison.title)}</h2>",
        sentences_html(verdict_sentences(comparison)),
        *map(table_html, tables),
        f'<div class="charts">{"".join(charts)}</div>',
        holes_html(hole_lines(comparison.holes)),
        details_html(comparison),
    ]
    return f'<section id="{_anchor(place)}">{"".join(parts)}</section>'


def _chart(figure: Figure, comparison: Comparison) -> dict[str, Any]:
    """A chart's spec without a theme, and the width of an entry of its legend."""
    spec = figure.chart.to_dict()
    spec.pop("config", None)  # the page's theme takes its place
    longest = max(map(len, comparison.labels))
    return {"spec": spec, "entry": _SYMBOL_WIDTH + _LETTER_WIDTH * longest}


def _contents(comparisons: Sequence[Comparison]) -> str:
    if len(comparisons) < 2:
        return ""
    links = [f'<a href="#{_anchor(i)}">{escape(c.title)}</a>' for i, c in enumerate(comparisons)]
    return f"<nav>{''.join(links)}</nav>"


def _anchor(place: int) -> str:
    return f"comparison-{place + 1}"


def _chart_id(place: int, figure: Figure) -> str:
    return f"chart-{place + 1}-{figure.name}"


def _embedded(content: object) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")


@cache
def _vega() -> str:
    """Vega, Vega-Lite and vega-embed in the version that Altair writes for."""
    version = alt.SCHEMA_VERSION.rpartition(".")[0]
    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=version)
    return bundle.replace("</script", "<\\/script")


def _part(name: str) -> str:
    return files("biprune.report").joinpath(name).read_text(encoding="utf-8")
