"""Official files: found as a folder or an archive, checked by md5 sum, fetched on request."""

import hashlib
import http.client
import io
import logging
import shutil
import tarfile
import urllib.request
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from uuid import uuid4

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from biprune.data.dataset import Request

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS = 60


@dataclass(frozen=True)
class Package:
    """One official archive. `files` maps the names inside `folder` to md5 sums, None if unknown."""

    archive: str
    md5: str
    folder: str
    files: Mapping[str, str | None]


def read_package(packages: Sequence[Package], url: str, request: Request) -> dict[Path, bytes]:
    """The files, by path, of the first package found under `root`; extracted folders come first.

    If there is none, `download=True` fetches the first package from `url`.

    Raises:
        ValueError: A file is missing or damaged, or the download failed.
    """
    root = request.root
    for package in packages:
        if (root / package.folder).is_dir():
            return _read_folder(package, request)
    for package in packages:
        if (root / package.archive).is_file():
            return _read_archive(package, request)
    if not request.download:
        archives = " or ".join(package.archive for package in packages)
        folders = " or ".join(package.folder for package in packages)
        raise ValueError(
            f"The data is not in {root}. Put {archives} from {url} there, or the extracted folder "
            f"{folders}, or pass `download=True` (`--download` of `train` and `prune`) to fetch it."
        )
    package = packages[0]
    download(url + package.archive, root / package.archive, package.md5)
    return _read_archive(package, request)


def _read_folder(package: Package, request: Request) -> dict[Path, bytes]:
    contents: dict[Path, bytes] = {}
    for name, md5 in package.files.items():
        path = request.root / package.folder / name
        if not path.is_file():
            raise ValueError(f"{path} is missing. Extract all of {package.archive} again.")
        contents[path] = path.read_bytes()
        if request.verify and md5:
            check_md5(contents[path], md5, source=path)
        elif request.verify:
            warn_unverified(path, package.archive)
    return contents


def _read_archive(package: Package, request: Request) -> dict[Path, bytes]:
    path = request.root / package.archive
    if request.verify:
        check_md5(path, package.md5, source=path)
    wanted = {f"{package.folder}/{name}" for name in package.files}
    contents: dict[Path, bytes] = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                is_wanted = member.isfile() and member.name in wanted
                file = archive.extractfile(member) if is_wanted else None
                if file is not None:
                    contents[path / member.name] = file.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged ({error}). Fetch it again.") from error
    if absent := sorted(name for name in wanted if path / name not in contents):
        raise ValueError(f"{path} lacks {', '.join(absent)}. Fetch it again.")
    return contents


def check_md5(content: bytes | Path, expected: str, *, source: Path | str) -> None:
    """Check `content`, bytes or a file, against the md5 sum that the data's authors publish.

    Raises:
        ValueError: The sum differs; the message calls the content `source`.
    """
    md5 = partial(hashlib.md5, usedforsecurity=False)
    with content.open("rb") if isinstance(content, Path) else io.BytesIO(content) as file:
        found = hashlib.file_digest(file, md5).hexdigest()
    if found != expected:
        raise ValueError(
            f"{source} has md5 {found}, but the official file has {expected}. "
            "Fetch it again, or pass `verify=False` if you changed it yourself."
        )


def warn_unverified(path: Path, official: str) -> None:
    """Warn that `path` could not be checked, unlike the file `official` that it comes from."""
    logger.warning(
        "%s is not verified, because no checksum of it is published. Replace it by %s, which has "
        "one, to be sure.",
        path,
        official,
    )


def check_labels(labels: ArrayLike, num_classes: int, *, source: Path) -> Tensor:
    """The labels as int64, if there are any and all are in [0, num_classes); else a ValueError."""
    values = np.asarray(labels)
    if values.size == 0:
        raise ValueError(f"{source} holds no images. Fetch it again.")
    low, high = values.min(), values.max()
    if low < 0 or high >= num_classes:
        raise ValueError(
            f"{source} has labels from {low} to {high}, but only 0 to {num_classes - 1} are "
            "allowed. Fetch it again."
        )
    return torch.from_numpy(values.astype(np.int64))


def download(url: str, target: Path, md5: str) -> None:
    """Fetch `url` to `target`, which appears only once it is complete and its md5 sum is right."""
    logger.info("Downloading %s to %s", url, target)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.{uuid4().hex}.part")
    try:
        with (
            urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response,
            part.open("wb") as file,
        ):
            shutil.copyfileobj(response, file)
        check_md5(part, md5, source=url)
        part.replace(target)
    except (OSError, http.client.HTTPException) as error:
        raise ValueError(
            f"Downloading {url} failed ({error}). Try again, or put the file at {target} yourself."
        ) from error
    finally:
        part.unlink(missing_ok=True)
