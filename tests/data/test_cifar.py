import hashlib
import os
import pickle
import tarfile
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import numpy as np
import pytest
import torch

from biprune.data import cifar, load_data

REAL = os.environ.get("CIFAR10_ROOT")
PER_FILE = 20


def records(num_classes, first, count=PER_FILE):
    """`count` images; image i of the set is i in red, i + 100 in green; blue counts columns."""
    pixels = np.empty((count, 3, 32, 32), np.uint8)
    numbers = np.arange(first, first + count)
    pixels[:, 0] = numbers[:, None, None]
    pixels[:, 1] = numbers[:, None, None] + 100
    pixels[:, 2] = np.arange(32)
    return pixels.reshape(count, 3072), [int(number) % num_classes for number in numbers]


def binary(num_classes, first):
    pixels, labels = records(num_classes, first)
    head = [[label] if num_classes == 10 else [label // 5, label] for label in labels]
    return np.concatenate([np.array(head, np.uint8), pixels], axis=1).tobytes()


def python(num_classes, first):
    pixels, labels = records(num_classes, first)
    key = b"labels" if num_classes == 10 else b"fine_labels"
    content = {b"data": pixels, key: labels, b"coarse_labels": [0] * PER_FILE}
    return pickle.dumps(content, protocol=2)


LAYOUTS = {
    "cifar10-binary": ("cifar10", cifar.CIFAR10.packages[0], binary),
    "cifar10-python": ("cifar10", cifar.CIFAR10.packages[1], python),
    "cifar100-binary": ("cifar100", cifar.CIFAR100.packages[0], binary),
    "cifar100-python": ("cifar100", cifar.CIFAR100.packages[1], python),
}


def write(root, layout, *, packed=False):
    """Images are numbered through the files in order, the test file last."""
    name, package, make = LAYOUTS[layout]
    folder = root / package.folder
    folder.mkdir(parents=True)
    for number, file in enumerate(package.files):
        (folder / file).write_bytes(make(10 if name == "cifar10" else 100, number * PER_FILE))
    if packed:
        with tarfile.open(root / package.archive, "w:gz") as archive:
            archive.add(folder, package.folder)
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
    return partial(load_data, name, root=root, verify=False)


def pixels_of(batches, transform):
    """The bytes behind normalised batches, and the labels, in one iteration."""
    batches = list(batches)
    x = torch.cat([x for x, _ in batches])
    mean, std = (torch.tensor(v)[:, None, None] for v in (transform.mean, transform.std))
    return ((x * std + mean) * 255).round().to(torch.uint8), torch.cat([y for _, y in batches])


@pytest.mark.parametrize("packed", [False, True], ids=["folder", "archive"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_pixels(tmp_path, layout, packed):
    load = write(tmp_path, layout, packed=packed)
    data = load(val_fraction=0, augment=False)
    _, package, _ = LAYOUTS[layout]
    num_classes = 10 if data.name == "cifar10" else 100
    transform = (cifar.CIFAR10 if num_classes == 10 else cifar.CIFAR100).transform
    assert (data.num_classes, data.in_channels, data.image_size) == (num_classes, 3, 32)

    num_train = PER_FILE * (len(package.files) - 1)
    pixels, labels = pixels_of(data.test, transform)
    assert labels.tolist() == [i % num_classes for i in range(num_train, num_train + PER_FILE)]
    for i, image in enumerate(pixels, start=num_train):
        assert (image[0] == i).all()
        assert (image[1] == i + 100).all()
        assert (image[2] == torch.arange(32)).all()

    pixels, labels = pixels_of(data.train, transform)
    numbers = pixels[:, 0, 0, 0].tolist()
    assert sorted(numbers) == list(range(num_train))
    assert labels.tolist() == [number % num_classes for number in numbers]


def test_rows_before_columns(tmp_path):
    load = write(tmp_path, "cifar10-binary")
    path = tmp_path / "cifar-10-batches-bin" / "test_batch.bin"
    content = bytearray(path.read_bytes())
    # Label, then the red plane: row 2, column 5 of the first image.
    content[1 + 2 * 32 + 5] = 255
    path.write_bytes(content)
    pixels, _ = pixels_of(load().test, cifar.CIFAR10.transform)
    assert (pixels[0, 0] == 255).nonzero().tolist() == [[2, 5]]


def test_splits_partition_the_training_images(tmp_path):
    load = write(tmp_path, "cifar10-binary")
    data = load(augment=False, val_fraction=0.2)
    train, train_labels = pixels_of(data.train, cifar.CIFAR10.transform)
    val, val_labels = pixels_of(data.val, cifar.CIFAR10.transform)
    numbers = train[:, 0, 0, 0].tolist() + val[:, 0, 0, 0].tolist()
    assert sorted(numbers) == list(range(100))
    assert torch.bincount(train_labels).tolist() == [8] * 10
    assert torch.bincount(val_labels).tolist() == [2] * 10


def test_checksum(tmp_path):
    write(tmp_path, "cifar10-binary")
    with pytest.raises(ValueError, match=r"data_batch_1.bin has md5 .* official .* `verify=False`"):
        load_data("cifar10", root=tmp_path)


def test_checksum_of_an_archive(tmp_path):
    write(tmp_path, "cifar100-python", packed=True)
    with pytest.raises(ValueError, match=r"cifar-100-python.tar.gz has md5"):
        load_data("cifar100", root=tmp_path)


def test_missing_data(tmp_path):
    with pytest.raises(ValueError, match=r"cifar-10-binary.tar.gz or .*`download=True` \(`--down"):
        load_data("cifar10", root=tmp_path)


def test_missing_file(tmp_path):
    load = write(tmp_path, "cifar10-binary")
    (tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin").unlink()
    with pytest.raises(ValueError, match=r"data_batch_3.bin is missing"):
        load()


def test_truncated_file(tmp_path):
    load = write(tmp_path, "cifar10-binary")
    path = tmp_path / "cifar-10-batches-bin" / "data_batch_2.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"data_batch_2.bin is truncated: 61459 bytes .* 3073"):
        load()


def test_truncated_archive(tmp_path):
    load = write(tmp_path, "cifar10-python", packed=True)
    path = tmp_path / "cifar-10-python.tar.gz"
    path.write_bytes(path.read_bytes()[:-600])
    with pytest.raises(ValueError, match=r"cifar-10-python.tar.gz is damaged"):
        load()


def test_archive_without_a_file(tmp_path):
    load = write(tmp_path, "cifar100-binary")
    with tarfile.open(tmp_path / "cifar-100-binary.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "cifar-100-binary" / "test.bin", "cifar-100-binary/test.bin")
    (tmp_path / "cifar-100-binary").rename(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"lacks cifar-100-binary/train.bin"):
        load()


def test_label_out_of_range(tmp_path):
    load = write(tmp_path, "cifar10-binary")
    path = tmp_path / "cifar-10-batches-bin" / "test_batch.bin"
    path.write_bytes(b"\x0a" + path.read_bytes()[1:])
    with pytest.raises(ValueError, match=r"test_batch.bin has labels from 0 to 10, .* 0 to 9"):
        load()


@pytest.mark.parametrize(
    "content",
    [
        {b"data": np.zeros((2, 3072), np.uint8)},
        {b"data": np.zeros((2, 3072), np.uint8), b"labels": [0]},
        {b"data": np.zeros((1, 3071), np.uint8), b"labels": [0]},
        {b"data": np.zeros((1, 3072), np.uint8), b"labels": ["0"]},
    ],
    ids=["no labels", "too few labels", "too few pixels", "labels of text"],
)
def test_pickle_of_the_wrong_shape(tmp_path, content):
    load = write(tmp_path, "cifar10-python")
    path = tmp_path / "cifar-10-batches-py" / "data_batch_1"
    path.write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(ValueError, match=r"data_batch_1 must hold b'data'"):
        load()


@pytest.fixture
def server(tmp_path):
    """Serves tmp_path/served on the loopback interface."""
    served = tmp_path / "served"
    served.mkdir()

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format, *args):
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(served)))
    thread = Thread(target=httpd.serve_forever, args=(0.02,))
    thread.start()
    yield served, f"http://127.0.0.1:{httpd.server_port}/"
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def serve_cifar10(server, monkeypatch):
    served, url = server
    write(served, "cifar10-binary", packed=True)
    package = cifar.CIFAR10.packages[0]
    md5 = hashlib.md5((served / package.archive).read_bytes()).hexdigest()
    packages = (replace(package, md5=md5), cifar.CIFAR10.packages[1])
    monkeypatch.setattr(cifar, "CIFAR10", replace(cifar.CIFAR10, packages=packages))
    monkeypatch.setattr(cifar, "URL", url)
    return served / package.archive


def test_download(tmp_path, server, monkeypatch):
    serve_cifar10(server, monkeypatch)
    root = tmp_path / "new" / "root"
    data = load_data("cifar10", root=root, download=True)
    assert [path.name for path in root.iterdir()] == ["cifar-10-binary.tar.gz"]
    assert "download" not in data.options

    monkeypatch.setattr(cifar, "URL", "http://127.0.0.1:9/")
    again = load_data("cifar10", root=root, download=True)
    assert torch.equal(next(iter(again.test))[0], next(iter(data.test))[0])


def test_download_of_other_content(tmp_path, server, monkeypatch):
    served = serve_cifar10(server, monkeypatch)
    served.write_bytes(b"something else")
    with pytest.raises(ValueError, match=r"http://127.0.0.1:\d+/cifar-10-binary.tar.gz has md5"):
        load_data("cifar10", root=tmp_path / "root", download=True)
    assert list((tmp_path / "root").iterdir()) == []


def test_download_of_nothing(tmp_path, server, monkeypatch):
    serve_cifar10(server, monkeypatch).unlink()
    with pytest.raises(ValueError, match=r"Downloading http.* failed \(.*404.* put the file at"):
        load_data("cifar10", root=tmp_path / "root", download=True)
    assert list((tmp_path / "root").iterdir()) == []


@pytest.mark.slow
@pytest.mark.skipif(REAL is None, reason="CIFAR10_ROOT names no folder of the real CIFAR-10")
def test_real_cifar10():
    data = load_data("cifar10", root=REAL, batch_size=1000)
    assert (len(data.train), len(data.val), len(data.test)) == (45, 5, 10)
    assert torch.bincount(torch.cat([y for _, y in data.val])).tolist() == [500] * 10

    data = load_data("cifar10", root=REAL, val_fraction=0, batch_size=1000, augment=False)
    counts = torch.zeros(10, dtype=torch.int64)
    total, squares = torch.zeros(3), torch.zeros(3)
    for x, y in data.train:
        assert x.shape == (1000, 3, 32, 32)
        counts += torch.bincount(y, minlength=10)
        total += x.mean((0, 2, 3)) / 50
        squares += x.square().mean((0, 2, 3)) / 50
    assert counts.tolist() == [5000] * 10
    std = torch.tensor(cifar.CIFAR10.transform.std)
    assert (total * std).abs().max() < 1e-3
    assert ((squares - total.square()).sqrt() * std - std).abs().max() < 1e-3
    assert torch.bincount(torch.cat([y for _, y in data.test])).tolist() == [1000] * 10


def test_what_is_not_verified_is_said(tmp_path, caplog):
    """No sums of CIFAR-100's extracted binaries are published; those of all others are."""
    load = write(tmp_path / "bin", "cifar100-binary")
    load()
    assert caplog.text == ""  # whoever says verify=False knows it
    load(verify=True)
    for name in ("train.bin", "test.bin"):
        path = tmp_path / "bin" / "cifar-100-binary" / name
        assert f"{path} is not verified" in caplog.text
    unknown = [
        name
        for kind in (cifar.CIFAR10, cifar.CIFAR100)
        for package in kind.packages
        for name, md5 in package.files.items()
        if md5 is None
    ]
    assert unknown == ["train.bin", "test.bin"]
