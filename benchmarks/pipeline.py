"""Batches with augmentation against the training step that they feed.

python benchmarks/pipeline.py --batch 64

`biprune` gathers, crops, flips and normalises whole batches of uint8 images in memory. The rival is
the usual `DataLoader` over a data set that does the same image by image, in this process and with
worker processes; its workers' time is hidden behind a step only as far as there are cores to spare.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from biprune.data.batches import MemoryImages, Transform
from steps import dense_step, new_model, random_batches
from timing import interleaved, medians, parser, ratio, report

IMAGES = 10_000
BATCHES = 20  # drawn each time, so that starting a pass counts little
TRANSFORM = Transform(mean=(0.49, 0.48, 0.45), std=(0.25, 0.24, 0.26), pad=4, flips=True)


class OneByOne(Dataset[tuple[Tensor, int]]):
    """The same images and augmentation, one image at a time."""

    def __init__(self, pixels: Tensor, labels: Tensor) -> None:
        self._pixels, self._labels = pixels, labels

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        pixels = TRANSFORM.augment(self._pixels[index][None])[0]
        return TRANSFORM.normalise(pixels), int(self._labels[index])


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--model", default="resnet20")
    options.add_argument("--batch", type=int, default=64)
    options.add_argument("--rounds", type=int, default=9)
    options = options.parse_args()
    torch.set_num_threads(options.threads)
    pixels = torch.randint(256, (IMAGES, 3, 32, 32), dtype=torch.uint8)
    labels = torch.randint(10, (IMAGES,))
    everything = torch.arange(IMAGES)
    ours = MemoryImages(pixels, labels, TRANSFORM).batches(
        everything, batch_size=options.batch, shuffle=True, augment=True
    )
    loaders = {
        "biprune": ours,
        "DataLoader, no workers": loader(pixels, labels, options.batch, 0),
        "DataLoader, 2 workers": loader(pixels, labels, options.batch, 2),
    }
    streams = {name: forever(batches) for name, batches in loaders.items()}
    step = dense_step(new_model(options.model), random_batches(options.batch))
    candidates = {name: lambda s=stream: draw(s) for name, stream in streams.items()}
    seconds = interleaved({"step": step, **candidates}, options.rounds)
    rows = [
        {
            "batches from": name,
            "ms a batch": 1000 * medians(seconds)[name] / BATCHES,
            f"% of a {options.model} step": 100 * ratio(seconds, name, "step") / BATCHES,
            "of ours": ratio(seconds, name, "biprune"),
        }
        for name in candidates
    ]
    report(rows, options)


def loader(pixels: Tensor, labels: Tensor, batch: int, workers: int) -> DataLoader:
    data = OneByOne(pixels, labels)
    return DataLoader(
        data, batch, shuffle=True, num_workers=workers, persistent_workers=workers > 0
    )


def forever(batches) -> Iterator[object]:
    return chain.from_iterable(repeat(batches))


def draw(stream: Iterator[object]) -> None:
    for _ in range(BATCHES):
        next(stream)


if __name__ == "__main__":
    main()
