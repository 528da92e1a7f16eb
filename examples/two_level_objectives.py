"""Two levels with objectives of their own: a teacher, an adversary, clean validation data.

    python examples/two_level_objectives.py

A small network learns scikit-learn's digits, then 95 % of its weights go in as many steps each
time. Test accuracy in percent, as the images are and attacked: mean ± deviation over the seeds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

import biprune

Batches = Iterable[tuple[Tensor, Tensor]]
METHODS = {"bip": {}, "bip-plus": {"passes": 2}}
ADVERSARY = biprune.Adversarial(epsilon=0.2, steps=5)  # of inputs with a deviation of 1
STRONGER = biprune.Adversarial(epsilon=0.2, steps=10)  # for the test


def network(seed: int) -> nn.Module:
    """17,000 weights."""
    torch.manual_seed(seed)
    layers = [nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)]
    return nn.Sequential(nn.Flatten(), *layers)


def accuracy(model: nn.Module, batches: Batches) -> float:
    """In percent."""
    hits = [(model(images).argmax(dim=1) == labels).float() for images, labels in batches]
    return 100 * torch.cat(hits).mean().item()


def mislabelled(batches: Batches, part: float, seed: int) -> list[tuple[Tensor, Tensor]]:
    """The same images, a part of them with a label that was drawn."""
    torch.manual_seed(seed)
    drawn = ((x, y, torch.randint(10, y.shape), torch.rand(y.shape)) for x, y in batches)
    return [(x, torch.where(luck < part, other, y)) for x, y, other, luck in drawn]


def main(seeds: int = 3, steps: int = 360, dense_epochs: int = 20) -> None:
    """Print a line for each kind of ticket."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for seed in range(seeds):
        data = biprune.load_data("digits", val_fraction=0.2, seed=seed)
        clean, noisy = list(data.val or ()), mislabelled(data.train, 0.4, seed)
        dense = biprune.train(network(seed), data, epochs=dense_epochs, seed=seed).model
        wrong = biprune.train(network(seed), noisy, epochs=dense_epochs, seed=seed).model
        tickets = {
            "plain": (dense, data, {}),
            "distilled from the dense network": (dense, data, {"distill": dense}),
            "an adversary of the mask": (dense, data, {"upper_loss": ADVERSARY}),
            "an adversary of both": (dense, data, {"upper_loss": ADVERSARY, "loss": ADVERSARY}),
            "40 % of labels wrong: plain": (wrong, noisy, {}),
            "40 % of labels wrong: clean data among them": (wrong, [*noisy, *clean], {}),
            "40 % of labels wrong: clean data for the mask": (wrong, noisy, {"upper_data": clean}),
        }
        for name, (start, batches, objectives) in tickets.items():
            for method, settings in METHODS.items():
                how = {"sparsity": 0.95, "steps": steps, "seed": seed, **settings, **objectives}
                model = biprune.prune(start, batches, method, **how).model
                attacked: list[Any] = [STRONGER.attacked(model, batch) for batch in data.test]
                found[name][method].append(accuracy(model, data.test))
                found[name][f"{method}, attacked"].append(accuracy(model, attacked))
    print(" " * 46 + "".join(f"{column:>20}" for column in next(iter(found.values()))))
    for name, columns in found.items():
        cells = (torch.tensor(column) for column in columns.values())
        text = (f"{cell.mean():.1f} ± {cell.std(correction=seeds > 1):.1f}" for cell in cells)
        print(f"{name:46}" + "".join(f"{cell:>20}" for cell in text))


if __name__ == "__main__":
    main()
