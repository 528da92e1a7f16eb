"""The charts as files, for papers and slides."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from biprune.experiments.reference import ReferencePoint
from biprune.files import replaced
from biprune.report.comparison import Comparison
from biprune.report.gallery import Chart, Figure, gallery
from biprune.report.settings import published_for
from biprune.report.theme import LIGHT

_WIDTH = 620
_LETTERS = 100  # of a caption in that width
_DOTS_PER_INCH = 192  # twice the screen's
_LEGEND_COLUMNS = 4


def write_figures(
    comparisons: Sequence[Comparison], folder: Path | str, paper: Sequence[ReferencePoint] = ()
) -> list[Path]:
    """Every chart as SVG and PNG in the light theme; the files written.

    A file is named after its comparison and chart, with a number where two would share a name.
    """
    folder = Path(folder)
    written = []
    for stem, comparison in zip(_stems(comparisons), comparisons, strict=True):
        for figure in gallery(comparison, published_for(comparison.setting, paper)):
            chart = _standing_alone(figure, comparison)
            for format in ("svg", "png"):
                path = folder / f"{stem}-{figure.name}.{format}"
                with replaced(path) as temporary:
                    chart.save(str(temporary), format=format, ppi=_DOTS_PER_INCH)
                written.append(path)
    return written


def _standing_alone(figure: Figure, comparison: Comparison) -> Chart:
    """With a fixed width, and a title that says what the page around it would."""
    config = {**LIGHT, "legend": {**LIGHT["legend"], "columns": _LEGEND_COLUMNS}}
    setting = f"{comparison.title}, at {figure.opened_at}" if figure.opened_at else comparison.title
    subtitle = [setting, *textwrap.wrap(figure.caption, _LETTERS)]
    title = {"text": figure.title, "subtitle": subtitle}
    return figure.chart.properties(width=_WIDTH, title=title, config=config)


def _stems(comparisons: Sequence[Comparison]) -> Iterator[str]:
    taken: set[str] = set()
    for comparison in comparisons:
        stem = re.sub(r"[^a-z0-9]+", "-", comparison.title.lower()).strip("-")
        number = 1
        unique = stem
        while unique in taken:
            number += 1
            unique = f"{stem}-{number}"
        taken.add(unique)
        yield unique
