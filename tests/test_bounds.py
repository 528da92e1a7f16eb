"""The bounds of dependencies: `make lowest` installs and tests them; here is what it relies on."""

from __future__ import annotations

from pathlib import Path

import pytest

import lower_bounds

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


def test_every_dependency_has_a_lower_bound_that_the_pinned_one_keeps() -> None:
    pinned = dict(line.split("==") for line in CONSTRAINTS.read_text().split())
    lowest = dict(pin.split("==") for pin in lower_bounds.pins(lower_bounds.requirements()))
    assert {"torch", "rich", "onnx", "pytest"} <= lowest.keys() <= pinned.keys()
    for name, bound in lowest.items():
        assert numbers(bound) <= numbers(pinned[name]), name


def test_pins_are_the_lower_bounds_but_for_those_given() -> None:
    asked = ["torch>=2.6,<3", "torch-pruning>=1.5.2,<2", "rich>=13.8"]
    assert lower_bounds.pins(asked) == ["torch==2.6", "torch-pruning==1.5.2", "rich==13.8"]
    assert lower_bounds.pins(asked, ["torch==2.13.0"])[:2] == [
        "torch==2.13.0",
        "torch-pruning==1.5.2",
    ]
    with pytest.raises(ValueError, match="'scipy' has no lower bound"):
        lower_bounds.pins(["scipy"])
