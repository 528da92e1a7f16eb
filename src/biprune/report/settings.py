"""What makes runs comparable: everything of their specs but method, sparsity and seed."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from biprune.experiments.reference import ReferencePoint
from biprune.experiments.spec import RunSpec
from biprune.report.labels import described, differing

_COMPARED = {"method", "sparsity", "seed", "settings"}
_OPTIONS = {"model_options": "model", "data_options": "data", "dense": "dense"}


def setting_key(spec: RunSpec) -> str:
    """The same for all runs that belong into one table."""
    return _canonical(spec.model_dump(mode="json", exclude=_COMPARED))


def recipe_key(spec: RunSpec) -> str:
    """The same for all runs that start from dense runs of one recipe, whatever the seed."""
    return _canonical(spec.dense_spec.model_dump(mode="json", exclude=_COMPARED))


def published_for(spec: RunSpec, paper: Iterable[ReferencePoint]) -> list[ReferencePoint]:
    """The published points for the model, data and structure of `spec`."""
    ours = spec.model, spec.data, spec.structure
    return [point for point in paper if (point.model, point.data, point.structure) == ours]


def setting_titles(specs: Sequence[RunSpec]) -> list[str]:
    """A title for each setting; settings that would share one also say what differs."""
    plain = [f"{spec.model} on {spec.data}, pruned by {spec.structure}" for spec in specs]
    alike: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    options = [_flat(spec) for spec in specs]
    for title, given in zip(plain, options, strict=True):
        alike[title].append(given)
    details = [
        described(given, differing(alike[title]))
        for title, given in zip(plain, options, strict=True)
    ]
    return [f"{t} ({extra})" if extra else t for t, extra in zip(plain, details, strict=True)]


def _flat(spec: RunSpec) -> dict[str, Any]:
    given = spec.model_dump(mode="json", exclude_defaults=True, exclude=_COMPARED)
    flat = {n: v for n, v in given.items() if n not in _OPTIONS}
    for field, prefix in _OPTIONS.items():
        flat |= {f"{prefix} {name}": value for name, value in given.get(field, {}).items()}
    return flat


def _canonical(content: dict[str, Any]) -> str:
    return json.dumps(content, sort_keys=True)
