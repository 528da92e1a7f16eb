"""A command line run in this process, and what it says of a user's mistake."""

from __future__ import annotations

import shlex
from collections.abc import Callable

import pytest

from biprune.cli.app import main

Result = tuple[int, str, str]  # exit code, stdout, stderr
Run = Callable[[str], Result]


def runner(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """What runs a line on a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")

    def invoke(line: str) -> Result:
        with pytest.raises(SystemExit) as exit_:
            main(shlex.split(line))
        captured = capsys.readouterr()
        assert isinstance(exit_.value.code, int)
        return exit_.value.code, captured.out, captured.err

    return invoke


def one_error(result: Result) -> str:
    """The message of a user's mistake: one line, exit code 2, nothing on stdout."""
    code, out, err = result
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err.removeprefix("error: ").strip()
