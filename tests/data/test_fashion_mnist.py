import gzip
import hashlib
import struct
from functools import partial

import numpy as np
import pytest
import torch

from biprune.data import fashion_mnist, load_data

load_fashion = partial(load_data, "fashion_mnist", verify=False)


def idx(array):
    shape = struct.pack(f">{array.ndim}I", *array.shape)
    return bytes([0, 0, 8, array.ndim]) + shape + array.tobytes()


@pytest.fixture
def contents():
    """Pixel (row, column) of image i is 8 * row + column + i; the label is i mod 10."""
    files = {}
    for split, count in (("train", 40), ("t10k", 20)):
        ramp = 8 * np.arange(28)[:, None] + np.arange(28)
        images = (np.arange(count)[:, None, None] + ramp).astype(np.uint8)
        files[f"{split}-images-idx3-ubyte"] = idx(images)
        files[f"{split}-labels-idx1-ubyte"] = idx(np.arange(count, dtype=np.uint8) % 10)
    return files


def write(root, contents, *, packed):
    for name, content in contents.items():
        if packed:
            (root / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (root / name).write_bytes(content)


@pytest.mark.parametrize("packed", [True, False])
def test_pixels(tmp_path, contents, packed):
    write(tmp_path, contents, packed=packed)
    data = load_fashion(root=tmp_path, val_fraction=0.25)
    assert (data.num_classes, data.in_channels, data.image_size) == (10, 1, 28)
    x, y = next(iter(data.test))
    assert y.tolist() == [i % 10 for i in range(20)]
    expected = ((3 + 8 * 2 + 5) / 255 - 0.2860) / 0.3530
    torch.testing.assert_close(x[3, 0, 2, 5].item(), expected)
    assert x.shape == (20, 1, 28, 28)
    assert sum(len(y) for _, y in data.train) == 30
    assert torch.bincount(torch.cat([y for _, y in data.val])).tolist() == [1] * 10


def test_checksum(tmp_path, contents):
    write(tmp_path, contents, packed=True)
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte.gz has md5 .*`verify=False`"):
        load_data("fashion_mnist", root=tmp_path)


def test_what_is_not_verified_is_said(tmp_path, contents, caplog):
    """The authors publish sums of the packed files alone."""
    write(tmp_path, contents, packed=False)
    load_fashion(root=tmp_path)
    assert caplog.text == ""  # whoever says verify=False knows it
    load_fashion(root=tmp_path, verify=True)
    for name in contents:
        assert f"{tmp_path / name} is not verified" in caplog.text


def test_missing(tmp_path, contents):
    write(tmp_path, contents, packed=True)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(ValueError, match=r"t10k-labels-idx1-ubyte.gz is missing.*`download=True`"):
        load_fashion(root=tmp_path)


def test_download(tmp_path, contents, monkeypatch):
    served, root = tmp_path / "served", tmp_path / "root"
    served.mkdir()
    write(served, contents, packed=True)
    for path in served.iterdir():
        digest = hashlib.md5(path.read_bytes()).hexdigest()
        monkeypatch.setitem(fashion_mnist.MD5, path.name, digest)
    monkeypatch.setattr(fashion_mnist, "URL", f"{served.as_uri()}/")
    data = load_data("fashion_mnist", root=root, download=True)
    assert sorted(path.name for path in root.iterdir()) == sorted(fashion_mnist.MD5)
    assert len(next(iter(data.test))[1]) == 20


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no idx header"),
        (b"\0\0\x0d\x01" + bytes(8), "no idx header"),
        (b"\0\0\x08\x03" + bytes(5), "no idx header"),
        (idx(np.zeros((40, 28, 28), np.uint8))[:-1], r"truncated: its header says \(40, 28, 28\)"),
        (idx(np.zeros((39, 28, 28), np.uint8)), r"shape \(39, 28, 28\).*40 labels"),
        (idx(np.zeros((40, 27, 28), np.uint8)), r"needs \(40, 28, 28\)"),
    ],
    ids=["empty", "floats", "short header", "truncated", "too few", "wrong size"],
)
def test_damaged_images(tmp_path, contents, content, message):
    write(tmp_path, contents | {"train-images-idx3-ubyte": content}, packed=False)
    with pytest.raises(ValueError, match=f"train-images-idx3-ubyte.*{message}"):
        load_fashion(root=tmp_path)


def test_damaged_gzip(tmp_path, contents):
    write(tmp_path, contents, packed=True)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte.gz is damaged"):
        load_fashion(root=tmp_path)


def test_label_out_of_range(tmp_path, contents):
    labels = idx(np.full(40, 11, np.uint8))
    write(tmp_path, contents | {"train-labels-idx1-ubyte": labels}, packed=False)
    with pytest.raises(ValueError, match="train-labels-idx1-ubyte has labels from 11 to 11"):
        load_fashion(root=tmp_path)
