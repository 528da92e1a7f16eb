"""SIGTERM, as schedulers and `timeout` send it, ends a command as Ctrl-C does."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ECHO = 1.0  # seconds: `timeout` sends to the process and to its group, a cluster to each of them


@contextmanager
def sigterm_as_interrupt() -> Iterator[list[float]]:
    """Raise KeyboardInterrupt at SIGTERM; the times at which it came are in the list.

    A second one that follows at once is the same wish and must not cut the tidying up short; a
    later one raises again, for what is raised may be lost, as inside a destructor.
    """
    times: list[float] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        del number, frame
        now = time.monotonic()
        if times and now - times[-1] < ECHO:
            return
        times.append(now)
        if sys.platform != "win32":
            # That processes which read data got it too is no error to be raised here.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield times
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield times
    finally:
        signal.signal(signal.SIGTERM, before)
