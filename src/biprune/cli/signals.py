"""SIGTERM, as schedulers and `timeout` send it, ends a command as Ctrl-C does."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ECHO = 1.0  # seconds: `timeout` sends to the process and to its group, a cluster to each of them
AGAIN = 0.05  # seconds after which an interrupt that was lost is raised again


@contextmanager
def sigterm_as_interrupt() -> Iterator[list[float]]:
    """Raise KeyboardInterrupt at SIGTERM; the times at which it came are in the list.

    A second one that follows at once is the same wish and must not cut the tidying up short. Python
    drops what is raised inside a destructor, where a `DataLoader` waits for its workers at the end
    of each epoch; an interrupt that is lost there is raised again.
    """
    times: list[float] = []
    report = sys.unraisablehook

    def again(unraisable: sys.UnraisableHookArgs) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            report(unraisable)
        elif hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, AGAIN)
        else:
            _thread.interrupt_main()

    def alarm(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise KeyboardInterrupt

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
    on_alarm = signal.signal(signal.SIGALRM, alarm) if hasattr(signal, "SIGALRM") else None
    sys.unraisablehook = again
    try:
        yield times
    finally:
        sys.unraisablehook = report
        if on_alarm is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, on_alarm)
        signal.signal(signal.SIGTERM, before)
