"""Where a command writes: refused if taken, resumable while it runs, tidy when it is done."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def output_folder(out: Path, *, force: bool) -> Path:
    """Create `out`, unless files cannot be written there or a finished result is in it."""
    from biprune.core.files import writable_folder

    refuse_finished(out, force=force)
    return writable_folder(out)


def refuse_finished(folder: Path, *, force: bool) -> None:
    """Protect a finished result from being replaced without `--force`."""
    from biprune.files.artifact import METADATA_FILE

    if (folder / METADATA_FILE).exists() and not force:
        raise ValueError(
            f"{str(folder)!r} already holds a finished result. Choose another --out, or pass "
            "--force to replace it."
        )


@contextmanager
def resumable(folder: Path, *, force: bool) -> Iterator[Path]:
    """The folder for checkpoints of a run into `folder`; gone once the result is saved.

    No other run can write into `folder` meanwhile. Ctrl-C leaves the checkpoints, and says how to
    go on.
    """
    from biprune.core.files import claimed
    from biprune.files.artifact import UNFINISHED

    checkpoints = folder / UNFINISHED
    try:
        with claimed(folder):
            refuse_finished(folder, force=force)  # another run may have been faster
            yield checkpoints
            shutil.rmtree(checkpoints, ignore_errors=True)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            if any(checkpoints.rglob("*.checkpoint")):
                advice = f"Run the same command again to go on from {checkpoints}."
            else:
                advice = "No epoch was finished, so there is nothing to go on from."
            print(f"interrupted. {advice}", file=sys.stderr)
        with suppress(OSError):  # what was refused leaves no empty folder behind
            folder.rmdir()
        raise
