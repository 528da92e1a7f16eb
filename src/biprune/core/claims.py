"""One writer to a folder at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

from biprune.core.files import told_of, writable_folder

LOCK_FILE = ".biprune.lock"
_HELD: ContextVar[Mapping[Path, int]] = ContextVar("_HELD")  # lock files and their inodes


@contextmanager
def claimed(folder: Path | str) -> Iterator[None]:
    """Keep other processes and threads from writing into `folder` meanwhile.

    An OSError if another is at it. Claimed again within, it is checked again: an OSError if the
    claim was lost, since somebody took the lock's file away. The system ends the claim of a process
    that dies.
    """
    path = writable_folder(folder).resolve() / LOCK_FILE
    held = _HELD.get({})
    if path in held:
        if _inode(path) != held[path]:
            raise OSError(
                f"{str(folder)!r} is not this run's alone any more: {LOCK_FILE} was removed from "
                "it. Nothing was written. Make sure that no other run writes there, and run the "
                "same again."
            )
        yield
        return
    # Imported here, since loading files does without it.
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    try:
        with told_of(path):
            lock.acquire(blocking=False)
    except Timeout:
        raise OSError(
            f"Another run of biprune is writing into {str(folder)!r}. Wait until it has ended, or "
            "choose another folder."
        ) from None
    own = _inode(path)
    token = _HELD.set({**held, path: own})
    try:
        yield
    finally:
        _HELD.reset(token)
        if _inode(path) == own:
            with suppress(OSError):  # while it is locked, so that nobody else's is removed
                path.unlink()
        lock.release()


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return -1
