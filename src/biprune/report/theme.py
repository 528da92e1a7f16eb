"""How charts look: a colour and a shape for every method, and the two themes of the page.

The colours of the six methods most often drawn together stay apart under protanopia, deuteranopia
and tritanopia (at least 12 in CIELAB); the shape tells the others apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_BASE = {  # on white, on dark, shape
    "bip": ("#bf4600", "#f0803c", "circle"),
    "bip-paper": ("#8f1d3f", "#f27a9b", "circle"),
    "imp": ("#1f68ad", "#4c94db", "square"),
    "omp": ("#00875f", "#1db98c", "triangle-up"),
    "gmp": ("#cc9400", "#e8b22a", "diamond"),
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
# Towards black on white and towards white on dark, or back, and a dash that says it in print.
_VARIANTS = [
    (0.0, []),
    (0.4, [9, 3]),
    (-0.4, [12, 3, 3, 3]),
    (0.65, [6, 2, 2, 2, 2, 2]),
    (-0.6, [4, 4]),
]


@dataclass(frozen=True)
class Style:
    """How a method is drawn on white; `on_dark` takes the place of `colour` in the dark."""

    colour: str
    on_dark: str
    shape: str
    dash: list[int]


def styles(methods: Mapping[str, str]) -> dict[str, Style]:
    """A style for each label of `methods` (label -> name); variants share hue and shape."""
    seen: Counter[str] = Counter()
    chosen = {}
    for label, method in methods.items():
        light, dark, shape = _BASE.get(method, _OTHER)
        shade, dash = _VARIANTS[seen[method] % len(_VARIANTS)]
        seen[method] += 1
        chosen[label] = Style(_shaded(light, -shade), _shaded(dark, shade), shape, dash)
    return chosen


def dark_colours() -> dict[str, str]:
    """For every colour a style may have, what takes its place in the dark."""
    variants = [{f"{name} {n}": name for n in range(len(_VARIANTS))} for name in (*_BASE, "")]
    chosen = [style for methods in variants for style in styles(methods).values()]
    return {style.colour: style.on_dark for style in chosen}


def _shaded(colour: str, amount: float) -> str:
    """Mixed with white by `amount`, or with black if it is negative."""
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
