"""A run of a command: the folder it writes into, and what it shows on stderr meanwhile."""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from biprune import Event

Report = Callable[["Event"], None]

LINES_PER_STAGE = 5
SECONDS_BETWEEN_LINES = 60.0


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


@contextmanager
def show_progress(label: str) -> Iterator[Report]:
    """What to pass as `progress`: a bar with the time left on a terminal, else a line now and then.

    `label` names the first stage.
    """
    console = Console(stderr=True, markup=False, highlight=False)
    if not console.is_terminal:
        yield _Lines(label)
        return
    columns = (
        TextColumn("{task.description:<11}", markup=False),
        BarColumn(bar_width=14),
        TextColumn("epoch {task.fields[epoch]}", markup=False),
        TextColumn("{task.fields[numbers]}", markup=False),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=console) as progress:
        yield _Bars(label, progress)


class _Bars:
    """A bar for each stage of a run."""

    def __init__(self, label: str, progress: Progress) -> None:
        self._label = label
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}
        self._validated = ""

    def __call__(self, event: Event) -> None:
        done = event.epoch * event.steps + event.step
        if event.stage not in self._tasks:
            self._validated = ""
            self._tasks[event.stage] = self._progress.add_task(
                self._label if not self._tasks else event.stage,
                total=event.epochs * event.steps,
                # A resumed run begins in the middle, and its speed counts from there.
                completed=done - 1,
                epoch="",
                numbers="",
            )
        if event.record and "accuracy" in event.record:
            self._validated = f" val {event.record['accuracy']:5.1f} %"
        self._progress.update(
            self._tasks[event.stage],
            completed=done,
            epoch=f"{event.epoch + 1}/{event.epochs}",
            numbers=f"loss {event.loss:.4f}{self._validated}",
        )


class _Lines:
    """A few lines for each stage, or one a minute where epochs are long."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._first_stage: str | None = None
        self._last_line = time.monotonic()

    def __call__(self, event: Event) -> None:
        if event.record is None:
            return
        finished = event.epoch + 1
        every = math.ceil(event.epochs / LINES_PER_STAGE)
        overdue = time.monotonic() - self._last_line >= SECONDS_BETWEEN_LINES
        if finished % every and finished < event.epochs and not overdue:
            return
        self._last_line = time.monotonic()
        self._first_stage = self._first_stage or event.stage
        stage = "" if event.stage == self._first_stage else f" ({event.stage})"
        text = f"{self._label}{stage}: epoch {finished}/{event.epochs}"
        text += f", loss {event.record['loss']:.4f}"
        if "accuracy" in event.record:
            text += f", validation {event.record['accuracy']:.1f} %"
        print(text, file=sys.stderr, flush=True)
