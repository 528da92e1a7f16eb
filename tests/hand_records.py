"""Records written by hand: only what a test is about differs from these defaults."""

from __future__ import annotations

from typing import Any

from biprune.experiments.record import RunRecord, RunSpec


def run(
    method: str = "bip",
    sparsity: float = 0.9,
    seed: int = 0,
    accuracy: float | None = 90.0,
    *,
    spec: dict[str, Any] | None = None,
    **fields: Any,
) -> RunRecord:
    made = RunSpec(
        **{"model": "resnet20", "data": "digits"} | (spec or {}),
        method=method,
        sparsity=sparsity,
        seed=seed,
    )
    given = {"backward_passes": 100, "seconds": 10.0, "test_accuracy": accuracy} | fields
    return RunRecord(spec=made, resolved=made.resolved, **given)


def dense(seed: int = 0, accuracy: float | None = 90.0, **fields: Any) -> RunRecord:
    return run("train", 0.0, seed, accuracy, **fields)


def failed(
    method: str = "bip", sparsity: float = 0.9, seed: int = 0, error: str = "it broke"
) -> RunRecord:
    return run(method, sparsity, seed, None, status="failed", error=error)


def seeds(method: str, sparsity: float, *accuracies: float, **fields: Any) -> list[RunRecord]:
    """A run for each accuracy, of seed 0, 1, ..."""
    return [run(method, sparsity, seed, a, **fields) for seed, a in enumerate(accuracies)]


def epochs(**columns: list[Any]) -> list[dict[str, Any]]:
    """A history from columns of equal length, opened by a note as methods write it."""
    count = len(next(iter(columns.values())))
    entries = [{"stage": "retrain", "epoch": n + 1} for n in range(count)]
    for name, values in columns.items():
        for entry, value in zip(entries, values, strict=True):
            entry[name] = value
    return [{"stage": "start", "note": "rewound to epoch 1"}, *entries]


def realistic() -> list[RunRecord]:
    """Two methods, two sparsities, two seeds, histories, layers, a hole and an unequal budget."""
    records = [dense(0, 90.0), dense(1, 91.0)]
    for method, shift, passes in (("bip", 1.0, 100), ("imp", 0.2, 300)):
        for sparsity, loss in ((0.5, 0.0), (0.9, 0.6)):
            for seed in (0, 1):
                history = epochs(
                    loss=[1.0, 0.5, 0.25],
                    accuracy=[50.0, 80.0, 90.0 + seed],
                    iou=[0.8, 0.9, 0.95 + 0.01 * seed],
                    layer_sparsity=[{"conv.weight": p, "fc.weight": 0.9} for p in (0.1, 0.2, 0.3)],
                )
                records.append(
                    run(
                        method,
                        sparsity,
                        seed,
                        90.0 + seed + shift - loss,
                        backward_passes=passes,
                        layers={"conv.weight": (20, 100), "fc.weight": (1, 10)},
                        history=history,
                        environment={"torch": "2.8.0"},
                    )
                )
    broken = "RuntimeError: <script>alert('broken')</script> & 50 % of a_b"
    return [*records, failed("omp", 0.5, 0, broken), *seeds("omp", 0.9, 88.0, 88.4)]
