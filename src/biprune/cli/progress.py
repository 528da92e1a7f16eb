"""Progress on stderr: a bar with the time left on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from biprune import Event

Report = Callable[["Event"], None]

LINES_PER_STAGE = 5
SECONDS_BETWEEN_LINES = 60.0


@contextmanager
def show_progress(label: str) -> Iterator[Report]:
    """What to pass as `progress`; `label` stands before the stage's numbers."""
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
    """A few lines for each stage, but one a minute where epochs are long."""

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
