"""How many cores a command may take."""

from __future__ import annotations

from pathlib import Path

import pytest

from biprune.cli import device


def test_cores_are_those_of_the_affinity_and_of_the_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joblib = pytest.importorskip("joblib")
    monkeypatch.delenv("LOKY_MAX_CPU_COUNT", raising=False)
    assert device.cores() == joblib.cpu_count()
    monkeypatch.setattr(device, "CGROUP", tmp_path)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(8))
    assert device.cores() == 8
    (tmp_path / "cpu").mkdir()
    old_quota, new_quota = tmp_path / "cpu" / "cpu.cfs_quota_us", tmp_path / "cpu.max"
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("50000\n")
    for quota, cores in (("-1", 8), ("75000", 2), ("20000", 1), ("500000", 8)):
        old_quota.write_text(f"{quota}\n")
        assert device.cores() == cores
    for quota, cores in (("max", 8), ("250000", 3), ("100000", 1), ("1600000", 8)):
        new_quota.write_text(f"{quota} 100000\n")
        assert device.cores() == cores
