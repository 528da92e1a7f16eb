"""Past methods are registered while a test of the studies runs; others are of today alone."""

from __future__ import annotations

import pytest

from biprune.methods import METHODS
from studies.past_methods import PAST

for name in PAST:
    del METHODS[name]


@pytest.fixture(autouse=True)
def past_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, method in PAST.items():
        monkeypatch.setitem(METHODS, name, method)
