"""Bytes of live tensors at the peak of training, beyond those of dense training.

python benchmarks/memory.py --models resnet18 --batches 2 64

Two iterations of each kind, their optimizers included; bytes are those that torch's allocator gave
out and took back. With a small batch the weights decide where the peak lies, with a large one the
activations do. theta, scores, one more momentum and the mask are 13 bytes a weight.
"""

from __future__ import annotations

import torch

import biprune
from allocations import peak_bytes
from steps import STEPS, TARGET, new_model, random_batches
from timing import parser, report


def main() -> None:
    options = parser(__doc__)
    models = ["resnet20", "resnet18", "vgg16"]
    options.add_argument("--models", nargs="+", default=models, choices=sorted(biprune.MODELS))
    options.add_argument("--batches", type=int, nargs="+", default=[2, 64])
    options = options.parse_args()
    torch.set_num_threads(options.threads)
    report([measure(m, batch) for m in options.models for batch in options.batches], options)


def measure(name: str, batch: int) -> dict[str, object]:
    peaks = {kind: peak(kind, name, batch) for kind in STEPS}
    weights = sum(weight.numel() for weight in TARGET.weights(new_model(name)).values())
    extra = {kind: (peaks[kind] - peaks["dense"]) / weights for kind in list(STEPS)[1:]}
    return {"model": name, "batch": batch, "dense, MB": peaks["dense"] / 1e6, **extra}


def peak(kind: str, name: str, batch: int) -> int:
    """The most bytes at once, above those of the model and the batches alone."""
    model, batches = new_model(name), random_batches(batch)

    def two_steps() -> None:
        step = STEPS[kind](model, batches)
        step()
        step()

    return peak_bytes(two_steps)


if __name__ == "__main__":
    main()
