import json
import subprocess
import sys

import pytest
import torch

from biprune.data import DATASETS, Dataset, load_data


def joined(batches):
    batches = list(batches)
    return torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(joined(first), joined(second), strict=True))


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_data("digits")


def test_digits(digits):
    assert (digits.name, digits.num_classes, digits.in_channels) == ("digits", 10, 1)
    assert digits.image_size == 8
    x, y = next(iter(digits.train))
    assert (x.shape, x.dtype, y.shape, y.dtype) == (
        (64, 1, 8, 8),
        torch.float32,
        (64,),
        torch.int64,
    )
    sizes = [len(joined(split)[1]) for split in (digits.train, digits.val, digits.test)]
    assert sizes == [1294, 144, 359]
    assert [len(digits.train), len(digits.val), len(digits.test)] == [21, 3, 6]
    for split in (digits.train, digits.val, digits.test):
        counts = torch.bincount(joined(split)[1])
        assert counts.max() - counts.min() <= 0.05 * counts.sum()


def test_digits_are_those_of_scikit_learn_normalised():
    from sklearn.datasets import load_digits

    data = load_data("digits", val_fraction=0, augment=False)
    x = torch.cat([joined(data.train)[0], joined(data.test)[0]])
    assert x.mean().abs() < 1e-3
    assert (x.std() - 1).abs() < 1e-3
    levels = ((x * 0.3760 + 0.3053) * 16).round().to(torch.uint8).view(-1, 64)
    expected = torch.from_numpy(load_digits().data).to(torch.uint8)
    assert sorted(levels.tolist()) == sorted(expected.tolist())


def test_digits_are_shifted_but_not_flipped():
    torch.manual_seed(0)
    options = {"val_fraction": 0, "subset": 10, "batch_size": 10}
    plain, _ = joined(load_data("digits", augment=False, **options).train)
    images, _ = joined(load_data("digits", **options).train)
    black = -0.3053 / 0.3760
    padded = torch.nn.functional.pad(plain, (1, 1, 1, 1), value=black)
    for image in images:
        shifts = [padded[:, :, t : t + 8, x : x + 8] for t in range(3) for x in range(3)]
        assert any((shift - image).abs().amax((1, 2, 3)).min() < 1e-5 for shift in shifts)


def test_the_global_seed_decides_the_order(digits):
    torch.manual_seed(1)
    first = joined(digits.train)
    second = joined(digits.train)
    torch.manual_seed(1)
    again = joined(digits.train)
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[1], second[1])
    assert torch.equal(first[1].sort().values, second[1].sort().values)


def test_val_and_test_are_fixed_and_draw_nothing(digits):
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    assert same(digits.val, digits.val)
    assert same(digits.test, digits.test)
    assert torch.rand(1) == expected


def test_seed_decides_the_splits(digits):
    assert same(load_data("digits").val, digits.val)
    assert not torch.equal(joined(load_data("digits", seed=1).val)[0], joined(digits.val)[0])


def test_subset_leaves_the_test_alone(digits):
    small = load_data("digits", subset=100)
    assert same(small.test, digits.test)
    assert torch.bincount(joined(small.val)[1]).tolist() == [1] * 10
    assert torch.bincount(joined(small.train)[1]).tolist() == [9] * 10


def test_without_validation():
    data = load_data("digits", val_fraction=0)
    assert data.val is None
    assert len(joined(data.train)[1]) == 1438


def test_options_load_the_same_data(tmp_path):
    data = load_data("digits", seed=4, root=tmp_path, batch_size=50, subset=500, val_fraction=0.2)
    options = json.loads(json.dumps(data.options))
    assert options["root"] == str(tmp_path)
    again = load_data(**options)
    assert again.options == data.options
    assert same(again.val, data.val)
    torch.manual_seed(0)
    first = joined(data.train)[0]
    torch.manual_seed(0)
    assert torch.equal(joined(again.train)[0], first)


def test_options_record_the_batch_size_used(digits):
    assert digits.options["batch_size"] == 64


def test_paper_batch_sizes():
    sizes = {name: entry.batch_size for name, entry in DATASETS.items()}
    assert sizes.pop("tiny_imagenet") == 32
    assert sizes.pop("imagenet") == 1024
    assert set(sizes.values()) == {64}


def test_entries_are_one_line():
    for entry in DATASETS.values():
        assert "\n" not in entry.description + entry.files
        assert entry.description
        assert entry.files


def test_unknown_name():
    with pytest.raises(ValueError, match="Unknown data") as caught:
        load_data("cifar")
    assert str(caught.value) == (
        "Unknown data 'cifar'. Data: digits, cifar10, cifar100, fashion_mnist, tiny_imagenet, "
        "imagenet, folder:PATH. Closest: cifar10."
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "`batch_size` must be at least 1, got 0"),
        ({"workers": -1}, "`workers` must be at least 0, got -1"),
        ({"val_fraction": 1}, r"`val_fraction` must be in \[0, 1\), got 1"),
        ({"val_fraction": -0.1}, r"`val_fraction` must be in \[0, 1\), got -0.1"),
        ({"subset": 9}, "`subset` must be from 10, the number of classes, to 1438, .* got 9"),
        ({"subset": 1439}, "got 1439"),
        ({"image_size": 16}, "`image_size` of digits is always 8, got 16"),
        ({"image_size": 0}, "`image_size` must be at least 1, got 0"),
    ],
)
def test_impossible_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        load_data("digits", **options)


def test_importing_needs_no_extra():
    """scikit-learn and Pillow are imported when data is loaded that needs them, not before."""
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['sklearn', 'PIL'])); "
        "from biprune.data import DATASETS, load_data; print(len(DATASETS))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout.strip() == str(len(DATASETS)), run.stderr


def test_a_missing_extra_is_named(tmp_path, monkeypatch):
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "0.png").touch()
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    monkeypatch.setitem(sys.modules, "PIL", None)
    advice = r", which is not installed: pip install 'biprune\[data\]'$"
    with pytest.raises(ModuleNotFoundError, match=f"needs sklearn.*{advice}"):
        load_data("digits")
    for options in ({}, {"image_size": 8}):
        with pytest.raises(ModuleNotFoundError, match=f"needs PIL{advice}"):
            load_data(f"folder:{tmp_path}", **options)


def test_no_training_batch_holds_a_single_image():
    data = load_data("digits", subset=129, val_fraction=0.0)
    assert [len(labels) for _, labels in data.train] == [64, 64]
