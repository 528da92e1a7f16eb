"""What is said where a trainer's package is not installed."""

from __future__ import annotations

import importlib
import sys

import pytest


@pytest.mark.parametrize(("library", "extra"), [("transformers", "hf"), ("lightning", "lightning")])
def test_the_error_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, library: str, extra: str
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, f"biprune.integrations.{library}", raising=False)
    monkeypatch.setitem(sys.modules, library, None)  # an import of it fails
    with pytest.raises(
        ModuleNotFoundError,
        match=rf"needs {library}.*, which is not installed: pip install 'biprune\[{extra}\]'$",
    ):
        importlib.import_module(f"biprune.integrations.{library}")
