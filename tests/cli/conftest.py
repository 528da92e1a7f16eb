"""A command line in this process, and a dense run that the tests of all commands start from."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from biprune.cli.app import main
from command_line import TINY, Run, runner


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    return runner(capsys, monkeypatch)


@pytest.fixture(scope="session")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dense") / "run"
    with pytest.raises(SystemExit) as exit_:
        main(shlex.split(f"train resnet8 digits {TINY} --out {folder}"))
    assert exit_.value.code == 0
    return folder
