"""The code in the documents runs, on less data and for fewer epochs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import biprune
from biprune.structured.macs import total_macs

ROOT = Path(__file__).parents[1]
SMALLER = [
    (r"epochs=\d+", "epochs=1"),
    (r'"omp", sparsity=0.9', '"omp", sparsity=0.9, epochs=1'),
    (r'"resnet20", num_classes=(10|data\.num_classes)', r'"resnet8", width=4, num_classes=\1'),
    (r'"cifar10", root="data"', '"digits"'),
    (r"seed=0\)\ndense", "seed=0, in_channels=1)\ndense"),
    (r"in_channels=1, seed=0, in_channels=1", "in_channels=1, seed=0"),
    (r"passes=20", 'passes=1, data_options={"subset": 200}, model_options={"width": 2}'),
    (r'"epochs": 20', '"epochs": 1'),
    (r"sparsities=\[0.8, 0.95\]", "sparsities=[0.5]"),
    (r"seeds=\[0, 1, 2\]", "seeds=[0]"),
]


DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.name)
def test_files_and_commands_of_documents_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?:)([^)#\s]+)", text)
    assert [link for link in links if not (page.parent / link).exists()] == []
    modules = [name.replace(".", "/") for name in re.findall(r"python -m ([a-z_.]+)", text)]
    ours = [name for name in modules if name.startswith("studies/") and name != "studies/"]
    scripts = re.findall(r"python ([\w/]+\.py)", text) + [f"{name}.py" for name in ours]
    assert [script for script in scripts if not (ROOT / script).exists()] == []


def blocks(document: str) -> list[str]:
    text = (ROOT / document).read_text(encoding="utf-8")
    found = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    for pattern, smaller in SMALLER:
        found = [re.sub(pattern, smaller, block) for block in found]
    return found


@pytest.mark.parametrize(
    ("document", "count"),
    [("README.md", 1), ("docs/user-guide.md", 4), ("docs/adding-a-method.md", 1)],
    ids=lambda value: str(value),
)
def test_python_in_documents_runs(
    document: str,
    count: int,
    conv_net: nn.Module,
    batches: list[tuple[Tensor, Tensor]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    found = blocks(document)
    assert len(found) == count
    for block in found:
        names: dict[str, Any] = {
            "biprune": biprune,
            "model": conv_net,
            "train_loader": batches,
            "loader": batches,
            "epochs": 1,
            "my_loss": lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
            "my_accuracy": lambda model: 50.0,
            "my_validation": lambda model: 50.0,
        }
        exec(compile(block, document, "exec"), names)
        if "result" in names:
            records = names["result"].records
            assert [r.status for r in records] == ["done"] * 6  # dense, two of bip, imp, omp, gmp
            assert Path("report.html").exists()
            assert list(Path("figures").iterdir())
            continue
        ticket = names["ticket"]
        assert isinstance(ticket, biprune.Ticket)
        assert ticket.masks.kept == round(0.1 * ticket.masks.total)
        pruned = [ticket.model.get_parameter(n)[~mask] for n, mask in ticket.masks.items()]
        assert not torch.cat(pruned).any()


def test_the_page_on_a_loop_of_ones_own(
    conv_net: nn.Module,
    batches: list[tuple[Tensor, Tensor]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"model": conv_net, "loader": batches, "epochs": 2}
    found = blocks("docs/attach.md")
    for block in found:
        exec(compile(block, "attach", "exec"), names)
        names["pruner"].detach()
    assert len(found) == 4
    assert names["ticket"].masks.kept == round(0.1 * 738)
    assert names["pruner"].masks.kept == round(0.1 * 738)  # where the second ramp begins
    averaged = names["average"].module.conv2.weight
    assert not averaged[~names["ticket"].masks["conv2.weight"]].any()


def test_the_page_from_a_trained_model_to_a_faster_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks("docs/faster-model.md"):
        exec(compile(block, "faster-model", "exec"), names)
    dense, small, ticket = names["dense"].model, names["small"], names["ticket"]
    macs, macs_left = (total_macs(m, ticket.example_input(1)) for m in (dense, small))
    assert 0.45 * macs <= macs_left <= 0.5 * macs
    widths = [m.out_channels for m in small.modules() if isinstance(m, nn.Conv2d)]
    assert all(width % 8 == 0 for width in widths)
    images = ticket.example_input(5)
    with torch.no_grad():
        wanted = ticket.model(images)
        torch.testing.assert_close(small(images), wanted, rtol=1e-4, atol=1e-5)
    assert names["state"].keys() == dense.state_dict().keys()
    for name, loaded in names["again"].state_dict().items():
        assert torch.equal(loaded, names["state"][name])
    session = pytest.importorskip("onnxruntime").InferenceSession("model.onnx")
    (found,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), wanted, rtol=1e-4, atol=1e-4)
    assert "as fast as dense" in names["profile"].verdict


def test_the_method_of_the_page_keeps_every_promise(
    conv_net: nn.Module, batches: list[tuple[Tensor, Tensor]]
) -> None:
    (block,) = blocks("docs/adding-a-method.md")
    definition, _, call = block.partition("\n\nticket =")
    assert len(definition.splitlines()) < 40
    assert "sparsity" in call
    names: dict[str, object] = {}
    exec(compile(definition, "adding-a-method", "exec"), names)
    method = names["Fisher"]
    assert isinstance(method, type)
    for structure in biprune.STRUCTURES:
        options = {"sparsity": 0.5, "structure": structure, "epochs": 1}
        first, again = (
            biprune.prune(conv_net, batches, method(samples=16), **options) for _ in range(2)
        )
        assert first.masks == again.masks
        snip = biprune.prune(conv_net, batches, biprune.SNIP(samples=16), **options)
        assert first.masks != snip.masks
        assert first.masks.kept == round(0.5 * first.masks.total)
        assert first.cost.backward_passes == 2 + len(batches)
