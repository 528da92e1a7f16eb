"""The menu of a chart that shows one sparsity at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import altair as alt

from biprune.report.charts.base import Row

MENU = "chosen"  # its name in a chart's spec


def sparsity_menu(rows: Sequence[Row]) -> alt.Parameter:
    """The sparsities in `rows`; it opens at the sparsest that most methods have."""
    methods: defaultdict[str, set[str]] = defaultdict(set)
    for row in rows:
        methods[row["sparsity"]].add(row["method"])
    options = sorted(methods, key=lambda text: float(text.split()[0]))
    most = max(len(names) for names in methods.values())
    opened = [option for option in options if len(methods[option]) == most][-1]
    menu = alt.binding_select(options=options, name="sparsity ")
    return alt.param(name=MENU, value=opened, bind=menu)


def at_chosen(rows: Sequence[Row], chosen: alt.Parameter) -> alt.Chart:
    """A chart of the rows of the chosen sparsity."""
    data = alt.Data(values=list(rows))
    return alt.Chart(data).transform_filter(alt.datum["sparsity"] == chosen)
