"""Fashion-MNIST (Xiao et al. 2017): the four official idx files, gzipped or not."""

import gzip
import zlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from biprune.data.batches import MemoryImages, Transform
from biprune.data.dataset import Request, Source
from biprune.data.files import check_labels, check_md5, download, warn_unverified

URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"

MD5 = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}

TRANSFORM = Transform((0.2860,), (0.3530,), pad=2, flips=True)


def load_fashion_mnist(request: Request) -> Source:
    """60,000 and 10,000 grey images of 28 x 28; a crop with padding 2 and a horizontal flip."""
    return Source(_images("train", request), _images("t10k", request), 10, 1, 28)


def _images(split: str, request: Request) -> MemoryImages:
    image_path, content = _read(f"{split}-images-idx3-ubyte.gz", request)
    pixels = parse_idx(content, image_path)
    label_path, content = _read(f"{split}-labels-idx1-ubyte.gz", request)
    labels = check_labels(parse_idx(content, label_path), 10, source=label_path)
    if pixels.shape != (len(labels), 28, 28):
        raise ValueError(
            f"{image_path} has shape {pixels.shape}, but {label_path.name} has {len(labels)} "
            f"labels, which needs ({len(labels)}, 28, 28). Fetch both again."
        )
    return MemoryImages(torch.from_numpy(pixels.copy())[:, None], labels, TRANSFORM)


def _read(name: str, request: Request) -> tuple[Path, bytes]:
    packed = request.root / name
    plain = packed.with_suffix("")
    if not packed.is_file():
        if plain.is_file():
            if request.verify:
                warn_unverified(plain, name)
            return plain, plain.read_bytes()
        if not request.download:
            raise ValueError(
                f"{packed} is missing. Put it there from {URL}, or pass `download=True` "
                "(`--download` of `train` and `prune`) to fetch it."
            )
        download(URL + name, packed, MD5[name])
    if request.verify:
        check_md5(packed, MD5[name], source=packed)
    try:
        return packed, gzip.decompress(packed.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{packed} is damaged ({error}). Fetch it again.") from error


def parse_idx(content: bytes, source: Path) -> NDArray[np.uint8]:
    """The uint8 array in an idx file.

    The header is the bytes 0, 0 and 8, the number of dimensions, and the length of each as a
    big-endian int32. The array follows.
    """
    rank = content[3] if content[:3] == b"\0\0\x08" and len(content) > 3 else 0
    header = 4 + 4 * rank
    if rank == 0 or len(content) < header:
        raise ValueError(f"{source} has no idx header of unsigned bytes. Fetch it again.")
    shape = tuple(int(length) for length in np.frombuffer(content[4:header], ">u4"))
    data = np.frombuffer(content[header:], np.uint8)
    if len(data) != np.prod(shape, dtype=object):
        raise ValueError(
            f"{source} is truncated: its header says {shape}, but it holds {len(data)} bytes. "
            "Fetch it again."
        )
    return data.reshape(shape)
