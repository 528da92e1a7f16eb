"""Imports run one way, and importing biprune pulls in nothing that can wait."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import biprune
from dependencies import beyond_dependencies

SOURCE = Path(biprune.__file__).parent

# Each room may import itself and those before it.
ROOMS = [
    "core",
    "models",
    "data",
    "training",
    "methods",
    "structured",
    "files",
    "runtime",
    "pruning",
    "integrations",
    "experiments",
    "report",
    "cli",
]


MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(SOURCE.rglob("*.py"))
}
IN_ROOMS = [module for module in MODULES if module not in ("__init__", "__main__")]


def imports(module: str, *, for_types: bool = True) -> set[str]:
    """The modules of biprune that a module imports, wherever in it."""
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    if not for_types:
        blocks = (node for node in tree.body if isinstance(node, ast.If))
        typing = [node for block in blocks for node in ast.walk(block)]
        nodes = [node for node in nodes if node not in typing]
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            modules = {name for name in inside if name.removeprefix("biprune.") in MODULES}
            found |= modules if modules else {node.module or ""}
    return {name.removeprefix("biprune.") for name in found} & MODULES.keys() - {module}


def test_all_modules_are_in_rooms() -> None:
    entries = {path.name for path in SOURCE.iterdir()} - {"__pycache__"}
    assert entries == {*ROOMS, "__init__.py", "__main__.py", "py.typed"}


@pytest.mark.parametrize("module", IN_ROOMS)
def test_imports_run_one_way(module: str) -> None:
    own = module.split(".")[0]
    rooms = {each.split(".")[0] for each in imports(module)} - {own}
    assert all(ROOMS.index(room) < ROOMS.index(own) for room in rooms), (own, rooms)
    if own in ("models", "data"):
        assert not rooms


def test_what_stands_beside_the_package_is_imported_by_none_of_it() -> None:
    root = Path(__file__).parents[1]
    lab = re.compile(r"^\s*(?:import|from) studies\b", flags=re.MULTILINE)
    for folder in ("src", "tests", "benchmarks"):
        for path in (root / folder).rglob("*.py"):
            assert not lab.search(path.read_text(encoding="utf-8")), path


def test_no_module_needs_itself() -> None:
    waiting = {module: imports(module, for_types=False) for module in IN_ROOMS}
    while free := [module for module, needs in waiting.items() if not needs & waiting.keys()]:
        for module in free:
            del waiting[module]
    assert not waiting, f"imports in a circle: {sorted(waiting)}"


def test_public_names_are_listed_once_and_found_where_they_live() -> None:
    assert sorted(biprune.__all__) == sorted(biprune._HOME)
    for name, module in biprune._HOME.items():
        home = importlib.import_module(f"biprune.{module}")
        assert getattr(biprune, name) is getattr(home, name)
    with pytest.raises(AttributeError, match="has no attribute 'pruner'"):
        biprune.pruner  # noqa: B018


def test_using_biprune_pulls_in_nothing_that_can_wait() -> None:
    heavy = ["typer", "rich", "torch._dynamo", "torch._inductor", *beyond_dependencies()]
    script = (
        "import sys, torch; torchs = set(sys.modules); from biprune import *; "
        f"print([m for m in {heavy} if m in sys.modules.keys() - torchs])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_checking_the_options_of_a_model_does_not_import_the_compiler() -> None:
    """It builds the model without numbers; torch's own functions for that take 2 s to import."""
    script = (
        "import sys; from biprune.models import MODELS, check_model; "
        "[check_model(name, {}) for name in MODELS]; print('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stdout + done.stderr
