"""A folder with JSON and safetensors: written in whole, read in whole or not at all, no pickle.

The JSON carries the hash of the tensors, so a damaged file is refused before anything is built
from it. It never names code to import: only models of our own registry are rebuilt from it.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from biprune.checkpoint import load_tensors_, named_as_in, only_tensors
from biprune.files import replaced
from biprune.loop import Cost
from biprune.models import MODELS, create_model
from biprune.parameters import unwrap

VERSION = 3
METADATA_FILE = "biprune.json"
UNFINISHED = "biprune-unfinished"  # a name that no folder of the user's own has: it is deleted
TENSORS_FILE = "tensors.safetensors"


def write_artifact(
    folder: Path | str, kind: str, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> Path:
    """Write `tensors` and `metadata`; the JSON last, as it vouches for the tensors."""
    folder = Path(folder)
    owned = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    with (
        replaced(folder / METADATA_FILE) as described,
        replaced(folder / TENSORS_FILE) as temporary,
    ):
        data = save_tensors(owned)  # safetensors' own `save_file` lets nobody else read the file
        temporary.write_bytes(data)
        sha256 = hashlib.sha256(data).hexdigest()
        content = {"format": f"biprune {kind}", "version": VERSION, "sha256": sha256, **metadata}
        described.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return folder


def is_saved(folder: Path | str) -> bool:
    """Whether something was saved in `folder`, to its end."""
    return (Path(folder) / METADATA_FILE).exists()


def read_artifact(folder: Path | str, kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Metadata and tensors, or a ValueError that says what is wrong with the folder."""
    metadata = read_metadata(folder, kind)
    path = Path(folder) / TENSORS_FILE
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"Cannot read {str(path)!r}: {error.strerror}.") from None
    if hashlib.sha256(data).hexdigest() != metadata.get("sha256"):
        raise ValueError(
            f"{str(path)!r} is damaged: its contents do not match the hash in {METADATA_FILE}. "
            "Copy the folder again, or save it anew."
        )
    try:
        return metadata, load_tensors(data)
    except SafetensorError as error:
        raise ValueError(f"{str(path)!r} is no safetensors file: {error}.") from None


def read_metadata(folder: Path | str, kind: str | None = None) -> dict[str, Any]:
    """The JSON of a folder written by `write_artifact`, of this kind or of any."""
    path = Path(folder) / METADATA_FILE
    try:
        metadata = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if (Path(folder) / UNFINISHED).exists():
            raise ValueError(
                f"{str(folder)!r} holds an unfinished run. Repeat the command that began it, which "
                "goes on where it was."
            ) from None
        raise ValueError(
            f"{str(folder)!r} holds nothing saved by biprune: there is no {METADATA_FILE} in it."
        ) from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{str(path)!r} cannot be read as JSON: {error}.") from None
    if not isinstance(metadata, dict) or not str(metadata.get("format")).startswith("biprune "):
        raise ValueError(f"{str(path)!r} was not written by biprune.")
    if metadata.get("version") != VERSION:
        raise ValueError(
            f"{str(path)!r} has version {metadata.get('version')!r}; this biprune reads version "
            f"{VERSION}. Install the version that wrote it."
        )
    if kind is not None and metadata["format"] != f"biprune {kind}":
        raise ValueError(f"{str(folder)!r} holds a {metadata['format']}, not a biprune {kind}.")
    return metadata


def check_fields(metadata: Mapping[str, Any], folder: Path | str, **types: Any) -> None:
    """Refuse metadata that lacks a field, or has one of another type."""
    for name, allowed in types.items():
        if name not in metadata:
            raise ValueError(f"{str(folder)!r} is incomplete: {name!r} is not in {METADATA_FILE}.")
        if not isinstance(metadata[name], allowed):
            raise ValueError(
                f"{str(folder)!r} is damaged: {name!r} in {METADATA_FILE} is {metadata[name]!r}."
            )


def saved_cost(metadata: Mapping[str, Any], folder: Path | str) -> Cost:
    """The cost that metadata carries."""
    try:
        return Cost(**metadata["cost"])
    except TypeError:
        raise ValueError(
            f"{str(folder)!r} is damaged: 'cost' in {METADATA_FILE} is {metadata['cost']!r}."
        ) from None


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Put tensors into a namespace of the file."""
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Take the tensors of a namespace out of a file's."""
    start = f"{prefix}/"
    return {n.removeprefix(start): tensor for n, tensor in tensors.items() if n.startswith(start)}


def rebuild(
    created_by: Mapping[str, Any] | None, state: Mapping[str, Tensor], model: nn.Module | None
) -> nn.Module:
    """A model with `state`: a copy of `model`, or one of our registry by its record."""
    built = original(created_by, model)
    fill_(built, state, "`model`" if model is not None else f"a new {(created_by or {})['name']}")
    return built


def original(created_by: Mapping[str, Any] | None, model: nn.Module | None) -> nn.Module:
    """The model that a file was made from, whatever its weights; see `rebuild`."""
    if model is not None:
        return copy.deepcopy(unwrap(model))
    if created_by is not None and created_by.get("name") in MODELS:
        return create_model(**created_by)
    raise ValueError(
        "The file holds a model that is not in biprune's registry. Build it yourself and pass it, "
        "dense, as `model`, whose weights will be replaced in a copy; on the command line it is "
        "`--model package.module:factory`."
    )


def fill_(built: nn.Module, state: Mapping[str, Tensor], what: str) -> None:
    """Give `built` the weights of `state`, in their precision, and put it in eval mode."""
    own = only_tensors(built.state_dict(keep_vars=True))
    state = named_as_in(own, state)
    reshaped = {n for n in own.keys() & state.keys() if own[n].shape != state[n].shape}
    wrong = sorted(own.keys() ^ state.keys() | reshaped)
    if wrong:
        raise ValueError(
            f"The saved weights do not fit {what}: {', '.join(wrong[:5])}"
            f"{' and others' if len(wrong) > 5 else ''} differ in name or shape. Pass `model`, "
            "built as the saved one was."
        )
    for name, tensor in own.items():
        tensor.data = tensor.data.to(state[name].dtype)
    load_tensors_(built, state)
    built.eval()
