"""Pruning under `transformers.Trainer`: as in a loop of one's own, resumed to the bit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from transformers import (
    EarlyStoppingCallback,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
)

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


@pytest.fixture
def samples(batches: list[tuple[Tensor, Tensor]]) -> list[dict[str, Tensor]]:
    """32 of them."""
    images, labels = (torch.cat(each) for each in zip(*batches, strict=True))
    return [{"images": i, "labels": c} for i, c in zip(images, labels, strict=True)]


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


def t5() -> T5ForConditionalGeneration:
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=20,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=1,
        num_heads=2,
        decoder_start_token_id=0,
    )
    return T5ForConditionalGeneration(config)


@pytest.mark.parametrize("settings", [{}, {"method": "bip"}, {"structure": "2:4"}])
def test_a_resumed_run_ends_with_the_same_bits(
    same_state: Same, tmp_path: Path, settings: dict[str, Any]
) -> None:
    """An optimizer that the Trainer makes; dropout; shuffled data; in the middle of an epoch."""
    tokens = torch.randint(1, 20, (32, 6))
    data = [{"input_ids": row, "labels": row.flip(0)} for row in tokens]
    how = {"sparsity": None if "structure" in settings else 0.8, **settings}

    def trainer() -> tuple[Seq2SeqTrainer, PruningCallback]:
        pruning = PruningCallback(**how)
        args = arguments(
            tmp_path, Seq2SeqTrainingArguments, save_strategy="steps", save_steps=7, warmup_steps=3
        )
        return Seq2SeqTrainer(t5(), args, train_dataset=data, callbacks=[pruning]), pruning

    whole, pruning = trainer()
    whole.train()
    resumed, pruning_again = trainer()
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-7"))
    assert same_state(whole.model, resumed.model)
    assert pruning.pruner.masks == pruning_again.pruner.masks
    assert pruning.pruner.history == pruning_again.pruner.history
    assert pruning.pruner.step == pruning_again.pruner.step == 24
    moved = [{n: log[n] for n in ("sparsity", "flips")} for log in whole.state.log_history[4:-1]]
    again = [{n: log[n] for n in ("sparsity", "flips")} for log in resumed.state.log_history[4:-1]]
    assert moved == again


def test_weights_that_do_not_arrive_are_refused(
    samples: list[Any], same_state: Same, tmp_path: Path
) -> None:
    """A ViT's are saved under older names; made by `from_pretrained` it resumes to the bit."""
    data = images_for_vit(samples)

    def trainer(model: nn.Module) -> Trainer:
        args = arguments(tmp_path, save_strategy="steps", save_steps=10)
        return Trainer(model, args, train_dataset=data, callbacks=[PruningCallback(sparsity=0.8)])

    whole = trainer(vit())
    whole.train()
    checkpoint = str(tmp_path / "checkpoint-10")
    names = vit().load_state_dict(torch_state(checkpoint), strict=False)
    if names.missing_keys:
        with pytest.raises(ValueError, match=r"not arrived in the model.*`from_pretrained`"):
            trainer(vit()).train(resume_from_checkpoint=checkpoint)
    resumed = trainer(ViTForImageClassification.from_pretrained(checkpoint))
    resumed.train(resume_from_checkpoint=checkpoint)
    assert same_state(whole.model, resumed.model)


def torch_state(checkpoint: str) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return load_file(f"{checkpoint}/model.safetensors")


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


def scored(scores: list[float]) -> Callable[[Any], dict[str, float]]:
    """Metrics of one evaluation after the other."""
    left = iter(scores)
    return lambda prediction: {"score": next(left)}


@pytest.mark.parametrize("resume", [False, True])
def test_the_best_model_comes_with_its_mask(
    conv_net: nn.Module, samples: list[Any], tmp_path: Path, resume: bool
) -> None:
    """The best of those with the full sparsity: the ramp ends after 14 of 24 steps."""

    def run(scores: list[float], **how: Any) -> tuple[Trainer, PruningCallback, Recorder]:
        pruning = PruningCallback(sparsity=0.8)
        recorder = Recorder(pruning)
        args = arguments(
            tmp_path,
            eval_strategy="steps",
            eval_steps=4,
            save_strategy="steps",
            save_steps=4,
            load_best_model_at_end=True,
            metric_for_best_model="score",
        )
        trainer = Trainer(
            Labelled(copy.deepcopy(conv_net)),
            args,
            train_dataset=samples,
            eval_dataset=samples[:4],
            compute_metrics=scored(scores),
            callbacks=[pruning, recorder],
        )
        trainer.train(**how)
        return trainer, pruning, recorder

    trainer, pruning, recorder = run([0.9, 0.8, 0.7, 0.6, 0.5, 0.4])
    if resume:  # from behind the best, whose masks another callback has seen
        trainer, pruning, _ = run(
            [0.5, 0.4], resume_from_checkpoint=str(tmp_path / "checkpoint-16")
        )
    assert trainer.state.best_global_step == 16
    assert pruning.pruner.masks == recorder.masks[16] != recorder.masks[24]
    saved = torch_state(str(tmp_path / "checkpoint-16"))
    assert all(torch.equal(trainer.model.state_dict()[name], saved[name]) for name in saved)
    ticket = pruning.ticket()
    assert ticket.masks.kept == round(0.2 * 738)


def test_early_stopping_has_patience_while_the_sparsity_rises(
    conv_net: nn.Module, samples: list[Any], tmp_path: Path
) -> None:
    args = arguments(
        tmp_path, eval_strategy="steps", eval_steps=2, metric_for_best_model="score", save_steps=2,
        save_strategy="steps", load_best_model_at_end=True,
    )  # fmt: skip
    trainer = Trainer(
        Labelled(conv_net),
        args,
        train_dataset=samples,
        eval_dataset=samples[:4],
        compute_metrics=scored([1 - step / 20 for step in range(12)]),
        callbacks=[PruningCallback(sparsity=0.8), EarlyStoppingCallback(2)],
    )
    trainer.train()
    assert trainer.state.global_step == 18  # 14 is the first at the target; two more are worse
    assert trainer.state.best_global_step == 14


def test_a_best_model_without_its_pruner_is_refused(
    conv_net: nn.Module, samples: list[Any], tmp_path: Path
) -> None:
    args = arguments(
        tmp_path, eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True,
        save_only_model=True,
    )  # fmt: skip
    trainer = Trainer(
        Labelled(conv_net),
        args,
        train_dataset=samples,
        eval_dataset=samples,
        callbacks=[PruningCallback(sparsity=0.8)],
    )
    with pytest.raises(ValueError, match="`save_only_model=True` lack"):
        trainer.train()


def test_a_checkpoint_without_a_pruner_is_refused(
    conv_net: nn.Module, samples: list[Any], tmp_path: Path
) -> None:
    args = arguments(tmp_path, save_strategy="epoch")
    Trainer(Labelled(conv_net), args, train_dataset=samples).train()
    pruning = PruningCallback(sparsity=0.8)
    trainer = Trainer(Labelled(conv_net), args, train_dataset=samples, callbacks=[pruning])
    with pytest.raises(
        ValueError, match="no pruner in the checkpoint to resume from: it was saved"
    ):
        trainer.train(resume_from_checkpoint=True)
    with pytest.raises(ValueError, match="attaches one when training begins"):
        pruning.ticket()


def test_another_pruner_than_that_of_the_checkpoint_is_refused(
    conv_net: nn.Module, samples: list[Any], tmp_path: Path
) -> None:
    args = arguments(tmp_path, save_strategy="epoch")

    def trainer(sparsity: float) -> Trainer:
        pruning = PruningCallback(sparsity=sparsity)
        return Trainer(Labelled(conv_net), args, train_dataset=samples, callbacks=[pruning])

    trainer(0.8).train()
    other = trainer(0.9)
    with pytest.raises(ValueError, match="Attach as it was"):
        other.train(resume_from_checkpoint=str(tmp_path / "checkpoint-8"))


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
