"""Names for variants and settings: they say what differs, and nothing else."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from biprune.experiments.spec import RunSpec

Options = Mapping[str, Any]  # what differs from the defaults, by name

COMPARED = {"method", "sparsity", "seed", "settings"}  # the fields that vary in a comparison
_OPTIONS = {"model_options": "model", "data_options": "data", "dense": "dense"}
# At equal passes, the epochs follow from the other settings.
_EPOCHS = "epochs"
# IMP stops at every smaller sparsity of its grid, so no two points of its curve share their stops.
_STOPS = "stops"


def differing(options: Sequence[Options]) -> list[str]:
    """The names whose value is not the same in all of `options`, in alphabetical order.

    >>> differing([{"epochs": 5}, {"epochs": 5, "gamma": 0.5}])
    ['gamma']
    """
    names = sorted({name for given in options for name in given})
    return [n for n in names if len({_json(o[n]) if n in o else None for o in options}) > 1]


def described(options: Options, names: Iterable[str]) -> str:
    """The values of `names` in `options`; a name that is absent is at its default.

    >>> described({"gamma": 0.5, "epochs": 5}, ["gamma", "lr"])
    'gamma=0.5'
    """
    return ", ".join(f"{name}={_shown(options[name])}" for name in names if name in options)


def method_labels(specs: Sequence[RunSpec]) -> dict[str, str]:
    """A label for each spec's key: its method, and the settings that tell its variants apart."""
    by_method: defaultdict[str, list[RunSpec]] = defaultdict(list)
    for spec in specs:
        by_method[spec.method].append(spec)
    labels = {}
    for method, variants in by_method.items():
        names = _distinguishing(variants)
        for spec in variants:
            labels[spec.key] = _with_details(method, described(spec.settings, names))
    return labels


def setting_titles(specs: Sequence[RunSpec]) -> list[str]:
    """A title for each setting; settings with the same model, data and structure say what differs.

    Args:
        specs: One spec of each setting.
    """
    plain = [f"{spec.model} on {spec.data}, pruned by {spec.structure}" for spec in specs]
    options = [_flat(spec) for spec in specs]
    alike: defaultdict[str, list[Options]] = defaultdict(list)
    for title, given in zip(plain, options, strict=True):
        alike[title].append(given)
    return [
        _with_details(title, described(given, differing(alike[title])))
        for title, given in zip(plain, options, strict=True)
    ]


def natural_order(label: str) -> list[tuple[int, float, str]]:
    """A key that sorts the numbers in labels by size, and a method before its variants.

    >>> sorted(["bip (gamma=10)", "bip (gamma=2)", "bip"], key=natural_order)
    ['bip', 'bip (gamma=2)', 'bip (gamma=10)']
    """
    parts = re.split(r"(\d+(?:\.\d+)?)", label)
    return [(0, float(p), "") if p[:1].isdigit() else (1, 0.0, p) for p in parts]


def _distinguishing(specs: Sequence[RunSpec]) -> list[str]:
    """The settings that variants of one method need in their labels."""
    settings = [spec.settings for spec in specs]
    names = [name for name in differing(settings) if name != _STOPS]
    others = [name for name in names if name != _EPOCHS]
    told_apart = {described(given, names) for given in settings}
    if len(told_apart) == len({described(given, others) for given in settings}):
        names = others
    points = {_json([spec.sparsity, spec.settings]) for spec in specs}
    without_stops = {
        _json([s.sparsity, {n: v for n, v in s.settings.items() if n != _STOPS}]) for s in specs
    }
    return names if len(points) == len(without_stops) else [*names, _STOPS]


def _flat(spec: RunSpec) -> dict[str, Any]:
    """What differs from the defaults outside the compared fields, options of options included."""
    given = spec.model_dump(mode="json", exclude_defaults=True, exclude=COMPARED)
    flat = {n: v for n, v in given.items() if n not in _OPTIONS}
    for field, prefix in _OPTIONS.items():
        flat |= {f"{prefix} {name}": value for name, value in given.get(field, {}).items()}
    return flat


def _with_details(name: str, details: str) -> str:
    return f"{name} ({details})" if details else name


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
