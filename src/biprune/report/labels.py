"""Names for variants: what differs between them and nothing else."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from biprune.experiments.spec import RunSpec

Options = Mapping[str, Any]  # what is not the default, by name

# At equal passes the epochs follow from the other settings, and say nothing more.
_FOLLOWS_PASSES = "epochs"
# IMP halts at every smaller sparsity of its grid: one curve, though no two points share them.
_FOLLOWS_SPARSITY = "stops"


def differing(options: Sequence[Options]) -> list[str]:
    """The names whose value is not the same in all of `options`, in alphabetical order.

    >>> differing([{"epochs": 5}, {"epochs": 5, "gamma": 0.5}])
    ['gamma']
    """
    names = sorted({name for given in options for name in given})
    return [name for name in names if len({_canonical(given, name) for given in options}) > 1]


def described(options: Options, names: Iterable[str]) -> str:
    """The given ones of `names` with their values; a name that is not given is at its default.

    >>> described({"gamma": 0.5, "epochs": 5}, ["gamma", "lr"])
    'gamma=0.5'
    """
    return ", ".join(f"{name}={_shown(options[name])}" for name in names if name in options)


def method_labels(specs: Sequence[RunSpec]) -> dict[str, str]:
    """A label for each spec by its key: the method, and its settings where it has variants."""
    by_method: defaultdict[str, list[RunSpec]] = defaultdict(list)
    for spec in specs:
        by_method[spec.method].append(spec)
    labels = {}
    for method, variants in by_method.items():
        names = _distinguishing(variants)
        for spec in variants:
            details = described(spec.settings, names)
            labels[spec.key] = f"{method} ({details})" if details else method
    return labels


def natural_order(label: str) -> list[tuple[int, float, str]]:
    """A key that sorts numbers in labels by their size, and a method before its variants.

    >>> sorted(["bip (gamma=10)", "bip (gamma=2)", "bip"], key=natural_order)
    ['bip', 'bip (gamma=2)', 'bip (gamma=10)']
    """
    parts = re.split(r"(\d+(?:\.\d+)?)", label)
    return [(0, float(p), "") if p[:1].isdigit() else (1, 0.0, p) for p in parts]


def _distinguishing(specs: Sequence[RunSpec]) -> list[str]:
    names = [n for n in differing([spec.settings for spec in specs]) if n != _FOLLOWS_SPARSITY]
    others = [name for name in names if name != _FOLLOWS_PASSES]
    if len({described(s.settings, names) for s in specs}) == len(
        {described(s.settings, others) for s in specs}
    ):
        names = others
    alike: defaultdict[str, list[Options]] = defaultdict(list)
    for spec in specs:
        rest = {n: v for n, v in spec.settings.items() if n != _FOLLOWS_SPARSITY}
        alike[json.dumps([spec.sparsity, rest], sort_keys=True)].append(spec.settings)
    if any(differing(settings) for settings in alike.values()):
        names.append(_FOLLOWS_SPARSITY)
    return names


def _canonical(options: Options, name: str) -> str | None:
    return json.dumps(options[name], sort_keys=True) if name in options else None


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
