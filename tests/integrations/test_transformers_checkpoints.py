"""Checkpoints of `transformers.Trainer`: resumed to the bit, or refused; the best one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    EarlyStoppingCallback,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    ViTForImageClassification,
)
from under_trainer import Labelled, Recorder, Same, arguments, images_for_vit, saved_weights, vit

from biprune.integrations.transformers import PruningCallback


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
    names = vit().load_state_dict(saved_weights(checkpoint), strict=False)
    if names.missing_keys:
        with pytest.raises(ValueError, match=r"not arrived in the model.*`from_pretrained`"):
            trainer(vit()).train(resume_from_checkpoint=checkpoint)
    resumed = trainer(ViTForImageClassification.from_pretrained(checkpoint))
    resumed.train(resume_from_checkpoint=checkpoint)
    assert same_state(whole.model, resumed.model)


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
    saved = saved_weights(str(tmp_path / "checkpoint-16"))
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


def test_the_ramp_of_a_resumed_run_is_that_of_its_checkpoint(
    conv_net: nn.Module, samples: list[Any], tmp_path: Path
) -> None:
    """Who trains for more epochs than planned gets the masks of the plan."""

    def run(epochs: int, checkpoint: Path | None = None) -> PruningCallback:
        pruning = PruningCallback(sparsity=0.8)
        Trainer(
            Labelled(copy.deepcopy(conv_net)),
            arguments(
                tmp_path,
                num_train_epochs=epochs,
                save_strategy="epoch",
                lr_scheduler_type="constant",
            ),
            train_dataset=samples,
            callbacks=[pruning],
        ).train(resume_from_checkpoint=checkpoint and str(checkpoint))
        return pruning

    planned = run(2)
    longer = run(4, tmp_path / "checkpoint-8")
    assert planned.pruner.step == longer.pruner.step == 16
    assert planned.ticket().masks == longer.ticket().masks


def test_another_pruner_than_that_of_the_checkpoint_is_refused(
    conv_net: nn.Module, samples: list[Any], tmp_path: Path
) -> None:
    args = arguments(tmp_path, save_strategy="epoch")

    def trainer(sparsity: float) -> Trainer:
        pruning = PruningCallback(sparsity=sparsity)
        return Trainer(Labelled(conv_net), args, train_dataset=samples, callbacks=[pruning])

    trainer(0.8).train()
    other = trainer(0.9)
    with pytest.raises(ValueError, match="Attach with the settings of that run"):
        other.train(resume_from_checkpoint=str(tmp_path / "checkpoint-8"))
