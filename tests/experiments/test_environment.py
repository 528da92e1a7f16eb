"""What a record says of its origin is biprune's own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import biprune
from biprune.experiments.environment import environment

ROOT = Path(__file__).parents[2]
PACKAGE = Path(biprune.__file__).parent
WHO = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
SCRIPT = "from biprune.experiments import environment as e; print(e.__file__, e.revision())"


def git(folder: Path, *arguments: str) -> str:
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(
        ["git", "-C", folder, *WHO, *arguments], capture_output=True, text=True, check=True, env=own
    )
    return done.stdout.strip()


def repository(folder: Path, *, project: str, tracked: str = ".") -> str:
    """A repository of `folder` with a project of that name; its commit."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(f'[project]\nname = "{project}"\n')
    git(folder, "init", "-q")
    git(folder, "add", "pyproject.toml", tracked)
    git(folder, "commit", "-qm", "one")
    return git(folder, "rev-parse", "--short=12", "HEAD")


def copied(to: Path) -> Path:
    """The package in a folder of its own."""
    shutil.copytree(PACKAGE, to / "biprune", ignore=shutil.ignore_patterns("__pycache__"))
    return to


def revision(source: Path, **variables: str) -> str:
    """What a process that imports biprune from `source` says."""
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        check=True,
        env=environment | variables,
    )
    file, said = done.stdout.split()
    assert Path(file).is_relative_to(source)
    return said


def test_of_its_own_checkout_it_is_the_commit(tmp_path: Path) -> None:
    source = copied(tmp_path / "checkout" / "src")
    commit = repository(tmp_path / "checkout", project="biprune")
    other = repository(tmp_path / "other", project="other")
    assert other != commit
    assert revision(source) == commit
    hook = {"GIT_DIR": str(tmp_path / "other/.git"), "GIT_WORK_TREE": str(tmp_path / "other")}
    assert revision(source, **hook) == commit  # as in a hook of the other's
    with (source / "biprune/__init__.py").open("a") as file:
        file.write("# changed\n")
    assert revision(source) == f"{commit}-dirty"


@pytest.mark.parametrize(
    ("project", "place", "tracked"),
    [
        pytest.param("other", ".venv/lib/python3/site-packages", "pyproject.toml", id="installed"),
        pytest.param("other", "src", ".", id="among the sources of another"),
        pytest.param("other", "vendor/biprune/src", ".", id="vendored whole"),
        pytest.param("biprune", "src", "pyproject.toml", id="not tracked"),
    ],
)
def test_of_another_repository_it_is_none(
    tmp_path: Path, project: str, place: str, tracked: str
) -> None:
    source = copied(tmp_path / place)
    if "vendor" in place:
        shutil.copy(ROOT / "pyproject.toml", source.parent)
    repository(tmp_path, project=project, tracked=tracked)
    assert revision(source) == "None"


def test_the_version_is_that_of_the_package_that_runs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert environment()["biprune"] == biprune.__version__ == project["version"]
