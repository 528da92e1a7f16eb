"""A command line run in this process, and what it says of a user's mistake."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from biprune.cli.app import main
from biprune.files.artifact import read_metadata

Result = tuple[int, str, str]  # exit code, stdout, stderr
Run = Callable[[str], Result]

TINY = "--subset 200 --width 4 --epochs 2"
TRAINING = "--steps 6 --optimizer adamw --clip-grad 0.5 --accumulate 2 --ema 0.9"
SAME = {"steps": 6, "optimizer": "adamw", "clip_grad": 0.5, "accumulate": 2, "ema": 0.9}
OWN_MODEL = """
from torch import nn

def net(num_classes, hidden=6):
    layers = nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, num_classes)
    return nn.Sequential(nn.Flatten(), *layers)

def five_outputs():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5))

def three_channels():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 10))

def broken():
    return nn.Linear(1, "ten")

def tokens():
    return nn.Sequential(nn.Flatten(), nn.LayerNorm(64), nn.Linear(64, 10))
"""


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


def saved(folder: Path) -> dict[str, Any]:
    """What a folder says of the result in it."""
    return read_metadata(folder)
