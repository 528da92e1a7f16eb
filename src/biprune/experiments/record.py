"""A run as data: what it is to compute, and the record of what came out."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from functools import cache, cached_property
from types import MappingProxyType
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from biprune.core.checks import check_whole
from biprune.core.documents import from_plain
from biprune.core.structure import Scope
from biprune.data import data_entry, load_data
from biprune.methods import METHODS, Method, get_method
from biprune.pruning.request import Request
from biprune.training.batches import classification_loss
from biprune.training.recipes import Recipe
from biprune.training.setup import Setup
from biprune.training.train import train

TRAIN = "train"  # the method of a dense run
OF_DENSE = {"model", "data", "seed", "model_options", "data_options", "dense", "training"}
DATA_OPTIONS = ("batch_size", "val_fraction", "subset", "augment", "image_size")


class RunSpec(BaseModel):
    """One training or pruning run on a named model and data set.

    What is at its default is taken out, so that a run has the same key whether defaults are
    written out or not.

    Args:
        method: A name of `METHODS`, or "train" for a dense run alone.
        seed: Decides the data split, the initial weights and both runs.
        settings: Those of the method.
        data_options: Those of `load_data`.
        dense: The recipe of the dense run, and its `rewind_epochs`.
        training: What dense run and pruning share: clip_grad, accumulate, ema, autocast.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    data: str
    method: str = TRAIN
    sparsity: float = 0.0
    structure: str = "weight"
    scope: Scope | None = None
    seed: int = 0
    settings: dict[str, Any] = Field(default_factory=dict)
    model_options: dict[str, Any] = Field(default_factory=dict)
    data_options: dict[str, Any] = Field(default_factory=dict)
    dense: dict[str, Any] = Field(default_factory=dict)
    training: dict[str, Any] = Field(default_factory=dict)
    include: tuple[str, ...] | None = None
    exclude: tuple[str, ...] | None = None
    allow_empty: bool = False

    @model_validator(mode="before")
    @classmethod
    def _without_defaults(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        given = dict(given)
        method = given.get("method", TRAIN)
        given["settings"] = _differing(given.get("settings"), _method_defaults(method))
        given["data_options"] = _data_options(given.get("data"), given.get("data_options"))
        given["dense"] = _differing(given.get("dense"), DENSE_DEFAULTS)
        given["training"] = _differing(given.get("training"), TRAINING_DEFAULTS)
        return given

    @model_validator(mode="after")
    def _checked(self) -> Self:
        data_entry(self.data)
        check_whole("seed", self.seed, at_least=0)
        Recipe(**{name: v for name, v in self.dense.items() if name != "rewind_epochs"})
        Setup((), classification_loss, **self.training)
        if self.method != TRAIN:
            self.build_method()
            Request(self.sparsity, self.structure, self.scope, allow_empty=self.allow_empty)
        return self

    def __str__(self) -> str:
        return f"{self.method} {100 * self.sparsity:g} % {self.structure} seed {self.seed}"

    def build_method(self) -> Method:
        """The method with its settings."""
        return get_method(self.method, self.settings)

    @property
    def dense_spec(self) -> RunSpec:
        """The dense run that this one starts from."""
        return RunSpec(**self.model_dump(include=OF_DENSE))

    @property
    def resolved(self) -> dict[str, Any]:
        """Every field in full, the defaults of today filled in."""
        method = {} if self.method == TRAIN else self.build_method().settings
        filled = {
            "settings": method,
            "data_options": {**_defaults_of(load_data, DATA_OPTIONS), **self.data_options},
            "dense": {**DENSE_DEFAULTS, **self.dense},
            "training": {**TRAINING_DEFAULTS, **self.training},
        }
        return _plain({**self.model_dump(), **filled})

    @cached_property
    def key(self) -> str:
        """sha256 of the canonical JSON of what differs from the defaults, and of the version.

        A new field with a default leaves the keys of old runs as they are. A method whose defaults
        change raises its `settings_version`, which gives its runs new keys.
        """
        content = self.model_dump(mode="json", exclude_defaults=True)
        if self.method != TRAIN:
            content["settings_version"] = METHODS[self.method].settings_version
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:24]


def covered_by(spec: RunSpec) -> list[RunSpec]:
    """The specs that a run of `spec` leaves records of on its way: IMP's, at each of its stops."""
    found, stops = [], spec.settings.get("stops", ())
    for stop in stops:
        settings = {**spec.settings, "stops": [other for other in stops if other < stop]}
        found.append(RunSpec(**spec.model_dump() | {"sparsity": stop, "settings": settings}))
    return found


def _differing(given: Any, defaults: Mapping[str, Any]) -> Any:
    """The part of `given` that differs from the defaults; unknown names are refused."""
    if not isinstance(given, dict | None):
        return given
    plain = _plain(given or {})
    unknown = sorted(plain.keys() - defaults.keys())
    if unknown:
        raise ValueError(
            f"Unknown option {', '.join(map(repr, unknown))}. Options: {', '.join(defaults)}."
        )
    # A whole number for a setting that is a float is the same run.
    same = {n: _as(defaults[n], v) for n, v in plain.items()}
    return {name: value for name, value in same.items() if value != defaults[name]}


def _data_options(data: Any, given: Any) -> Any:
    """What differs from the defaults of `load_data`, and from the data set's own batch size."""
    options = _differing(given, _defaults_of(load_data, DATA_OPTIONS))
    size = options.get("batch_size") if isinstance(options, dict) else None
    if size is not None and size == data_entry(data).batch_size:
        del options["batch_size"]
    return options


def _as(default: Any, value: Any) -> Any:
    return float(value) if type(default) is float and type(value) is int else value


@cache
def _method_defaults(method: Any) -> Mapping[str, Any]:
    if method == TRAIN:
        return MappingProxyType({})
    default = get_method(method, {})
    named = {field.name: _plain(getattr(default, field.name)) for field in fields(default)}
    return MappingProxyType(named)


@cache
def _defaults_of(function: Any, names: tuple[str, ...]) -> Mapping[str, Any]:
    parameters = inspect.signature(function).parameters
    return MappingProxyType({name: _plain(parameters[name].default) for name in names})


def _plain(value: Any) -> Any:
    """The value as JSON would give it back."""
    return json.loads(json.dumps(value))


DENSE_DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {**_plain(asdict(Recipe())), "rewind_epochs": None}
)
TRAINING_DEFAULTS = _defaults_of(train, ("clip_grad", "accumulate", "ema", "autocast"))

# What reports read of a history.
MEASURES: dict[str, Any] = {
    "stage": str,
    "epoch": int,
    "loss": float,
    "accuracy": float,
    "iou": float,
    "layer_sparsity": Mapping[str, float],
}


class RunRecord(BaseModel):
    """The outcome of one run, or the `error` by which it failed.

    Accuracies are in percent.

    Args:
        resolved: The spec in full, with the defaults of the day.
        test_accuracy: Read once, at the end.
        val_accuracy: Of the last epoch.
        dense_accuracy: The test accuracy of the dense run.
        achieved_sparsity: The removed fraction of the structure's units.
        weight_sparsity: The removed fraction of the weights of prunable tensors.
        layers: Kept and all units by name.
        forward_passes: Of this run, as `backward_passes` and `seconds`: the dense run's come on
            top.
    """

    # Whoever writes the JSON decides how it spells NaN.
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    spec: RunSpec
    resolved: dict[str, Any]
    status: Literal["done", "failed"] = "done"
    error: str | None = None
    test_accuracy: float | None = None
    val_accuracy: float | None = None
    dense_accuracy: float | None = None
    achieved_sparsity: float | None = None
    weight_sparsity: float | None = None
    layers: dict[str, tuple[int, int]] = Field(default_factory=dict)
    forward_passes: int = 0
    backward_passes: int = 0
    seconds: float = 0.0
    history: list[dict[str, Any]] = Field(default_factory=list)
    environment: dict[str, Any] = Field(default_factory=dict)

    @field_validator("history")
    @classmethod
    def _measured(cls, history: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for entry in history:
            for name in MEASURES.keys() & entry.keys():
                if entry[name] is not None:
                    from_plain(MEASURES[name], entry[name])
        return history

    @property
    def key(self) -> str:
        """The address of the run."""
        return self.spec.key
