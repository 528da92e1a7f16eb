"""Files: written whole or not at all, read only if they are files, one writer to a folder."""

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
except ImportError:  # Windows, where files that a killed process leaves behind stay
    fcntl = None  # pyright: ignore[reportAssignmentType]

Content = bytes | memoryview

LONGEST_LINE = 300
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{32}\.biprune", re.DOTALL)  # no file of the user's
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
    """Say in one sentence why `path` could not be written, such as a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is None:  # it is a sentence already
            raise
        raise OSError(
            f"Cannot write {str(path)!r}: {error.strerror}. What was there before is kept. "
            "Solve that, then run the same command again."
        ) from None


def writable_folder(folder: Path | str) -> Path:
    """Create `folder` if need be, and make sure that files can be written to it."""
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

    No other process has its name, not even one on another machine that shares the folder. It is
    locked, so that the next writer can tell it from a file that a killed process left behind.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"Cannot write the file {str(path)!r}: it is a folder.")
    if path.exists() and not path.is_file():  # such as /dev/null, which root could replace
        raise OSError(f"Cannot write the file {str(path)!r}: it is a device or a pipe.")
    folder = writable_folder(path.parent)
    _sweep(folder)
    temporary = folder / f".{path.name}.{uuid4().hex}.biprune"
    with told_of(path), _created(temporary):
        try:
            yield temporary
            _sync(temporary)
            os.replace(temporary, path)
            _sync(folder)
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
    """The content of a file. No link out of its folder is followed, and no pipe is waited for.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is not a file, cannot be read, or has more than `at_most` bytes.
    """
    path = Path(path)
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(path.parent)):
        raise ValueError(
            f"{str(path)!r} is a link that leads out of its folder, which is not followed. Put "
            "the file itself there."
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
    """An empty file, locked for as long as its writer lives."""
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
    """Remove temporary files whose locks nobody holds: their writers were killed."""
    if fcntl is None:
        return
    with os.scandir(folder) as entries:
        found = [each.path for each in entries if _TEMPORARY.fullmatch(each.name)]
    for path in found:
        with suppress(OSError):  # its writer is alive, or it is gone already
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)
            finally:
                os.close(descriptor)


def _sync(path: Path) -> None:
    """Wait until the disk has a file, or the names in a folder where the system can tell."""
    is_folder = path.is_dir()
    try:
        descriptor = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if not (is_folder and error.errno in _UNSUPPORTED):
            raise


LOCK_FILE = ".biprune.lock"
_HELD: ContextVar[Mapping[Path, int]] = ContextVar("_HELD")  # lock files and their inodes


@contextmanager
def claimed(folder: Path | str) -> Iterator[None]:
    """Keep other processes and threads from writing to `folder` meanwhile.

    The owner may claim it again within. The claim of a process that dies ends with it.

    Raises:
        OSError: Another run holds the claim, or it was lost because somebody removed the lock file.
    """
    path = writable_folder(folder).resolve() / LOCK_FILE
    held = _HELD.get({})
    if path in held:
        if _inode(path) != held[path]:
            raise OSError(
                f"{str(folder)!r} no longer belongs to this run alone: {LOCK_FILE} was removed "
                "from it. Nothing was written. Make sure that no other run writes there, then run "
                "the same command again."
            )
        yield
        return
    # Imported here, since loading files does not need it.
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
            with suppress(OSError):  # while it is locked: afterwards it may be someone else's
                path.unlink()
        lock.release()


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return -1
