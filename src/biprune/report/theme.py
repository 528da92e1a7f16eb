"""How charts look and react: a style for every method, two themes, the legend and the menu.

The colours of the six methods most often drawn together stay apart under protanopia, deuteranopia
and tritanopia (a distance of at least 12 in CIELAB). Shapes tell the other methods apart.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

Row = dict[str, Any]  # of a chart's data
MENU = "chosen"  # the name of the sparsity menu in a chart's spec
HEIGHT = 340

_BASE = {  # on white, on dark, shape
    "bip-plus": ("#bf4600", "#f0803c", "circle"),
    "bip": ("#8f1d3f", "#f27a9b", "circle"),
    "imp": ("#1f68ad", "#4c94db", "square"),
    "omp": ("#00875f", "#1db98c", "triangle-up"),
    "gmp": ("#cc9400", "#e8b22a", "diamond"),
    "movement": ("#0e7fa8", "#52b9dd", "diamond"),
    "hydra": ("#b8558f", "#db8cbc", "triangle-down"),
    "grasp": ("#3b9ad6", "#86cbf5", "cross"),
    "snip": ("#7a5230", "#b98a5c", "triangle-right"),
    "synflow": ("#6a4db8", "#a18ce6", "triangle-left"),
    "prospr": ("#14857f", "#4cc5bc", "circle"),
    "earlybird": ("#86801a", "#c3bc48", "square"),
    "magnitude": ("#4b8a24", "#86c35c", "diamond"),
    "finetune": ("#cf5f5a", "#f09a95", "triangle-up"),
    "random": ("#767676", "#a0a0a0", "cross"),
}
_OTHER = ("#555555", "#c0c0c0", "square")
# Of a variant: shade and dash. A positive shade is darker on white and lighter on dark.
_VARIANTS = [
    (0.0, []),
    (0.4, [9, 3]),
    (-0.4, [12, 3, 3, 3]),
    (0.65, [6, 2, 2, 2, 2, 2]),
    (-0.6, [4, 4]),
]


@dataclass(frozen=True)
class Style:
    """How a method is drawn; `on_dark` replaces `colour` in the dark theme."""

    colour: str
    on_dark: str
    shape: str
    dash: list[int]


def styles(methods: Mapping[str, str]) -> dict[str, Style]:
    """A style for each label; variants of a method share its hue and shape.

    Args:
        methods: The name of the method behind each label.
    """
    seen: Counter[str] = Counter()
    chosen = {}
    for label, method in methods.items():
        light, dark, shape = _BASE.get(method, _OTHER)
        shade, dash = _VARIANTS[seen[method] % len(_VARIANTS)]
        seen[method] += 1
        chosen[label] = Style(_shaded(light, -shade), _shaded(dark, shade), shape, dash)
    return chosen


def dark_colours() -> dict[str, str]:
    """The dark theme's colour for every colour that a style may have."""
    variants = [{f"{name} {n}": name for n in range(len(_VARIANTS))} for name in (*_BASE, "")]
    chosen = [style for methods in variants for style in styles(methods).values()]
    return {style.colour: style.on_dark for style in chosen}


def _shaded(colour: str, amount: float) -> str:
    """The colour mixed with white by `amount`, or with black if that is negative."""
    goal = 255 if amount > 0 else 0
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + abs(amount) * (goal - part)):02x}" for part in parts)


def _config(ink: str, quiet: str, faint: str, background: str) -> dict[str, Any]:
    text = {"labelColor": quiet, "titleColor": ink, "labelFontSize": 12, "titleFontSize": 12}
    return {
        "background": background,
        "font": "system-ui, 'Segoe UI', 'Liberation Sans', Arial, sans-serif",
        "view": {"stroke": None},
        "axis": {
            **text,
            "titleFontWeight": 600,
            "titlePadding": 10,
            "gridColor": faint,
            "domainColor": quiet,
            "tickColor": quiet,
        },
        "axisX": {"grid": False},
        "axisY": {"domain": False, "ticks": False, "labelPadding": 8},
        "legend": {
            **text,
            "orient": "bottom",
            "title": None,
            "symbolSize": 110,
            "symbolStrokeWidth": 0,  # a dashed rim would notch the symbol
            "labelLimit": 260,
        },
        "title": {
            "color": ink,
            "subtitleColor": quiet,
            "anchor": "start",
            "fontSize": 14,
            "offset": 14,
        },
        "text": {"color": quiet},
        "style": {
            "dense": {"color": ink, "fill": ink, "stroke": ink},
            "dense-band": {"fill": ink, "fillOpacity": 0.1},
            "quiet": {"stroke": faint, "color": faint},
            "note": {"fill": quiet, "fontSize": 12},
        },
    }


LIGHT = _config("#1c2024", "#5b6470", "#e3e6ea", "#ffffff")
DARK = _config("#e8eaed", "#a5adb8", "#343a42", "transparent")


class MethodEncodings:
    """Colour, shape and dash of each method, and a legend that hides and shows methods."""

    def __init__(self, methods: Mapping[str, str]) -> None:
        self._labels = list(methods)
        self._styles = list(styles(methods).values())
        # All methods are selected at first, so that a click hides one.
        self.shown = alt.selection_point(
            name="shown",
            fields=["method"],
            bind="legend",
            toggle="true",
            clear=False,
            value=[{"method": label} for label in self._labels],
        )

    @property
    def color(self) -> alt.Color:
        """The method's colour; symbols in the legend are solid however pale the marks are."""
        scale = self._scale(style.colour for style in self._styles)
        return alt.Color("method:N", scale=scale, legend=alt.Legend(symbolOpacity=1))

    @property
    def shape(self) -> alt.Shape:
        """The method's shape, in the legend of its colour."""
        return alt.Shape("method:N", scale=self._scale(style.shape for style in self._styles))

    @property
    def dash(self) -> alt.StrokeDash:
        """The variant's dash, in the legend of its colour."""
        dashes = self._scale(style.dash or [1, 0] for style in self._styles)
        return alt.StrokeDash("method:N", scale=dashes)

    def opacity(self, shown: float = 1.0, hidden: float = 0.06) -> Any:
        """The opacity of marks, depending on whether the legend shows their method."""
        return alt.when(self.shown).then(alt.value(shown)).otherwise(alt.value(hidden))

    def _scale(self, looks: Iterable[Any]) -> alt.Scale:
        return alt.Scale(domain=self._labels, range=list(looks))


# What a field is called under the pointer, and how its numbers are written.
_TOOLTIPS: dict[str, dict[str, Any]] = {
    "mean:N": {"title": "accuracy (%)"},
    "values:N": {"title": "each run (%)"},
    "to dense:N": {"title": "mean - dense"},
    "bound:N": {"title": "95 % bound of mean - dense"},
    "passes:Q": {"title": "backward passes", "format": ",.0f"},
    "seconds:Q": {"format": ",.1f"},
    "loss:Q": {"title": "training loss", "format": ".4~f"},
    "accuracy:Q": {"title": "validation accuracy (%)", "format": ".4~f"},
    "iou:Q": {"title": "mask IoU with the previous epoch", "format": ".4~f"},
    "removed:Q": {"title": "removed (%)", "format": ".2f"},
}


def tooltip(*fields: str) -> list[alt.Tooltip]:
    """What a mark shows under the pointer."""
    return [alt.Tooltip(field, **_TOOLTIPS.get(field, {})) for field in fields]


def layered(*layers: alt.Chart, height: int = HEIGHT) -> alt.LayerChart:
    """The layers as one chart that is as wide as its container."""
    return alt.LayerChart(layer=list(layers), width="container", height=height)


def chart_of(rows: Sequence[Row]) -> alt.Chart:
    """A chart of `rows`, passed as plain data: Altair limits the length of data frames."""
    return alt.Chart(alt.Data(values=list(rows)))


def sparsity_menu(rows: Sequence[Row]) -> alt.Parameter:
    """A menu of the sparsities in `rows`; it opens at the highest that most methods have."""
    methods: defaultdict[str, set[str]] = defaultdict(set)
    for row in rows:
        methods[row["sparsity"]].add(row["method"])
    options = sorted(methods, key=lambda text: float(text.split()[0]))
    most = max(len(names) for names in methods.values())
    opened = [option for option in options if len(methods[option]) == most][-1]
    menu = alt.binding_select(options=options, name="sparsity ")
    return alt.param(name=MENU, value=opened, bind=menu)


def chart_at(rows: Sequence[Row], chosen: alt.Parameter) -> alt.Chart:
    """A chart of the rows at the sparsity chosen in the menu."""
    return chart_of(rows).transform_filter(alt.datum["sparsity"] == chosen)
