"""The examples, and the code of the page on trainers, run: shorter, but as they are written."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import biprune

ROOT = Path(__file__).parents[2]
EXAMPLES = {
    "transformers_trainer": ({"steps": 5}, 0.8),
    "lightning_trainer": ({"epochs": 1}, 0.9),
    "lightning_fabric": ({"epochs": 1}, 0.9),
    "accelerate_loop": ({"epochs": 1}, 0.9),
    "timm_trainer": ({"epochs": 1}, 0.9),
}
pytestmark = [
    pytest.mark.usefixtures("in_a_folder_of_its_own"),
    # Of the machine: no accelerator; more cores than workers.
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator"),
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    # Lightning 2.6 asks torch 2.13 about trees in a way that torch is to drop.
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning"),
]


@pytest.fixture
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_run(example: str) -> None:
    length, sparsity = EXAMPLES[example]
    path = ROOT / "examples" / f"{example}.py"
    assert len(path.read_text(encoding="utf-8").splitlines()) < 80
    spec = importlib.util.spec_from_file_location(example, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    ticket = module.main(**length)
    assert ticket.masks.kept == round((1 - sparsity) * ticket.masks.total)
    weights = [ticket.model.get_parameter(name) for name in ticket.masks]
    assert sum(int(w.count_nonzero()) for w in weights) == ticket.masks.kept


def test_all_examples_that_need_an_extra_are_tried() -> None:
    found = (ROOT / "examples").glob("*.py")
    assert {path.stem for path in found if "biprune[" in path.read_text()} == EXAMPLES.keys()


class Labelled(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": cross_entropy(self.net(images), labels)}


class Module(LightningModule):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


@pytest.mark.filterwarnings("ignore:Starting from v1.9.0, `tensorboardX` has been removed")
@pytest.mark.filterwarnings("ignore:The number of training batches .* is smaller than the logging")
@pytest.mark.parametrize(
    ("trainer", "block"), [("Trainer", 0), ("Lightning", 1), ("Fabric", 2), ("Accelerate", 3)]
)
def test_the_page_on_trainers(
    conv_net: nn.Module, batches: list[tuple[Tensor, Tensor]], trainer: str, block: int
) -> None:
    text = (ROOT / "docs" / "trainers.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) == 4
    pairs = [(i, c) for images, labels in batches for i, c in zip(images, labels, strict=True)]
    names: dict[str, Any] = {
        "model": Labelled(conv_net) if trainer == "Trainer" else conv_net,
        "dataset": [{"images": image, "labels": label} for image, label in pairs],
        "module": Module(conv_net),
        "loader": torch.utils.data.DataLoader(pairs, batch_size=8),  # pyright: ignore
        "epochs": 6,
    }
    exec(compile(blocks[block], trainer, "exec"), names)
    ticket = names["ticket"] if "ticket" in names else names["pruner"].ticket()
    assert isinstance(ticket, biprune.Ticket)
    assert ticket.masks.kept == round(0.1 * 738)
