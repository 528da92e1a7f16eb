"""compare, reproduce and report on the command line."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from biprune.cli import sweeps
from biprune.experiments.presets import PRESETS
from biprune.experiments.record import RunRecord
from biprune.experiments.runner import Runner
from biprune.experiments.store import Store
from biprune.experiments.sweep import grid
from command_line import Run, one_error

TINY = "--width 2 --subset 200 --sparsities 0.5 --passes 2 --dense-epochs 1"


def test_compare_prints_a_table_and_writes_a_page(run: Run, tmp_path: Path) -> None:
    page, store = tmp_path / "report.html", tmp_path / "runs"
    line = (
        f"compare resnet8 digits {TINY} --seeds 0,1 --method bip "
        f"--method bip:lr=0.1 --store {store} --report {page}"
    )
    code, out, err = run(line)
    assert code == 0
    assert err.count("\n") == 6  # a line for each run: two variants and gmp, two seeds
    assert "6 of 6 runs" in err
    rows = [row.split() for row in out.splitlines()]
    assert any(row[:1] == ["gmp"] for row in rows)
    assert any(row[:2] == ["bip", "(lr=0.1)"] for row in rows)
    assert page.stat().st_size > 10_000
    again = run(line)
    assert again == (0, out, "")  # nothing is run twice
    code, out, _ = run(line + " --json")
    assert len(json.loads(out)["records"]) == 8


def test_a_page_that_cannot_be_drawn_is_refused_before_the_runs(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)
    line = f"compare resnet8 digits {TINY} --store {tmp_path / 'runs'} --report {tmp_path / 'page'}"
    assert "pip install 'biprune[report]'" in one_error(run(line))
    assert not list(tmp_path.rglob("*.json"))


def test_mistakes_are_one_line(run: Run, tmp_path: Path) -> None:
    store = f"--store {tmp_path}"
    compare = f"compare resnet8 digits {TINY} {store}"
    assert "Unknown method 'bop'" in one_error(run(f"{compare} --method bop"))
    assert "Unknown data 'digit'" in one_error(run(f"compare resnet8 digit {TINY} {store}"))
    assert "`--method NAME:` takes KEY=VALUE" in one_error(run(f"{compare} --method bip:lr"))
    assert "`lr` must be a number" in one_error(run(f"{compare} --method bip:lr=x"))
    assert "takes numbers such as 0,2" in one_error(run(f"{compare} --seeds a"))
    assert "Did you mean 0.9?" in one_error(run(f"{compare} --sparsities 90"))
    assert "Closest: snapshot" in one_error(run(f"reproduce snapshots {store}"))
    assert "--list` shows the names" in one_error(run("reproduce"))
    assert "holds no records" in one_error(run(f"report {tmp_path / 'nowhere'}"))
    no_data = f"reproduce snapshot --root {tmp_path} {store}"
    assert f"The data is not in {tmp_path}" in one_error(run(no_data))
    page = tmp_path / "file" / "report.html"
    page.parent.touch()
    assert "Cannot write to the folder" in one_error(run(f"{compare} --report {page}"))
    assert not list(Store(tmp_path))  # no run was begun


def test_a_comparison_in_which_a_run_failed_says_so(run: Run, tmp_path: Path) -> None:
    fields = f"--width 2 --dense-epochs 1 --passes 1 --seeds 0 --store {tmp_path}"
    line = f"compare resnet8 digits --subset 200 --structures filter --method gmp {fields}"
    line += " --sparsities 0.5,0.99"
    code, table, err = run(line)
    assert any(row.split()[:1] == ["gmp"] for row in table.splitlines())
    assert "failed: gmp 0.99 seed 0: " in table
    again, out, told = run(f"{line} --json")
    assert code == again == 2
    for last in (err.splitlines()[-1], told.splitlines()[-1]):
        assert last.startswith("error: 1 of 3 runs failed; the others are shown.")
    records = json.loads(out)["records"]
    assert sorted(record["status"] for record in records) == ["done", "done", "failed"]


def test_the_time_left_knows_of_dense_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a second a pass: two dense runs of 30 epochs, two runs of 10 from each."""
    fields = {"model": "resnet8", "data": "digits", "sparsities": [0.5, 0.9], "seeds": [0, 1]}
    specs = grid(["gmp"], passes=10, dense={"epochs": 30}, **fields)
    clock = 0.0
    monkeypatch.setattr(sweeps.time, "monotonic", lambda: clock)
    lines = sweeps.Lines(Console(), specs, Runner(Store(tmp_path)))
    for spec, elapsed, left in zip(specs, (40, 50, 90), ("60 s", "50 s", "10 s"), strict=False):
        clock = float(elapsed)
        lines.add(RunRecord(spec=spec, resolved=spec.resolved, test_accuracy=50.0))
        assert lines.status().endswith(f", {left} left")


def test_reproduce_lists_every_preset_with_its_cost(run: Run) -> None:
    code, out, _ = run("reproduce --list --json")
    assert code == 0
    listed = json.loads(out)
    assert listed.keys() == PRESETS.keys()
    for entry in listed.values():
        assert entry["cost"].keys() == {"paper", "laptop", "smoke"}
        assert entry["cost"]["smoke"]["images"] < entry["cost"]["laptop"]["images"]
    lines = run("reproduce --list")[1].splitlines()
    assert [line for line in lines if not line.startswith(" ")] == [*PRESETS]
    start = lines.index("snapshot")
    assert lines[start + 1].startswith("    Figure 1: BiP, IMP and the dense model at 74 %")
    assert lines[start + 2].startswith("    paper about 2 days, laptop about ")


def test_every_preset_runs_at_scale_smoke(run: Run, tmp_path: Path) -> None:
    """All names in one shared store; then each by itself is there at once."""
    store = f"--scale smoke --store {tmp_path / 'runs'}"
    page = tmp_path / "report.html"
    code, out, err = run(f"reproduce all {store} --report {page}")
    assert code == 0, err
    assert "failed" not in out + err
    records = list(Store(tmp_path / "runs"))
    assert all(record.status == "done" for record in records)
    assert len(records) > 50
    assert page.exists()
    for name in ("snapshot", "ablation-gamma", "mask-iou", "trajectory-imagenet-resnet50"):
        assert run(f"reproduce {name} {store}")[2] == ""
    figures, latex = tmp_path / "figures", tmp_path / "table.tex"
    written = f"report {tmp_path / 'runs'} -o {page} --figures {figures} --latex {latex}"
    assert run(written)[0] == 0
    assert list(figures.glob("*.svg"))
    assert r"\toprule" in latex.read_text()


LONG = "--width 2 --subset 200 --sparsities 0.5,0.6,0.7 --passes 60 --dense-epochs 1 --method bip"


@pytest.mark.parametrize(
    ("moment", "number", "to_all", "code"),
    [
        ("a run is done", signal.SIGINT, True, 130),
        ("a run is done", signal.SIGTERM, False, 143),
        ("workers are starting", signal.SIGINT, True, 130),
        ("workers are starting", signal.SIGTERM, True, 143),
    ],
)
def test_a_signal_ends_the_workers_and_keeps_what_is_done(
    tmp_path: Path, moment: str, number: int, to_all: bool, code: int
) -> None:
    """Ctrl-C reaches every process of the terminal; SIGTERM one or, from `timeout`, all."""
    line = f"compare resnet8 digits {LONG} --seeds 0,1,2 --workers 2 --store {tmp_path}"
    process = subprocess.Popen(
        [sys.executable, "-m", "biprune", *line.split()],
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    deadline = time.monotonic() + 120
    try:
        while time.monotonic() < deadline and process.poll() is None:
            if moment == "a run is done" and list(tmp_path.glob("records/*.json")):
                break
            if moment == "workers are starting" and _children(process.pid) > 1:
                break
            time.sleep(0.01)
        (os.killpg if to_all else os.kill)(process.pid, number)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == code, err.decode()
    assert err.decode().count("\n") == 1 + err.decode().count(" runs")  # and no traceback
    assert err.decode().endswith(
        f"interrupted. Run the same command again to go on: what is finished is in {tmp_path}.\n"
    )
    assert all(record.status == "done" for record in Store(tmp_path))
    assert not list(tmp_path.rglob(".*"))  # half-written files
    while _group_lives(process.pid) and time.monotonic() < deadline + 60:
        time.sleep(0.1)  # multiprocessing's own helper goes last
    assert not _group_lives(process.pid)


def _children(parent: int) -> int:
    """Processes that it has started: multiprocessing's helper is the first."""
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True)
    return len(listed.stdout.split())


def _group_lives(leader: int) -> bool:
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.skipif(shutil.which("script") is None, reason="needs script, for a terminal")
def test_a_terminal_shows_the_table_so_far(tmp_path: Path) -> None:
    line = (
        f"{sys.executable} -m biprune compare resnet8 digits {TINY} --method bip --seeds 0,1 "
        f"--passes 100 --threads 1 --store {tmp_path / 'runs'}"  # longer than a picture stands
    )
    log = tmp_path / "log"
    done = subprocess.run(
        ["script", "-qec", line, log],
        stdout=subprocess.DEVNULL,
        env={**os.environ, "COLUMNS": "100", "TERM": "xterm"},
        timeout=120,
        check=False,
    )
    shown = log.read_text(encoding="utf-8", errors="replace")
    assert done.returncode == 0, shown
    assert re.search(r"epoch \d+ of 50 \(bip\)", shown)
    assert "4 of 4 runs" in shown
    assert shown.count("gmp") > 2  # in the table, before the last run has ended
