"""Command lines drawn by hypothesis: done, or one line about the mistake, whatever is typed."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
from collections.abc import Iterator
from functools import cache

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from typer.main import get_command

from biprune.cli.app import app, main
from faults import originals
from faults.verdict import OK, Fault

SECONDS = 3.0  # a line that is right may begin to train: that is no mistake
EXAMPLES = 25
FOLDERS = ("dense", "ticket", "grouped", "small", "store")
ODD = (
    "",
    " ",
    "0",
    "-1",
    "1",
    "2",
    "0.5",
    "1e400",
    "nan",
    "-inf",
    "1_0",
    "\u0663",
    "x",
    "a=b",
    "=",
    "a=",
    "=1",
    "lr=[",
    "epochs=1",
    "macs=0.5",
    "macs=nan",
    "0,1",
    ",",
    "2:4",
    "0:0",
    "4:2",
    "layer",
    "group",
    "bip-plus",
    "imp",
    "resnet8",
    "digits",
    "cpu",
    "cuda:7",
    "folder:file",
    "os:system",
    "nowhere:net",
    "file",
    "fifo",
    "file/below",
    ".",
    "--",
    "-",
    "--help",
    "\x1b[31m",
    "\udcff",
    "*",
    "a" * 5000,
)


@cache
def _commands() -> dict[str, list[str]]:
    """Every command with the names of its options."""
    commands = vars(get_command(app))["commands"]
    return {
        name: [text for option in command.params for text in option.opts if text.startswith("-")]
        for name, command in commands.items()
        if name != "demo"  # which takes no options that matter, and trains for a minute
    }


@st.composite
def lines(draw: st.DrawFn) -> list[str]:
    """A command, arguments that exist or not, and options with any value."""
    command = draw(st.sampled_from(sorted(_commands())))
    letters = st.characters(codec="utf-8", exclude_characters="/")  # to stay in this folder
    value = st.sampled_from([*ODD, *FOLDERS]) | st.text(letters, max_size=6)
    line = [command, *draw(st.lists(value, max_size=2))]
    for option in draw(st.lists(st.sampled_from(_commands()[command]), max_size=4)):
        line += [option, draw(value)] if draw(st.booleans()) else [f"{option}={draw(value)}"]
    if draw(st.booleans()):  # the least that a command needs, so that the rest is looked at
        line += draw(st.sampled_from(_ENOUGH.get(command, [[]])))
    return line


_ENOUGH = {
    "train": [["resnet8", "digits", "--subset", "60", "--epochs", "1", "--width", "2"]],
    "compare": [["resnet8", "digits", "--sparsities", "0.5", "--passes", "1"]],
    "prune": [["--sparsity", "0.5", "--epochs", "1"]],
}


def drawn(number: int) -> str:
    """A few examples; the shortest that goes wrong is told."""
    folder = originals.empty("typed")
    for kind in FOLDERS:
        shutil.copytree(originals.made(kind), folder / kind)
    (folder / "file").write_text("{}")
    os.mkfifo(folder / "fifo")
    found: list[str] = []

    @seed(number)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example],
    )
    @given(lines())
    def example(line: list[str]) -> None:
        verdict = _ended(line)
        if verdict != OK:
            found.append(f"biprune {line}: {verdict}")

    with contextlib.chdir(folder):
        example()
    return min(found, key=len) if found else OK


def _ended(line: list[str]) -> str:
    out, err = io.StringIO(), io.StringIO()
    code: object = None
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _limited():
            main(line)
    except SystemExit as ended:
        code = ended.code
    except KeyboardInterrupt:
        return OK  # it had begun to work
    except BaseException as error:
        return f"raised {type(error).__name__}: {str(error)[:200]}"
    told = err.getvalue()
    if code == 2 and not (told.startswith("error: ") and told.count("\n") == 1):
        return f"a mistake that is not told in one line: {told[:300]!r}"
    if "\x1b" in told:
        return f"an escape sequence on the terminal: {told[:200]!r}"
    return OK if code in (0, 2, 130) else f"ended by {code}: {told[:200]}"


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    environment = dict(os.environ)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        os.environ.clear()
        os.environ.update(environment)


FAULTS: dict[str, Fault] = {"command lines": drawn}
