"""Progress, help and usage."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.main import get_command

import biprune
from biprune.cli import demo, inspect, prune, running, train
from biprune.cli import list as listing
from biprune.cli.app import app
from biprune.training.loop import Event
from command_line import Run, one_error

COMMANDS = ("demo", "train", "prune", "inspect", "list")


def event(epoch: int, step: int, stage: str = "bip-plus", accuracy: float | None = None) -> Event:
    record = None
    if step == 3:
        record = {"loss": 0.5} | ({} if accuracy is None else {"accuracy": accuracy})
    return Event(stage, epoch, 20, step, 3, 0.25, record)


def test_lines_are_few(capsys: pytest.CaptureFixture[str]) -> None:
    with running.show_progress("bip-plus") as report:
        for epoch in range(20):
            for step in (1, 2, 3):
                report(event(epoch, step, accuracy=98.0))
        report(event(19, 3, stage="retrain"))
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert re.findall(r"epoch (\d+)/20", captured.err) == ["4", "8", "12", "16", "20", "20"]
    assert lines[0] == "bip-plus: epoch 4/20, loss 0.5000, validation 98.0 %"
    assert lines[-1] == "bip-plus (retrain): epoch 20/20, loss 0.5000"


def test_bars_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def terminal(**settings: Any) -> Console:
        return Console(**settings, force_terminal=True, width=80)

    monkeypatch.setattr(running, "Console", terminal)
    with running.show_progress("bip-plus") as report:
        report(event(18, 3, accuracy=97.0))
        report(event(19, 3, accuracy=98.0))
        report(event(0, 1, stage="retrain"))
    captured = capsys.readouterr()
    assert captured.out == ""
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", captured.err).replace("\r", "\n").splitlines()
    assert any(
        re.match(r"bip-plus .* epoch 20/20 +loss 0.2500 val +98.0 %", line) for line in shown
    )
    assert any(re.match(r"retrain .* epoch 1/20 +loss 0.2500 ", line) for line in shown)
    assert max(map(len, shown)) <= 80


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(run: Run, command: str) -> None:
    code, out, err = run(f"{command} --help")
    assert (code, err) == (0, "")
    assert f"$ biprune {command}" in out
    assert max(map(len, out.splitlines())) <= 80


def test_no_command_shows_the_help(run: Run) -> None:
    code, out, _ = run("")
    assert code == 0
    assert all(re.search(rf"^│ {command} ", out, re.MULTILINE) for command in COMMANDS)
    assert run("--version")[:2] == (0, f"biprune {biprune.__version__}\n")
    assert "Did you mean 'train'?" in one_error(run("trian"))


def examples() -> list[str]:
    texts = [app.info.epilog, *(m.EXAMPLES for m in (demo, train, prune, inspect, listing))]
    joined = "\n".join(str(text) for text in texts).replace("\\\n", " ")
    return re.findall(r"^\$ biprune (.+)$", joined, re.MULTILINE)


@pytest.mark.parametrize("line", examples())
def test_examples_in_help_parse(line: str) -> None:
    name, *arguments = shlex.split(line)
    group = get_command(app)
    with group.make_context("biprune", [name, *arguments]) as context:
        command = group.get_command(context, name)  # pyright: ignore[reportAttributeAccessIssue]
        command.make_context(name, arguments, parent=context).close()


HELP_WITHOUT_TORCH = """
import sys, types
{prelude}
from biprune.cli import main
mistake = ["prune", "x", "--sparsity", "y", "--out", "z"]
for line in (["prune", "--help"], ["train"], mistake, ["reproduce", "--list"]):
    try:
        main(line)
    except SystemExit:
        pass
sys.exit("torch" in sys.modules)
"""


@pytest.mark.parametrize(
    "prelude",
    [
        pytest.param(
            "package = types.ModuleType('biprune'); sys.modules['biprune'] = package\n"
            f"package.__path__ = [{str(Path(biprune.__file__).parent)!r}]",
            id="the command line itself",
        ),
        pytest.param("", id="with the package"),
    ],
)
def test_help_usage_errors_and_the_presets_do_not_import_torch(prelude: str) -> None:
    script = HELP_WITHOUT_TORCH.format(prelude=prelude)
    environment = {**os.environ, "COLUMNS": "80"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr
