"""The typer app, and the boundary where exceptions become one line and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
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
from biprune.cli.signals import signals_as_interrupts
from biprune.core.files import printable

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

    The code is 0 if all is done, 2 for a user's mistake, 130 after Ctrl-C, 143 after SIGTERM, which
    ends a command in the same way, and 1 for a bug.
    """
    given = sys.argv[1:] if arguments is None else arguments
    with signals_as_interrupts() as heard:
        try:
            code = _run(given or ["--help"])
        except BaseException:
            # An import that is interrupted may make any other error of it.
            if not heard:
                raise
            code = BUG
        if code and heard:
            code = 128 + heard[0]
    sys.exit(code)


def _run(arguments: Sequence[str]) -> int:
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
    """What an error says; of the system's own ones without number."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    where = f" {str(error.filename)!r}" if error.filename else " the output"
    return f"Cannot read or write{where}: {error.strerror}."


def _usage_message(error: typer.TyperException) -> str:
    message = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    return f"{message}. See `{context.command_path} --help`." if context else f"{message}."


def _raised_by_us(error: TypeError) -> bool:
    """Whether a check of ours complains; another's is a bug, such as one in the user's model."""
    *_, innermost = traceback.walk_tb(error.__traceback__)
    return PACKAGE in Path(innermost[0].f_code.co_filename).parents
