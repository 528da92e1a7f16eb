"""A few cases of each fault; `make campaign` runs thousands of the same."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from faults import campaign
from faults.verdict import OK, UNAVAILABLE

# Enough that each kind of file, job and way of harm is met; a sweep takes seconds to begin.
CASES = {
    "damaged checkpoint": 40,
    "command lines": 3,
    "SIGKILL at any time": 3,
    "SIGTERM or SIGKILL at a file swap": 5,
    "a sweep or its worker killed": 0,  # tests/test_cli_experiments.py has these one by one
    "no room for a file": 5,
    "disk full": 3,
    "read-only folder": 4,
    "two writers of a folder": 3,
    "a reader while a result is replaced": 2,
    "two sweeps of a store": 1,
    "hostile file in a result": 8,
    "hostile file in a store": 2,
    "hostile file as a checkpoint": 4,
    "forged result": 20,
    "odd numbers": 40,
}
OFTEN = 100

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs forks and /proc")


@pytest.mark.parametrize("kind", [kind for kind in campaign.FAULTS if CASES.get(kind, OFTEN)])
def test_a_few_cases(kind: str) -> None:
    fault = campaign.FAULTS[kind]
    verdicts = {seed: campaign.verdict_of(fault, seed) for seed in range(CASES.get(kind, OFTEN))}
    if UNAVAILABLE in verdicts.values():
        pytest.skip(UNAVAILABLE)
    assert {seed: verdict for seed, verdict in verdicts.items() if verdict != OK} == {}


def test_a_campaign_tells_what_went_wrong(tmp_path: Path) -> None:
    def raising(seed: int) -> str:
        raise KeyError(seed)

    faults = {
        "right": lambda seed: OK,
        "odd": lambda seed: "one" if seed % 2 else OK,
        "bad": raising,
        "elsewhere": lambda seed: UNAVAILABLE,
    }
    rows = list(campaign.campaign(faults, seconds=60, first=4, cases=4))
    page, file = tmp_path / "page.md", tmp_path / "figures.json"
    page.write_text("before\n<!-- figures -->\nold\n<!-- end -->\nafter\n")
    campaign.write(rows, campaign.settings(1, 4), file, page)
    assert [row.wrong for row in rows][:2] == [{}, {5: "one", 7: "one"}]
    assert rows[2].wrong[4] == "the case raised KeyError: 4"
    text = page.read_text()
    assert text.startswith("before\n<!-- figures -->\n| fault | cases | wrong |\n")
    assert "| odd | 4 | 2 |\n| bad | 4 | 4 |\n| elsewhere | 0 | 0 |\n" in text
    assert "| **all** | **12** | **6** |\n" in text
    assert text.endswith("\n<!-- end -->\nafter\n")
    assert '"cases": 4' in file.read_text()
