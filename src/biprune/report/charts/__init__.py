"""Charts of a comparison, each a function from it to an Altair chart as wide as its container."""

from biprune.report.charts.accuracy import accuracy_by_sparsity
from biprune.report.charts.cost import accuracy_by_cost
from biprune.report.charts.epochs import by_epoch
from biprune.report.charts.layers import layers_by_epoch, layers_by_method
from biprune.report.charts.tickets import sparsest_tickets

__all__ = [
    "accuracy_by_cost",
    "accuracy_by_sparsity",
    "by_epoch",
    "layers_by_epoch",
    "layers_by_method",
    "sparsest_tickets",
]
