from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
from torch import nn

import preset_costs
from biprune.core.structure import get_structure
from biprune.data import DATASETS, load_data
from biprune.experiments.costs import (
    DATA_SIZES,
    Estimate,
    Scale,
    Speed,
    estimate,
    listed,
    macs_of_an_image,
    training_images,
)
from biprune.experiments.presets import PRESETS, get_preset
from biprune.experiments.presets.base import LADDER, SIZES, part
from biprune.experiments.record import RunSpec
from biprune.methods import IMP
from biprune.methods.base import Target
from biprune.models import MODELS, create_model

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs/reproduction.md").read_text(encoding="utf-8")
LABELS = """
    fig: intro-c2 | fig: one_shot_results_merged | eq: prob_bi_level | eq: GD_bi_level | eq:
    exact_IG | eq: IG_simplify | thr: ig | eq: IG_final | eq: upper_update_final | eq:
    chainrule_theta | eq: chainrule_mask | eq: ezBiP | eq: theta_step | eq: m_step | fig:
    alg_compare | fig: unstructured_performance_cifar | tab: sparsest_wt | fig:
    time_compare_res18c10 | fig: structured_performance_cifar | fig: rewind_effect | eq: app_IG |
    eq: stationary | eq: exact_IG2 | fig: algorithm overview | appeq: theta_step | eq:m-step-c2 |
    eq:soft-m-step | eq: SGD | eq: threshold | alg: BiP | table: impl_details | tab: efficiency |
    tab: training_details | fig: compare_IMP_OMP_GMP | fig: illustration | fig: compare_init |
    fig: unstructured_rebuttal | fig: structured_rebuttal | fig: resnet18_imagenet_rebuttal | fig:
    ablation_study | fig: ablation_study_full | fig: structured_performance_cifar_appendix | fig:
    channel_performance_cifar_appendix | fig: convergence | fig: IoU_Trajectory_rebuttal | fig:
    step_convergence_rebuttal | fig: epoch_extreme_sparsity_rebuttal | fig: batch_diverse_rebuttal
    | fig: batch_diverse_convergence_rebuttal | tab: sparsest_wt_rebuttal
"""  # what the paper's source calls its figures, tables, algorithms and equations
SCALES: tuple[Scale, ...] = get_args(Scale)


@cache
def built(name: str, scale: Scale) -> list[RunSpec]:
    return get_preset(name).specs(scale)


def settings(spec: RunSpec) -> dict[str, Any]:
    return spec.resolved["settings"]


def of(name: str, method: str, scale: Scale = "paper") -> list[RunSpec]:
    found = [spec for spec in built(name, scale) if spec.method == method]
    assert found
    return found


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_expands_at_every_scale(name: str, scale: Scale) -> None:
    specs = built(name, scale)
    assert specs
    assert max(Counter(spec.key for spec in specs).values()) == 1
    assert {spec.seed for spec in specs} == {*SIZES[scale].seeds}
    assert {spec.model for spec in specs} <= MODELS.keys()
    assert {spec.data for spec in specs} <= DATASETS.keys()
    if len({spec.method for spec in specs}) > 1:
        assert "gmp" in {spec.method for spec in specs}


@pytest.mark.parametrize("scale", SCALES)
def test_every_sparsity_can_be_reached(scale: Scale) -> None:
    cells = {
        (spec.model, tuple(spec.model_options.items()), spec.structure, spec.sparsity)
        for name in ("trajectories", "filter", "channel", "epochs")
        for spec in built(name, scale)
    }
    models: dict[Any, nn.Module] = {}
    for model, options, structure, sparsity in cells:
        if (model, options) not in models:
            models[model, options] = create_model(model, **dict(options))
        Target(sparsity, get_structure(structure)).check(models[model, options])


def test_presets_say_what_they_are() -> None:
    for name, preset in PRESETS.items():
        assert name == preset.name
        assert re.fullmatch(r"(Figures?|Table) [A\d].*", preset.source)
        assert preset.summary
        assert "\n" not in preset.summary


def test_an_unknown_preset_names_the_closest() -> None:
    with pytest.raises(ValueError, match=r"Presets: snapshot, .* Closest: trajectories\."):
        get_preset("trajectorys")


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", PRESETS)
def test_bip_is_there_as_published_and_in_comparisons_also_as_it_is(
    name: str, scale: Scale
) -> None:
    methods = {spec.method for spec in built(name, scale)}
    if name == "batch-schemes":  # of two passes, which BiP by default does not have
        assert methods == {"bip", "imp", "gmp"}
    elif name in ("one-shot", "imp-epochs"):  # of its rivals alone
        assert not methods & {"bip-plus", "bip"}
    else:
        assert methods == {"bip"} or methods > {"bip", "bip-plus", "gmp"}


def test_bip_has_the_settings_of_the_paper() -> None:
    for spec in of("trajectory-cifar10-resnet18", "bip"):
        has = settings(spec)
        assert (has["lr"], has["score_lr"], has["epochs"], has["gamma"]) == (0.01, 0.1, 100, 1.0)
        assert (has["momentum"], has["weight_decay"], has["lower_steps"]) == (0.9, 5e-4, 1)
        assert (has["schedule"], has["form"]) == ("cosine", "binary")
        assert has["retrain_epochs"] == 0


def test_the_baselines_have_the_settings_of_table_a3() -> None:
    specs = built("trajectory-cifar10-resnet20", "paper")
    epochs = {"imp": 160, "omp": 160, "grasp": 200, "hydra": 200}
    shapes = {"imp": "step", "omp": "step", "grasp": "step", "hydra": "cosine"}
    for spec in specs:
        if spec.method in epochs:
            has = settings(spec)
            assert (has["epochs"], has["schedule"]) == (epochs[spec.method], shapes[spec.method])
            assert (has["lr"], has["momentum"], has["weight_decay"]) == (0.1, 0.9, 5e-4)
            assert spec.resolved["dense"]["epochs"] == 160
    assert {spec.sparsity for spec in specs} == set(LADDER)
    assert {spec.seed for spec in specs} == {0, 1, 2}


@pytest.mark.parametrize(
    ("name", "data", "batch_size", "options"),
    [
        ("trajectory-cifar100-resnet20", "cifar100", 64, {}),
        ("trajectory-tiny-imagenet-resnet18", "tiny_imagenet", 32, {}),
        ("trajectory-imagenet-resnet50", "imagenet", 1024, {"stem": "imagenet"}),
    ],
)
def test_batches_are_those_of_table_a1(
    name: str, data: str, batch_size: int, options: dict[str, str]
) -> None:
    for spec in of(name, "bip"):
        assert spec.data == data
        assert spec.resolved["data_options"]["batch_size"] is None  # the data's own
        assert DATASETS[data].batch_size == batch_size
        assert spec.model_options == options
        assert training_images(spec) == {"cifar100": 50_000, "tiny_imagenet": 100_000}.get(
            data, 1_281_167
        )


def test_imp_walks_the_ladder_in_fourteen_rounds() -> None:
    deepest = max(of("time", "imp"), key=lambda spec: spec.sparsity)
    method = deepest.build_method()
    assert isinstance(method, IMP)
    assert list(method.ladder(deepest.sparsity)) == list(LADDER)
    (at_74,) = (s for s in of("snapshot", "imp") if (s.model, s.seed) == ("resnet20", 0))
    assert at_74.sparsity == 0.738
    assert at_74.build_method().data_passes(0.738) == 6 * 160  # "T = 6 pruning iterations"


@pytest.mark.parametrize(
    ("name", "setting", "values"),
    [
        ("ablation-steps", "lower_steps", {1, 2, 3, 5}),
        ("ablation-gamma", "gamma", {0.1, 0.5, 1.0, 5.0, 10.0}),
        ("ablation-implicit", "implicit_gradient", {True, False}),
        ("ablation-lr", "lr", {0.001, 0.008, 0.01, 0.05, 0.1}),
        ("steps-dynamics", "lower_steps", {1, 3, 5}),
        ("batch-dynamics", "batches", {"different", "same", "reverse"}),
        ("epochs", "epochs", {50, 100, 200, 300, 400, 500}),
        ("rewinding", "rewind_epoch", {None, 0, 4, 8, 16, 40, 80}),
    ],
)
def test_a_study_changes_one_setting(name: str, setting: str, values: set[object]) -> None:
    specs = of(name, "bip")
    assert {settings(spec)[setting] for spec in specs} == values
    others = {frozenset(spec.settings.keys() - {setting}) for spec in specs}
    assert others == (
        {frozenset(), frozenset({"retrain_epochs"})} if name == "rewinding" else {frozenset()}
    )


def test_studies_of_other_things_than_settings() -> None:
    batches = {s.data_options.get("batch_size") for s in of("ablation-batch-size", "bip")}
    assert batches == {None, 32, 128, 256, 512}
    assert {settings(s)["epochs"] for s in of("imp-epochs", "imp")} == {20, 40, 80, 160}
    assert {s.sparsity for s in of("epochs", "bip")} == {0.8658, 0.945, 0.9775}
    assert {s.sparsity for s in of("convergence", "bip")} == {0.8}
    assert {s.structure for s in built("channel", "paper")} == {"channel"}
    rewound = of("rewinding", "bip")
    assert {tuple(s.dense["rewind_epochs"]) for s in rewound} == {(0, 4, 8, 16, 40, 80)}
    for name in ("convergence", "steps-dynamics", "batch-dynamics"):
        watched = of(name, "bip")
        assert all(s.resolved["data_options"]["val_fraction"] == 0.1 for s in watched)


@pytest.mark.parametrize("scale", ["laptop", "smoke"])
def test_small_scales_give_every_method_the_same_passes(scale: Scale) -> None:
    passes = SIZES[scale].passes
    assert passes is not None
    for spec in built("more-baselines", scale):
        if spec.method == "imp":
            assert settings(spec)["epochs"] == passes
        else:
            assert spec.build_method().data_passes(spec.sparsity) == passes


@pytest.mark.parametrize("scale", SCALES)
def test_the_default_of_a_study_is_the_run_of_the_comparison(scale: Scale) -> None:
    shared = {spec.key for spec in of("trajectory-cifar10-resnet20", "bip", scale)}
    wide = len(SIZES[scale].near((0.2, 0.738, 0.956))) * len(SIZES[scale].seeds)
    for name in ("ablation-steps", "ablation-gamma", "ablation-implicit", "ablation-lr"):
        assert len(shared & {spec.key for spec in of(name, "bip", scale)}) == wide


def test_a_part_of_a_run() -> None:
    assert [part(n, of=160, length=20) for n in (0, 8, 20, 40, 160)] == [1, 1, 2, 5, 20]
    assert part(8, of=160, length=160) == 8


def test_all_smoke_runs_together_are_small() -> None:
    cost = estimate(spec for name in PRESETS for spec in built(name, "smoke"))
    assert cost.runs <= 70
    assert cost.dense_runs <= 2
    assert cost.passes <= 390
    assert cost.images <= 105_000


def test_an_estimate_by_hand() -> None:
    common: dict[str, Any] = {"model": "resnet8", "data": "digits", "dense": {"epochs": 2}}
    options = {"subset": 300}
    bip = RunSpec(
        **common, data_options=options, method="bip", sparsity=0.5, settings={"epochs": 3}
    )
    imp = [
        RunSpec(
            **common,
            data_options=options,
            method="imp",
            sparsity=sparsity,
            settings={"epochs": 5, "stops": stops},
        )
        for sparsity, stops in ((0.2, []), (0.36, [0.2]))
    ]
    # One dense run, two passes an epoch, IMP's two rounds in one run; 30 of 300 are cut off.
    macs = macs_of_an_image(bip)
    assert estimate([bip, bip, *imp]) == Estimate(2, 1, 2 + 6 + 10, 18 * 270, 18 * 270 * macs)
    whole = RunSpec(**common, method="train")
    assert estimate([whole]) == Estimate(0, 1, 2, 2 * 1294, 2 * 1294 * macs)
    data = load_data("digits")
    assert training_images(whole) == 1294 == sum(len(y) for _, y in data.train)
    shape = (data.in_channels, data.image_size, data.num_classes)
    assert DATA_SIZES["digits"] == (1438, *shape)
    with pytest.raises(ValueError, match="size of 'folder:x' is not known"):
        estimate([RunSpec(model="resnet8", data="folder:x")])


def test_the_costs_on_file_are_those_of_today() -> None:
    """After a change run `python benchmarks/preset_costs.py`."""
    assert listed() == preset_costs.counted()


def test_the_work_of_an_image_by_hand() -> None:
    # Convolutions of 3 x 3: the first, two of each stage, where the next has half the pixels; then
    # the classifier.
    stages = 32 * 32 * (3 * 16 + 2 * 16 * 16) + 16 * 16 * (16 + 32) * 32 + 8 * 8 * (32 + 64) * 64
    resnet8 = RunSpec(model="resnet8", data="cifar10")
    assert macs_of_an_image(resnet8) == 9 * stages + 64 * 10
    narrow = RunSpec(model="resnet8", data="cifar10", model_options={"width": 8})
    quarter = 32 * 32 * (3 * 8 - 3 * 4)  # of all but the first layer's input and the classifier
    assert macs_of_an_image(narrow) == 9 * (stages // 4 + quarter) + 32 * 10


@pytest.mark.parametrize("name", [name for name in DATASETS if name != "folder:PATH"])
def test_the_data_is_known_beforehand(name: str) -> None:
    assert DATASETS[name].image_size in (DATA_SIZES[name].side, None)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1, "about a second"),
        (50, "about 50 seconds"),
        (900, "about 15 minutes"),
        (20_000, "about 6 hours"),
        (10**6, "about 12 days"),
        (10**8, "about 3 years"),
    ],
)
def test_durations(seconds: int, text: str) -> None:
    half = seconds * 50
    assert Estimate(1, 1, 1, images=half, macs=2 * half).time(Speed(200, 100)) == text


def test_the_document_has_every_preset_and_no_other() -> None:
    named = set(re.findall(r"biprune reproduce ([a-z][\w-]*)", DOCUMENT))
    assert named == PRESETS.keys()


def test_the_document_has_every_label_of_the_paper() -> None:
    labels = [" ".join(label.split()) for label in LABELS.split("|")]
    assert len(labels) > 40
    assert [label for label in labels if f"`{label}`" not in DOCUMENT] == []


def test_the_document_counts_right() -> None:
    for scale in ("laptop", "smoke"):
        cost = estimate(spec for name in PRESETS for spec in built(name, scale))
        assert f"{cost.runs:,} runs, {cost.dense_runs} dense" in DOCUMENT


def test_files_that_the_document_names_exist() -> None:
    for path in re.findall(r"`((?:\w+/)*\w+\.py)`", DOCUMENT):
        assert (ROOT / path).exists() or (ROOT / "src/biprune" / path).exists(), path
