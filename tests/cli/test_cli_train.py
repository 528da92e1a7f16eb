"""`biprune train`, and what it shares with `prune`."""

from __future__ import annotations

import json
import math
import re
import sys
from inspect import Parameter, signature
from pathlib import Path
from typing import get_args

import pytest
import torch

import biprune
from biprune.cli import compare, options, prune, train
from biprune.core.structure import Scope
from biprune.files.artifact import UNFINISHED, tensors_path
from biprune.structured.calls import Attention
from biprune.training.recipes import OptimizerName
from biprune.training.schedule import Shape
from command_line import OWN_MODEL, SAME, TINY, TRAINING, Run, one_error, saved


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


def test_another_run_in_the_way(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    data = biprune.load_data("digits", subset=200)
    model = biprune.create_model("resnet8", in_channels=1, width=4)
    biprune.train(model, data, epochs=1, lr=0.2, checkpoint=out / UNFINISHED)
    message = one_error(run(f"train resnet8 digits {TINY} --epochs 1 --out {out}"))
    assert "belongs to another run: its lr was 0.2, now it is 0.1" in message


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
