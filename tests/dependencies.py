"""Which packages are installed here, and not by `pip install biprune` alone."""

from __future__ import annotations

import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def beyond_dependencies() -> list[str]:
    """The names by which they are imported."""
    needed = _needed() | {"biprune"}
    return [
        name
        for name, sources in packages_distributions().items()
        if not needed & {canonicalize_name(source) for source in sources}
    ]


def _needed() -> set[str]:
    """The dependencies in pyproject.toml, and theirs, without any extra."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    waiting, needed = [*project["dependencies"]], set[str]()
    while waiting:
        requirement = Requirement(waiting.pop())
        name = canonicalize_name(requirement.name)
        if name in needed or ((m := requirement.marker) and not m.evaluate({"extra": ""})):
            continue
        needed.add(name)
        try:
            waiting += requires(name) or []
        except PackageNotFoundError:  # for another kind of machine
            continue
    return needed
