"""A run's state on disk: written whole or not at all, and resumed whole, by the same run only."""

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
# What the parts of a run raise of a state that is not theirs.
UNFIT = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
logger = logging.getLogger(__name__)


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
    given: Any = OrderedDict(kept | named_as_in(own, state))
    given._metadata = getattr(own, "_metadata", None)  # versions, which modules may ask for
    model.load_state_dict(given)


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
    give neither run's result. `start` is the digest of what the run begins with. The state before
    is kept beside it, for the case that the newest is damaged.
    """

    def __init__(
        self, folder: Path | str, stage: str, settings: Mapping[str, Any], start: str
    ) -> None:
        self.path = writable_folder(folder) / f"{stage}.checkpoint"
        self.before = self.path.with_name(f"{stage}.before.checkpoint")
        self.settings = {**settings, "start": start}
        self._is_sound = False  # whether the newest was read or written by this run

    def save(self, state: Mapping[str, Any]) -> None:
        """Replace the file in one step, so that a kill leaves the old one or the new one."""
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
        """What `take` makes of the newest sound state of this run, or None if there is none."""
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
    """The state in a file, whose hash is checked before anything is made of it."""
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
    """numpy's numbers as Python's, however deep: the safe reader takes no others."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(_plain, value))
    return value
