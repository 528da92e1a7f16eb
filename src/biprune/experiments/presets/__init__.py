"""The paper's figures and tables by name, each at three scales."""

from __future__ import annotations

from difflib import get_close_matches

from biprune.experiments.presets.ablations import ABLATIONS
from biprune.experiments.presets.base import Preset
from biprune.experiments.presets.comparisons import COMPARISONS

__all__ = ["PRESETS", "Preset", "get_preset"]

PRESETS: dict[str, Preset] = {preset.name: preset for preset in (*COMPARISONS, *ABLATIONS)}


def get_preset(name: str) -> Preset:
    """A preset of `PRESETS`.

    Args:
        name: Such as "snapshot"; `biprune reproduce --list` shows them all.

    Returns:
        The preset, whose `specs(scale)` are its runs.

    Raises:
        ValueError: There is none of that name.

    Example:
        >>> get_preset("snapshot").source
        'Figure 1'
    """
    if name not in PRESETS:
        closest = get_close_matches(name, PRESETS, n=1, cutoff=0.0)[0]
        raise ValueError(
            f"Unknown preset {name!r}. Presets: {', '.join(PRESETS)}. Closest: {closest}."
        )
    return PRESETS[name]
