"""What is trained under transformers' Trainer in the tests, and how."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import TrainerCallback, TrainingArguments, ViTConfig, ViTForImageClassification

import biprune
from biprune.integrations.transformers import PruningCallback

Same = Callable[[nn.Module, nn.Module], bool]


def arguments(folder: Path, kind: type = TrainingArguments, **how: Any) -> Any:
    usual = {
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
        "per_device_train_batch_size": 4,
        "num_train_epochs": 3,
        "logging_steps": 2,
        "save_strategy": "no",
        "learning_rate": 3e-3,
    }
    return kind(output_dir=str(folder), **usual | how)


class Labelled(nn.Module):
    """A model of one's own, as the Trainer calls it."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.net(images)
        return {"loss": cross_entropy(logits, labels), "logits": logits}


class Recorder(TrainerCallback):
    """Notes what callbacks behind the pruner see, and the masks of then."""

    def __init__(self, pruning: PruningCallback) -> None:
        self.pruning = pruning
        self.masks: dict[int, biprune.Masks] = {}
        self.seen: list[dict[str, float]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.masks[state.global_step] = self.pruning.pruner.masks

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.seen.append(dict(kwargs["logs"]))


def vit() -> ViTForImageClassification:
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=8,
        patch_size=4,
        num_channels=1,
        num_labels=3,
        hidden_dropout_prob=0.1,
    )
    return ViTForImageClassification(config)


def images_for_vit(samples: list[Any]) -> list[dict[str, Tensor]]:
    return [{"pixel_values": s["images"], "labels": s["labels"]} for s in samples]


def saved_weights(checkpoint: str) -> dict[str, Tensor]:
    return load_file(f"{checkpoint}/model.safetensors")
