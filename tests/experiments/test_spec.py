from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
from pydantic import ValidationError

from biprune.experiments.record import RunSpec
from biprune.experiments.sweep import grid, with_passes
from biprune.methods import GMP, IMP, METHODS, OMP, BiP, BiPPlus, Hydra


def spec(**changes: object) -> RunSpec:
    fields = {"model": "resnet8", "data": "digits", "method": "bip-plus", "sparsity": 0.9}
    return RunSpec(**fields | changes)  # pyright: ignore[reportArgumentType]


def test_keys_never_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Written down once: a change of these orphans every store there is."""
    assert spec().key == "d7a24c19a2a880198d16b245"
    assert spec(method="bip").key == "a1a3c018861f001c770102bf"
    assert RunSpec(model="resnet8", data="digits").key == "b29e912d48a00f4162acbbd6"
    # Keys of the first version, when `bip` had the paper's settings: the scheme is still the same.
    monkeypatch.setattr(BiP, "settings_version", 1)
    assert spec(method="bip").key == "1245caee9fdcd48a78889c4d"
    changed = spec(method="bip", seed=3, settings={"gamma": 0.5}, dense={"epochs": 3})
    assert changed.key == "743d8ea88405ab79033ba85e"


@pytest.mark.parametrize(
    ("method", "settings"),
    [("bip-plus", {"kappa": 3.0, "lr": 0.1}), ("bip", {"gamma": 1.0, "lr": 0.01})],
)
def test_what_is_given_as_the_default_is_not_there(method: str, settings: dict) -> None:
    said = spec(method=method, settings=settings, dense={"milestones": (0.5, 0.75)})
    assert said == spec(method=method)
    assert said.key == spec(method=method).key
    assert said.resolved["settings"] == METHODS[method]().settings
    assert said.resolved["dense"]["epochs"] == 160


def test_a_whole_number_for_a_float_is_the_same_run() -> None:
    one, same = (spec(settings={"kappa": kappa}) for kappa in (1, 1.0))
    assert one.key == same.key


def test_every_difference_changes_the_key() -> None:
    changes = [
        {"model": "resnet20"},
        {"data": "cifar10"},
        {"method": "omp"},
        {"sparsity": 0.91},
        {"structure": "filter"},
        {"scope": "layer"},
        {"seed": 1},
        {"settings": {"lr": 0.2}},
        {"model_options": {"width": 4}},
        {"data_options": {"subset": 300}},
        {"dense": {"epochs": 3}},
        {"training": {"ema": 0.9}},
        {"include": ["conv*"]},
        {"exclude": ["fc*"]},
        {"allow_empty": True},
    ]
    keys = {spec(**change).key for change in [{}, *changes]}
    assert len(keys) == 1 + len(changes)
    assert set(RunSpec.model_fields) == {name for change in changes for name in change}


def test_a_new_field_leaves_old_keys() -> None:
    class Wider(RunSpec):
        brand_new: int = 0

    assert Wider(**spec().model_dump()).key == spec().key
    assert Wider(**spec().model_dump(), brand_new=1).key != spec().key


def test_a_new_version_of_the_settings_changes_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before, other = spec().key, spec(method="omp").key

    @dataclass(frozen=True)
    class NextBiP(BiPPlus):
        settings_version = BiPPlus.settings_version + 1  # pyright: ignore[reportAssignmentType]

    monkeypatch.setitem(METHODS, "bip-plus", NextBiP)
    assert spec().key != before
    assert spec(method="omp").key == other


def test_specs_survive_json() -> None:
    full = spec(
        method="bip-plus",
        settings={"kappa": 1.5, "passes": 2},
        include=["a*"],
        dense={"milestones": [0.3], "lr": 0.2},
    )
    assert RunSpec.model_validate_json(full.model_dump_json()) == full
    assert json.loads(json.dumps(full.resolved)) == full.resolved


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "bop"}, "Unknown method 'bop'"),
        ({"settings": {"gama": 1}}, "Unknown option 'gama'"),
        ({"settings": {"kappa": -1}}, "`kappa` must be 0 or more"),
        ({"dense": {"epoch": 1}}, "Unknown option 'epoch'"),
        ({"data_options": {"subsets": 1}}, "Unknown option 'subsets'"),
        ({"sparsity": 90}, "Did you mean 0.9"),
        ({"structure": "row"}, "row"),
        ({"data": "digit"}, "Unknown data 'digit'"),
        ({"seed": -1}, "`seed` must be"),
        ({"dense": {"lr": -1.0}}, "`lr` must be"),
        ({"training": {"clip_grad": 0.0}}, "`clip_grad` must be positive"),
        ({"training": {"clip": 1.0}}, "Unknown option 'clip'"),
        ({"sparcity": 0.9}, "Extra inputs"),
    ],
)
def test_mistakes_are_refused_by_name(change: dict, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        spec(**change)


def test_what_prune_would_refuse_is_refused_before_the_dense_run() -> None:
    with pytest.raises(ValueError, match=r"'2:4' removes 0\.5 .*: leave `sparsity` out, got 0\.9"):
        grid(
            ["omp"],
            model="resnet8",
            data="digits",
            sparsities=[0.9],
            seeds=[0],
            structures=["2:4"],
        )
    assert spec(structure="2:4", sparsity=0.5).sparsity == 0.5


def test_the_batch_size_of_a_data_set_is_no_option() -> None:
    assert spec(data_options={"batch_size": 64}) == spec()
    assert spec(data_options={"batch_size": 32}) != spec()
    images = {"data": "tiny_imagenet", "model": "resnet18"}
    assert spec(**images, data_options={"batch_size": 32}) == spec(**images)


def test_the_dense_run_is_shared_by_all_that_start_from_it() -> None:
    dense = {spec(method=name, sparsity=s).dense_spec.key for name in METHODS for s in (0.5, 0.9)}
    assert len(dense) == 1
    assert spec(seed=1).dense_spec.key not in dense


def test_passes_are_equal_whatever_a_method_makes_of_them() -> None:
    assert with_passes(BiP(), 0.9, 20).settings["epochs"] == 10
    assert with_passes(BiPPlus(passes=2), 0.9, 20).settings["epochs"] == 10
    assert with_passes(BiPPlus(), 0.9, 20).settings["epochs"] == 20
    assert with_passes(Hydra(), 0.9, 20).settings["epochs"] == 20
    assert with_passes(GMP(), 0.9, 20).data_passes(0.9) == 20
    assert with_passes(BiP(lower_steps=2), 0.9, 20).data_passes(0.9) == 18


@pytest.mark.parametrize("name", METHODS)
def test_a_method_by_name_is_run_as_it_is(name: str) -> None:
    sparsity = 0.5 if METHODS[name].prunes else 0.0
    (single,) = grid([name], model="resnet8", data="digits", sparsities=[sparsity])
    assert single.settings == {}
    assert single.build_method() == METHODS[name]()


def test_a_method_that_its_name_does_not_say_is_refused() -> None:
    class Mine(OMP):
        pass

    with pytest.raises(ValueError, match=r"has a Mine, whose name 'omp' stands for another"):
        grid([Mine()], model="resnet8", data="digits", sparsities=[0.5])


def test_the_grid_by_hand() -> None:
    specs = grid(
        ["bip", IMP(rate=0.5, stops=(0.3,))],
        model="resnet8",
        data="digits",
        sparsities=[0.5, 0.9],
        seeds=[0, 1],
        passes=4,
        dense={"epochs": 3},
    )
    assert [(s.seed, s.sparsity, s.method) for s in specs[:4]] == [
        (0, 0.5, "bip"),
        (0, 0.5, "imp"),
        (0, 0.9, "bip"),
        (0, 0.9, "imp"),
    ]
    assert len(specs) == 8
    assert specs[0].settings == {"epochs": 2}
    assert specs[1].settings == {"epochs": 4, "rate": 0.5, "stops": [0.3]}  # 4 in each round
    assert specs[3].settings == {"epochs": 4, "rate": 0.5, "stops": [0.3, 0.5]}
