"""Damage to the files of data sets: no other image is read where md5 sums are published."""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
import random
import tarfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from PIL import Image

from biprune.data import Dataset, cifar, fashion_mnist, load_data
from faults import originals
from faults.mutations import harmed
from faults.verdict import OK, Fault, content, refusal

IMAGES = 10  # a file


def _drawn(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def _fashion(root: Path, *, packed: bool) -> None:
    for number, name in enumerate(fashion_mnist.MD5):
        values = _drawn(number, IMAGES, 28, 28) if "images" in name else np.arange(IMAGES) % 10
        sizes = b"".join(length.to_bytes(4, "big") for length in values.shape)
        raw = b"\0\0\x08" + bytes([values.ndim]) + sizes + values.astype(np.uint8).tobytes()
        if packed:
            (root / name).write_bytes(gzip.compress(raw, mtime=0))
        else:
            (root / name).with_suffix("").write_bytes(raw)


def _cifar(root: Path, kind: cifar.Cifar, number: int, *, packed: bool) -> None:
    package = kind.packages[number]
    files = {name: _cifar_file(kind, name, seed) for seed, name in enumerate(package.files)}
    if not packed:
        (root / package.folder).mkdir(parents=True)
        for name, raw in files.items():
            (root / package.folder / name).write_bytes(raw)
        return
    with tarfile.open(root / package.archive, "w:gz") as archive:
        for name, raw in files.items():
            entry = tarfile.TarInfo(f"{package.folder}/{name}")
            entry.size = len(raw)
            archive.addfile(entry, io.BytesIO(raw))


def _cifar_file(kind: cifar.Cifar, name: str, seed: int) -> bytes:
    pixels, labels = _drawn(seed, IMAGES, 3072), np.arange(IMAGES, dtype=np.uint8)
    if not name.endswith(".bin"):
        return pickle.dumps({b"data": pixels, kind.label_key: labels.tolist()}, protocol=2)
    columns = [labels[:, None]] * kind.label_bytes
    return np.concatenate([*columns, pixels], axis=1).tobytes()


def _tiny(root: Path) -> None:
    folder = root / "tiny-imagenet-200"
    names = ["n01", "n02"]
    for label, name in enumerate(names):
        images = folder / "train" / name / "images"
        images.mkdir(parents=True)
        for number in range(3):
            _picture(images / f"{name}_{number}.JPEG", 10 * label + number)
    (folder / "wnids.txt").write_text("\n".join(names) + "\n")
    (folder / "val" / "images").mkdir(parents=True)
    lines = []
    for number in range(2):
        _picture(folder / "val" / "images" / f"val_{number}.JPEG", 50 + number)
        lines.append(f"val_{number}.JPEG\t{names[number]}\t0\t0\t9\t9\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))


def _pictures(root: Path) -> None:
    for label, name in enumerate(("cat", "dog")):
        (root / name).mkdir(parents=True)
        for number, suffix in enumerate(("png", "jpg", "gif", "webp", "bmp", "tiff", "ppm")):
            _picture(root / name / f"{number}.{suffix}", 10 * label + number)


def _picture(path: Path, seed: int) -> None:
    Image.fromarray(_drawn(seed, 64, 64, 3)).save(path)


Make = Callable[[Path], None]
KINDS: dict[str, tuple[str, Make]] = {
    "fashion_mnist, packed": ("fashion_mnist", lambda root: _fashion(root, packed=True)),
    "fashion_mnist": ("fashion_mnist", lambda root: _fashion(root, packed=False)),
    "tiny_imagenet": ("tiny_imagenet", _tiny),
    "folder": ("folder:", _pictures),
}
for _name in ("cifar10", "cifar100"):
    for _number, _version in enumerate(("binary", "python")):
        for _packed in (False, True):
            KINDS[f"{_name} {_version}{', packed' * _packed}"] = (
                _name,
                lambda root, name=_name, number=_number, packed=_packed: _cifar(
                    root, getattr(cifar, name.upper()), number, packed=packed
                ),
            )
# Nobody publishes sums of their files; a run says so of those that have some when packed.
UNVERIFIED = ("tiny_imagenet", "folder", "fashion_mnist", "cifar100 binary")


@cache
def _whole(kind: str) -> tuple[Path, Any]:
    """A data set, and the content of it."""
    root = originals.empty(f"data-{kind.replace(' ', '-')}")
    KINDS[kind][1](root)
    return root, _loaded(kind, root, verify=False)


def _loaded(kind: str, root: Path, *, verify: bool) -> list[Any]:
    name = KINDS[kind][0]
    where: dict[str, Any] = {"name": f"folder:{root}", "image_size": 16}
    if name != "folder:":
        where = {"name": name, "root": root}
    data: Dataset = load_data(**where, workers=0, verify=verify, val_fraction=0, augment=False)
    splits = data.train, data.test  # train is shuffled
    samples = [[s for batch in split for s in zip(*batch, strict=True)] for split in splits]
    return [sorted(map(content, split)) for split in samples]


def damaged(seed: int) -> str:
    """A damaged file of a data set, with sums to check it by or without."""
    draw = random.Random(seed)
    kind = draw.choice(list(KINDS))
    root, original = _whole(kind)
    verify = draw.random() < 0.5 and kind not in UNVERIFIED
    with _published(kind, root) if verify else ExitStack(), harmed(root, draw) as path:
        try:
            found = _loaded(kind, root, verify=verify)
        except Exception as error:
            verdict = refusal(error, root)
            return verdict if verdict == OK else f"{kind}: {verdict}"
    if verify and found != original:
        return f"{kind}: other images were read from the damaged {path.name}"
    return OK


@contextmanager
def _published(kind: str, root: Path) -> Iterator[None]:
    """As if the sums of these files were those of the official ones."""
    sums = {p.name: hashlib.md5(p.read_bytes()).hexdigest() for p in root.rglob("*") if p.is_file()}
    if kind.startswith("fashion"):
        packed = {name: sums.get(name, md5) for name, md5 in fashion_mnist.MD5.items()}
        with mock.patch.dict(fashion_mnist.MD5, packed):
            yield
        return
    name = KINDS[kind][0].upper()
    found: cifar.Cifar = getattr(cifar, name)
    packages = [
        replace(
            package,
            md5=sums.get(package.archive, package.md5),
            files={file: sums.get(file, md5) for file, md5 in package.files.items()},
        )
        for package in found.packages
    ]
    with mock.patch.object(cifar, name, replace(found, packages=packages)):
        yield


FAULTS: dict[str, Fault] = {"damaged data file": damaged}
