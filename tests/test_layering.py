"""Imports run one way, and importing biprune pulls in nothing that can wait."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import biprune

SOURCE = Path(biprune.__file__).parent

# Each layer may import itself and the ones above it in this list.
LAYERS = [
    ["models", "data", "checks", "distributed", "files", "flat", "heap", "layout", "plain"],
    ["ranking"],
    ["claims", "sealed", "shares", "structure"],
    ["parameters"],
    ["uses"],
    ["masks", "groups"],
    ["budget"],
    ["selection"],
    ["masked"],
    ["batches", "checkpoint", "schedule", "seeding", "step_hooks"],
    ["copying", "evaluation", "sgd"],
    ["loop"],
    ["training"],
    ["methods"],
    ["structured"],
    ["deploy"],
    ["ticket", "request"],
    ["attaching", "optimizer", "pruning"],
    ["experiments"],
    ["report"],
    ["comparing"],
    ["cli"],
    ["__main__"],
]
RANK = {module: rank for rank, layer in enumerate(LAYERS) for module in layer}

# The same within packages: each module may import the ones before it.
WITHIN = {
    "data": [
        "base",
        "splits",
        "batches",
        "decoding",
        "files",
        "safe_pickle",
        "cifar",
        "digits",
        "fashion_mnist",
        "folders",
    ],
    "deploy": ["files", "running"],
    "report": [
        "statistics",
        "comparison",
        "labels",
        "summary",
        "wording",
        "spreadsheet",
        "tables",
        "typesetting",
        "theme",
        "accuracy_charts",
        "history_charts",
        "figures",
        "page",
    ],
}


def parts(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


FILES = [path for path in sorted(SOURCE.rglob("*.py")) if parts(path) != "__init__"]


def imports(path: Path, package: str = "biprune") -> set[str]:
    """The modules of a package that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [node.module or ""]
        inside = [name.removeprefix(f"{package}.") for name in names if f"{package}." in name]
        found |= {name.split(".")[0] for name in inside}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_run_one_way(path: Path) -> None:
    own = parts(path)
    for imported in imports(path) - {own}:
        assert RANK[imported] < RANK[own], f"{own} imports {imported}"
    if own in ("models", "data"):
        assert imports(path) <= {own}


@pytest.mark.parametrize("package", WITHIN)
def test_imports_run_one_way_within_a_package(package: str) -> None:
    order = WITHIN[package]
    for path in [path for path in FILES if parts(path) == package]:
        name = path.relative_to(SOURCE / package).with_suffix("").parts[0]
        if name != "__init__":
            for imported in imports(path, f"biprune.{package}"):
                assert order.index(imported) <= order.index(name), f"{name} imports {imported}"


def test_public_names_are_listed_once_and_found_where_they_live() -> None:
    assert sorted(biprune.__all__) == sorted(biprune._HOME)
    for name, module in biprune._HOME.items():
        home = importlib.import_module(f"biprune.{module}")
        assert getattr(biprune, name) is getattr(home, name)
    with pytest.raises(AttributeError, match="has no attribute 'pruner'"):
        biprune.pruner  # noqa: B018


def test_using_biprune_pulls_in_nothing_that_can_wait() -> None:
    heavy = ["sklearn", "typer", "rich", "scipy", "altair", "torch._dynamo", "torch._inductor"]
    script = (
        "import sys; from biprune import *; "
        f"assert 'torch' in sys.modules; print([m for m in {heavy} if m in sys.modules])"
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
