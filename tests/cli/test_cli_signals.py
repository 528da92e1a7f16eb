"""Kills, Ctrl-C and SIGTERM: runs that go on to the same bits, and silence."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from biprune.cli.app import signals_as_interrupts
from biprune.files.artifact import UNFINISHED, tensors_path
from command_line import Run, saved

TRAINING = "train resnet8 digits --subset 400 --width 4 --epochs 20 --threads 1"
BIPRUNE = [sys.executable, "-c", "from biprune.cli import main; main()"]


def start(line: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*BIPRUNE, *shlex.split(line)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # so as not to wait for a busy core
    )


def stop_after_an_epoch(process: subprocess.Popen[str], checkpoint: Path, number: int) -> str:
    """Send a signal once the checkpoint has been written anew; what was on stderr."""
    before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if checkpoint.exists() and checkpoint.stat().st_mtime_ns > before:
            break
        time.sleep(0.005)
    process.send_signal(number)
    return process.communicate(timeout=60)[1]


def test_killed_and_interrupted_runs_go_on_to_the_same_bits(run: Run, tmp_path: Path) -> None:
    stopped, straight = tmp_path / "stopped", tmp_path / "straight"
    checkpoint = stopped / UNFINISHED / "train.checkpoint"

    killed = start(f"{TRAINING} --out {stopped}")
    stop_after_an_epoch(killed, checkpoint, signal.SIGKILL)
    assert killed.returncode == -signal.SIGKILL
    assert not (stopped / "biprune.json").exists()

    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        interrupted = start(f"{TRAINING} --out {stopped}")
        err = stop_after_an_epoch(interrupted, checkpoint, number)
        assert interrupted.returncode == code
        assert f"Run the same command again to go on from {checkpoint.parent}." in err
        assert "Traceback" not in err

    for folder in (stopped, straight):
        code, out, _ = run(f"{TRAINING} --out {folder}")
        assert code == 0
        assert "test accuracy" in out
    assert saved(stopped)["tensors"] == saved(straight)["tensors"]
    tensors = load_file(tensors_path(stopped, saved(stopped)))
    for name, tensor in load_file(tensors_path(straight, saved(straight))).items():
        assert torch.equal(tensors[name], tensor), name
    assert not checkpoint.parent.exists()


def test_a_terminated_pruning_goes_on_to_the_same_bits(
    run: Run, dense: Path, tmp_path: Path
) -> None:
    line = f"prune {dense} --sparsity 0.5 --method gmp --epochs 40 --threads 1 --out "
    stopped, straight = tmp_path / "stopped", tmp_path / "straight"
    terminated = start(f"{line}{stopped}")
    err = stop_after_an_epoch(terminated, stopped / UNFINISHED / "gmp.checkpoint", signal.SIGTERM)
    assert terminated.returncode == 143, err
    assert err.endswith(f"Run the same command again to go on from {stopped / UNFINISHED}.\n")
    assert "Traceback" not in err
    assert {path.name for path in stopped.iterdir()} == {UNFINISHED}
    kept = {path.name for path in (stopped / UNFINISHED).iterdir()}
    assert kept <= {"gmp.checkpoint", "gmp.before.checkpoint"}  # nothing half written
    for folder in (stopped, straight):
        assert run(f"{line}{folder}")[0] == 0
    named = [tensors_path(folder, saved(folder)).name for folder in (stopped, straight)]
    assert named[0] == named[1]  # by their contents


def test_what_reads_the_images_may_get_the_signal_too(tmp_path: Path) -> None:
    """As `timeout` and clusters send it: their death is no error of the command's."""
    for split, label, number in itertools.product(("train", "test"), "ab", range(8)):
        folder = tmp_path / "images" / split / label
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (30 * number, 0, 0)).save(folder / f"{number}.png")
    out, fields = tmp_path / "out", "--image-size 8 --batch-size 2 --width 2 --epochs 5000"
    process = start(f"train resnet8 folder:{tmp_path / 'images'} {fields} --workers 2 --out {out}")
    deadline = time.monotonic() + 60
    while not (out / UNFINISHED / "train.checkpoint").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143, err
    assert err.endswith(f"Run the same command again to go on from {out / UNFINISHED}.\n")
    assert "Traceback" not in err


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("command", ["comes()", "exec('comes()')", "fails()"])
def test_a_signal_before_a_command_begins_ends_it_in_silence(name: str, command: str) -> None:
    """Through `exec` Python ends as if by SIGINT; an import fails in ways of its own."""
    script = f"""
import os, signal
from biprune.cli import app, main

def comes():
    os.kill(os.getpid(), signal.{name})

def fails():
    try:
        comes()
    except KeyboardInterrupt:
        raise ImportError("cannot load module more than once")

app.get_command = lambda _: {command}
main(["list"])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    code = 128 + getattr(signal, name)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_ctrl_c_while_the_command_line_is_imported_is_silent() -> None:
    script = """
import sys
class Interrupted:
    def find_spec(self, name, *rest):
        if name == "typer":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
from biprune.cli import main
main(["list"])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_signal_that_comes_twice_at_once_interrupts_once() -> None:
    numbers = (signal.SIGTERM, signal.SIGINT)
    before, seen = [signal.getsignal(number) for number in numbers], []

    def command() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            for number in numbers:
                signal.raise_signal(number)
            seen.append("tidied up")
            raise

    with pytest.raises(KeyboardInterrupt), signals_as_interrupts() as heard:
        command()
    assert seen == ["tidied up"]
    assert heard == [signal.SIGTERM]
    assert [signal.getsignal(number) for number in numbers] == before


def test_a_signal_that_is_lost_in_a_destructor_comes_again() -> None:
    class Losing:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    def command() -> None:
        lost = Losing()
        del lost
        time.sleep(10)
        raise AssertionError("not interrupted")

    hook = sys.unraisablehook
    with pytest.raises(KeyboardInterrupt), signals_as_interrupts() as heard:
        command()
    assert heard == [signal.SIGTERM] * 2
    assert sys.unraisablehook == hook


def test_what_an_interrupt_cuts_short_is_not_reported() -> None:
    class Failing:
        def __del__(self) -> None:
            raise ValueError("cut short")

    def command(sent: bool) -> None:
        try:
            if sent:
                signal.raise_signal(signal.SIGTERM)
        finally:
            failing = Failing()
            del failing

    reported: list[object] = []
    before, sys.unraisablehook = sys.unraisablehook, lambda lost: reported.append(lost.exc_value)
    try:
        with signals_as_interrupts():
            command(sent=False)
        assert [str(error) for error in reported] == ["cut short"]
        with pytest.raises(KeyboardInterrupt), signals_as_interrupts():
            command(sent=True)
        assert len(reported) == 1
    finally:
        sys.unraisablehook = before


def test_a_signal_ends_a_forked_reader_without_a_word(capfd: pytest.CaptureFixture[str]) -> None:
    def reader() -> None:
        signal.raise_signal(signal.SIGTERM)

    with signals_as_interrupts() as heard:
        process = multiprocessing.get_context("fork").Process(target=reader)
        process.start()
        process.join(60)
    assert (process.exitcode, heard) == (-signal.SIGTERM, [])
    assert capfd.readouterr().err == ""


def test_a_command_in_the_background_stays_deaf_to_ctrl_c() -> None:
    """A shell ignores SIGINT for what it starts with `&`."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with signals_as_interrupts() as heard:
            signal.raise_signal(signal.SIGINT)
        assert heard == []
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
