"""The lines of the drawn comparison: what is one row of the page is one line."""

from __future__ import annotations

import re
from pathlib import Path

from biprune.experiments.record import RunRecord
from biprune.report.accuracy_charts import in_words
from studies.archive import load
from studies.full_size import full_size
from studies.laptop_figures import drawn, laptop
from studies.presets import STUDIES
from studies.tests.laptop_records import of_spec


def test_runs_of_different_length_are_one_line() -> None:
    records: dict[str, RunRecord] = {}
    for spec in STUDIES["methods"].specs("laptop"):
        if spec.seed < 2 and spec.method in ("bip-plus", "train", "snip"):
            length, plain = spec.settings.get("epochs", 20), "nesterov" not in spec.settings
            accuracy = 60.0 + 10 * spec.sparsity + length + spec.seed if plain else 0.0
            fields = {"dense_accuracy": 70.0, "test_accuracy": accuracy}
            records[spec.key] = of_spec(spec, **fields)
    lines = laptop(records)
    assert lines.methods == {
        "bip-plus": "bip-plus",
        "bip-plus, a fifth of IMP's passes": "bip-plus",
    }
    means = {(cell.label, cell.sparsity): cell.accuracy.mean for cell in lines.cells}
    assert means == {
        **{("bip-plus", s): 80.5 + 10 * s for s in (0.8, 0.9, 0.95, 0.98)},
        **{
            ("bip-plus, a fifth of IMP's passes", s): 60.5 + 10 * s + length
            for s, length in ((0.9, 44), (0.95, 56), (0.98, 72))
        },
    }
    assert lines.dense is None


def test_what_has_no_runs_is_not_drawn() -> None:
    records: dict[str, RunRecord] = {}
    assert drawn(records) == {}
    for spec in STUDIES["full-size"].specs("laptop"):
        records[spec.key] = of_spec(spec)
    assert [*drawn(records)] == ["resnet-20-on-cifar-10-iou.svg"]


def test_dense_networks_are_those_with_as_much_training() -> None:
    records: dict[str, RunRecord] = {}
    for spec in [*STUDIES["controls"].specs("laptop"), *STUDIES["methods"].specs("laptop")]:
        fields = {"dense_accuracy": 70.0, "test_accuracy": 77.0 if spec.sparsity == 0 else 60.0}
        records[spec.key] = of_spec(spec, **fields)
    lines = laptop(records)
    assert lines.dense is not None
    assert set(lines.dense.values) == {77.0}


def test_the_committed_figures_are_of_the_committed_records() -> None:
    root = Path(__file__).parents[2]
    records = load()
    assert {r.spec.method for r in full_size(records)} >= {"train", "bip-plus-0.1"}
    files = drawn(records)
    for name in [name for name in files if name.startswith("resnet-8")]:
        image = (root / "docs/images" / name).read_text(encoding="utf-8")
        points = set(re.findall(r'aria-label="([^"]* at [^"]* %: [^"]*)"', image))
        cells = files[name].cells
        assert points == {in_words(c.label, c.sparsity, c.accuracy.mean) for c in cells}
    assert "ResNet-8 on CIFAR-10, at 95 %" in image
