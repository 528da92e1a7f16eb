from __future__ import annotations

import inspect
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import biprune

TINY: dict[str, Any] = {
    "sparsities": [0.5],
    "seeds": [0, 1],
    "passes": 2,
    "dense": {"epochs": 1},
    "model_options": {"width": 2},
}


def test_a_comparison_by_name_and_by_loaded_data_is_the_same(tmp_path: Path) -> None:
    steps: list[str] = []
    by_name = biprune.compare(
        ["bip-plus"],
        "digits",
        "resnet8",
        data_options={"subset": 200},
        store=tmp_path,
        progress=lambda spec, event: steps.append(spec.method),
        **TINY,
    )
    assert {spec.method for spec in by_name.specs} == {"bip-plus", "gmp"}  # gmp is always a row
    assert set(steps) == {"train", "bip-plus", "gmp"}
    assert len(by_name.records) == 2 * (1 + 2)
    records = by_name.records
    steps.clear()
    data = biprune.load_data("digits", subset=200)
    loaded = biprune.compare(
        ["bip-plus", "gmp"],
        data,
        "resnet8",
        store=tmp_path,
        progress=lambda spec, event: steps.append(spec.method),
        **TINY,
    )
    assert steps == []
    assert loaded.records == records
    with pytest.raises(ValueError, match="`data_options` go with the name"):
        biprune.compare(["bip-plus"], data, "resnet8", data_options={"subset": 9}, **TINY)


def test_dense_is_compared_once_a_seed(tmp_path: Path) -> None:
    result = biprune.compare(
        ["dense"], "digits", "resnet8", data_options={"subset": 200}, store=tmp_path, **TINY
    )
    found = [(r.spec.sparsity, r.status) for r in result.records if r.spec.method == "dense"]
    assert found == [(0.0, "done")] * 2
    assert "hole" not in result.table()


@pytest.mark.parametrize(
    ("model", "options", "said"),
    [
        ("resnet9", {}, "Unknown model 'resnet9'"),
        ("resnet8", {"depth": 3}, "Model 'resnet8' does not take `depth`"),
    ],
)
def test_a_model_that_is_not_known_is_refused_before_any_run(
    tmp_path: Path, model: str, options: dict[str, int], said: str
) -> None:
    wrong = {**TINY, "model_options": options}
    with pytest.raises(ValueError, match=said):
        biprune.compare(["omp"], "digits", model, store=tmp_path / "store", **wrong)
    assert not (tmp_path / "store").exists()


def test_data_loaded_without_verifying_is_compared_without(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for file in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"):
        images = np.random.default_rng(0).integers(0, 255, (20, 1 + 3072), dtype=np.uint8)
        images[:, 0] = np.arange(20) % 10
        (folder / f"{file}.bin").write_bytes(images.tobytes())
    data = biprune.load_data("cifar10", root=tmp_path, verify=False)
    result = biprune.compare(["omp"], data, "resnet8", store=tmp_path / "runs", **TINY)
    assert {record.error for record in result.records} == {None}


def test_a_loaded_folder_is_known_by_its_path(tmp_path: Path) -> None:
    for split, seed in itertools.product(("train", "test"), range(4)):
        for label in ("cat", "dog"):
            folder = tmp_path / "images" / split / label
            folder.mkdir(parents=True, exist_ok=True)
            pixels = np.random.default_rng(seed).integers(0, 255, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{seed}.png")
    data = biprune.load_data(f"folder:{tmp_path / 'images'}", image_size=8)
    result = biprune.compare(["gmp"], data, "resnet8", store=tmp_path / "runs", **TINY)
    assert {record.status for record in result.records} == {"done"}
    assert {spec.data for spec in result.specs} == {data.name}


def test_the_table_and_the_page(tmp_path: Path) -> None:
    result = biprune.compare(
        [biprune.BiP(gamma=10.0), biprune.BiP()],
        "digits",
        "resnet8",
        data_options={"subset": 200},
        store=tmp_path / "runs",
        **TINY,
    )
    by_seed = [
        record.test_accuracy
        for record in result.records
        if record.spec.method == "bip" and record.spec.settings.get("gamma") == 10
    ]
    assert len(by_seed) == 2
    mean = sum(value or 0.0 for value in by_seed) / 2
    row = next(line for line in result.table().splitlines() if "gamma=10" in line)
    assert f"{mean:.2f}" in row
    page = result.report(tmp_path / "page.html", csv=tmp_path / "cells.csv")
    assert "gamma=10" in page.read_text(encoding="utf-8")
    assert (tmp_path / "cells.csv").exists()


def test_equal_passes(tmp_path: Path) -> None:
    result = biprune.compare(
        ["bip-plus", "bip", "hydra", "omp"],
        "digits",
        "resnet8",
        data_options={"subset": 200},
        store=tmp_path,
        **{**TINY, "seeds": [0]},
    )
    pruned = [record for record in result.records if record.spec.method != "train"]
    assert {record.backward_passes for record in pruned} == {2 * 3}


def test_where_no_method_is_named_both_forms_of_bip_are_compared() -> None:
    """The help says so without importing torch, so its list is a copy."""
    from biprune.cli.compare import compare_command
    from biprune.report.compare import DEFAULT

    option = inspect.signature(compare_command, eval_str=True).parameters["method"].annotation
    assert option.__metadata__[0].show_default == ", ".join(DEFAULT)
    assert {"bip", "bip-plus", "gmp"} <= set(DEFAULT)
    assert inspect.signature(biprune.prune).parameters["method"].default == "bip-plus"
