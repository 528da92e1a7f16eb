"""Prune PyTorch models by bi-level optimization.

data = biprune.load_data("digits")
model = biprune.create_model("resnet20", in_channels=data.in_channels)
dense = biprune.train(model, data, epochs=30)
ticket = biprune.prune(dense, data, "bip", sparsity=0.9, epochs=15)
"""

from biprune.data import DATASETS, Dataset, load_data
from biprune.deploy.dense import load_dense, save_dense
from biprune.loop import Cost, Event
from biprune.masks import Masks
from biprune.methods import METHODS, OMP, BiP, Dense, Method, Random
from biprune.models import MODELS, create_model
from biprune.optimizer import BiPOptimizer
from biprune.pruning import prune
from biprune.structure import STRUCTURES
from biprune.ticket import Ticket, load_ticket
from biprune.training import TrainResult, train

__version__ = "0.1.0"

__all__ = [
    "DATASETS",
    "METHODS",
    "MODELS",
    "OMP",
    "STRUCTURES",
    "BiP",
    "BiPOptimizer",
    "Cost",
    "Dataset",
    "Dense",
    "Event",
    "Masks",
    "Method",
    "Random",
    "Ticket",
    "TrainResult",
    "create_model",
    "load_data",
    "load_dense",
    "load_ticket",
    "prune",
    "save_dense",
    "train",
]
