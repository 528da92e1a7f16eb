"""`biprune list` and `biprune inspect`, and how errors are told."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import biprune
from biprune.cli import app as app_module
from biprune.cli import list as listing
from biprune.cli.app import main
from biprune.core.documents import write_document
from biprune.files.artifact import tensors_path
from command_line import Run, one_error, saved


def test_list(run: Run) -> None:
    code, out, err = run("list")
    assert (code, err) == (0, "")
    for names in (biprune.METHODS, biprune.MODELS, biprune.DATASETS, biprune.STRUCTURES):
        for name in names:
            assert re.search(rf"^ {re.escape(name)} ", out, re.MULTILINE), name
    assert max(map(len, out.splitlines())) <= 80

    document = json.loads(run("list --json")[1])
    assert document["methods"]["bip-plus"]["settings"] == biprune.BiPPlus().settings
    assert document["methods"]["bip"]["settings"] == biprune.BiP().settings
    assert document["methods"]["omp"]["retrains"] is True
    assert document["methods"]["imp"]["passes"] == 11 * 160
    deeper = json.loads(run("list methods --sparsity 0.2 --json")[1])
    assert deeper["methods"]["imp"]["passes"] == 160
    assert "got 90. Did you mean 0.9?" in one_error(run("list methods --sparsity 90"))
    assert list(json.loads(run("list models --json")[1])) == ["models"]
    assert "Kinds: methods, models, data, structures" in one_error(run("list modles"))


def test_inspect_a_ticket(run: Run, dense: Path, tmp_path: Path) -> None:
    out = tmp_path / "ticket"
    settings = "--method bip --epochs 2 --set retrain_epochs=1"
    run(f"prune {dense} --sparsity 0.8 {settings} --out {out}")
    code, text, err = run(f"inspect {out}")
    ticket = biprune.load_ticket(out)
    assert (code, err) == (0, "")
    assert max(map(len, text.splitlines())) <= 80
    assert re.search(r"settings +epochs=2, retrain_epochs=1 *$", text, re.MULTILINE)
    assert f"{ticket.masks.kept:,} of {ticket.masks.total:,} weights kept" in text
    for name, count in ticket.masks.per_layer().items():
        assert re.search(rf"{name} +{count.kept:,} +{count.total:,} +{count.sparsity:.4f}", text)
    first, last = (ticket.history[i]["iou"] for i in (0, 1))
    assert re.search(rf"bip +mask IoU +{first:.4f} +{last:.4f} +2", text)
    assert "note: retrained from BiP's own weights" in text

    document = json.loads(run(f"inspect {out} --json")[1])
    masks = document.pop("masks")
    assert document == saved(out)
    assert (masks["kept"], masks["total"]) == (ticket.masks.kept, ticket.masks.total)
    assert masks["layers"].keys() == ticket.masks.keys()


def test_inspect_a_dense_run(run: Run, dense: Path) -> None:
    code, text, _ = run(f"inspect {dense}")
    assert code == 0
    assert "epoch 0, epoch 1" in text
    assert json.loads(run(f"inspect {dense} --json")[1]) == saved(dense)


def test_inspect_what_is_not_ours(run: Run, dense: Path, tmp_path: Path) -> None:
    assert "there is no biprune.json" in one_error(run(f"inspect {tmp_path}"))
    assert "there is no biprune.json" in one_error(run(f"inspect {tmp_path / 'nothing'}"))
    (tmp_path / "biprune.json").write_text('{"format": "other"}')
    assert "was not written by this version" in one_error(run(f"inspect {tmp_path}"))
    metadata = saved(dense)
    del metadata["cost"]
    write_document(tmp_path / "biprune.json", metadata)
    tensors_path(tmp_path, metadata).write_bytes(tensors_path(dense, metadata).read_bytes())
    assert "is incomplete: 'cost'" in one_error(run(f"inspect {tmp_path}"))


def test_debug_shows_the_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIPRUNE_DEBUG", "1")
    code, _, err = run("list modles")
    assert code == 2
    assert err.startswith("Traceback")
    assert err.splitlines()[-1].startswith("error: Unknown kind 'modles'")


def test_bugs_are_not_dressed_up_as_mistakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A TypeError from outside the library, as a user's model may raise it, keeps its traceback."""
    monkeypatch.setattr(app_module, "PACKAGE", Path("/nowhere"))
    monkeypatch.setattr(listing, "print_table", lambda *_, **__: len(3))  # pyright: ignore
    with pytest.raises(TypeError):
        main(["list", "models"])
