"""Prune PyTorch models by bi-level optimization.

    data = biprune.load_data("digits")
    model = biprune.create_model("resnet20", in_channels=data.in_channels)
    dense = biprune.train(model, data, epochs=30)
    ticket = biprune.prune(dense, data, sparsity=0.9, epochs=15)

Names are imported when they are first used, so importing biprune is fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from biprune.core.masks import Masks
    from biprune.core.structure import STRUCTURES
    from biprune.data import DATASETS, Dataset, load_data
    from biprune.files.dense import load_dense, save_dense
    from biprune.files.small import load_small, save_small
    from biprune.methods import (
        GMP,
        IMP,
        METHODS,
        OMP,
        SNIP,
        BiP,
        BiPPlus,
        Dense,
        EarlyBird,
        FineTune,
        GraSP,
        Hydra,
        Magnitude,
        Method,
        Movement,
        ProsPr,
        Random,
        SynFlow,
    )
    from biprune.models import MODELS, create_model
    from biprune.pruning.attach import Holder, Pruner, attach, hold
    from biprune.pruning.prune import prune
    from biprune.pruning.ticket import Ticket, load_ticket
    from biprune.report.compare import CompareResult, compare
    from biprune.runtime.profile import profile
    from biprune.structured.certificate import Certificate
    from biprune.structured.find import find_groups
    from biprune.structured.grouping import Coupling
    from biprune.structured.shrink import shrink
    from biprune.training.loop import Cost
    from biprune.training.objectives import Adversarial, Distill
    from biprune.training.setup import Event
    from biprune.training.train import TrainResult, train

__version__ = "0.2.0.dev0"

__all__ = [
    "DATASETS",
    "GMP",
    "IMP",
    "METHODS",
    "MODELS",
    "OMP",
    "SNIP",
    "STRUCTURES",
    "Adversarial",
    "BiP",
    "BiPPlus",
    "Certificate",
    "CompareResult",
    "Cost",
    "Coupling",
    "Dataset",
    "Dense",
    "Distill",
    "EarlyBird",
    "Event",
    "FineTune",
    "GraSP",
    "Holder",
    "Hydra",
    "Magnitude",
    "Masks",
    "Method",
    "Movement",
    "ProsPr",
    "Pruner",
    "Random",
    "SynFlow",
    "Ticket",
    "TrainResult",
    "attach",
    "compare",
    "create_model",
    "find_groups",
    "hold",
    "load_data",
    "load_dense",
    "load_small",
    "load_ticket",
    "profile",
    "prune",
    "save_dense",
    "save_small",
    "shrink",
    "train",
]

_NAMES_IN = {
    "core.masks": "Masks",
    "core.structure": "STRUCTURES",
    "data": "DATASETS Dataset load_data",
    "files.dense": "load_dense save_dense",
    "files.small": "load_small save_small",
    "methods": "GMP IMP METHODS OMP SNIP BiP BiPPlus Dense EarlyBird FineTune GraSP Hydra Magnitude"
    " Method Movement ProsPr Random SynFlow",
    "models": "MODELS create_model",
    "pruning.attach": "Holder Pruner attach hold",
    "pruning.prune": "prune",
    "pruning.ticket": "Ticket load_ticket",
    "report.compare": "CompareResult compare",
    "runtime.profile": "profile",
    "structured.certificate": "Certificate",
    "structured.find": "find_groups",
    "structured.grouping": "Coupling",
    "structured.shrink": "shrink",
    "training.loop": "Cost",
    "training.objectives": "Adversarial Distill",
    "training.setup": "Event",
    "training.train": "TrainResult train",
}
_HOME = {name: module for module, names in _NAMES_IN.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'biprune' has no attribute {name!r}")
    value = getattr(import_module(f"biprune.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
