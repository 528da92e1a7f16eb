"""Odd numbers: trained and pruned exactly, the same each time, or refused in a sentence."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import biprune
from faults.verdict import OK, Fault, content, refusal, unmeasured

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
STRUCTURES = ("weight", "filter", "channel", "group", "2:4")
Batches = list[tuple[Tensor, Tensor]]
Change = Callable[[nn.Module, Batches], None]


class Net(nn.Module):
    """Convolutions with and without a norm, and a classifier: 4 x 4 images."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 4)

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.relu(self.norm(self.first(images)))
        return self.head(torch.relu(self.second(hidden)).mean(dim=(2, 3)))


def _untouched(model: nn.Module, batches: Batches) -> None:
    pass


def _nan_weight(model: nn.Module, batches: Batches) -> None:
    model.get_parameter("second.weight").data[0, 0, 0, 0] = math.nan


def _infinite_weight(model: nn.Module, batches: Batches) -> None:
    model.get_parameter("head.weight").data[0, 0] = math.inf


def _nan_image(model: nn.Module, batches: Batches) -> None:
    batches[0][0][0] = math.nan


def _infinite_image(model: nn.Module, batches: Batches) -> None:
    batches[-1][0][-1] = -math.inf


def _zero_weights(model: nn.Module, batches: Batches) -> None:
    for parameter in model.parameters():
        parameter.data.zero_()


def _zero_layer(model: nn.Module, batches: Batches) -> None:
    model.get_parameter("first.weight").data.zero_()


def _tied_weights(model: nn.Module, batches: Batches) -> None:
    for parameter in model.parameters():
        parameter.data.fill_(0.125)


def _zero_images(model: nn.Module, batches: Batches) -> None:
    for images, _ in batches:
        images.zero_()


def _one_class(model: nn.Module, batches: Batches) -> None:
    for _, labels in batches:
        labels.zero_()


def _one_sample(model: nn.Module, batches: Batches) -> None:
    batches[:] = [(images[:1], labels[:1]) for images, labels in batches]


def _tiny_weights(model: nn.Module, batches: Batches) -> None:
    """So small that products of two underflow, in float16 and bfloat16 some by themselves."""
    for parameter in model.parameters():
        parameter.data.mul_(1e-6)


def _huge_weights(model: nn.Module, batches: Batches) -> None:
    for parameter in model.parameters():
        parameter.data.mul_(1e4)


CHANGES: dict[str, Change] = {
    "nothing": _untouched,
    "a NaN weight": _nan_weight,
    "an infinite weight": _infinite_weight,
    "a NaN image": _nan_image,
    "an infinite image": _infinite_image,
    "weights of zero": _zero_weights,
    "a layer of zeros": _zero_layer,
    "tied weights": _tied_weights,
    "images of zero": _zero_images,
    "one class": _one_class,
    "batches of one": _one_sample,
    "tiny weights": _tiny_weights,
    "huge weights": _huge_weights,
}
MUST_REFUSE = ("a NaN weight", "an infinite weight", "a NaN image", "an infinite image")


def pruned(seed: int) -> str:
    """A method on a model of some float type with something odd about it."""
    draw = random.Random(seed)
    method, structure = draw.choice(list(biprune.METHODS)), draw.choice(STRUCTURES)
    dtype, (what, change) = draw.choice(DTYPES), draw.choice(list(CHANGES.items()))
    sparsity = draw.choice([0.0, 0.25, 0.5, 0.75])
    options: dict[str, Any] = {} if structure == "2:4" else {"sparsity": sparsity}
    told = f"{method}, {structure}, {str(dtype)[6:]}, {what}, {sparsity:g}"
    made = [_made(seed, dtype, change) for _ in range(2)]
    try:
        tickets = [
            biprune.prune(model, batches, method, structure=structure, epochs=2, **options)
            for model, batches in made
        ]
    except FloatingPointError as error:  # which is how runs say that they diverged
        is_odd = what != "nothing" or dtype.itemsize < 4
        return OK if is_odd and "NaN" in str(error).replace("nan", "NaN") else f"{told}: {error}"
    except Exception as error:
        verdict = refusal(error)
        if verdict == OK and what == "nothing" and not _is_expected(str(error)):
            verdict = f"refused: {error}"
        return verdict if verdict == OK else f"{told}: {verdict}"
    return _checked(told, what, *tickets)


def _made(seed: int, dtype: torch.dtype, change: Change) -> tuple[nn.Module, Batches]:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Net().to(dtype)
        batches = [(torch.randn(6, 4, 4, 4, dtype=dtype), torch.arange(6) % 4) for _ in range(3)]
    change(model, batches)
    return model, batches


def _is_expected(text: str) -> bool:
    """What is said of a method that does not prune, or of structures that it cannot."""
    return "does not prune" in text or "structure" in text or "`sparsity`" in text


def _checked(told: str, what: str, one: biprune.Ticket, again: biprune.Ticket) -> str:
    held = {name: p.detach() for name, p in one.model.named_parameters()}
    if any(not bool(p.isfinite().all()) for p in held.values()):
        return f"{told}: a ticket with weights that are not finite"
    if what in MUST_REFUSE and what.endswith("weight"):
        return f"{told}: a ticket came of it"
    wanted = one.masks.total - round(one.sparsity * one.masks.total)
    if one.masks.structure.name not in ("2:4", "group") and one.masks.kept != wanted:
        return f"{told}: {one.masks.kept} units are kept, not {wanted}"
    if any(bool(held[name][~mask].any()) for name, mask in one.masks.items()):
        return f"{told}: pruned weights are not zero"
    if unmeasured(content(one)) != unmeasured(content(again)):
        return f"{told}: another ticket the second time"
    return OK


FAULTS: dict[str, Fault] = {"odd numbers": pruned}
