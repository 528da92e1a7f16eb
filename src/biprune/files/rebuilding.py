"""The model of a file: built without memory, compared with the content, then filled.

A file never names code to import: only models of our own registry are rebuilt from it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from biprune.core.files import printable
from biprune.core.parameters import own_name, unwrap
from biprune.files.artifact import whole
from biprune.models import MODELS, skeleton
from biprune.training.checkpoint import load_tensors_, named_as_in, only_tensors


def original(
    created_by: Mapping[str, Any] | None, model: nn.Module | None, folder: Path | str
) -> nn.Module:
    """The model that a file was made from: a copy of `model`, or one of our registry on meta."""
    if model is not None:
        return copy.deepcopy(unwrap(model))
    if created_by is not None and created_by.get("name") in list(MODELS):
        with whole(folder):
            return skeleton(**created_by)
    raise ValueError(
        f"{str(folder)!r} holds a model that is not in biprune's registry. Build it yourself and "
        "pass it, dense, as `model`, whose weights will be replaced in a copy; on the command line "
        "it is `--model package.module:factory`."
    )


def check_shapes(
    built: nn.Module, shapes: Mapping[str, Sequence[int]], what: str, folder: Path | str
) -> None:
    """Refuse tensors whose names or shapes differ from the model's, which messages call `what`."""
    own = {own_name(n): list(t.shape) for n, t in only_tensors(built.state_dict()).items()}
    saved = {own_name(name): list(shape) for name, shape in shapes.items()}
    wrong = [n for n in sorted(own.keys() | saved.keys()) if own.get(n) != saved.get(n)]
    if wrong:
        raise ValueError(
            f"The saved weights in {str(folder)!r} do not fit {what}: "
            f"{printable(', '.join(wrong[:5]))}{' and others' if len(wrong) > 5 else ''} differ in "
            "name or shape. Pass `model`, built as the saved one was."
        )


def fitting(
    created_by: Mapping[str, Any] | None,
    shapes: Mapping[str, Sequence[int]],
    model: nn.Module | None,
    folder: Path | str,
) -> nn.Module:
    """The `original`, if its state has these `shapes`; else a ValueError."""
    built = original(created_by, model, folder)
    what = f"a new {(created_by or {}).get('name')}" if model is None else "`model`"
    check_shapes(built, shapes, what, folder)
    return built


def fill_(built: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
    """Give `built` the weights of `state`, which must fit, in their precision, and eval mode."""
    if any(tensor.is_meta for tensor in built.parameters()):
        built.to_empty(device="cpu")
    own = only_tensors(built.state_dict(keep_vars=True))
    state = named_as_in(own, state)
    for name, tensor in own.items():
        if tensor.is_floating_point() != state[name].is_floating_point():
            raise ValueError(f"{name!r} holds {state[name].dtype}, not {tensor.dtype}.")
        tensor.data = tensor.data.to(state[name].dtype)
    load_tensors_(built, state)
    return built.eval()
