"""Files that are there in whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from uuid import uuid4


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
    """A temporary file beside `path`, which takes its place if all goes well.

    No other process has its name, also where they share the folder from machines of their own.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"Cannot write the file {str(path)!r}: it is a folder.")
    temporary = writable_folder(path.parent) / f".{path.name}.{uuid4().hex}"
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path | str, text: str) -> None:
    """Write `text`, creating the folder if need be."""
    with replaced(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")
