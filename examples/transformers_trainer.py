"""Prune a small language model while Hugging Face's Trainer trains it, on Python's own sources.

    pip install 'biprune[hf]'
    python examples/transformers_trainer.py

Two lines are ours: the import, and the callback in the list.
"""

from __future__ import annotations

import argparse
import inspect
import math
import typing

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import biprune
from biprune.integrations.transformers import PruningCallback


def samples(module: object, length: int = 64) -> list[dict[str, torch.Tensor]]:
    """The bytes of a module's source, cut to sequences."""
    text = inspect.getsource(module).encode()  # pyright: ignore[reportArgumentType]
    tokens = torch.tensor(list(text[: len(text) // length * length])).view(-1, length)
    return [{"input_ids": row, "labels": row} for row in tokens]


def main(steps: int = 400, folder: str = "runs/llama") -> biprune.Ticket:
    """Train and prune at once; return the ticket."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    pruning = PruningCallback(sparsity=0.8)
    trainer = Trainer(
        LlamaForCausalLM(config),
        TrainingArguments(
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=16,
            learning_rate=3e-3,
            warmup_steps=20,
            lr_scheduler_type="cosine",
            logging_steps=20,
            report_to="none",
        ),
        train_dataset=samples(argparse),
        eval_dataset=samples(typing)[:200],
        callbacks=[pruning],
    )
    trainer.train()  # resume_from_checkpoint=True goes on bit for bit
    loss = trainer.evaluate()["eval_loss"]
    trainer.save_model(f"{folder}/pruned")  # an ordinary model, whose pruned weights are 0
    ticket = pruning.ticket()
    bits = loss / math.log(2)
    print(f"{bits:.2f} bits a byte of unseen code at a sparsity of {ticket.masks.sparsity:.2%}")
    return ticket


if __name__ == "__main__":
    main()
