"""What a preset is, and how its cells become specs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from biprune.experiments.costs import Scale
from biprune.experiments.grid import grid
from biprune.experiments.presets.scales import SIZES, Pair, Size
from biprune.experiments.spec import RunSpec
from biprune.methods import Method

# BiP as published and as it is here, and the paper's four main baselines. GMP, which it cites and
# does not run, costs no more than they do and is what BiP has to beat: every comparison has it.
COMPARED = ("bip", "bip-plus", "imp", "omp", "grasp", "hydra", "gmp")

RESNET18 = Pair("resnet18", "cifar10")
RESNET20 = Pair("resnet20", "cifar10")
RESNET56 = Pair("resnet56", "cifar10")
VGG16 = Pair("vgg16", "cifar10")
RESNET18_C100 = Pair("resnet18", "cifar100")
RESNET20_C100 = Pair("resnet20", "cifar100")
CIFAR = (RESNET18, RESNET20, RESNET56, VGG16, RESNET18_C100, RESNET20_C100)


@dataclass(frozen=True)
class Preset:
    """A figure or table of the paper as runs."""

    name: str
    summary: str
    source: str
    specs: Callable[[Scale], list[RunSpec]]


def sized(build: Callable[[Size], list[RunSpec]]) -> Callable[[Scale], list[RunSpec]]:
    """The same by the name of the scale."""
    return lambda scale: build(SIZES[scale])


def expand(
    size: Size,
    pairs: Iterable[Pair],
    methods: Sequence[str | Method],
    *,
    at: Sequence[float] | None = None,
    structure: str = "weight",
    data_options: Mapping[str, Any] | None = None,
    dense: Mapping[str, Any] | None = None,
) -> list[RunSpec]:
    """Methods x sparsities x seeds on what stands in for each pair.

    A method by name gets the passes of the size; an object keeps its length. `at` leaves only these
    sparsities of the curve; IMP still halts at all below them, so that its runs are shared.
    """
    ladder = size.ladder(structure)
    wanted = ladder if at is None else size.near(at, structure)
    named = [method for method in methods if isinstance(method, str)]
    built = [method for method in methods if not isinstance(method, str)]
    specs = [
        spec
        for pair in map(size.fit, pairs)
        for group, passes in ((named, size.passes), (built, None))
        for spec in grid(
            group,
            model=pair.model,
            data=pair.data,
            sparsities=sorted({*ladder, *wanted}),
            seeds=size.seeds,
            structures=(structure,),
            passes=passes,
            dense={**size.dense, **(dense or {})},
            model_options=pair.model_options,
            data_options={**size.data_options, **(data_options or {})},
        )
        if spec.sparsity in wanted
    ]
    return distinct(specs)


def distinct(specs: Iterable[RunSpec]) -> list[RunSpec]:
    """Each run once: at a small scale several pairs have the same stand-in."""
    return list({spec.key: spec for spec in specs}.values())
