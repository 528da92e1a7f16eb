from __future__ import annotations

import pytest

from biprune.data import DATASETS
from biprune.experiments.paper import ReferencePoint, paper_points, paper_tickets
from biprune.experiments.presets.base import LADDER
from biprune.methods import METHODS
from biprune.models import MODELS

CIFAR = [
    ("resnet18", "cifar10"),
    ("resnet20", "cifar10"),
    ("resnet56", "cifar10"),
    ("vgg16", "cifar10"),
    ("resnet18", "cifar100"),
    ("resnet20", "cifar100"),
]
PAIRS = [*CIFAR, ("resnet18", "tiny_imagenet"), ("resnet18", "imagenet"), ("resnet50", "imagenet")]


def read(model: str, data: str, method: str, sparsity: float) -> ReferencePoint:
    (point,) = (
        p for p in paper_points(model, data) if (p.method, p.sparsity) == (method, sparsity)
    )
    return point


@pytest.mark.parametrize(("model", "data"), PAIRS)
def test_every_point_says_where_it_is_from(model: str, data: str) -> None:
    tickets = [ticket for ticket in paper_tickets(model, data).values() if ticket is not None]
    for point in [*paper_points(model, data), *tickets]:
        assert point.source.startswith(("Figure 4", "Table 1", "Table A4"))
        assert (point.model, point.data) == (model, data)
        assert point.method in METHODS
        assert point.model in MODELS
        assert point.data in DATASETS
        assert 50 < point.accuracy < 96


@pytest.mark.parametrize(
    ("model", "data", "method", "sparsity", "accuracy", "approximate"),
    [
        ("resnet20", "cifar10", "imp", 0.738, 92.16, False),
        ("resnet20", "cifar10", "imp", 0.866, 91.2, True),
        ("resnet20", "cifar10", "bip", 0.945, 91.0, False),
        ("resnet18", "cifar10", "bip", 0.36, 95.36, False),
        ("resnet18", "cifar10", "hydra", 0.956, 94.16, True),
        ("resnet56", "cifar10", "grasp", 0.931, 90.26, False),
        ("vgg16", "cifar10", "omp", 0.2, 93.8, False),
        ("resnet18", "cifar100", "omp", 0.956, 74.27, False),
        ("resnet20", "cifar100", "hydra", 0.931, 62.42, False),
        ("resnet18", "tiny_imagenet", "grasp", 0.2, 63.4, True),
        ("resnet18", "tiny_imagenet", "bip", 0.893, 62.78, False),
    ],
)
def test_points_of_the_figure(
    model: str, data: str, method: str, sparsity: float, accuracy: float, approximate: bool
) -> None:
    point = read(model, data, method, sparsity)
    assert (point.accuracy, point.std, point.approximate) == (accuracy, None, approximate)


def test_what_the_figure_does_not_show_is_left_out() -> None:
    omp = [p.sparsity for p in paper_points("resnet20", "cifar10") if p.method == "omp"]
    assert omp == [0.2, 0.36, 0.488, 0.59, 0.672, 0.738, 0.79]  # then below the axis
    hydra = {p.sparsity for p in paper_points("resnet18", "cifar10") if p.method == "hydra"}
    assert set(LADDER) - hydra == {0.945}
    assert paper_points("resnet8", "digits") == []


@pytest.mark.parametrize(("model", "data"), CIFAR)
def test_curves_keep_to_the_ladder(model: str, data: str) -> None:
    curves = [p for p in paper_points(model, data) if p.method != "dense"]
    assert {p.method for p in curves} == {"imp", "omp", "grasp", "hydra", "bip"}
    assert {p.sparsity for p in curves} <= set(LADDER)
    assert len(curves) == len({(p.method, p.sparsity) for p in curves})


@pytest.mark.parametrize(
    ("model", "data", "method", "ticket"),
    [
        ("resnet18", "cifar10", "bip", (0.89, 94.79, 0.15, "Table 1")),
        ("resnet20", "cifar10", "imp", (0.74, 92.15, 0.15, "Table 1")),
        ("resnet56", "cifar10", "grasp", (0.36, 93.07, 0.34, "Table 1")),
        ("vgg16", "cifar10", "hydra", (0.87, 93.73, 0.03, "Table 1")),
        ("resnet20", "cifar100", "imp", None),
        ("resnet18", "tiny_imagenet", "omp", (0.2, 64.17, 0.11, "Table A4")),
        ("resnet50", "imagenet", "imp", (0.8, 76.05, 0.13, "Table A4")),
        ("resnet50", "imagenet", "hydra", None),
    ],
)
def test_winning_tickets(
    model: str, data: str, method: str, ticket: tuple[float, float, float, str] | None
) -> None:
    found = paper_tickets(model, data)[method]
    if ticket is None or found is None:
        assert found is ticket
    else:
        assert (found.sparsity, found.accuracy, found.std, found.source) == ticket


def test_tickets_stand_in_for_curves_that_are_printed_as_pictures() -> None:
    points = paper_points("resnet50", "imagenet")
    found = {p.method: (p.sparsity, p.accuracy, p.std) for p in points if p.method != "dense"}
    assert found["imp"] == (0.8, 76.05, 0.13)
    assert "hydra" not in found
    assert {p.source for p in points} == {"Table A4"}


@pytest.mark.parametrize(("model", "data"), PAIRS)
def test_a_ticket_wins_over_the_dense_model(model: str, data: str) -> None:
    (dense,) = (p for p in paper_points(model, data) if p.method == "dense")
    tickets = [ticket for ticket in paper_tickets(model, data).values() if ticket is not None]
    assert tickets
    assert all(ticket.accuracy >= dense.accuracy for ticket in tickets)


def test_the_figure_agrees_with_the_table() -> None:
    """Each of the table's CIFAR tickets is a point of the figure, but for one that is known."""
    far = []
    for model, data in CIFAR:
        for ticket in filter(None, paper_tickets(model, data).values()):
            (step,) = (s for s in LADDER if round(100 * s) == round(100 * ticket.sparsity))
            gap = abs(read(model, data, ticket.method, step).accuracy - ticket.accuracy)
            far += [(model, ticket.method)] if gap > 0.06 else []
    assert far == [("vgg16", "bip")]
