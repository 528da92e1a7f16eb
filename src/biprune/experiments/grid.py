"""Methods x sparsities x structures x seeds on one model and data set, as specs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from pydantic import ValidationError

from biprune.core.checks import check_whole
from biprune.experiments.spec import RunSpec
from biprune.methods import IMP, METHODS, Method, get_method


def grid(
    methods: Iterable[str | Method],
    *,
    model: str,
    data: str,
    sparsities: Sequence[float],
    seeds: Sequence[int] = (0,),
    structures: Sequence[str] = ("weight",),
    passes: int | None = None,
    dense: Mapping[str, Any] | None = None,
    model_options: Mapping[str, Any] | None = None,
    data_options: Mapping[str, Any] | None = None,
) -> list[RunSpec]:
    """A spec for every cell, those of a seed together.

    `passes` gives each method that many passes over the data, whatever it makes of them, but IMP
    so many in each round: several rounds are what it is. None leaves each method its own length.
    `dense` are options of `train`. IMP stops at every sparsity of the grid, so that one deep run
    passes them all. A method that does not prune is at sparsity 0 alone.
    """
    if passes is not None:
        check_whole("passes", passes, at_least=1)
    chosen = [_known(method) for method in methods]
    specs = [
        _spec(
            model=model,
            data=data,
            method=method.name,
            sparsity=sparsity if method.prunes else 0.0,
            structure=structure,
            seed=seed,
            settings=_adapted(method, sparsity, sparsities, passes).settings,
            model_options=dict(model_options or {}),
            data_options=dict(data_options or {}),
            dense=dict(dense or {}),
        )
        for seed, structure, sparsity, method in product(seeds, structures, sparsities, chosen)
    ]
    return list({spec.key: spec for spec in specs}.values())


def _known(method: str | Method) -> Method:
    """A method that its name and settings say in full, as a spec does."""
    built = get_method(method, {})
    if METHODS.get(built.name) is not type(built):
        raise ValueError(
            f"`methods` has a {type(built).__name__}, whose name {built.name!r} stands for another "
            "method in METHODS. Give it a name of its own and add it there."
        )
    return built


def _spec(**fields: Any) -> RunSpec:
    try:
        return RunSpec(**fields)
    except ValidationError as error:
        first = error.errors()[0]
        said = first.get("ctx", {}).get("error", first["msg"])  # what our own check said
        raise ValueError(str(said)) from None


def with_passes(method: Method, sparsity: float, passes: int) -> Method:
    """The method over as many epochs as make at most `passes` passes over the data, but for one."""
    share = method.data_passes(sparsity) / max(getattr(method, "epochs", 1), 1)
    if share == 0:
        return method
    return method.scaled(max(1, math.floor(passes / share + 1e-9)))


def _adapted(
    method: Method, sparsity: float, sparsities: Sequence[float], passes: int | None
) -> Method:
    if isinstance(method, IMP):
        if passes is not None:
            method = method.scaled(passes)
        if method.rounds is None:
            stops = {s for s in (*sparsities, *method.stops) if s < sparsity}
            method = replace(method, stops=tuple(sorted(stops)))
        return method
    return method if passes is None else with_passes(method, sparsity, passes)
