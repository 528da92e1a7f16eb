"""What is pruned in `on_transformers`: two small transformers, their data, their dense training.

*text* is transfer. A causal language model of bytes learns the sources of Python's standard library
and is pruned while it learns English: the topics of Python's own help. *images* stays on its task:
a vision transformer on CIFAR-10, its images averaged to 16 x 16.
"""

from __future__ import annotations

import hashlib
import json
import re
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, Literal

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, cross_entropy, gelu, pad, scaled_dot_product_attention

import biprune
from biprune.training.batches import Loss
from biprune.training.setup import Event

Split = Literal["train", "validation", "test"]
CONTEXT = 64  # bytes that the language model sees
LEAPS = 10  # times that a dense run is validated


class Block(nn.Module):
    """Attention and a perceptron, each behind a norm and beside a shortcut."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens of the same width."""
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1)
        mixed = scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4), is_causal=self.causal)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """Tokens with positions, blocks, a norm and a head; a vision one averages over its tokens."""

    def __init__(
        self, tokens: nn.Module, length: int, outputs: int, sizes: Sizes, *, causal: bool
    ) -> None:
        super().__init__()
        self.tokens, self.causal = tokens, causal
        self.positions = nn.Parameter(0.02 * torch.randn(length, sizes.width))
        blocks = (Block(sizes.width, sizes.heads, causal=causal) for _ in range(sizes.depth))
        self.blocks = nn.Sequential(*blocks)
        self.norm, self.head = nn.LayerNorm(sizes.width), nn.Linear(sizes.width, outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits, of every token if it is causal."""
        x = self.tokens(inputs)
        if x.ndim == 4:  # of images: their patches
            x = x.flatten(2).transpose(1, 2)
        x = self.norm(self.blocks(x + self.positions))
        return self.head(x if self.causal else x.mean(1))


@dataclass(frozen=True)
class Sizes:
    """What decides a task beside its data: the net, and how long it is trained and pruned."""

    width: int
    depth: int
    heads: int
    batch: int
    dense_steps: int
    dense_lr: float
    steps: int
    autocast: bool


@dataclass(frozen=True)
class Drawn:
    """`count` batches, drawn anew at each pass by torch's generator."""

    data: Text | Images
    count: int
    size: int

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return (self.data.draw(self.size) for _ in range(self.count))


class Text:
    """Bytes in three splits; measured by the loss in nats a byte, in windows side by side."""

    def __init__(self, files: Sequence[bytes], *, parts: int) -> None:
        """Of every `parts` files one is for validation and one for the test."""
        turns: Mapping[int, Split] = {2: "test", 5: "validation"}
        self.splits: dict[Split, bytearray] = {s: bytearray() for s in ("train", *turns.values())}
        for number, content in enumerate(files):
            split: Split = turns[turn] if (turn := number % parts) in turns else "train"
            self.splits[split] += content + b"\n\n"
        self.digest = _digest(*self.splits.values())
        self._bytes = {s: torch.frombuffer(b, dtype=torch.uint8) for s, b in self.splits.items()}

    def batches(self, count: int, size: int) -> Drawn:
        """So many batches of a size, drawn anew at each pass."""
        return Drawn(self, count, size)

    def draw(self, size: int) -> tuple[Tensor, Tensor]:
        """Windows of the training text, and the byte behind each of theirs."""
        text = self._bytes["train"]
        starts = torch.randint(len(text) - CONTEXT, (size, 1))
        windows = text[starts + torch.arange(CONTEXT + 1)].long()
        return windows[:, :-1], windows[:, 1:]

    @torch.no_grad()
    def measure(self, model: nn.Module, split: Split) -> float:
        """The mean loss over the first 50,000 bytes of a split."""
        text = self._bytes[split][: 50_000 // CONTEXT * CONTEXT + 1].long()
        count = (len(text) - 1) // CONTEXT
        inputs, labels = text[: count * CONTEXT], text[1 : count * CONTEXT + 1]
        pairs = (t.view(count, CONTEXT).split(64) for t in (inputs, labels))
        losses = [text_loss(model, pair, total=True) for pair in zip(*pairs, strict=True)]
        return float(torch.stack(losses).sum()) / (count * CONTEXT)


def text_loss(model: nn.Module, batch: Any, *, total: bool = False) -> Tensor:
    inputs, labels = batch
    logits = model(inputs).flatten(0, 1).float()
    return cross_entropy(logits, labels.flatten(), reduction="sum" if total else "mean")


def sources() -> Text:
    """Python's standard library, its tests and the topics of its help aside."""
    root = Path(sysconfig.get_path("stdlib"))
    left_out = {"site-packages", "test", "tests", "pydoc_data", "__pycache__"}
    paths = {path.relative_to(root) for path in root.rglob("*.py")}
    chosen = sorted(path for path in paths if not left_out & {*path.parts})
    return Text([(root / path).read_bytes() for path in chosen], parts=40)


def help_topics() -> Text:
    """The topics of Python's help, of whose repeated paragraphs the first is kept."""
    seen: set[str] = set()
    files = []
    for name in sorted(topics):
        kept = []
        for paragraph in re.split(r"\n\s*\n", topics[name].strip("\n")):
            if (words := " ".join(paragraph.split())) not in seen:
                seen.add(words)
                kept.append(paragraph)
        files.append("\n\n".join(kept).encode())
    return Text(files, parts=10)


class Images:
    """20,000 images to learn from, 5,000 others for validation, the 10,000 test images.

    Measured by accuracy, in percent.
    """

    def __init__(self, root: Path) -> None:
        folder = root / "cifar-10-batches-bin"
        names: Mapping[Split, Sequence[str]] = {
            "train": ("data_batch_1.bin", "data_batch_2.bin"),
            "validation": ("data_batch_5.bin",),
            "test": ("test_batch.bin",),
        }
        read = {split: [(folder / name).read_bytes() for name in names[split]] for split in names}
        self.digest = _digest(*(content for contents in read.values() for content in contents))
        self._splits = {split: _images(b"".join(contents)) for split, contents in read.items()}
        images, labels = self._splits["validation"]
        self._splits["validation"] = images[:5000], labels[:5000]

    def batches(self, count: int, size: int) -> Drawn:
        """So many batches of a size, drawn anew at each pass."""
        return Drawn(self, count, size)

    def draw(self, size: int) -> tuple[Tensor, Tensor]:
        """Images shifted by up to a pixel, and mirrored half of the time."""
        images, labels = self._splits["train"]
        chosen = torch.randint(len(images), (size,))
        down, right = torch.randint(3, (2,)).tolist()
        shifted = pad(images[chosen], (1, 1, 1, 1))[:, :, down : down + 16, right : right + 16]
        mirrored = torch.rand(size, 1, 1, 1) < 0.5
        return torch.where(mirrored, shifted.flip(3), shifted), labels[chosen]

    @torch.no_grad()
    def measure(self, model: nn.Module, split: Split) -> float:
        """The accuracy."""
        images, labels = self._splits[split]
        right = [
            int((model(some).argmax(1) == wanted).sum())
            for some, wanted in zip(images.split(500), labels.split(500), strict=True)
        ]
        return 100 * sum(right) / len(labels)


def _images(content: bytes) -> tuple[Tensor, Tensor]:
    rows = torch.from_numpy(np.frombuffer(content, np.uint8).reshape(-1, 3073).copy())
    pixels = avg_pool2d(rows[:, 1:].view(-1, 3, 32, 32).float() / 255, 2)
    return (pixels - 0.47) / 0.24, rows[:, 0].long()


def image_loss(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model(batch[0]).float(), batch[1])


def _digest(*parts: bytes | bytearray) -> str:
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


@dataclass(frozen=True)
class Task:
    """A net that learns `before`, and is pruned while it learns `data`."""

    name: Literal["text", "images"]
    sizes: Sizes
    before: Text | Images
    data: Text | Images

    @property
    def key(self) -> dict[str, object]:
        """All that decides a dense model but its seed, and a pruned one but its method."""
        digests = {"before": self.before.digest, "data": self.data.digest}
        return {"task": self.name, **asdict(self.sizes), **digests}

    @property
    def loss(self) -> Loss:
        """What is trained by."""
        return text_loss if self.name == "text" else image_loss

    def model(self) -> Transformer:
        """The net, not trained."""
        width = self.sizes.width
        if self.name == "text":
            tokens = nn.Embedding(256, width)
            nn.init.normal_(tokens.weight, std=0.02)
            return Transformer(tokens, CONTEXT, 256, self.sizes, causal=True)
        return Transformer(nn.Conv2d(3, width, 4, 4), 16, 10, self.sizes, causal=False)

    def dense(self, seed: int, store: Path) -> tuple[Transformer, list[float]]:
        """The trained net, and what it was worth in validation as it was trained."""
        decisive = {n: v for n, v in self.key.items() if n not in ("steps", "data")}
        name = _digest(json.dumps(decisive, sort_keys=True).encode())[:12]
        path = store / f"{self.name}-{name}-{seed}.safetensors"
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            model = self.model()
        curve = path.with_suffix(".json")
        if not curve.exists():
            store.mkdir(parents=True, exist_ok=True)
            made = biprune.train(
                model,
                self.before.batches(self.sizes.dense_steps // LEAPS, self.sizes.batch),
                epochs=LEAPS,
                optimizer="adamw",
                lr=self.sizes.dense_lr,
                autocast=self.sizes.autocast,
                rewind_epochs=(),
                loss=self.loss,
                validate=lambda model: self.before.measure(model, "validation"),
                progress=told,
                seed=seed,
            )
            save_file(made.model.state_dict(), path)
            curve.write_text(json.dumps([record["accuracy"] for record in made.history]))
        model.load_state_dict(load_file(path))
        return model, json.loads(curve.read_text())


def told(event: Event) -> None:
    """Print how a dense run goes."""
    if event.record is not None:
        print(f"{event.epoch + 1}/{event.epochs}: {event.record['accuracy']:.3f}", flush=True)


def text_task() -> Task:
    sizes = Sizes(192, 4, 4, 16, dense_steps=1500, dense_lr=2e-3, steps=150, autocast=True)
    return Task("text", sizes, sources(), help_topics())


def images_task(root: Path) -> Task:
    sizes = Sizes(96, 3, 4, 64, dense_steps=2500, dense_lr=1.5e-3, steps=250, autocast=False)
    data = Images(root)
    return Task("images", sizes, data, data)
