"""The facts of a saved folder in words, from its metadata alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from biprune import Masks

Metadata = Mapping[str, Any]


def dense_facts(metadata: Metadata) -> dict[str, str]:
    """What a dense run is and what it reached."""
    return {
        **_origin(metadata),
        "epochs": str(metadata["epochs"]),
        "states kept": ", ".join(f"epoch {epoch}" for epoch in metadata["rewind_epochs"]) or "none",
        **_measured(metadata),
    }


def ticket_facts(metadata: Metadata, masks: Masks) -> dict[str, str]:
    """What a ticket is and what it reached."""
    return {
        **_origin(metadata),
        "method": str(metadata["method"]),
        "settings": _changed_settings(metadata["method"], metadata["settings"]),
        "seed": str(metadata["seed"]),
        "structure": f"{masks.structure.name}, scope {masks.structure.scope}",
        "sparsity asked": f"{metadata['sparsity']:g}{_of_what(masks)}",
        "reached": _reached(masks, metadata["num_weights"]),
        **_measured(metadata),
        **({"rounds before": str(len(metadata["rounds"]))} if metadata["rounds"] else {}),
    }


def _of_what(masks: Masks) -> str:
    """What the sparsity is the removed fraction of, where it is not of the units."""
    measure = masks.structure.settings.get("measure", "units")
    return "" if measure == "units" else f" of the {measure}"


def _reached(masks: Masks, whole: int) -> str:
    """Sparsity in units and in weights, a line each where a unit is more than a weight.

    Of how many in the `whole` model is said where most of them were not offered.
    """
    total = sum(mask.numel() for mask in masks.values())
    kept = round((1 - masks.weight_sparsity) * total)
    text = f"{masks.weight_sparsity:.4f}: {kept:,} of {total:,} weights kept"
    if total < whole / 2:
        text += f", of {whole:,} in the model"
    unit = {"filter": "filters", "channel": "channels", "group": "coupled filters"}
    if masks.structure.name not in unit:
        return text
    name = unit[masks.structure.name]
    return f"{masks.sparsity:.4f}: {masks.kept:,} of {masks.total:,} {name} kept\n{text}"


def percent(accuracy: float | None) -> str:
    """An accuracy, or a dash where none was measured."""
    return "-" if accuracy is None else f"{accuracy:.2f} %"


def _origin(metadata: Metadata) -> dict[str, str]:
    model, data = metadata["model"], metadata["data"]
    return {
        "model": "your own" if model is None else _with_options(model),
        "data": "your own" if data is None else _with_options(data, "subset", "seed"),
    }


def _with_options(record: Mapping[str, Any], *wanted: str) -> str:
    """The name in a record, and in brackets its `wanted` options, or all of them."""
    names = wanted or tuple(name for name in record if name != "name")
    given = [f"{name}={record[name]}" for name in names if record.get(name) is not None]
    return f"{record['name']} ({', '.join(given)})" if given else str(record["name"])


def _measured(metadata: Metadata) -> dict[str, str]:
    cost = metadata["cost"]
    accuracy = percent(metadata["accuracy"])
    if metadata.get("dense_accuracy") is not None:
        accuracy += f", dense {percent(metadata['dense_accuracy'])}"
    return {
        "test accuracy": accuracy,
        "cost": f"{cost['forward_passes']:,} forward and {cost['backward_passes']:,} backward "
        f"passes, {cost['seconds']:.1f} s",
    }


def _changed_settings(method: str, settings: Mapping[str, Any]) -> str:
    """The settings that are not the method's defaults; all of them for a method not of ours."""
    from biprune.methods import METHODS

    defaults = METHODS[method]().settings if method in METHODS else {}
    changed = [
        f"{name}={value}"
        for name, value in settings.items()
        if name not in defaults or defaults[name] != value
    ]
    return ", ".join(changed) or "the defaults"
