"""SIGTERM, as schedulers and `timeout` send it, ends a command as Ctrl-C does."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ECHO = 1.0  # seconds: `timeout` sends to the process and to its group, a cluster to each of them
LATER = 0.05  # seconds, after which a destructor is over


class Interrupted(KeyboardInterrupt):
    """SIGTERM or Ctrl-C has come.

    A class of its own, for once a KeyboardInterrupt has passed through `exec`, Python ends as if
    killed by SIGINT, whatever the exit code.
    """


@contextmanager
def signals_as_interrupts() -> Iterator[list[int]]:
    """Raise `Interrupted` at SIGTERM and Ctrl-C; the numbers of those that came are in the list.

    A second one that follows at once is the same wish and must not cut the tidying up short; a
    later one raises again. What is raised in a destructor or at a fork is lost: there the signal is
    sent again.
    """
    heard: list[int] = []
    last, own = -math.inf, os.getpid()

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal last
        del frame
        if os.getpid() != own:  # in a reader of data that was forked just now
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        now = time.monotonic()
        if now - last < ECHO:
            return
        last = now
        heard.append(number)
        if sys.platform != "win32":
            # That processes which read data got it too is no error to be raised here. A function,
            # not SIG_DFL: Python complains of a signal that is on its way when its handler goes.
            signal.signal(signal.SIGCHLD, lambda *_: None)
        raise Interrupted

    def send_again(lost: sys.UnraisableHookArgs) -> None:
        nonlocal last
        if not isinstance(lost.exc_value, Interrupted):
            if not heard:  # afterwards it fails for being cut short, as hooks around a fork do
                report(lost)
            return
        last = -math.inf
        threading.Timer(LATER, os.kill, (os.getpid(), heard[-1])).start()

    if threading.current_thread() is not threading.main_thread():
        yield heard
        return
    numbers = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in numbers}
    report, sys.unraisablehook = sys.unraisablehook, send_again
    try:
        yield heard
    finally:
        sys.unraisablehook = report
        for number, handler in before.items():
            signal.signal(number, handler)
