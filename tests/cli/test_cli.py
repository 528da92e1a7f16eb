"""The command line end to end, on digits and small nets."""

from __future__ import annotations

import itertools
import json
import math
import multiprocessing
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import load_file
from typer.main import get_command

import biprune
from biprune.cli import app as app_module
from biprune.cli import compare, demo, inspect, options, prune, running, train
from biprune.cli import list as listing
from biprune.cli.app import app, main, signals_as_interrupts
from biprune.core.documents import write_document
from biprune.core.structure import Scope
from biprune.files.artifact import UNFINISHED, read_metadata, tensors_path
from biprune.structured.calls import Attention
from biprune.training.loop import Event
from biprune.training.recipes import OptimizerName
from biprune.training.schedule import Shape
from command_line import Run, one_error, runner

COMMANDS = ("demo", "train", "prune", "inspect", "list")
TINY = "--subset 200 --width 4 --epochs 2"
BIPRUNE = [sys.executable, "-c", "from biprune.cli import main; main()"]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    return runner(capsys, monkeypatch)


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dense") / "run"
    with pytest.raises(SystemExit) as exit_:
        main(shlex.split(f"train resnet8 digits {TINY} --out {folder}"))
    assert exit_.value.code == 0
    return folder


def saved(folder: Path) -> dict[str, Any]:
    return read_metadata(folder)


def test_train_saves_what_the_library_trains(run: Run, dense: Path) -> None:
    data = biprune.load_data("digits", subset=200)
    model = biprune.create_model("resnet8", in_channels=1, width=4)
    expected = biprune.train(model, data, epochs=2)
    loaded = biprune.load_dense(dense)
    assert loaded.accuracy == expected.accuracy
    assert loaded.cost.forward_passes == expected.cost.forward_passes
    assert sorted(loaded.states) == [0, 1]
    for name, tensor in expected.model.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], tensor)
    assert saved(dense)["data"] == data.options
    named = tensors_path(dense, saved(dense)).name
    assert sorted(path.name for path in dense.iterdir()) == ["biprune.json", named]


def test_train_passes_its_options_on(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "run"
    code, stdout, _ = run(
        f"train resnet8 digits --subset 100 --epochs 2 --batch-size 20 --val-fraction 0.2 "
        f"--schedule cosine --warmup-epochs 1 --rewind-epochs 0,2 --seed 3 --lr 0.05 "
        f"--no-channels-last --model-option width=4 --model-option shortcut=B --out {out} --json"
    )
    metadata = json.loads(stdout)
    assert code == 0
    assert metadata == saved(out)
    assert metadata["rewind_epochs"] == [0, 2]
    assert (metadata["model"]["width"], metadata["model"]["shortcut"]) == (4, "B")
    assert (metadata["data"]["seed"], metadata["data"]["val_fraction"]) == (3, 0.2)
    assert metadata["cost"]["forward_passes"] == 2 * 4  # 80 images in batches of 20
    assert metadata["history"][-1]["lr"] == pytest.approx(0.025 * (1 + math.cos(0.875 * math.pi)))


def test_train_closes_with_facts_and_the_next_command(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "run"
    code, stdout, stderr = run(f"train resnet8 digits {TINY} --out {out}")
    assert code == 0
    assert re.search(r"test accuracy +\d+\.\d\d %", stdout)
    assert f"Next: biprune prune {out} --sparsity 0.9" in stdout
    assert re.fullmatch(r"(train: epoch [12]/2, loss \d+\.\d+, validation \d+\.\d %\n){2}", stderr)


def test_defaults_are_the_librarys() -> None:
    for command, function in (
        (train.train_command, biprune.train),
        (train.train_command, biprune.load_data),
        (prune.prune_command, biprune.prune),
        (compare.compare_command, biprune.compare),
    ):
        own, library = signature(command).parameters, signature(function).parameters
        empty = Parameter.empty
        shared = {
            name: (own[name].default, library[name].default)
            for name in own.keys() & library.keys()
            if own[name].default is not empty and library[name].default is not empty
        }
        assert len(shared) > 4
        for name, (default, expected) in shared.items():
            if name not in ("seeds", "structures", "store"):  # as text
                assert default == expected, name


def test_choices_are_the_librarys() -> None:
    assert get_args(options.Shape) == get_args(Shape)
    assert get_args(options.Scope) == get_args(Scope)
    assert get_args(options.Attention) == get_args(Attention)
    assert get_args(options.Optimizer) == get_args(OptimizerName)


TRAINING = "--steps 6 --optimizer adamw --clip-grad 0.5 --accumulate 2 --ema 0.9"
SAME = {"steps": 6, "optimizer": "adamw", "clip_grad": 0.5, "accumulate": 2, "ema": 0.9}


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


def test_train_by_another_optimizer_is_what_the_library_does(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "run"
    fields = "--subset 200 --width 4 --lr 0.01 --schedule constant"
    assert run(f"train resnet8 digits {fields} {TRAINING} --out {out}")[0] == 0
    data = biprune.load_data("digits", subset=200)
    model = biprune.create_model("resnet8", in_channels=1, width=4)
    expected = biprune.train(model, data, lr=0.01, schedule="constant", **SAME)
    state = biprune.load_dense(out).model.state_dict()
    assert all(torch.equal(state[n], t) for n, t in expected.model.state_dict().items())
    assert expected.cost.forward_passes == 2 * 6


def test_folders_of_the_users_own_are_left_alone(run: Run, tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "best.pt").touch()
    assert run(f"train resnet8 digits {TINY} --epochs 1 --out {tmp_path}")[0] == 0
    assert (tmp_path / "checkpoints" / "best.pt").exists()


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


OWN_MODEL = """
from torch import nn

def net(num_classes, hidden=6):
    layers = nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, num_classes)
    return nn.Sequential(nn.Flatten(), *layers)

def five_outputs():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5))

def three_channels():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 10))

def broken():
    return nn.Linear(1, "ten")

def tokens():
    return nn.Sequential(nn.Flatten(), nn.LayerNorm(64), nn.Linear(64, 10))
"""


def test_own_model_from_the_current_folder(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_model.py").write_text(OWN_MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    option = "--model-option hidden=8"
    code, out, _ = run(f"train own_model:net digits --epochs 1 {option} --out dense")
    assert code == 0
    assert "--model own_model:net" in out
    pruning = "prune dense --sparsity 0.5 --epochs 1 --out pruned"
    assert "Build it yourself and pass it" in one_error(run(pruning))
    assert "goes with `--model`" in one_error(run(f"{pruning} {option}"))
    message = one_error(run(f"{pruning} --model own_model:net --model-option hidden=6"))
    assert "differ in name or shape" in message
    assert run(f"{pruning} --model own_model:net")[0] == 0
    assert "own_model:net (num_classes=10, hidden=8)" in run("inspect pruned")[1]
    compared = "--sparsities 0.5 --seeds 0 --passes 1 --dense-epochs 1 --method omp"
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(tmp_path)])
    sys.modules.pop("own_model")
    assert run(f"compare own_model:net digits {compared}")[0] == 0
    message = one_error(run(f"compare own_model:nets digits {compared} --store other"))
    assert "has no function 'nets'" in message

    message = one_error(run("train own_model:five_outputs digits --epochs 1 --out five"))
    assert "Labels run from 0 to 9, but the model has 5 outputs" in message
    assert "has no function 'nets'" in one_error(run("train own_model:nets digits --out x"))
    message = one_error(run("train own_model:three_channels digits --out x"))
    assert "does not run on images of 'digits', 1 x 8 x 8 (RuntimeError: " in message
    assert "Choose another than 'own_model:three_channels', or its options" in message
    message = one_error(run("train own_model:broken digits --out x"))
    assert "Model 'own_model:broken' cannot be built: TypeError: " in message


def test_what_normalizes_tokens_is_trained_by_adamw(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "token_model.py").write_text(OWN_MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    name, told = "token_model:tokens", "The model normalizes tokens, as transformers do"
    assert run(f"train {name} digits --subset 100 --epochs 1 --out dense")[0] == 0
    assert [record.getMessage()[: len(told)] for record in caplog.records] == [told]
    assert saved(Path("dense"))["settings"]["optimizer"] == "adamw"
    pruning = f"prune dense --model {name} --sparsity 0.5 --epochs 1"
    assert run(f"{pruning} --out pruned")[0] == 0
    assert saved(Path("pruned"))["settings"]["optimizer"] == "adamw"
    assert run(f"{pruning} --optimizer sgd --out by-sgd")[0] == 0
    assert saved(Path("by-sgd"))["settings"]["optimizer"] == "sgd"

    line = f"compare {name} digits --subset 100 --sparsities 0.5 --seeds 0 --dense-epochs 1"
    code, out, _ = run(
        f"{line} --passes 2 --method omp --method hydra:optimizer=sgd --ema 0.5 --json"
    )
    assert code == 0
    resolved = {
        record["spec"]["method"]: record["resolved"] for record in json.loads(out)["records"]
    }
    assert all(each["training"]["ema"] == 0.5 for each in resolved.values())
    assert {name: each["dense"]["optimizer"] for name, each in resolved.items()} == dict.fromkeys(
        ("train", "omp", "hydra", "gmp"), "adamw"
    )
    chosen = {
        name: each["settings"]["optimizer"] for name, each in resolved.items() if name != "train"
    }
    assert chosen == {"omp": "adamw", "hydra": "sgd", "gmp": "adamw"}


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


def test_demo(run: Run, tmp_path: Path) -> None:
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
        ("--sparsity 0.9 --epochs 1 --steps 9", "`epochs` and `steps` say the same thing twice"),
        ("--sparsity 0.9 --clip-grad 0", "`clip_grad` must be positive, got 0.0."),
        ("--sparsity 0.9 --ema 1", "`ema` must be in (0, 1), such as 0.999, got 1.0."),
        ("--sparsity 0.9 --accumulate 99", "`accumulate` 99 is more than the 3 batches of a pass."),
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("resnet21 digits", "Unknown model 'resnet21'."),
        ("resnet21 digits", "Closest: resnet20."),
        ("resnet8 digits --model-option depth=3", "does not take `depth`"),
        ("resnet8 digits --model-option shortcut", "`--model-option` takes KEY=VALUE"),
        ("resnet8 digits --model-option in_channels=3", "does not run on images of 'digits'"),
        ("resnet8 digit", "Unknown data 'digit'."),
        ("resnet8 digits --lr 0", "`lr` must be positive, got 0."),
        ("resnet8 digits --epochs 0", "`epochs` must be at least 1, got 0."),
        ("resnet8 digits --rewind-epochs 0-2", "`--rewind-epochs` takes numbers such as 0,2"),
        ("resnet8 digits --subset 5", "`subset`"),
        ("resnet8 cifar10 --root nowhere", "The data is not in nowhere."),
        ("nowhere.at_all:net digits", "Cannot import model 'nowhere.at_all:net'"),
        ("resnet8", "Missing argument 'DATA'. See `biprune train --help`."),
        ("resnet8 digits --epoch 3", "No such option: --epoch"),
    ],
)
def test_train_mistakes(run: Run, tmp_path: Path, arguments: str, message: str) -> None:
    assert message in one_error(run(f"train {arguments} --out {tmp_path / 'out'}"))


def test_nan_loss(run: Run, tmp_path: Path) -> None:
    code, out, err = run(f"train resnet8 digits {TINY} --lr 1e30 --out {tmp_path / 'out'}")
    assert (code, out) == (2, "")
    assert re.search(r"^error: The loss became (nan|inf) at step \d+ of epoch 1", err, re.MULTILINE)
    assert "Lower the learning rate" in err


def test_finished_results_are_protected(run: Run, dense: Path) -> None:
    before = saved(dense)
    message = one_error(run(f"train resnet8 digits {TINY} --out {dense}"))
    assert message.startswith(f"'{dense}' already holds a finished result.")
    assert saved(dense) == before


def test_debug_shows_the_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIPRUNE_DEBUG", "1")
    code, _, err = run("list modles")
    assert code == 2
    assert err.startswith("Traceback")
    assert err.splitlines()[-1].startswith("error: Unknown kind 'modles'")


def test_bugs_are_not_dressed_up_as_mistakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A TypeError from outside the library, as a user's model may raise it, keeps its traceback."""
    monkeypatch.setattr(app_module, "PACKAGE", Path("/nowhere"))
    monkeypatch.setattr(listing, "_models", lambda: len(3))  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError):
        main(["list", "models"])


def start_training(out: Path) -> subprocess.Popen[str]:
    return start(f"train resnet8 digits --subset 400 --width 4 --epochs 20 --out {out}")


def start(line: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*BIPRUNE, *shlex.split(line)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # so as not to wait for a busy core
    )


def stop_after_an_epoch(process: subprocess.Popen[str], checkpoint: Path, number: int) -> str:
    """Send a signal once the checkpoint has been written anew; what was on stderr."""
    before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if checkpoint.exists() and checkpoint.stat().st_mtime_ns > before:
            break
        time.sleep(0.005)
    process.send_signal(number)
    return process.communicate(timeout=60)[1]


def test_killed_and_interrupted_runs_go_on_to_the_same_bits(run: Run, tmp_path: Path) -> None:
    stopped, straight = tmp_path / "stopped", tmp_path / "straight"
    checkpoint = stopped / UNFINISHED / "train.checkpoint"

    killed = start_training(stopped)
    stop_after_an_epoch(killed, checkpoint, signal.SIGKILL)
    assert killed.returncode == -signal.SIGKILL
    assert not (stopped / "biprune.json").exists()

    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        interrupted = start_training(stopped)
        err = stop_after_an_epoch(interrupted, checkpoint, number)
        assert interrupted.returncode == code
        assert f"Run the same command again to go on from {checkpoint.parent}." in err
        assert "Traceback" not in err

    for folder in (stopped, straight):
        finished = start_training(folder)
        assert "test accuracy" in finished.communicate()[0]
        assert finished.returncode == 0
    assert saved(stopped)["tensors"] == saved(straight)["tensors"]
    tensors = load_file(tensors_path(stopped, saved(stopped)))
    for name, tensor in load_file(tensors_path(straight, saved(straight))).items():
        assert torch.equal(tensors[name], tensor), name
    assert not checkpoint.parent.exists()


def test_a_terminated_pruning_goes_on_to_the_same_bits(dense: Path, tmp_path: Path) -> None:
    line = f"prune {dense} --sparsity 0.5 --method gmp --epochs 40 --out "
    stopped, straight = tmp_path / "stopped", tmp_path / "straight"
    terminated = start(f"{line}{stopped}")
    err = stop_after_an_epoch(terminated, stopped / UNFINISHED / "gmp.checkpoint", signal.SIGTERM)
    assert terminated.returncode == 143, err
    assert err.endswith(f"Run the same command again to go on from {stopped / UNFINISHED}.\n")
    assert "Traceback" not in err
    assert {path.name for path in stopped.iterdir()} == {UNFINISHED}
    kept = {path.name for path in (stopped / UNFINISHED).iterdir()}
    assert kept <= {"gmp.checkpoint", "gmp.before.checkpoint"}  # nothing half written
    for folder in (stopped, straight):
        again = start(f"{line}{folder}")
        again.communicate(timeout=120)
        assert again.returncode == 0
    named = [tensors_path(folder, saved(folder)).name for folder in (stopped, straight)]
    assert named[0] == named[1]  # by their contents


def test_what_reads_the_images_may_get_the_signal_too(tmp_path: Path) -> None:
    """As `timeout` and clusters send it: their death is no error of the command's."""
    for split, label, number in itertools.product(("train", "test"), "ab", range(8)):
        folder = tmp_path / "images" / split / label
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (30 * number, 0, 0)).save(folder / f"{number}.png")
    out, fields = tmp_path / "out", "--image-size 8 --batch-size 2 --width 2 --epochs 5000"
    process = start(f"train resnet8 folder:{tmp_path / 'images'} {fields} --workers 2 --out {out}")
    deadline = time.monotonic() + 60
    while not (out / UNFINISHED / "train.checkpoint").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143, err
    assert err.endswith(f"Run the same command again to go on from {out / UNFINISHED}.\n")
    assert "Traceback" not in err


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("command", ["comes()", "exec('comes()')", "fails()"])
def test_a_signal_before_a_command_begins_ends_it_in_silence(name: str, command: str) -> None:
    """Through `exec` Python ends as if by SIGINT; an import fails in ways of its own."""
    script = f"""
import os, signal
from biprune.cli import app, main

def comes():
    os.kill(os.getpid(), signal.{name})

def fails():
    try:
        comes()
    except KeyboardInterrupt:
        raise ImportError("cannot load module more than once")

app.get_command = lambda _: {command}
main(["list"])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    code = 128 + getattr(signal, name)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_ctrl_c_while_the_command_line_is_imported_is_silent() -> None:
    script = """
import sys
class Interrupted:
    def find_spec(self, name, *rest):
        if name == "typer":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
from biprune.cli import main
main(["list"])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_signal_that_comes_twice_at_once_interrupts_once() -> None:
    numbers = (signal.SIGTERM, signal.SIGINT)
    before, seen = [signal.getsignal(number) for number in numbers], []

    def command() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            for number in numbers:
                signal.raise_signal(number)
            seen.append("tidied up")
            raise

    with pytest.raises(KeyboardInterrupt), signals_as_interrupts() as heard:
        command()
    assert seen == ["tidied up"]
    assert heard == [signal.SIGTERM]
    assert [signal.getsignal(number) for number in numbers] == before


def test_a_signal_that_is_lost_in_a_destructor_comes_again() -> None:
    class Losing:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    def command() -> None:
        lost = Losing()
        del lost
        time.sleep(10)
        raise AssertionError("not interrupted")

    hook = sys.unraisablehook
    with pytest.raises(KeyboardInterrupt), signals_as_interrupts() as heard:
        command()
    assert heard == [signal.SIGTERM] * 2
    assert sys.unraisablehook == hook


def test_what_an_interrupt_cuts_short_is_not_reported() -> None:
    class Failing:
        def __del__(self) -> None:
            raise ValueError("cut short")

    def command(sent: bool) -> None:
        try:
            if sent:
                signal.raise_signal(signal.SIGTERM)
        finally:
            failing = Failing()
            del failing

    reported: list[object] = []
    before, sys.unraisablehook = sys.unraisablehook, lambda lost: reported.append(lost.exc_value)
    try:
        with signals_as_interrupts():
            command(sent=False)
        assert [str(error) for error in reported] == ["cut short"]
        with pytest.raises(KeyboardInterrupt), signals_as_interrupts():
            command(sent=True)
        assert len(reported) == 1
    finally:
        sys.unraisablehook = before


def test_a_signal_ends_a_forked_reader_without_a_word(capfd: pytest.CaptureFixture[str]) -> None:
    def reader() -> None:
        signal.raise_signal(signal.SIGTERM)

    with signals_as_interrupts() as heard:
        process = multiprocessing.get_context("fork").Process(target=reader)
        process.start()
        process.join(60)
    assert (process.exitcode, heard) == (-signal.SIGTERM, [])
    assert capfd.readouterr().err == ""


def test_a_command_in_the_background_stays_deaf_to_ctrl_c() -> None:
    """A shell ignores SIGINT for what it starts with `&`."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with signals_as_interrupts() as heard:
            signal.raise_signal(signal.SIGINT)
        assert heard == []
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_run_in_the_way(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    data = biprune.load_data("digits", subset=200)
    model = biprune.create_model("resnet8", in_channels=1, width=4)
    biprune.train(model, data, epochs=1, lr=0.2, checkpoint=out / UNFINISHED)
    message = one_error(run(f"train resnet8 digits {TINY} --epochs 1 --out {out}"))
    assert "belongs to another run: its lr was 0.2, now it is 0.1" in message


def event(epoch: int, step: int, stage: str = "bip-plus", accuracy: float | None = None) -> Event:
    record = None
    if step == 3:
        record = {"loss": 0.5} | ({} if accuracy is None else {"accuracy": accuracy})
    return Event(stage, epoch, 20, step, 3, 0.25, record)


def test_lines_are_few(capsys: pytest.CaptureFixture[str]) -> None:
    with running.show_progress("bip-plus") as report:
        for epoch in range(20):
            for step in (1, 2, 3):
                report(event(epoch, step, accuracy=98.0))
        report(event(19, 3, stage="retrain"))
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert re.findall(r"epoch (\d+)/20", captured.err) == ["4", "8", "12", "16", "20", "20"]
    assert lines[0] == "bip-plus: epoch 4/20, loss 0.5000, validation 98.0 %"
    assert lines[-1] == "bip-plus (retrain): epoch 20/20, loss 0.5000"


def test_bars_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def terminal(**settings: Any) -> Console:
        return Console(**settings, force_terminal=True, width=80)

    monkeypatch.setattr(running, "Console", terminal)
    with running.show_progress("bip-plus") as report:
        report(event(18, 3, accuracy=97.0))
        report(event(19, 3, accuracy=98.0))
        report(event(0, 1, stage="retrain"))
    captured = capsys.readouterr()
    assert captured.out == ""
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", captured.err).replace("\r", "\n").splitlines()
    assert any(
        re.match(r"bip-plus .* epoch 20/20 +loss 0.2500 val +98.0 %", line) for line in shown
    )
    assert any(re.match(r"retrain .* epoch 1/20 +loss 0.2500 ", line) for line in shown)
    assert max(map(len, shown)) <= 80


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(run: Run, command: str) -> None:
    code, out, err = run(f"{command} --help")
    assert (code, err) == (0, "")
    assert f"$ biprune {command}" in out
    assert max(map(len, out.splitlines())) <= 80


def test_no_command_shows_the_help(run: Run) -> None:
    code, out, _ = run("")
    assert code == 0
    assert all(re.search(rf"^│ {command} ", out, re.MULTILINE) for command in COMMANDS)
    assert run("--version")[:2] == (0, f"biprune {biprune.__version__}\n")
    assert "Did you mean 'train'?" in one_error(run("trian"))


def examples() -> list[str]:
    texts = [app.info.epilog, *(m.EXAMPLES for m in (demo, train, prune, inspect, listing))]
    joined = "\n".join(str(text) for text in texts).replace("\\\n", " ")
    return re.findall(r"^\$ biprune (.+)$", joined, re.MULTILINE)


@pytest.mark.parametrize("line", examples())
def test_examples_in_help_parse(line: str) -> None:
    name, *arguments = shlex.split(line)
    group = get_command(app)
    with group.make_context("biprune", [name, *arguments]) as context:
        command = group.get_command(context, name)  # pyright: ignore[reportAttributeAccessIssue]
        command.make_context(name, arguments, parent=context).close()


HELP_WITHOUT_TORCH = """
import sys, types
{prelude}
from biprune.cli import main
mistake = ["prune", "x", "--sparsity", "y", "--out", "z"]
for line in (["prune", "--help"], ["train"], mistake, ["reproduce", "--list"]):
    try:
        main(line)
    except SystemExit:
        pass
sys.exit("torch" in sys.modules)
"""


@pytest.mark.parametrize(
    "prelude",
    [
        pytest.param(
            "package = types.ModuleType('biprune'); sys.modules['biprune'] = package\n"
            f"package.__path__ = [{str(Path(biprune.__file__).parent)!r}]",
            id="the command line itself",
        ),
        pytest.param("", id="with the package"),
    ],
)
def test_help_usage_errors_and_the_presets_do_not_import_torch(prelude: str) -> None:
    script = HELP_WITHOUT_TORCH.format(prelude=prelude)
    environment = {**os.environ, "COLUMNS": "80"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr


def test_threads_are_set_and_never_more_than_the_cores_at_hand(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = []
    monkeypatch.setattr("torch.set_num_threads", chosen.append)
    monkeypatch.setattr("torch.get_num_threads", lambda: 64)
    monkeypatch.setattr("biprune.cli.device.cores", lambda: 3)
    train = f"train resnet8 digits {TINY} --epochs 1"
    assert run(f"{train} --out {tmp_path / 'a'}")[0] == 0
    assert run(f"{train} --threads 2 --out {tmp_path / 'b'}")[0] == 0
    assert chosen == [3, 2]
    message = one_error(run(f"{train} --threads 0 --out {tmp_path / 'c'}"))
    assert "`--threads` must be at least 1, got 0." in message
