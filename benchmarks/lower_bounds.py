"""Pins of every dependency at its lower bound: `python benchmarks/lower_bounds.py > lowest.txt`.

Pins given as arguments, such as torch==2.13.0, stand in for those of the same names.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)>=(?P<lowest>[\w.]+)(,<[\w.]+)?")


def requirements() -> list[str]:
    """What the project and all of its extras ask for, but for each other."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    asked = [*project["dependencies"], *(each for extra in extras for each in extra)]
    return [each for each in asked if not each.startswith(f"{project['name']}[")]


def pins(asked: Iterable[str], given: Iterable[str] = ()) -> list[str]:
    """Each at its lowest, but for those that are given.

    >>> pins(["torch>=2.6,<3", "rich>=13.8"], ["torch==2.13.0"])
    ['torch==2.13.0', 'rich==13.8']
    """
    chosen = {pin.partition("==")[0]: pin for pin in given}
    found = []
    for requirement in asked:
        match = REQUIREMENT.fullmatch(requirement)
        if match is None:
            raise ValueError(f"{requirement!r} has no lower bound: write it as name>=1.2.")
        found.append(chosen.get(match["name"], f"{match['name']}=={match['lowest']}"))
    return found


if __name__ == "__main__":
    print(*pins(requirements(), sys.argv[1:]), sep="\n")
