"""`export` and `profile` on saved tickets of small nets, end to end."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import onnxruntime
import pytest
import torch

import biprune
from biprune.core.budget import kept_fractions
from biprune.core.documents import write_document
from biprune.runtime import onnx, profile
from biprune.structured.macs import total_macs
from command_line import Run, one_error


def saved(folder: Path, structure: str, sparsity: float) -> Path:
    data = biprune.load_data("digits", subset=100)
    model = biprune.create_model("resnet8", in_channels=1, width=4)
    pruned = biprune.prune(model, data, "omp", sparsity=sparsity, structure=structure, epochs=1)
    return pruned.save(folder)


@pytest.fixture(scope="module")
def weight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("weight") / "ticket", "weight", 0.8)


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("group") / "ticket", "group", 0.5)


def outputs(path: Path, images: torch.Tensor) -> torch.Tensor:
    (output,) = onnxruntime.InferenceSession(str(path)).run(None, {"input": images.numpy()})
    return torch.from_numpy(output)


def test_export_writes_what_the_ticket_computes(run: Run, weight: Path, tmp_path: Path) -> None:
    path = tmp_path / "new" / "model.onnx"
    code, out, err = run(f"export {weight} {path}")
    assert (code, err) == (0, "")
    ticket, images = biprune.load_ticket(weight), torch.randn(3, 1, 8, 8)
    torch.testing.assert_close(outputs(path, images), ticket.model(images).detach())
    assert f"{path.stat().st_size:,} bytes" in re.sub(r"\s+", " ", out)
    assert "input batch x 1 x 8 x 8" in out
    assert "output batch x 10" in out
    assert re.search(r"onnxruntime gives what PyTorch gives to \S+, at batch 1, 2, 7", out)


def test_export_makes_groups_small_unless_told_not_to(
    run: Run, group: Path, tmp_path: Path
) -> None:
    code, out, _ = run(f"export {group} {tmp_path / 'small.onnx'} --json")
    small = json.loads(out)
    assert code == 0
    _, out, _ = run(f"export {group} {tmp_path / 'masked.onnx'} --no-shrink --json")
    masked = json.loads(out)
    assert small["parameters"] < masked["parameters"]
    assert small["bytes"] < masked["bytes"]
    assert small["inputs"] == masked["inputs"] == {"input": ["batch", 1, 8, 8]}
    assert small["file"] == str(tmp_path / "small.onnx")
    images = torch.randn(2, 1, 8, 8)
    torch.testing.assert_close(
        outputs(tmp_path / "small.onnx", images), outputs(tmp_path / "masked.onnx", images)
    )


OWN_MODEL = """
from torch import nn

def net(hidden=6):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))
"""


def test_own_models(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_net.py").write_text(OWN_MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    sys.path.insert(0, str(tmp_path))
    model = biprune.create_model("own_net:net", hidden=8)
    data = [(torch.randn(8, 1, 8, 8), torch.arange(8))]
    ticket = biprune.prune(model, data, "omp", sparsity=0.5, epochs=1)
    ticket.save(tmp_path / "own")
    assert "Build it yourself" in one_error(run("export own out.onnx"))
    own = "export own out.onnx --model own_net:net"  # with the options that were saved
    message = one_error(run(f"{own} --model-option hidden=6"))
    assert "differ in name or shape" in message
    code, _, _ = run(own)  # the ticket remembers what its batches were like
    assert code == 0
    ticket.input_shape = None
    ticket.save(tmp_path / "own")
    assert "Pass `--input-shape`, such as 3x32x32" in one_error(run(own))
    code, _, _ = run(f"{own} --input-shape 1x8x8")
    assert code == 0
    images = torch.randn(4, 1, 8, 8)
    expected = biprune.load_ticket(tmp_path / "own", model).model(images).detach()
    torch.testing.assert_close(outputs(tmp_path / "out.onnx", images), expected)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("export {ticket} {folder}/m.onnx --input-shape 1x0x8", "`--input-shape` takes sizes"),
        ("export {ticket} {folder}/m.onnx --input-shape 8,8", "such as 3x32x32, got '8,8'"),
        ("export {ticket} {folder}/m.onnx --input-shape 2x8x8", "does not run on samples of 2x8x8"),
        ("export {ticket} {folder}", "it is a folder"),
        ("export {folder} {folder}/m.onnx", "holds nothing saved by biprune"),
        ("export {ticket} {folder}/m.onnx --model-option a=1", "goes with `--model`"),
        ("profile {folder}", "holds nothing saved by biprune"),
        ("profile {ticket} --batches 1,0", "`--batches` takes sizes of at least 1, got '1,0'"),
        ("profile {ticket} --batches one", "`--batches` takes numbers such as 0,2, got 'one'"),
        ("profile {ticket} --rounds 0", "'--rounds'"),
        ("profile {ticket} --threads 0", "`--threads` must be at least 1, got 0"),
        ("profile {ticket} --input-shape 2x8x8", "does not run on samples of 2x8x8"),
    ],
)
def test_mistakes(run: Run, weight: Path, tmp_path: Path, line: str, message: str) -> None:
    assert message in one_error(run(line.format(ticket=weight, folder=tmp_path)))
    assert list(tmp_path.iterdir()) == []


def test_export_without_the_extra(run: Run, weight: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx, "find_spec", lambda name: None)
    assert "pip install 'biprune[onnx]'" in one_error(run(f"export {weight} m.onnx"))


def test_profile_of_an_unstructured_ticket(
    run: Run, weight: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile, "has_onnx", lambda: False)
    before = torch.get_num_threads()
    code, out, _ = run(f"profile {weight} --batches 1,3 --rounds 2 --threads 1 --json")
    document = json.loads(out)
    assert code == 0
    assert (document["threads"], document["rounds"]) == (1, 2)
    rows = {row["name"]: row for row in document["rows"]}
    assert list(rows) == ["dense", "masked", "csr"]
    model = biprune.load_ticket(weight).model
    nonzero = sum(int(torch.count_nonzero(p)) for p in model.parameters())
    assert rows["masked"]["size"]["nonzero"] == nonzero
    assert rows["dense"]["size"]["nonzero"] == rows["dense"]["size"]["parameters"]
    assert rows["masked"]["size"]["macs"] == rows["dense"]["size"]["macs"]
    assert rows["masked"]["size"]["bytes"] < rows["dense"]["size"]["bytes"]
    for row in rows.values():
        assert list(row["latency"]) == ["1", "3"]
    assert re.search(r"zeros (of masked are )?in dense tensors", document["verdict"])
    removed, csr, onnx = document["notes"]
    assert "nothing can be removed" in removed
    assert "convolutions" in csr
    assert "'biprune[onnx]'" in onnx
    torch.set_num_threads(before)


def test_profile_of_groups_as_tables(
    run: Run, group: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile, "has_onnx", lambda: False)
    before = torch.get_num_threads()
    code, out, err = run(f"profile {group} --batches 2 --rounds 2 --threads 1")
    assert (code, err) == (0, "")
    macs = {
        found[1].strip(): int(found[2].replace(",", ""))
        for found in re.finditer(r"^ (\w+) +[\d,]+ +[\d,]+ +([\d,]+) +[\d,]+ *$", out, re.MULTILINE)
    }
    assert list(macs) == ["dense", "masked", "small"]
    assert macs["small"] < macs["masked"] == macs["dense"]
    assert "A forward in inference mode, 1 thread, 2 rounds" in out
    timed = re.findall(r"^ (.+?) +2 +\d+\.\d\d +\d+\.\d\d +\d+\.\d\d *$", out, re.MULTILINE)
    assert timed == ["dense", "masked", "small"]
    assert "as fast as dense at batch 2" in re.sub(r"\s+", " ", out)
    torch.set_num_threads(before)


@pytest.mark.parametrize("command", ["export", "profile"])
def test_help_shows_examples(run: Run, command: str) -> None:
    code, out, _ = run(f"{command} --help")
    assert code == 0
    assert f"$ biprune {command} runs/" in out


def test_shrink_saves_a_certified_model(run: Run, group: Path, tmp_path: Path) -> None:
    code, out, err = run(f"shrink {group} --out {tmp_path / 'small'}")
    assert (code, err) == (0, "")
    small, ticket = biprune.load_small(tmp_path / "small"), biprune.load_ticket(group)
    images = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(small(images), ticket.model(images), rtol=1e-4, atol=1e-5)
    before, after = (sum(p.numel() for p in m.parameters()) for m in (ticket.model, small))
    assert after < before
    text = re.sub(r"\s+", " ", out)
    assert f"parameters {before:,} -> {after:,}" in text
    assert "zeros left 0 of" in text
    assert f"Next: biprune profile {group}" in text
    code, out, _ = run(f"shrink {group} --out {tmp_path / 'small'} --force --json")
    document = json.loads(out)
    assert document["certificate"]["after"]["parameters"] == after
    assert document["certificate"]["max_error"] < 1e-12


def test_inspect_shows_the_certificate_of_a_small_model(
    run: Run, group: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "small"
    _, shrunk, _ = run(f"shrink {group} --out {folder}")
    code, out, err = run(f"inspect {folder}")
    assert (code, err) == (0, "")
    text, certificate = re.sub(r"\s+", " ", out), biprune.load_small(folder).certificate
    before, after = certificate.before.macs, certificate.after.macs
    assert f"MACs {before:,} -> {after:,} ({100 * after / before:.1f} %)" in text
    assert f"units {certificate.units_removed} of {certificate.units} removed" in text
    assert "model resnet8, made smaller" in text
    whole = {line for line in shrunk.splitlines() if "stays whole" in line}
    assert whole
    assert whole <= {*out.splitlines()}
    document = json.loads(run(f"inspect {folder} --json")[1])
    assert document["format"] == "biprune small"
    assert document["certificate"]["after"]["macs"] == after
    path = folder / "biprune.json"
    del document["certificate"]["units"]
    write_document(path, document)
    assert "'certificate' in biprune.json is not whole" in one_error(run(f"inspect {folder}"))


def test_shrink_of_single_weights_says_how_little_can_go(
    run: Run, weight: Path, tmp_path: Path
) -> None:
    code, out, _ = run(f"shrink {weight} --out {tmp_path / 'small'} --json")
    certificate = json.loads(out)["certificate"]
    assert code == 0
    assert certificate["zeros_left"] > 0.8 * certificate["zeros"]


def test_mistakes_of_shrink(run: Run, group: Path, tmp_path: Path) -> None:
    assert "is the ticket itself" in one_error(run(f"shrink {group} --out {group}"))
    assert "no biprune.json" in one_error(run(f"shrink {tmp_path} --out {tmp_path / 'x'}"))
    message = one_error(run(f"shrink {group} --input-shape 3xx --out {tmp_path / 'x'}"))
    assert "`--input-shape` takes sizes such as 3x32x32" in message
    message = one_error(run(f"shrink {group} --input-shape 1x8 --out {tmp_path / 'x'}"))
    assert "does not run on samples of 1x8" in message
    assert not (tmp_path / "x").exists()
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "biprune.json").touch()
    taken = f"shrink {group} --input-shape 1x8 --out {tmp_path / 'taken'}"
    assert "already holds a finished result" in one_error(run(taken))


def test_prune_to_a_budget_prints_asked_against_reached(run: Run, tmp_path: Path) -> None:
    dense, out_folder = tmp_path / "dense", tmp_path / "half"
    options = "--model-option width=8 --model-option shortcut=B --subset 100"
    assert run(f"train resnet8 digits --epochs 1 {options} --out {dense}")[0] == 0
    prune = f"prune {dense} --structure group --method magnitude --epochs 1"
    code, out, _ = run(f"{prune} --budget macs=0.5 --out {out_folder}")
    assert code == 0
    ticket = biprune.load_ticket(out_folder)
    reached = kept_fractions(
        ticket.masks.structure, [count.kept for count in ticket.masks.per_layer().values()]
    )
    assert 0.48 < reached["macs"] <= 0.5
    text = re.sub(r"\s+", " ", out)
    assert "Asked to keep 50.00 % of the macs: kept" in text
    assert f"{100 * reached['macs']:.2f} % of the macs" in text
    for name, count in ticket.masks.per_layer().items():
        assert re.search(rf"{name} - {count.kept} {count.total} \d+\.\d %", text), name
    assert "Not pruned: head.weight, it is the model's output." in text
    assert f"Next: biprune shrink {out_folder}" in text
    small = ticket.shrink()
    left = total_macs(small, ticket.example_input()) / total_macs(
        ticket.model, ticket.example_input()
    )
    assert left == pytest.approx(reached["macs"], rel=1e-6)
    mistakes = {
        "--budget macs": "`--budget` must look like macs=0.5",
        "--budget macs=0.5 --sparsity 0.5": "both say how much to prune",
        "--budget macs=0.001": "cannot be pruned to 0.001 of its macs",
        "": "Say how much to prune",
    }
    for given, message in mistakes.items():
        assert message in one_error(run(f"{prune} {given} --out {tmp_path / 'no'}")), given


def test_prune_two_of_four(run: Run, tmp_path: Path) -> None:
    dense, folder = tmp_path / "dense", tmp_path / "blocks"
    options = "--model-option width=4 --subset 100"
    assert run(f"train resnet8 digits --epochs 1 {options} --out {dense}")[0] == 0
    code, out, _ = run(f"prune {dense} --structure 2:4 --method omp --epochs 1 --out {folder}")
    assert code == 0
    assert "Not pruned: stem.conv.weight, its 1 inputs do not divide by 4." in out
    masks = biprune.load_ticket(folder).masks
    assert masks.structure.name == "2:4"
    assert masks.sparsity == 0.5
    assert "0.5000" in run(f"inspect {folder}")[1]
