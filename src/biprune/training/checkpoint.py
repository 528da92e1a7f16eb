"""A run's state on disk: written completely or not at all, and resumed only by the same run."""

from __future__ import annotations

import hashlib
import io
import logging
import os
import pickle
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from biprune.core.documents import seal, unseal
from biprune.core.files import printable, read_file, replaced, writable_folder
from biprune.core.parameters import own_name

HEAD = b"biprune checkpoint %s\n"
State = dict[str, Tensor]
Taken = TypeVar("Taken")
# What a run may raise when it loads a state of something else.
UNFIT = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
logger = logging.getLogger(__name__)


def digest(state: object) -> str:
    """Hash nested values, with the memory format of tensors, since it affects a run's bits."""
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
    """Return the tensors of a state dict, without other state (`get_extra_state`)."""
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


def copy_state(state: Mapping[str, object]) -> State:
    """Return copies of the tensors in a state dict."""
    return {name: tensor.detach().clone() for name, tensor in only_tensors(state).items()}


def load_tensors_(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load tensors into `model`; state of its modules that is not a tensor stays."""
    own: dict[str, Any] = model.state_dict()
    kept = {name: value for name, value in own.items() if not isinstance(value, Tensor)}
    given: Any = OrderedDict(kept | named_as_in(own, state))
    given._metadata = getattr(own, "_metadata", None)  # versions that modules may check
    model.load_state_dict(given)


def named_as_in(own: Mapping[str, object], state: Mapping[str, Tensor]) -> State:
    """Rename `state` to match `own`; parts of the model may be compiled in only one of them."""
    names = {own_name(name): name for name in own}
    return {names.get(own_name(name), name): tensor for name, tensor in state.items()}


def check_readable(state: Mapping[str, object]) -> None:
    """Raise a ValueError for state that could not be read again without pickle."""
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
    """A file with the newest state of one run. The state before it is kept, in case of damage.

    A file from a run with other `settings`, or another digest of its `start`, is refused: resuming
    it would give the result of neither run.
    """

    def __init__(
        self, folder: Path | str, stage: str, settings: Mapping[str, Any], start: str
    ) -> None:
        self.path = writable_folder(folder) / f"{stage}.checkpoint"
        self.before = self.path.with_name(f"{stage}.before.checkpoint")
        self.settings = {**settings, "start": start}
        self._is_sound = False  # whether this run has read or written the newest file

    def save(self, state: Mapping[str, Any]) -> None:
        """Replace the file atomically: a kill leaves the old one or the new one."""
        file = io.BytesIO()
        torch.save(_plain({"settings": self.settings, **state}), file)
        content = file.getbuffer()
        with replaced(self.path) as temporary:
            with temporary.open("wb") as written:
                written.writelines([seal(HEAD, content), content])
            if self._is_sound:
                os.replace(self.path, self.before)
        self._is_sound = True

    def resume(self, take: Callable[[dict[str, Any]], Taken]) -> Taken | None:
        """Pass the newest undamaged state to `take` and return its result; None without a state."""
        path, state = self._newest()
        if path is None:
            return None
        try:
            difference = self._difference(state.pop("settings"))
            if difference is None:
                return take(state)
        except UNFIT as error:
            raise ValueError(
                f"The checkpoint {str(path)!r} does not hold what this version of biprune needs "
                f"({type(error).__name__}: {printable(str(error))}). Delete it to start this run "
                "again."
            ) from None
        raise ValueError(
            f"The checkpoint {str(path)!r} belongs to another run: {difference}. Use another "
            "folder, or delete it."
        )

    def _newest(self) -> tuple[Path | None, dict[str, Any]]:
        damaged: list[str] = []
        for path in (self.path, self.before):
            try:
                state = read_state(path)
            except FileNotFoundError:
                continue
            except ValueError as error:
                damaged.append(str(error))
                continue
            if damaged:
                logger.warning("%s Going on from the one before it, %r.", damaged[0], str(path))
            self._is_sound = path == self.path
            return path, state
        if damaged:
            it = "it" if len(damaged) == 1 else "both"
            raise ValueError(f"{' '.join(damaged)} Delete {it} to start this run again.")
        return None, {}

    def _difference(self, settings: Mapping[str, Any]) -> str | None:
        for key in dict.fromkeys([*self.settings, *settings]):  # the start comes last
            was, now = settings.get(key), self.settings.get(key)
            if was != now:
                how = f"its {key} was {was!r}, now it is {now!r}"
                return "it started from other weights" if key == "start" else how
        return None


def read_state(path: Path) -> dict[str, Any]:
    """Read the state in a file; its hash is checked before anything is parsed."""
    content = unseal(HEAD, read_file(path), path)
    try:
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # bytes that are not a state raise all kinds of errors
        kind = type(error).__name__
        raise ValueError(f"The checkpoint {str(path)!r} cannot be read ({kind}).") from None
    if not isinstance(state, dict):
        raise ValueError(f"The checkpoint {str(path)!r} holds no state of a run.")
    return state


def _plain(value: Any) -> Any:
    """Turn numpy's numbers into Python's, however deep: `weights_only` reads no others."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(_plain, value))
    return value
