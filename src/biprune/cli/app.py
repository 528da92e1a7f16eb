"""The typer app, and the boundary where exceptions and signals become one line and an exit code."""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer
from typer.main import get_command

from biprune.cli import (
    compare,
    demo,
    export,
    inspect,
    profile,
    prune,
    report,
    reproduce,
    shrink,
    train,
)
from biprune.cli import list as listing
from biprune.core.files import printable

ECHO = 1.0  # seconds in which the same signal may come twice: to the process and to its group
LATER = 0.05  # seconds, by which a destructor has ended


class Interrupted(KeyboardInterrupt):
    """SIGTERM or Ctrl-C has come.

    Not a plain KeyboardInterrupt: once that has passed through `exec`, Python ends as if killed by
    SIGINT, whatever the exit code.
    """


@contextmanager
def signals_as_interrupts() -> Iterator[list[int]]:
    """Raise `Interrupted` at SIGTERM and Ctrl-C; the list yielded collects the signals' numbers.

    A second signal right after the first is its echo, and must not interrupt the clean-up. A later
    one raises again. What is raised in a destructor or at a fork is lost, so the signal is sent
    again.
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
            # The processes that read data got the signal too, so their end is not an error. The
            # handler is a function: with SIG_DFL, Python complains of signals already on their way.
            signal.signal(signal.SIGCHLD, lambda *_: None)
        raise Interrupted

    def send_again(lost: sys.UnraisableHookArgs) -> None:
        nonlocal last
        if not isinstance(lost.exc_value, Interrupted):
            if not heard:  # after a signal, what fails was interrupted, as hooks around a fork are
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


BUG, USER_ERROR = 1, 2
PACKAGE = Path(__file__).parents[1]

app = typer.Typer(
    rich_markup_mode="rich",
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""[bold]Examples[/]
$ biprune demo
$ biprune train resnet20 digits --epochs 30 --out runs/dense
$ biprune prune runs/dense --sparsity 0.9 --epochs 15 --out runs/pruned90
$ biprune inspect runs/pruned90
$ biprune prune runs/dense --structure group --budget macs=0.5 --out runs/half
$ biprune shrink runs/half --out runs/small
$ biprune export runs/half model.onnx

`biprune COMMAND --help` explains a command.""",
)
for name, command, examples in (
    ("demo", demo.demo_command, demo.EXAMPLES),
    ("train", train.train_command, train.EXAMPLES),
    ("prune", prune.prune_command, prune.EXAMPLES),
    ("compare", compare.compare_command, compare.EXAMPLES),
    ("reproduce", reproduce.reproduce_command, reproduce.EXAMPLES),
    ("report", report.report_command, report.EXAMPLES),
    ("shrink", shrink.shrink_command, shrink.EXAMPLES),
    ("export", export.export_command, export.EXAMPLES),
    ("profile", profile.profile_command, profile.EXAMPLES),
    ("inspect", inspect.inspect_command, inspect.EXAMPLES),
    ("list", listing.list_command, listing.EXAMPLES),
):
    app.command(name, epilog=f"[bold]Examples[/]\n{examples}")(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        from biprune import __version__

        typer.echo(f"biprune {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Prune PyTorch models by bi-level optimization: exact sparsity, in one run."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit.

    Args:
        arguments: The words after `biprune`; by default those of this process.

    The exit code is 0 on success, 2 for a user's mistake, 130 after Ctrl-C, 143 after SIGTERM and 1
    for a bug.
    """
    given = sys.argv[1:] if arguments is None else arguments
    with signals_as_interrupts() as heard:
        try:
            code = _run(given or ["--help"])
        except BaseException:
            # An interrupted import may turn the interrupt into any other error.
            if not heard:
                raise
            code = BUG
        if code and heard:
            code = 128 + heard[0]
    sys.exit(code)


def _run(arguments: Sequence[str]) -> int:
    logging.basicConfig(format="%(message)s")
    logging.getLogger("biprune").setLevel(logging.INFO)
    try:
        code = get_command(app).main(arguments, prog_name="biprune", standalone_mode=False)
    except typer.TyperException as error:
        code = _report(error, _usage_message(error))
    except (ValueError, TypeError, OSError, FloatingPointError, ModuleNotFoundError) as error:
        if isinstance(error, TypeError) and not _raised_by_us(error):
            raise
        code = _report(error, _sentence(error))
    return code or 0


def _report(error: Exception, message: str) -> int:
    if os.environ.get("BIPRUNE_DEBUG") == "1":
        traceback.print_exception(error)
    print(f"error: {printable(' '.join(message.splitlines()))}", file=sys.stderr)
    return USER_ERROR


def _sentence(error: Exception) -> str:
    """The message of an error, without the number that those of the system have."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    where = f" {str(error.filename)!r}" if error.filename else " the output"
    return f"Cannot read or write{where}: {error.strerror}."


def _usage_message(error: typer.TyperException) -> str:
    message = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    return f"{message}. See `{context.command_path} --help`." if context else f"{message}."


def _raised_by_us(error: TypeError) -> bool:
    """Whether a check of ours raised it; any other TypeError is a bug, maybe in a user's model."""
    *_, innermost = traceback.walk_tb(error.__traceback__)
    return PACKAGE in Path(innermost[0].f_code.co_filename).parents
