"""Pruning under `transformers.Trainer`: as in a loop of one's own."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from transformers import Trainer, TrainerCallback, ViTForImageClassification
from under_trainer import Labelled, Recorder, Same, arguments, images_for_vit, vit

import biprune
from biprune.integrations.transformers import PruningCallback


def optimizer_of(model: nn.Module) -> tuple[AdamW, LambdaLR]:
    optimizer = AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    return optimizer, LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))


@pytest.mark.parametrize("bf16", [False, True])
def test_a_run_is_that_of_a_loop_of_ones_own(
    conv_net: nn.Module, samples: list[Any], same_state: Same, tmp_path: Path, bf16: bool
) -> None:
    """Warm-up, clipping, accumulation and an optimizer of the user's, who needs no Trainer."""
    seen: list[dict[str, Tensor]] = []

    def collate(chosen: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        seen.append({name: torch.stack([s[name] for s in chosen]) for name in chosen[0]})
        return dict(seen[-1])

    own = Labelled(conv_net)
    theirs = copy.deepcopy(own)
    pruning = PruningCallback(sparsity=0.8)
    args = arguments(tmp_path, bf16=bf16, gradient_accumulation_steps=2, max_grad_norm=0.5)
    trainer = Trainer(
        theirs,
        args,
        train_dataset=samples,
        data_collator=collate,
        callbacks=[pruning],
        optimizers=optimizer_of(theirs),
    )
    trainer.train()

    optimizer, scheduler = optimizer_of(own)
    pruner = biprune.attach(own, optimizer, sparsity=0.8, steps=12)
    for pair in zip(seen[::2], seen[1::2], strict=True):
        for batch in pair:
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss = own(**batch)["loss"]
            (loss / 2).backward()
        clip_grad_norm_(own.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()

    assert pruner.step == pruning.pruner.step == 12
    assert same_state(own, theirs)
    assert pruner.masks == pruning.pruner.masks
    assert pruning.ticket().masks.kept == round(0.2 * 738)


def test_logs_say_how_the_mask_moved(
    conv_net: nn.Module, samples: list[Any], tmp_path: Path
) -> None:
    pruning = PruningCallback(sparsity=0.8)
    recorder = Recorder(pruning)
    trainer = Trainer(
        Labelled(conv_net),
        arguments(tmp_path, logging_steps=3),
        train_dataset=samples,
        callbacks=[pruning, recorder],
    )
    trainer.train()
    *training, summary = trainer.state.log_history
    assert [log["step"] for log in training] == [3, 6, 9, 12, 15, 18, 21, 24]
    assert "sparsity" not in summary
    for log, seen in zip(training, recorder.seen, strict=False):
        now = torch.cat([m.flatten() for m in recorder.masks[log["step"]].values()])
        then = recorder.masks.get(log["step"] - 3)
        before = (
            torch.ones_like(now)
            if then is None
            else torch.cat([m.flatten() for m in then.values()])
        )
        assert log["sparsity"] == 1 - int(now.sum()) / 738
        assert log["flips"] == int((now != before).sum()) / 738
        assert log["overlap"] == int((now & before).sum()) / int((now | before).sum())
        assert seen.items() >= {name: log[name] for name in ("sparsity", "flips")}.items()
    assert training[0]["flips"] > 0.3
    assert training[-1]["sparsity"] == 1 - 148 / 738  # round(0.2 * 738)


def test_what_is_saved_is_an_ordinary_sparse_model(samples: list[Any], tmp_path: Path) -> None:
    pruning = PruningCallback(sparsity=0.8)
    model = vit()
    names = set(model.state_dict())
    trainer = Trainer(
        model, arguments(tmp_path), train_dataset=images_for_vit(samples), callbacks=[pruning]
    )
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    loaded = ViTForImageClassification.from_pretrained(tmp_path / "saved")
    assert set(loaded.state_dict()) == names
    ticket = pruning.ticket()
    weights = [loaded.get_parameter(name) for name in ticket.masks]
    assert sum(int(w.count_nonzero()) for w in weights) == ticket.masks.kept
    assert ticket.masks.kept == round(0.2 * sum(w.numel() for w in weights))
    images = torch.randn(2, 1, 8, 8)
    with torch.no_grad():
        assert torch.equal(loaded.eval()(images).logits, ticket.model(images).logits)

    # Detached: the optimizer moves what was pruned, and saves nothing of ours.
    trainer.optimizer.param_groups[0]["lr"] = 1e-3  # the schedule ended with 0
    model(images, labels=torch.tensor([0, 1])).loss.backward()
    trainer.optimizer.step()
    assert sum(int(p.count_nonzero()) for p in model.parameters()) > 2 * ticket.masks.kept
    assert all(isinstance(key, int) for key in trainer.optimizer.state_dict()["state"])


def test_the_pruner_stays_if_asked(conv_net: nn.Module, samples: list[Any], tmp_path: Path) -> None:
    pruning = PruningCallback(sparsity=0.8, stay_attached=True)
    model = Labelled(conv_net)
    trainer = Trainer(model, arguments(tmp_path), train_dataset=samples, callbacks=[pruning])
    trainer.train()
    model(torch.randn(3, 1, 8, 8), torch.arange(3))["loss"].backward()
    trainer.optimizer.step()
    assert torch.count_nonzero(conv_net.get_parameter("conv2.weight")) == torch.count_nonzero(
        pruning.pruner.masks["net.conv2.weight"]
    )
    trainer.train()  # attaches anew
    pruning.pruner.detach()


def test_a_second_call_trains_on_under_the_mask(
    conv_net: nn.Module, samples: list[Any], tmp_path: Path
) -> None:
    pruning = PruningCallback(sparsity=0.8)
    model = Labelled(conv_net)
    trainer = Trainer(model, arguments(tmp_path), train_dataset=samples, callbacks=[pruning])
    trainer.train()
    first = pruning.ticket()
    with torch.no_grad():  # what the user does in between counts
        conv_net.get_parameter("conv1.weight").mul_(2)
        conv_net.get_parameter("head.bias").fill_(5)
    trainer.args.num_train_epochs = 1
    trainer.train()
    second = pruning.ticket()
    assert second.masks == first.masks
    kept = first.masks["net.conv1.weight"]
    weights = [t.model.get_parameter("net.conv1.weight")[kept] for t in (first, second)]
    moved = torch.dist(weights[1], 2 * weights[0])
    assert 0 < moved < 0.05 * weights[0].norm()


def test_another_start_is_pruned_anew(
    conv_net: nn.Module, samples: list[Any], tmp_path: Path
) -> None:
    """After `train()` the model is given dense weights again; or the run before broke off."""
    model = Labelled(conv_net)
    dense = copy.deepcopy(model.state_dict())
    pruning = PruningCallback(sparsity=0.8)
    trainer = Trainer(model, arguments(tmp_path), train_dataset=samples, callbacks=[pruning])
    trainer.train()
    model.load_state_dict(dense)
    breaking = Breaking(at=10)
    trainer.add_callback(breaking)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert pruning.pruner.step == 10
    assert not pruning.pruner.is_at_target
    trainer.remove_callback(breaking)
    trainer.train()
    logged = [log["sparsity"] for log in trainer.state.log_history if "sparsity" in log]
    assert logged[0] < 0.4
    assert pruning.ticket().masks.kept == round(0.2 * 738)


class Breaking(TrainerCallback):
    def __init__(self, at: int) -> None:
        self.at = at

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.at:
            raise KeyboardInterrupt


def test_steps_of_ones_own(conv_net: nn.Module, samples: list[Any], tmp_path: Path) -> None:
    pruning = PruningCallback(sparsity=0.8, steps=10)
    trainer = Trainer(
        Labelled(conv_net), arguments(tmp_path), train_dataset=samples, callbacks=[pruning]
    )
    trainer.train()
    logged = {log["step"]: log for log in trainer.state.log_history if "sparsity" in log}
    assert logged[4]["sparsity"] < logged[6]["sparsity"] == logged[24]["sparsity"]
    assert logged[12]["flips"] == logged[24]["flips"] == 0.0
    assert pruning.pruner.step == 10
