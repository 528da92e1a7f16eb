"""As many cases of each fault as fit into the time: the figures of docs/reliability.md.

PYTHONPATH=tests python -m faults.campaign --minutes 60 --json docs/results/reliability.json \
    --page docs/reliability.md

Kinds have equal shares of the time, but for kills, which take seconds each and have more. Each row
is printed as its kind ends, and the files are written anew with it, so that a campaign that is
broken off has told what it found. A case that went wrong is repeated by `--only KIND --seed SEED
--cases 1`.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import re
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from faults import (
    command_lines,
    data_files,
    disk,
    hostile,
    kills,
    mutations,
    numerics,
    together,
)
from faults.verdict import OK, UNAVAILABLE, Fault

FAULTS: dict[str, Fault] = {
    **mutations.FAULTS,
    **data_files.FAULTS,
    **kills.FAULTS,
    **disk.FAULTS,
    **together.FAULTS,
    **hostile.FAULTS,
    **command_lines.FAULTS,
    **numerics.FAULTS,
}
SHARES = dict.fromkeys(kills.FAULTS, 3.0)
PLACE = re.compile(r"(<!-- figures -->\n).*?(\n<!-- end -->)", flags=re.DOTALL)


@dataclass
class Row:
    """The cases of one kind, and those that went wrong, by seed."""

    kind: str
    cases: int = 0
    seconds: float = 0.0
    wrong: dict[int, str] = field(default_factory=dict)


def verdict_of(fault: Fault, seed: int) -> str:
    """OK or what went wrong, be it in the case itself."""
    try:
        return fault(seed)
    except Exception as error:
        return f"the case raised {type(error).__name__}: {error}"


def campaign(
    faults: Mapping[str, Fault], seconds: float, first: int, cases: int | None
) -> Iterator[Row]:
    """A row for each kind, as it ends: at least one case, then until its share is used up."""
    started = time.monotonic()
    shares = {kind: SHARES.get(kind, 1.0) for kind in faults}
    for kind, fault in faults.items():
        began, row = time.monotonic(), Row(kind)
        share = (started + seconds - began) * shares[kind] / sum(shares.values())
        del shares[kind]  # what is left of the time is for those that follow
        while row.cases == 0 or (row.seconds < share and row.cases != cases):
            seed = first + row.cases
            if (verdict := verdict_of(fault, seed)) == UNAVAILABLE:
                break
            if verdict != OK:
                row.wrong[seed] = verdict
            row.cases += 1
            row.seconds = time.monotonic() - began
            left = max(0.0, started + seconds - time.monotonic())
            _show(f"{kind}: {row.cases} cases, {len(row.wrong)} wrong; {left / 60:.0f} min left")
        yield row


def _show(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def table(rows: list[Row]) -> str:
    """The rows in Markdown, with their sum."""
    lines = ["| fault | cases | wrong |", "|---|---:|---:|"]
    lines += [f"| {row.kind} | {row.cases:,} | {len(row.wrong)} |" for row in rows]
    cases, wrong = sum(row.cases for row in rows), sum(len(row.wrong) for row in rows)
    return "\n".join([*lines, f"| **all** | **{cases:,}** | **{wrong}** |"])


def settings(minutes: float, first: int) -> dict[str, object]:
    """When, where and how long."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "minutes": minutes,
        "first_seed": first,
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def write(rows: list[Row], where: dict[str, object], file: Path | None, page: Path | None) -> None:
    """The figures as JSON, and as a table in the page."""
    if file is not None:
        document = {**where, "rows": [asdict(row) for row in rows]}
        file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if page is not None:
        text = page.read_text(encoding="utf-8")
        said = "{date}, {minutes:g} minutes on {cores} cores, Python {python}, torch {torch}"
        filled = f"{table(rows)}\n\n{said.format(**where)}."
        text = PLACE.sub(lambda place: place[1] + filled + place[2], text)
        page.write_text(text, encoding="utf-8")


def main() -> int:
    options = argparse.ArgumentParser(description="Cases of every fault for a time.")
    options.add_argument("--minutes", type=float, default=60.0)
    options.add_argument("--json", type=Path, help="file for the figures")
    options.add_argument("--page", type=Path, help="document with a place for the table")
    options.add_argument("--only", default="", help="part of the name of a kind")
    options.add_argument("--seed", type=int, default=1000, help="the first")
    options.add_argument("--cases", type=int, help="of each kind, at most")
    given = options.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)  # what is said of a damaged file is not what is looked at
    warnings.simplefilter("ignore")
    faults = {kind: fault for kind, fault in FAULTS.items() if given.only in kind}
    rows: list[Row] = []
    where = settings(given.minutes, given.seed)
    for row in campaign(faults, 60 * given.minutes, given.seed, given.cases):
        rows.append(row)
        _show("")
        print(f"{row.kind}: {row.cases:,} cases in {row.seconds:.0f} s, {len(row.wrong)} wrong")
        for seed, verdict in list(row.wrong.items())[:5]:
            print(f"    seed {seed}: {verdict}")
        sys.stdout.flush()
        write(rows, where, given.json, given.page)
    print(table(rows))
    return 1 if any(row.wrong for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
