"""Print the tables of docs/results.md from the records, and put them into pages.

python -m studies.results_page docs/results.md README.md

A table stands between <!-- name --> and <!-- end -->; the rest of a page is left as it is.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from studies.archive import Records, load
from studies.claims import CLAIMS, OUR_CLAIMS
from studies.full_size import full_size_table
from studies.judging import claims_table
from studies.laptop_runs import FEW, MORE, Runs, accuracy_table, dense_line, made_line, units_table
from studies.settings_worth import settings_table

OURS = "BiP as it is here (`bip-plus`) is"
HEADLINE = (
    "more accurate than gmp at equal passes",
    "more accurate than IMP, with a fifth of its passes",
)
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
        "our-claims": claims_table(OURS, OUR_CLAIMS, runs),
        "headline": claims_table(OURS, [c for c in OUR_CLAIMS if c[0] in HEADLINE], runs),
        "claims": claims_table("BiP as published (`bip`) is", CLAIMS, runs),
        "full-size": full_size_table(records),
        "settings": settings_table(records),
    }


def filled(page: str, found: dict[str, str]) -> str:
    """The page with the table of each place in it."""
    return PLACE.sub(lambda place: f"{place[1]}{found[place[2]]}{place[3]}", page)


if __name__ == "__main__":
    main()
