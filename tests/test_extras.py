"""What `pip install biprune` alone is enough for, and what says which extra it needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import biprune
from biprune.experiments.record import RunRecord
from biprune.experiments.store import Store
from biprune.experiments.sweep import grid
from dependencies import beyond_dependencies

WITHOUT = "import sys; sys.modules.update(dict.fromkeys({}))\n"  # an import of them fails

COMMANDS = """
import shlex
from biprune.cli import main
for line in sys.stdin:
    try:
        main(shlex.split(line))
    except SystemExit as exit_:
        print(exit_.code)
"""

OWN_MODEL = """
import biprune, torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.head = nn.Linear(8, 3)

    def forward(self, images):
        return self.head(torch.relu(self.conv(images)).mean(dim=(2, 3)))

torch.manual_seed(0)
images, labels = torch.randn(16, 1, 6, 6), torch.arange(16) % 3
batches = [(images[:8], labels[:8]), (images[8:], labels[8:])]

ticket = biprune.prune(Net(), batches, sparsity=0.75, epochs=2)
ticket.save("pruned")
again = biprune.load_ticket("pruned", Net())
same = all(map(torch.equal, ticket.model.state_dict().values(), again.model.state_dict().values()))
print("kept", again.masks.kept, "of", again.masks.total, same)

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
pruner = biprune.attach(model, optimizer, 0.5, steps=6)
for inputs, labels in batches * 3:
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    optimizer.zero_grad()
print("attached", sum(int(p.count_nonzero()) for p in (model.conv.weight, model.head.weight)))

half = biprune.prune(Net(), batches, structure="group", sparsity=0.5, epochs=1,
    example_input=images)
biprune.save_small(half.shrink(images), "small")
small = biprune.load_small("small", Net())
print("small", tuple(small.conv.weight.shape), torch.allclose(small(images), half.model(images),
    atol=1e-6))
"""


def without_extras(script: str, folder: Path, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run in a process that finds nothing beyond the dependencies; warnings are errors."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT.format(beyond_dependencies()) + script],
        input=given,
        capture_output=True,
        text=True,
        cwd=folder,
    )


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_the_extras_are_among_what_is_found_to_be_beyond_the_dependencies() -> None:
    beyond = set(beyond_dependencies())
    assert {"sklearn", "scipy", "joblib", "PIL", "altair", "vl_convert", "onnx"} <= beyond
    needed = {"torch", "numpy", "safetensors", "pydantic", "typer", "rich", "filelock"}
    assert not beyond & (needed | {"biprune"})


def test_a_model_of_ones_own_needs_no_extra(tmp_path: Path) -> None:
    done = without_extras(OWN_MODEL, tmp_path)
    assert done.stdout.splitlines() == [
        "kept 24 of 96 True",  # of 8 * 9 + 3 * 8 weights
        "attached 48",
        "small (4, 1, 3, 3) True",
    ], done.stderr


def test_commands_name_the_extra_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "images" / "cat").mkdir(parents=True)
    (tmp_path / "images" / "cat" / "0.png").touch()
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    batches = [(torch.randn(4, 1, 2, 2), torch.arange(4) % 2)]
    biprune.prune(model, batches, sparsity=0.5, epochs=1).save(tmp_path / "ticket")
    (spec,) = grid(["omp"], model="resnet8", data="digits", sparsities=[0.5], seeds=[0])
    Store(tmp_path / "store").put(RunRecord(spec=spec, resolved=spec.resolved))
    before = files(tmp_path)

    digits, page = "compare resnet8 digits --sparsities 0.5 --store new", "--report page.html"
    lines = {
        "demo": "data",
        digits: "data",
        "train resnet8 folder:images --out new": "data",
        f"{digits} {page}": "report",
        "report store": "report",
        "export ticket model.onnx": "onnx",
    }
    done = without_extras(COMMANDS, tmp_path, "\n".join(lines))
    assert done.stdout.split() == ["2"] * len(lines), done.stderr
    errors = done.stderr.splitlines()
    assert len(errors) == len(lines), errors
    for error, extra in zip(errors, lines.values(), strict=True):
        assert error.startswith("error: ")
        assert error.endswith(f": pip install 'biprune[{extra}]'")
    assert files(tmp_path) == before


def test_a_comparison_says_it_before_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'biprune\[data\]'$"):
        biprune.compare(["omp"], "digits", "resnet8", sparsities=[0.5], seeds=[41], store=tmp_path)
    assert list(tmp_path.iterdir()) == []
