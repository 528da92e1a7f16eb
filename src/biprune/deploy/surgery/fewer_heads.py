"""What becomes of an attention module that loses heads: itself, changed, or one of ours."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor, nn

from biprune.deploy.outputs import difference, outputs
from biprune.deploy.random_weights import randomize_
from biprune.deploy.surgery.attention import HeadAttention, SelfAttention, Usual
from biprune.deploy.surgery.heads import COUNTS, Heads, is_torchs
from biprune.deploy.surgery.layers import mend

TOLERANCE = 1e-4  # of the largest output
_WIDTHS = ("inner_dim", "attn_dim", "all_head_size")  # attributes that say heads * head_dim


@dataclass(frozen=True)
class Way:
    """How a module does with fewer heads.

    Its attributes `widths` follow the number of heads, which is all that most need. Where the code
    goes by the width of its input, `usual` is what it computes, to be put together anew;
    `objection` says why neither will do.
    """

    widths: tuple[str, ...] = ()
    usual: Usual | None = None
    objection: str | None = None


def way_without(heads: Heads) -> Way:
    """How the module can lose heads, found before anything is cut.

    Tried on copies with random weights, so that it depends on nothing but the module's code. One
    that does not run on its input alone is taken to do as it is told: the whole model will show.
    """
    if is_torchs(heads.module):
        return Way()
    module = copy.deepcopy(heads.module).float().cpu().eval()
    randomize_(module, seed=0)
    tried = replace(heads, module=module)
    first, *others = _widths(tried)
    x = torch.randn(2, 5, tried.first().shape[1], generator=torch.Generator().manual_seed(0))
    try:
        outputs(module, (x,), seed=0)
    except Exception:  # whatever a forward of the user's raises
        return Way(first)
    some = [list(range(1, heads.count)), [heads.count - 1]]
    for widths in (first, *others):
        if all(_runs_in_place(tried, kept, widths, x) for kept in some):
            return Way(widths)
    return _put_together(tried, x, first)


def without_heads(heads: Heads, rows: Tensor, way: Way) -> nn.Module:
    """The module for the heads that `rows` of its first tensor are; its tensors are cut already."""
    kept = _kept_heads(heads, rows)
    if is_torchs(heads.module):
        return HeadAttention(heads.module, kept)  # pyright: ignore[reportArgumentType]
    if way.objection is not None:
        raise ValueError(f"{way.objection}.")
    _tell_(heads.module, heads, len(kept), way.widths)
    return heads.module if way.usual is None else SelfAttention(heads.module, way.usual)


def _kept_heads(heads: Heads, rows: Tensor) -> list[int]:
    name, stacked = next(iter(heads.made.items()))
    places = heads.places(stacked)
    kept = [head for head in range(heads.count) if bool(torch.isin(places[head], rows).all())]
    if not torch.equal(places[kept].flatten().sort().values, rows):
        raise ValueError(f"{name!r} can only lose whole heads.")
    return kept


def _widths(heads: Heads) -> list[tuple[str, ...]]:
    """Attributes that may have to follow: those of a telling name, or all of the same value."""
    width = heads.count * heads.head_dim
    attributes = vars(heads.module).items()
    alike = tuple(n for n, v in attributes if type(v) is int and v in (width, 3 * width))
    return [tuple(n for n in alike if n in _WIDTHS), alike]


def _tell_(module: nn.Module, heads: Heads, count: int, widths: tuple[str, ...]) -> None:
    attributes = vars(module)
    for name in COUNTS:
        if attributes.get(name) == heads.count:
            attributes[name] = count
    for name in widths:
        attributes[name] = attributes[name] // heads.count * count


def _runs_in_place(heads: Heads, kept: list[int], widths: tuple[str, ...], x: Tensor) -> bool:
    """Whether the module without heads, told so, is the module in which they are zero."""
    masked, small = (replace(heads, module=copy.deepcopy(heads.module)) for _ in range(2))
    gone = [head for head in range(heads.count) if head not in kept]
    for parameter, dim, places in _tensors(masked):
        parameter.data.index_fill_(dim, places[gone].flatten(), 0.0)
    for parameter, dim, places in _tensors(small):
        rows = places[kept].flatten().sort().values
        parameter.data = parameter.data.index_select(dim, rows)
    for name in (*heads.made, heads.read):
        mend(small.module.get_submodule(name.rpartition(".")[0]), {})
    _tell_(small.module, heads, len(kept), widths)
    return _agree(masked.module, small.module, x)


def _tensors(heads: Heads) -> Iterator[tuple[nn.Parameter, int, Tensor]]:
    """What the heads own: a parameter, the dimension along which they lie, and where."""
    for name, stacked in heads.made.items():
        yield heads.module.get_parameter(name), 0, heads.places(stacked)
    yield heads.module.get_parameter(heads.read), 1, heads.places(1)


def _agree(module: nn.Module, other: nn.Module, x: Tensor) -> bool:
    """Whether two modules compute the same, and draw the same from the same seed."""
    try:
        found = [outputs(each, (x,), seed=0) for each in (module, other)]
    except Exception:  # whatever a forward of the user's raises
        return False
    return difference(*found) < TOLERANCE


def _put_together(heads: Heads, x: Tensor, widths: tuple[str, ...]) -> Way:
    """Anew, if the usual self-attention gives the same, in training too, and takes the same."""
    module = heads.module
    usual = next(
        (each for each in _usual(heads) if _agree(module, SelfAttention(module, each), x)), None
    )
    if usual is None:
        return Way(objection="its attention does not run with another number of heads")
    if len(inspect.signature(module.forward).parameters) != 1 or "forward" in vars(module):
        return Way(
            objection="its attention reshapes by the width of its input, and takes more than that "
            "input: with its own `head_dim` in place of that width it could lose heads"
        )
    module.train()
    names = [None, *_dropouts_told_apart_(module)]
    for on_weights, on_result in product(names, names):
        trained = replace(usual, on_weights=on_weights, on_result=on_result)
        if _agree(module, SelfAttention(module, trained), x):
            return Way(widths, trained)
    return Way(
        objection="its attention reshapes by the width of its input, and in training does more "
        "than dropout of weights and result: with its own `head_dim` in place of that width it "
        "could lose heads"
    )


def _usual(heads: Heads) -> Iterator[Usual]:
    inward = tuple(n.removesuffix(".weight") for n in heads.made if n.endswith(".weight"))
    outward = heads.read.split(".")[0]
    scales = [None, "scale"] if isinstance(vars(heads.module).get("scale"), float) else [None]
    for scale, causal in product(scales[::-1], (False, True)):
        yield Usual(inward, outward, heads.head_dim, causal, scale)


def _dropouts_told_apart_(module: nn.Module) -> list[str]:
    """What may be a probability of dropout, no two of them alike, to see where each falls.

    Floats that are not called one, of which `scale` is the usual, keep their values.
    """
    parts = {n: part for n, part in module.named_children() if isinstance(part, nn.Dropout)}
    floats = {n: v for n, v in vars(module).items() if isinstance(v, float) and 0 <= v < 1}
    numbers = [name for name in floats if "drop" in name or name == "p"]
    taken = {value for name, value in floats.items() if name not in numbers}
    for place, name in enumerate([*parts, *numbers], start=1):
        probability = place / (len(parts) + len(numbers) + 1)
        while probability in taken:
            probability *= 0.9
        taken.add(probability)
        if name in parts:
            parts[name].p = probability
        else:
            vars(module)[name] = probability
    return [*parts, *floats]
