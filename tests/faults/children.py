"""Commands in processes of their own, with faults put into them.

A server imports biprune once and forks, so that a command begins within milliseconds. The faults
are put into the child, not into biprune: it swaps files through `os`, which is patched there.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import shlex
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

from faults.verdict import OK

LIMIT_SECONDS = 60.0
MARK = "BIPRUNE_FAULTS_CASE"  # in the environment of whatever a command starts
IMPORTED = ["biprune.cli.app", "biprune.report.compare", "torch._dynamo", "sklearn.datasets"]
SWAPS = ("replace", "rename", "unlink", "rmdir", "fsync", "link")
_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(IMPORTED)


@dataclass(frozen=True)
class Done:
    """How a command ended: an exit code, negative for a signal."""

    code: int
    out: str
    err: str
    seconds: float

    def complaint(self, *codes: int) -> str:
        """OK if it ended by one of `codes`, and a mistake was told in one line."""
        if "Traceback" in self.err or "Traceback" in self.out:
            return f"a traceback: {self.err[-300:]}"
        if self.code not in codes:
            return f"ended by {self.code}, not {codes}: {self.err[-300:]}"
        if self.code == 2 and self.err.count("error: ") != 1:
            return f"a mistake that is not told in one line: {self.err[-300:]!r}"
        if "\x1b" in self.err or "\x1b" in self.out:
            return f"an escape sequence on the terminal: {self.err[-300:]!r}"
        return OK


@dataclass
class Child:
    """A command under way; `with` ends it if it has not ended by then."""

    line: str
    fault: Callable[[], None] | None = None
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.mark = uuid4().hex
        self._out, out = _server.Pipe(duplex=False)
        self._err, err = _server.Pipe(duplex=False)
        arguments = (shlex.split(self.line), out, err, self.mark, self.fault)
        self.process = _server.Process(target=_command, args=arguments)
        self.process.start()
        out.close()
        err.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.join()
        for pid in left_behind(self.mark):
            os.kill(pid, signal.SIGKILL)

    def signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.process.pid is not None and self.process.is_alive():
            os.kill(self.process.pid, number)

    def wait(self, seconds: float = LIMIT_SECONDS) -> Done | None:
        """How it ended; None if it did not within so many seconds."""
        self.process.join(seconds)
        code = self.process.exitcode
        if code is None:
            return None
        spent = time.monotonic() - self.began
        return Done(code, read_what_is_there(self._out), read_what_is_there(self._err), spent)


def left_behind(mark: str) -> list[int]:
    """Processes that live with `mark` in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:  # it has ended, or is another user's
            continue
    return found


def run(line: str, fault: Callable[[], None] | None = None) -> Done:
    """A command to its end; one that hangs ends by no code."""
    with Child(line, fault) as child:
        done = child.wait()
    return done or Done(sys.maxsize, "", f"{line} did not end in {LIMIT_SECONDS} s", LIMIT_SECONDS)


def read_what_is_there(pipe: Any) -> str:
    """What was written to the pipe; whoever holds the other end may live on."""
    os.set_blocking(pipe.fileno(), False)
    found = b""
    try:
        while part := os.read(pipe.fileno(), 1 << 16):
            found += part
    except BlockingIOError:
        pass
    return found.decode(errors="replace")


def _command(
    arguments: list[str], out: Any, err: Any, mark: str, fault: Callable[[], None] | None
) -> None:
    os.environ[MARK] = mark
    os.environ["COLUMNS"] = "100"
    for number, pipe in enumerate((out, err), start=1):
        os.dup2(pipe.fileno(), number)
        pipe.close()
    from biprune.cli.app import main

    if fault is not None:
        fault()
    main(arguments)


def end_at_swap(count: int, number: int, after: bool) -> None:
    """Send this process a signal before or after it swaps a file for the `count`-th time."""
    left = count

    def patched(swap: Callable[..., Any]) -> Callable[..., Any]:
        def ended(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0 and not after:
                os.kill(os.getpid(), number)
            found = swap(*arguments, **named)
            if left == 0 and after:
                os.kill(os.getpid(), number)
            return found

        return ended

    for name in SWAPS:
        setattr(os, name, patched(getattr(os, name)))


def count_swaps(path: Path) -> None:
    """Write the number of swaps into a file, a byte each."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def patched(swap: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            os.write(file, b".")
            return swap(*arguments, **named)

        return counted

    for name in SWAPS:
        setattr(os, name, patched(getattr(os, name)))


def limit_files(size: int) -> None:
    """Let no file grow beyond `size` bytes: writing more fails as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def limit_memory(size: int) -> None:
    """Let the process ask for no more than `size` bytes of address space."""
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
