"""`biprune prune` and `biprune demo`."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import biprune
from biprune.cli import prune
from biprune.files.artifact import UNFINISHED
from command_line import SAME, TRAINING, Run, one_error, saved


@pytest.mark.parametrize(
    ("line", "keywords"),
    [
        ("--epochs 2 --set kappa=2 --set nesterov=false", {"epochs": 2, "kappa": 2.0}),
        (f"{TRAINING} --autocast --device cpu", {**SAME, "autocast": True, "kappa": 3.0}),
    ],
)
def test_prune_saves_what_the_library_prunes(
    run: Run, dense: Path, tmp_path: Path, line: str, keywords: dict[str, Any]
) -> None:
    out = tmp_path / "bip-plus"
    code, stdout, _ = run(
        f"prune {dense} --sparsity 0.9 --seed 1 {line} --exclude head --out {out} --json"
    )
    assert code == 0
    assert json.loads(stdout) == saved(out)
    data = biprune.load_data("digits", subset=200)
    keywords = {"nesterov": "nesterov" not in line, **keywords}
    expected = biprune.prune(
        biprune.load_dense(dense), data, sparsity=0.9, seed=1, exclude="head", **keywords
    )
    ticket = biprune.load_ticket(out)
    assert ticket.masks == expected.masks
    assert ticket.accuracy == expected.accuracy
    assert ticket.settings == expected.settings
    assert ticket.settings["optimizer"] == keywords.get("optimizer", "sgd")
    assert "head.weight" not in ticket.masks
    assert not (out / UNFINISHED).exists()


@pytest.mark.parametrize("method", ["omp", "random"])
def test_prune_by_filter(run: Run, dense: Path, tmp_path: Path, method: str) -> None:
    out = tmp_path / "ticket"
    code, stdout, stderr = run(
        f"prune {dense} --method {method} --structure filter --scope global --sparsity 0.5 "
        f"--epochs 1 --out {out}"
    )
    ticket = biprune.load_ticket(out)
    assert code == 0
    assert (ticket.masks.structure.name, ticket.masks.structure.scope) == ("filter", "global")
    assert f"{ticket.masks.kept} of {ticket.masks.total} filters kept" in stdout
    assert stderr.startswith(f"{method}: epoch 1/1, loss")
    assert f"Next: biprune inspect {out}" in stdout


def test_a_model_trained_elsewhere(run: Run, tmp_path: Path) -> None:
    data = biprune.load_data("digits", subset=200)
    model = biprune.create_model("resnet8", in_channels=1, width=2, seed=3)
    biprune.save_dense(model, tmp_path / "own", data=data.options)
    loaded = biprune.load_dense(tmp_path / "own")
    state = loaded.model.state_dict()
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    pruning = f"prune {tmp_path / 'own'} --sparsity 0.5 --epochs 1 --out {tmp_path / 'out'}"
    assert "rewind" in one_error(run(f"{pruning} --method omp"))
    assert run(pruning)[0] == 0
    assert run(f"inspect {tmp_path / 'own'}")[0] == 0


def test_moved_data(run: Run, dense: Path, tmp_path: Path) -> None:
    options_ = prune.data_options(saved(dense), dense, Path("elsewhere"))
    assert options_["root"] == "elsewhere"
    folder = {"data": {"name": "folder:old", "root": None}}
    assert prune.data_options(folder, dense, Path("new"))["name"] == "folder:new"
    with pytest.raises(ValueError, match="does not say which data"):
        prune.data_options({"data": None}, dense, None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--sparsity 90", "`sparsity` must be in [0, 1), got 90. Did you mean 0.9?"),
        ("--sparsity 0.9 --method bpi", "Unknown method 'bpi'. Methods: bip-plus, "),
        ("--sparsity 0.9 --method bpi", "Closest: bip."),
        (
            "--sparsity 0.9 --set gama=1",
            "'bip-plus' has no setting 'gama'. Settings: epochs",
        ),
        ("--sparsity 0.9 --method imp --set stops=0.5,x", "`stops` must be a number, got 'x'"),
        ("--sparsity 0.9 --method imp --set stops=0.5,7", "`sparsity` must be in [0, 1), got 7"),
        ("--sparsity 0.9 --method random --set like=x", "`like` cannot be set from the command"),
        ("--sparsity 0.9 --set gamma", "`--set` takes KEY=VALUE, got 'gamma'."),
        ("--sparsity 0.9 --set kappa=big", "`kappa` must be a number, got 'big'."),
        ("--sparsity 0.9 --set passes=1.5", "`passes` must be an integer, got '1.5'."),
        ("--sparsity 0.9 --set nesterov=1", "`nesterov` must be true or false, got '1'."),
        ("--sparsity 0.9 --set schedule=up", "`schedule` must be one of cosine, step, constant"),
        ("--sparsity 0.9 --structure row", "Unknown structure 'row'. Structures: weight, filter"),
        ("--sparsity 0.9 --scope row", "Invalid value for '--scope'"),
        ("--sparsity 0.9 --set epochs=5", "`--set epochs=...` is an option of its own: --epochs."),
        ("--sparsity 0.9 --epochs 0", "`epochs` must be at least 1, got 0."),
        ("--sparsity 0.9 --epochs 1 --steps 9", "`epochs` and `steps` both set the run's length"),
        ("--sparsity 0.9 --clip-grad 0", "`clip_grad` must be positive, got 0.0."),
        ("--sparsity 0.9 --ema 1", "`ema` must be in (0, 1), such as 0.999, got 1.0."),
        ("--sparsity 0.9 --accumulate 99", "`accumulate` 99 is more than the 3 batches of `data`."),
        ("--sparsity 0.9 --optimizer adam", "Invalid value for '--optimizer'"),
        ("--sparsity much", "Invalid value for '--sparsity'"),
        ("", "Say how much to prune: `sparsity`, in [0, 1)."),
    ],
)
def test_prune_mistakes_are_told_before_any_work(
    run: Run, dense: Path, tmp_path: Path, arguments: str, message: str
) -> None:
    out = tmp_path / "out"
    assert message in one_error(run(f"prune {dense} {arguments} --out {out}"))
    assert not out.exists()


def test_prune_mistakes_about_folders(run: Run, dense: Path, tmp_path: Path) -> None:
    start = f"prune {dense} --sparsity 0.9 --epochs 1"
    absent = tmp_path / "absent"
    expected = f"'{absent}' holds nothing saved by biprune"
    assert expected in one_error(run(f"prune {absent} --sparsity 0.9 --out {tmp_path / 'x'}"))
    (tmp_path / "file").touch()
    assert "Cannot write to the folder" in one_error(run(f"{start} --out {tmp_path / 'file'}"))
    assert "is the dense run itself" in one_error(run(f"{start} --force --out {dense}"))
    assert "nothing to prune" in one_error(run(f"{start} --exclude '*' --out {tmp_path / 'x'}"))
    assert "matches no parameter" in one_error(run(f"{start} --exclude fc --out {tmp_path / 'x'}"))
    ticket = tmp_path / "ticket"
    assert run(f"{start} --out {ticket}")[0] == 0
    assert "already holds a finished result" in one_error(run(f"{start} --out {ticket}"))
    assert run(f"{start} --out {ticket} --force")[0] == 0
    message = one_error(run(f"prune {ticket} --sparsity 0.9 --out {tmp_path / 'x'}"))
    assert "holds a biprune ticket, not a biprune dense" in message


def test_demo(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(biprune, "load_data", partial(biprune.load_data, subset=200))
    out = tmp_path / "demo"
    code, stdout, _ = run(f"demo --epochs 2 --out {out}")
    assert code == 0
    names = ("bip-plus", "bip", "omp", "random")
    methods = re.findall(r"^ (dense|bip-plus|bip|omp|random) +(\d+) %", stdout, re.MULTILINE)
    pruned = [(name, share) for share in ("90", "97") for name in names]
    assert methods == [("dense", "0"), *pruned]
    assert len(set(re.findall(r" (\d+) +\d+\.\d *$", stdout, re.MULTILINE))) == 1  # equal passes
    assert f"biprune inspect {out / 'bip-plus-90'}" in stdout
    assert biprune.load_ticket(out / "bip-plus-90").masks.sparsity == pytest.approx(0.9, abs=1e-4)
    assert sorted(path.name for path in out.iterdir()) == ["bip-plus-90", "dense"]

    assert "already holds a finished result" in one_error(run(f"demo --epochs 2 --out {out}"))
    code, stdout, _ = run(f"demo --epochs 2 --out {out} --force --json")
    document = json.loads(stdout)
    accuracies = {(row["method"], row["sparsity"]): row["accuracy"] for row in document["runs"]}
    assert len(accuracies) == 9
    assert document["runs"][1]["accuracy"] == biprune.load_ticket(document["ticket"]).accuracy
    assert "'--epochs'" in one_error(run("demo --epochs 0"))
