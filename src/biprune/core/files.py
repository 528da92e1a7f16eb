"""Files written whole or not at all, read only where they are files, one writer a folder."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from tempfile import TemporaryFile
from uuid import uuid4

try:
    import fcntl
except ImportError:  # on Windows, where what a kill leaves behind stays
    fcntl = None  # pyright: ignore[reportAssignmentType]

Content = bytes | memoryview

LONGEST_LINE = 300
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{32}\.biprune", re.DOTALL)  # and nobody else's files
_UNSUPPORTED = (errno.EINVAL, errno.EACCES, errno.EPERM)  # of syncing a folder, on some systems


def printable(text: str) -> str:
    """`text` from a file as a terminal may show it: on one line, escape sequences spelled out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def first_line(error: BaseException) -> str:
    """The first line of what an exception says, as a terminal may show it."""
    line = next(iter(str(error).strip().splitlines()), "")
    return printable(line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}...")


@contextmanager
def told_of(path: Path | str) -> Iterator[None]:
    """Make one sentence of what the system says while `path` is written: a full disk, say."""
    try:
        yield
    except OSError as error:
        if error.errno is None:  # a sentence already
            raise
        raise OSError(
            f"Cannot write {str(path)!r}: {error.strerror}. What was there before is kept: mend "
            "that, and run the same again."
        ) from None


def writable_folder(folder: Path | str) -> Path:
    """Create `folder` if need be and make sure that files can be written into it."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder).close()
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(f"Cannot write to the folder {str(folder)!r}: {reason}.") from None
    return folder


@contextmanager
def replaced(path: Path | str) -> Iterator[Path]:
    """A temporary file beside `path`, which takes its place on the disk if all goes well.

    No other process has its name, also where they share the folder from machines of their own. It
    is locked, so that the next writer into the folder can tell it from what a kill left behind.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"Cannot write the file {str(path)!r}: it is a folder.")
    if path.exists() and not path.is_file():  # /dev/null, which root could replace
        raise OSError(f"Cannot write the file {str(path)!r}: it is a device or a pipe.")
    folder = writable_folder(path.parent)
    _sweep(folder)
    temporary = folder / f".{path.name}.{uuid4().hex}.biprune"
    with told_of(path), _created(temporary):
        try:
            yield temporary
            _sync(temporary)
            os.replace(temporary, path)
            _sync_folder(folder)
        finally:
            temporary.unlink(missing_ok=True)


def write_bytes(path: Path | str, *parts: Content) -> None:
    """Write `parts`, one after the other, creating the folder if need be."""
    with replaced(path) as temporary, temporary.open("wb") as file:
        file.writelines(parts)


def write_text(path: Path | str, text: str) -> None:
    """Write `text`, creating the folder if need be."""
    write_bytes(path, text.encode())


def read_file(path: Path | str, *, at_most: int | None = None) -> bytes:
    """What a file holds, if it is one, lies in its folder and is no larger than `at_most` bytes.

    A link that leads out of the folder is not followed, and a pipe is not waited for: ValueErrors
    say so. FileNotFoundError is left to the caller.
    """
    path = Path(path)
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(path.parent)):
        raise ValueError(
            f"{str(path)!r} is a link that leads out of its folder, and is not followed. Put the "
            "file itself there."
        )
    try:
        file = open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb")  # noqa: SIM115
        with file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise ValueError(f"{str(path)!r} is not a file that can be read.")
            if at_most is not None and found.st_size > at_most:
                raise ValueError(
                    f"{str(path)!r} is too large: {found.st_size:,} bytes, where at most "
                    f"{at_most:,} are expected."
                )
            return file.read()
    except FileNotFoundError:
        raise
    except MemoryError:
        raise ValueError(f"{str(path)!r} is too large for the memory of this machine.") from None
    except OSError as error:
        raise ValueError(f"Cannot read {str(path)!r}: {error.strerror}.") from None


@contextmanager
def _created(temporary: Path) -> Iterator[None]:
    """An empty file, locked as long as its writer lives."""
    if fcntl is None:
        yield
        return
    while True:
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            break
        os.close(descriptor)  # swept away before it was locked
    try:
        yield
    finally:
        os.close(descriptor)


def _sweep(folder: Path) -> None:
    """Remove the temporary files whose writers were killed: nobody holds their locks."""
    if fcntl is None:
        return
    with os.scandir(folder) as entries:
        found = [each.path for each in entries if _TEMPORARY.fullmatch(each.name)]
    for path in found:
        with suppress(OSError):  # its writer lives, or it has gone already
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)
            finally:
                os.close(descriptor)


def _sync(path: Path) -> None:
    """Wait until the disk has what was written."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    """Wait until the disk has the names in `folder`, where the system can tell."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise


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
