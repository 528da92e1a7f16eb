"""A folder with JSON and safetensors, no pickle: written and read as a whole or not at all."""

from __future__ import annotations

import hashlib
import math
import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from biprune.core.documents import from_plain, read_document, write_document
from biprune.core.files import claimed, first_line, read_file, write_bytes
from biprune.training.checkpoint import UNFIT, State
from biprune.training.loop import Cost

VERSION = 4
_FORMATS = ["biprune dense", "biprune ticket", "biprune small"]
METADATA_FILE = "biprune.json"
UNFINISHED = "biprune-unfinished"  # it is deleted, so no folder of the user's has this name
_TENSORS_FILE = re.compile(r"tensors-[0-9a-f]{16}\.safetensors")  # old ones are deleted, too

_AGAIN = "Copy the folder again, or save it anew."


def write_artifact(
    folder: Path | str, kind: str, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> Path:
    """Write `metadata` and `tensors`, in place of what the folder held, and return its path."""
    folder = Path(folder)
    data = to_bytes(tensors)  # safetensors' own `save_file` lets nobody else read the file
    hashed = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    content = {"format": f"biprune {kind}", "version": VERSION, "tensors": hashed, **metadata}
    with claimed(folder):
        try:
            write_bytes(tensors_path(folder, content), data)
            write_document(folder / METADATA_FILE, content)
        finally:
            _sweep(folder)
    return folder


def to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors as a safetensors file holds them."""
    # Clones, since safetensors refuses tensors that share memory.
    owned = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    return save_tensors(owned)


def _sweep(folder: Path) -> None:
    """Remove tensors that belong to no result: another replaced it, or the disk was full."""
    try:
        named = tensors_path(folder, read_document(folder / METADATA_FILE))
    except FileNotFoundError:
        named = None
    except UNFIT:  # it cannot be told which tensors belong to it
        return
    for path in folder.iterdir():
        if _TENSORS_FILE.fullmatch(path.name) and path != named:
            with suppress(OSError):  # a file that stays does no harm
                path.unlink()


def tensors_path(folder: Path | str, metadata: Mapping[str, Any]) -> Path:
    """The file of the tensors that belong to `metadata`."""
    return Path(folder) / f"tensors-{metadata['tensors']['sha256'][:16]}.safetensors"


def is_saved(folder: Path | str) -> bool:
    """Whether something was saved completely in `folder`."""
    return (Path(folder) / METADATA_FILE).exists()


def read_artifact(folder: Path | str, kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Metadata and tensors. If another run replaces them meanwhile, both are old or both new.

    Raises:
        ValueError: Says what is wrong with the folder.
    """
    metadata = read_metadata(folder, kind)
    hashed = metadata["tensors"]
    path = tensors_path(folder, metadata)
    try:
        data = read_file(path, at_most=hashed["bytes"])
    except FileNotFoundError:
        if read_metadata(folder, kind) != metadata:  # they were replaced with their tensors
            return read_artifact(folder, kind)
        raise ValueError(f"Cannot read {str(path)!r}: it is missing. {_AGAIN}") from None
    if hashlib.sha256(data).hexdigest() != hashed["sha256"]:
        raise ValueError(
            f"{str(path)!r} is damaged: its contents do not match the hash in {METADATA_FILE}. "
            f"{_AGAIN}"
        )
    try:
        return metadata, load_tensors(data)
    except (SafetensorError, KeyError, ValueError) as error:  # the hash is right: not our file
        reason = first_line(error).removesuffix(".")
        raise ValueError(f"{str(path)!r} is not a safetensors file: {reason}.") from None


def read_metadata(folder: Path | str, kind: str | None = None) -> dict[str, Any]:
    """The JSON of a folder that `write_artifact` wrote, of this kind or of any.

    Raises:
        ValueError: Says what is wrong with the folder.
    """
    path = Path(folder) / METADATA_FILE
    try:
        metadata = read_document(path)
    except (FileNotFoundError, NotADirectoryError):
        if (Path(folder) / UNFINISHED).exists():
            raise ValueError(
                f"{str(folder)!r} holds an unfinished run. Repeat the command that began it to "
                "continue the run."
            ) from None
        raise ValueError(
            f"{str(folder)!r} holds nothing saved by biprune: there is no {METADATA_FILE} in it."
        ) from None
    if metadata.get("format") not in _FORMATS:
        raise ValueError(f"{str(path)!r} was not written by biprune.")
    if metadata.get("version") != VERSION:
        raise ValueError(
            f"{str(path)!r} has version {metadata.get('version')!r}; this biprune reads version "
            f"{VERSION}. Install the version that wrote it."
        )
    if kind is not None and metadata["format"] != f"biprune {kind}":
        raise ValueError(f"{str(folder)!r} holds a {metadata['format']}, not a biprune {kind}.")
    check_fields(metadata, folder, tensors=dict)
    check_fields(metadata["tensors"], folder, sha256=str, bytes=int)
    if not _TENSORS_FILE.fullmatch(tensors_path(folder, metadata).name):
        raise ValueError(f"{str(folder)!r} is damaged: {METADATA_FILE} names no tensors.")
    return metadata


def check_fields(metadata: Mapping[str, Any], folder: Path | str, **types: Any) -> None:
    """Refuse metadata that lacks a field, or has one of another type."""
    for name, allowed in types.items():
        if name not in metadata:
            raise ValueError(f"{str(folder)!r} is incomplete: {name!r} is not in {METADATA_FILE}.")
        if not isinstance(metadata[name], allowed):
            raise ValueError(
                f"{str(folder)!r} is damaged: {name!r} in {METADATA_FILE} is "
                f"{reprlib.repr(metadata[name])}."
            )


@contextmanager
def whole(folder: Path | str) -> Iterator[None]:
    """Say in one sentence what is wrong with the parts of a folder that are put together within."""
    try:
        yield
    except UNFIT as error:
        reason = first_line(error).removesuffix(".")
        if not isinstance(error, ValueError):
            reason = f"{METADATA_FILE} is not whole ({type(error).__name__}: {reason})"
        raise ValueError(f"{str(folder)!r} is damaged: {reason}.") from None


def saved_cost(metadata: Mapping[str, Any], folder: Path | str) -> Cost:
    """The cost in the metadata."""
    return saved_as(Cost, "cost", metadata, folder)


def saved_as(kind: Any, name: str, metadata: Mapping[str, Any], folder: Path | str) -> Any:
    """A field of the metadata, as the `kind` that it was before it was saved; see `from_plain`."""
    try:
        return from_plain(kind, metadata[name])
    except ValueError as error:
        raise ValueError(
            f"{str(folder)!r} is damaged: {name!r} in {METADATA_FILE} is not whole "
            f"({first_line(error)})."
        ) from None


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Put tensors into a namespace of the file."""
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Take the tensors of a namespace out of a file's."""
    start = f"{prefix}/"
    return {n.removeprefix(start): tensor for n, tensor in tensors.items() if n.startswith(start)}


def pack(state: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> State:
    """The tensors of `state` for a file, without the zeros that `masks` prune."""
    bits = {n: torch.from_numpy(np.packbits(mask.cpu().numpy())) for n, mask in masks.items()}
    kept = {name: state[name].cpu()[mask.cpu()] for name, mask in masks.items()}
    dense = {name: tensor for name, tensor in state.items() if name not in masks}
    return prefixed("mask", bits) | prefixed("kept", kept) | prefixed("state", dense)


def unpack_masks(tensors: Mapping[str, Tensor], shapes: Mapping[str, Sequence[int]]) -> State:
    """The masks of a packed file.

    Raises:
        ValueError: A mask does not fit the shape of its layer; the message names it.
    """
    packed = under("mask", tensors)
    if packed.keys() != shapes.keys():
        raise ValueError("its masks are not those of its layers")
    return {name: _unpacked(name, packed[name], shape) for name, shape in shapes.items()}


def unpack_state(tensors: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> State:
    """The state of a packed file, with zeros filled in.

    Raises:
        ValueError: The kept values of a tensor are not as many as its mask keeps.
    """
    state = under("state", tensors)
    for name, values in under("kept", tensors).items():
        if name not in masks or int(torch.count_nonzero(masks[name])) != len(values):
            raise ValueError(f"the kept values of {name!r} are not as many as its mask keeps")
        state[name] = values.new_zeros(masks[name].shape).masked_scatter_(masks[name], values)
    return state


def _unpacked(name: str, bits: Tensor, shape: Sequence[int]) -> Tensor:
    count = math.prod(shape)
    if bits.dtype != torch.uint8 or bits.numel() != math.ceil(count / 8):
        raise ValueError(f"the mask of {name!r} does not have the {count} bits of its shape")
    flat = np.unpackbits(bits.numpy(), count=count).astype(bool)
    return torch.from_numpy(flat).view(*shape)
