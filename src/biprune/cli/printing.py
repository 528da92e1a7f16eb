"""What commands print on stdout: tables for people, one JSON document for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table

from biprune.core.documents import finite
from biprune.core.files import printable

if TYPE_CHECKING:
    from biprune import Certificate, Masks
    from biprune.core.groups import Groups


Cell = RenderableType


def print_json(document: Mapping[str, object]) -> None:
    """The whole of stdout under `--json`; NaN and infinity are words, as in our files."""
    print(json.dumps(finite(document), indent=1, allow_nan=False))


def print_facts(facts: Mapping[str, str]) -> None:
    """Names and values, one pair a line."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts.items():
        grid.add_row(_shown(name), _shown(value))
    _console().print(grid)


def print_table(
    headers: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    title: str | None = None,
    numeric: Sequence[str] = (),
) -> None:
    """A table whose `numeric` columns are aligned to the right."""
    _console().print(new_table(headers, rows, title=title, numeric=numeric))


def new_table(
    headers: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    title: str | None = None,
    numeric: Sequence[str] = (),
) -> Table:
    """The same table, to be shown among other things."""
    table = Table(
        box=box.SIMPLE_HEAD,
        title=None if title is None else _shown(title),
        title_justify="left",
        title_style="bold",
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for header in headers:
        table.add_column(
            _shown(header), justify="right" if header in numeric else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*(_shown(cell) if isinstance(cell, str) else cell for cell in row))
    return table


def print_text(text: RenderableType) -> None:
    """A table, or a paragraph wrapped between words; its line breaks stay."""
    _console().print(text)


def print_lines(*lines: str) -> None:
    """Lines that may be copied, such as commands: never wrapped."""
    for line in lines:
        _console().print(printable(line), soft_wrap=True)


def _shown(text: str) -> str:
    """The text with escape sequences spelled out, since files may hold some; line breaks stay."""
    return "\n".join(map(printable, text.split("\n")))


def _console() -> Console:
    # Paths and names are the user's: square brackets in them are not markup.
    return Console(markup=False, highlight=False, emoji=False)


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
    """What the sparsity is a fraction of, where that is not the units."""
    measure = masks.structure.settings.get("measure", "units")
    return "" if measure == "units" else f" of the {measure}"


def _reached(masks: Masks, whole: int) -> str:
    """Sparsity in units and in weights, a line each where a unit is more than one weight.

    Where most weights of the model were not offered, it says how many the `whole` model has.
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
    """The settings that differ from the method's defaults; all of them for an unknown method."""
    from biprune.methods import METHODS

    defaults = METHODS[method]().settings if method in METHODS else {}
    changed = [
        f"{name}={value}"
        for name, value in settings.items()
        if name not in defaults or defaults[name] != value
    ]
    return ", ".join(changed) or "the defaults"


def print_certificate(
    certificate: Certificate, others: Mapping[str, str], *, trained_since: bool = False
) -> None:
    """What was removed, how closely outputs agree, and why the rest stays; `others` come first."""
    when = ", when it was cut: its weights have changed since" if trained_since else ""
    before, after = certificate.before, certificate.after
    print_facts(
        {
            **others,
            "units": f"{certificate.units_removed:,} of {certificate.units:,} removed",
            "parameters": _change(before.parameters, after.parameters),
            "MACs": _change(before.macs, after.macs),
            "bytes of the state": _change(before.bytes, after.bytes),
            "form": certificate.form,
            "certified": f"outputs agree to {certificate.max_error:.1e} of their size on "
            f"{certificate.num_inputs} inputs ({certificate.dtype}){when}; between inputs they "
            f"differ by {certificate.spread:.1e}",
            "zeros left": f"{certificate.zeros_left:,} of {certificate.zeros:,}",
        }
    )
    print_lines(*(f"{name} stays whole: {why}." for name, why in certificate.left_out.items()))
    if certificate.form == "graph":
        print_lines(f"The model is a graph: its own class {certificate.not_module}.")
    if certificate.is_blind:
        print_lines(certificate.blindness)


def _change(before: int, after: int) -> str:
    return f"{before:,} -> {after:,} ({100 * after / before:.1f} %)"


def print_budget(masks: Masks, structure: Groups, sparsity: float) -> None:
    """What each layer keeps, what a unit of each group costs, and the total."""
    from biprune.core.budget import kept_fractions, kept_macs, unit_costs

    layers = masks.per_layer()
    counts = [count.kept for count in layers.values()]
    macs = kept_macs(structure, counts)
    by_layer = structure.measure == "units" and structure.scope == "layer"
    rows = []
    for group in structure.groups:
        count = layers[group.name]
        wanted = f"{(1 - sparsity) * count.total:.1f}" if by_layer else "-"
        for name in dict.fromkeys(part.tensor for part in group.filters):
            before, after = structure.macs.get(name, 0), macs.get(name, 0.0)
            share = f"{100 * after / before:.1f} %" if before else "-"
            rows.append((name, wanted, str(count.kept), str(count.total), share))
    headers = ("layer", "asked", "kept", "of", "MACs left")
    print_table(headers, rows, numeric=headers[1:])
    costs = unit_costs(structure)
    groups = [
        (group.title or group.name, *(f"{cost:,}" for cost in costs[group.name]))
        for group in structure.groups
    ]
    headers = ("group", "MACs a unit", "weights a unit")
    print_table(headers, groups, numeric=headers[1:])
    shares = kept_fractions(structure, counts)
    found = ", ".join(f"{100 * share:.2f} % of the {name}" for name, share in shares.items())
    asked = f"{100 * (1 - sparsity):.2f} % of the {structure.measure}"
    print_lines(f"Asked to keep {asked}: kept {found}.")
