"""Networks by name: seeds, records, networks of the user's own, and mistakes."""

import copy
import json

import pytest
import torch

from biprune.models import MODELS, create_model
from variants import VARIANTS, shapes

NAMES = "resnet8, resnet20, resnet32, resnet56, resnet18, resnet50, vgg16"


def state_equal(model, other):
    mine, theirs = model.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[key], theirs[key]) for key in mine)


def message(**arguments):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the tests compare the whole text)
        create_model(**arguments)
    return str(caught.value)


@pytest.mark.parametrize("name", MODELS)
def test_seed_decides_the_weights(name):
    model = create_model(name, width=2, seed=3)
    assert state_equal(model, create_model(name, width=2, seed=3))
    assert not state_equal(model, create_model(name, width=2, seed=4))


def test_callers_rng_is_untouched_and_without_influence():
    torch.manual_seed(11)
    before = torch.get_rng_state()
    model = create_model("resnet8", seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(12)
    assert state_equal(model, create_model("resnet8", seed=3))


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_created_by_rebuilds_the_architecture(name, options):
    model = create_model(name, num_classes=3, in_channels=2, width=4, **options)
    record = json.loads(json.dumps(copy.deepcopy(model).created_by))
    assert record.items() >= {"name": name, "num_classes": 3, "in_channels": 2, "width": 4}.items()
    rebuilt = create_model(**record)
    assert shapes(rebuilt) == shapes(model)
    assert str(rebuilt) == str(model)


def test_created_by_records_defaults_too():
    assert create_model("resnet20").created_by == {
        "name": "resnet20",
        "num_classes": 10,
        "in_channels": 3,
        "width": 16,
        "shortcut": "A",
    }


def test_entries_are_described_in_one_line():
    assert ", ".join(MODELS) == NAMES
    for entry in MODELS.values():
        assert entry.description
        assert "\n" not in entry.description


def test_unknown_model_names_the_closest():
    assert message(name="resnet21") == (
        f"Unknown model 'resnet21'. Models: {NAMES}. Closest: resnet20. "
        "Your own: 'package.module:factory'."
    )
    assert "Closest: vgg16." in message(name="VGG-16")
    assert "Closest" not in message(name="transformer")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"num_classes": 0}, "`num_classes` must be an integer of at least 1, got 0."),
        ({"in_channels": -1}, "`in_channels` must be an integer of at least 1, got -1."),
        ({"width": 0}, "`width` must be an integer of at least 1, got 0."),
        ({"width": 1.5}, "`width` must be an integer of at least 1, got 1.5."),
        ({"shortcut": "C"}, "`shortcut` must be 'A' or 'B', got 'C'."),
        (
            {"name": "resnet18", "stem": "foo"},
            "`stem` must be 'small' or 'imagenet', got 'foo'.",
        ),
        (
            {"stem": "small"},
            "Model 'resnet20' does not take `stem`. "
            "It takes: num_classes, in_channels, width, shortcut.",
        ),
    ],
)
def test_bad_values_are_refused(arguments, expected):
    assert message(**{"name": "resnet20", **arguments}) == expected


@pytest.fixture
def own_models(tmp_path, monkeypatch):
    (tmp_path / "own_models.py").write_text(
        """
from torch import nn

NOT_CALLABLE = 3

def linear(num_classes, bias=True):
    return nn.Linear(4, num_classes, bias=bias)

def conv(*, in_channels, width=5):
    return nn.Conv2d(in_channels, width, 3)

def anything(**arguments):
    model = nn.Linear(1, 1)
    model.arguments = arguments
    return model

def needs_depth(depth):
    return nn.Linear(depth, 1)

def wrong():
    return "a string"
"""
    )
    (tmp_path / "broken_models.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("own_models")
def test_own_factory_gets_the_arguments_it_takes():
    linear = create_model("own_models:linear", num_classes=6, in_channels=2, bias=False)
    assert linear.out_features == 6
    assert linear.bias is None
    assert create_model("own_models:conv", in_channels=2).out_channels == 5
    assert create_model("own_models:conv", in_channels=2, width=8).out_channels == 8
    assert create_model("own_models:anything", depth=2).arguments == {
        "num_classes": 10,
        "in_channels": 3,
        "depth": 2,
    }
    assert linear.created_by == {"name": "own_models:linear", "num_classes": 6, "bias": False}
    assert not hasattr(create_model("own_models:anything", depth=print), "created_by")


@pytest.mark.usefixtures("own_models")
def test_own_factory_is_seeded():
    before = torch.get_rng_state()
    model = create_model("own_models:linear", seed=5)
    assert torch.equal(torch.get_rng_state(), before)
    assert state_equal(model, create_model("own_models:linear", seed=5))
    assert not state_equal(model, create_model("own_models:linear", seed=6))


@pytest.mark.usefixtures("own_models")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            {"name": "no_such_module:f"},
            "Cannot import model 'no_such_module:f': No module named 'no_such_module'. "
            "Is its folder on PYTHONPATH?",
        ),
        (
            {"name": "broken_models:f"},
            "Cannot import model 'broken_models:f': No module named 'no_such_dependency'. "
            "Is its folder on PYTHONPATH?",
        ),
        (
            {"name": "own_models:missing"},
            "Cannot import model 'own_models:missing': "
            "module 'own_models' has no function 'missing'.",
        ),
        (
            {"name": "own_models:NOT_CALLABLE"},
            "Cannot import model 'own_models:NOT_CALLABLE': "
            "module 'own_models' has no function 'NOT_CALLABLE'.",
        ),
        (
            {"name": "dir/own_models:linear"},
            "A model of your own is named 'package.module:factory', got 'dir/own_models:linear'.",
        ),
        (
            {"name": "own_models:"},
            "A model of your own is named 'package.module:factory', got 'own_models:'.",
        ),
        (
            {"name": "own_models:linear", "depth": 3, "width": 4},
            "Model 'own_models:linear' does not take `width`, `depth`. "
            "It takes: num_classes, bias.",
        ),
        (
            {"name": "own_models:needs_depth"},
            "Cannot call model 'own_models:needs_depth': missing a required argument: 'depth'. "
            "Pass it as an option.",
        ),
        (
            {"name": "own_models:wrong"},
            "Model 'own_models:wrong' must return an nn.Module, got str.",
        ),
    ],
)
def test_own_factory_mistakes_are_explained(arguments, expected):
    assert message(**arguments) == expected
