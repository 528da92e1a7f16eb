"""A small model on disk: how to cut the original, and the weights that are left.

A loaded file names no code. The original is built from our registry or passed by the user, cut
to the kept indices and filled, which needs no example input. A model that is a graph is read from
the file itself; see `structured/written.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any

import torch
from torch import nn

from biprune.core.layout import is_channels_last, lay_out_
from biprune.core.parameters import unwrap
from biprune.files.artifact import (
    check_fields,
    read_artifact,
    saved_as,
    whole,
    write_artifact,
)
from biprune.files.rebuilding import check_shapes, fill_, original
from biprune.structured.certificate import Certificate
from biprune.structured.edit import resize_
from biprune.structured.form import GraphForm
from biprune.structured.written import from_data, to_data
from biprune.training.checkpoint import only_tensors

SMALL_FIELDS = {
    "model": (dict, NoneType),
    "graph": (dict, NoneType),
    "channels_last": bool,
    "certificate": dict,
}
TRAINED = "trained_since"  # whether weights changed after it was certified; not in older files


def save_small(small: nn.Module, folder: Path | str) -> Path:
    """Write a model that `shrink` returned, whether or not it was trained further.

    Args:
        small: The model.
        folder: Where to write JSON and safetensors; what it held is replaced.

    Returns:
        The folder.

    Raises:
        ValueError: The model has no certificate, so `shrink` did not return it.
    """
    small = unwrap(small)
    certificate = getattr(small, "certificate", None)
    if not isinstance(certificate, Certificate):
        raise ValueError(
            f"`small` must be a model that `shrink` returned, got a {type(small).__name__} without "
            "a certificate."
        )
    metadata = {
        "graph": to_data(small) if isinstance(small, GraphForm) else None,
        "model": getattr(small, "created_by", None),
        "channels_last": is_channels_last(small),
        "certificate": certificate.to_json(),
        TRAINED: not certificate.is_of(small),
    }
    return write_artifact(folder, "small", metadata, only_tensors(small.state_dict()))


def load_small(folder: Path | str, model: nn.Module | None = None) -> nn.Module:
    """Read a small model back, bit for bit, with its layout and certificate, in eval mode.

    Args:
        folder: What `save_small` wrote.
        model: The dense model, of which a copy is cut and filled. Models of our registry are
            rebuilt without it, and so are graphs.

    Raises:
        ValueError: The folder is damaged, or does not fit the model.
    """
    metadata, tensors = read_artifact(folder, "small")
    certificate = saved_certificate(metadata, folder)
    if metadata["graph"] is not None:
        with whole(folder):
            small = from_data(metadata["graph"], tensors)
        vars(small)["certificate"] = certificate
        return small
    small = original(metadata["model"], model, folder)
    with whole(folder):
        kept = {
            name: {dim: torch.tensor(index, dtype=torch.long) for dim, index in dims.items()}
            for name, dims in certificate.kept.items()
        }
    try:
        resize_(small, kept, certificate.numbers)
    except ValueError as error:
        raise ValueError(
            f"The small model in {str(folder)!r} was not made from this model: {error} Pass "
            "`model`, built as the original was."
        ) from None
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    check_shapes(small, shapes, "the model that was cut", folder)
    fill_(small, tensors)
    lay_out_(small, channels_last=metadata["channels_last"])
    vars(small)["certificate"] = certificate
    return small


def saved_certificate(metadata: Mapping[str, Any], folder: Path | str) -> Certificate:
    """The certificate in the metadata of a small model saved in `folder`."""
    check_fields(metadata, folder, **SMALL_FIELDS)
    return saved_as(Certificate, "certificate", metadata, folder)
