"""Print the tables of docs/results.md from the records, and put them into pages.

python -m studies.results_page docs/results.md README.md

A table stands between <!-- name --> and <!-- end -->; the rest of a page is left as it is.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from studies.archive import Records, load
from studies.claims import CLAIMS, HEADLINES, OUR_CLAIMS, PAST_CLAIMS
from studies.full_size import full_size_table
from studies.judging import claims_table
from studies.laptop_runs import (
    FEW,
    MORE,
    Runs,
    accuracy_table,
    dense_line,
    made_line,
    units_table,
    versions_line,
)
from studies.past_tables import DIFFERENCES, settings_table

PLACE = re.compile(r"(<!-- ([\w-]+) -->\n).*?(\n<!-- end -->)", flags=re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pages", type=Path, nargs="*")
    options = parser.parse_args()
    found = tables(load())
    print(*found.values(), sep="\n\n")
    for page in options.pages:
        page.write_text(filled(page.read_text(encoding="utf-8"), found), encoding="utf-8")


def tables(records: Records) -> dict[str, str]:
    """Every table by the name of its place."""
    runs = Runs(records.values())
    return {
        "accuracy": accuracy_table(runs, FEW),
        "more": accuracy_table(runs, MORE),
        "units": units_table(runs),
        "dense": dense_line(runs),
        "made": made_line(runs),
        "versions": versions_line(runs),
        "our-claims": claims_table("`bip-plus` is", OUR_CLAIMS, runs),
        "past-claims": claims_table("`bip-plus-0.1` is", PAST_CLAIMS, runs),
        "headline": claims_table("claim", HEADLINES, runs),
        "claims": claims_table("BiP as published (`bip`) is", CLAIMS, runs),
        "full-size": full_size_table(records),
        "settings": settings_table(records, DIFFERENCES),
    }


def filled(page: str, found: dict[str, str]) -> str:
    """The page with the table of each place in it."""
    return PLACE.sub(lambda place: f"{place[1]}{found[place[2]]}{place[3]}", page)


if __name__ == "__main__":
    main()
