"""A run's state on disk: written whole or not at all, and resumed only by the same run."""

from __future__ import annotations

import hashlib
import io
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from biprune.files import replaced, writable_folder
from biprune.parameters import own_name

State = dict[str, Tensor]


def digest(state: object) -> str:
    """Hash of nested values, and of the memory format of tensors: what decides a run's bits."""
    sha = hashlib.sha256()

    def add(value: object) -> None:
        if isinstance(value, Tensor):
            sha.update(f"{value.dtype} {value.stride()}".encode())
            data = value.detach().cpu().contiguous().flatten()
            sha.update(data.view(torch.uint8).numpy().tobytes() if data.numel() else b"")
        elif isinstance(value, Mapping):
            for key, part in value.items():
                sha.update(repr(key).encode())
                add(part)
        elif isinstance(value, (list, tuple)):
            for part in value:
                add(part)
        else:
            sha.update(repr(value).encode())

    add(state)
    return sha.hexdigest()


def only_tensors(state: Mapping[str, object]) -> State:
    """A state dict without what modules keep besides tensors (`get_extra_state`)."""
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


def copy_state(state: Mapping[str, object]) -> State:
    """The tensors of a state dict, which later training cannot change."""
    return {name: tensor.detach().clone() for name, tensor in only_tensors(state).items()}


def load_tensors_(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Give `model` all the tensors of its state; what its modules keep besides stays."""
    own: dict[str, Any] = model.state_dict()
    kept = {name: value for name, value in own.items() if not isinstance(value, Tensor)}
    model.load_state_dict(kept | named_as_in(own, state))


def named_as_in(own: Mapping[str, object], state: Mapping[str, Tensor]) -> State:
    """`state` under the names of `own`: parts of the model may be compiled in either."""
    names = {own_name(name): name for name in own}
    return {names.get(own_name(name), name): tensor for name, tensor in state.items()}


def check_readable(state: Mapping[str, object]) -> None:
    """Refuse what could be written to a checkpoint and not be read again without unpickling."""
    others = {name: value for name, value in state.items() if not isinstance(value, Tensor)}
    for name, value in others.items():
        file = io.BytesIO()
        try:
            torch.save(_plain(value), file)
            torch.load(io.BytesIO(file.getvalue()), weights_only=True)
        except (pickle.PickleError, TypeError, AttributeError):
            raise ValueError(
                f"`checkpoint` cannot hold {name!r} of the model, a {type(value).__name__}: "
                "`get_extra_state` must return tensors, numbers, text or collections of them. "
                "Change that, or run without `checkpoint`."
            ) from None


class Checkpoint:
    """One file that holds the newest state of a run with these `settings`, from this `start`.

    They say what the run is; a file from a run with others is refused, since resuming it would
    give neither run's result. `start` is the digest of what the run begins with.
    """

    def __init__(
        self, folder: Path | str, stage: str, settings: Mapping[str, Any], start: str
    ) -> None:
        self.path = writable_folder(folder) / f"{stage}.checkpoint"
        self.settings = {**settings, "start": start}

    def save(self, state: Mapping[str, Any]) -> None:
        """Replace the file in one step, so that a kill leaves the old one or the new one."""
        with replaced(self.path) as temporary:
            torch.save(_plain({"settings": self.settings, **state}), temporary)

    def load(self) -> dict[str, Any] | None:
        """The saved state, or None if there is none."""
        if not self.path.exists():
            return None
        try:
            state = torch.load(self.path, map_location="cpu", weights_only=True)
            settings = state.pop("settings")
        except (
            OSError,
            EOFError,
            RuntimeError,
            KeyError,
            AttributeError,
            pickle.UnpicklingError,
            zipfile.BadZipFile,
        ) as error:
            raise ValueError(
                f"The checkpoint {str(self.path)!r} cannot be read ({type(error).__name__}). "
                "Delete it to start this run again."
            ) from None
        for key in dict.fromkeys([*self.settings, *settings]):  # the start comes last
            was, now = settings.get(key), self.settings.get(key)
            if was != now:
                how = f"its {key} was {was!r}, now it is {now!r}"
                raise ValueError(
                    f"The checkpoint {str(self.path)!r} belongs to another run: "
                    f"{'it started from other weights' if key == 'start' else how}. "
                    "Use another folder, or delete it."
                )
        return state


def _plain(value: Any) -> Any:
    """numpy's numbers as Python's, however deep: the safe reader takes no others."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(_plain, value))
    return value
