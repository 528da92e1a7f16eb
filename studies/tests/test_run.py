"""The command that runs studies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from biprune.experiments.store import Store
from studies.presets import STUDIES

ROOT = Path(__file__).parents[2]


def studied(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "studies.run", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_studies_run_at_scale_smoke_once(tmp_path: Path) -> None:
    names = ("controls", "full-size")
    words = [*names, "--scale", "smoke", "--threads", "1", "--store", str(tmp_path)]
    done = studied(*words)
    assert done.returncode == 0, done.stderr
    records = {record.key: record for record in Store(tmp_path)}
    assert {record.status for record in records.values()} == {"done"}
    assert {spec.key for name in names for spec in STUDIES[name].specs("smoke")} <= {*records}
    again = studied(*words)
    assert (again.stdout, again.stderr) == (done.stdout, "")  # nothing is run twice


def test_an_unknown_study_is_refused() -> None:
    done = studied("claim")
    assert done.returncode == 2
    assert "unknown study 'claim'; there are methods, controls, claims" in done.stderr


def test_without_a_name_it_says_what_there_is() -> None:
    lines = studied("--scale", "smoke").stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == [*STUDIES]
    assert all("; about " in line for line in lines)
