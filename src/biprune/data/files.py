"""Official files: found, checked against their md5 sums, downloaded on request."""

import hashlib
import http.client
import logging
import urllib.request
from pathlib import Path
from uuid import uuid4

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS = 60


def check_md5(content: bytes | Path, expected: str, *, source: Path | str) -> None:
    """Raise unless `content`, bytes or a file, has the md5 sum that the data's authors publish."""
    digest = hashlib.md5(usedforsecurity=False)
    if isinstance(content, Path):
        with content.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    else:
        digest.update(content)
    if digest.hexdigest() != expected:
        raise ValueError(
            f"{source} has md5 {digest.hexdigest()}, but the official file has {expected}. "
            "Fetch it again, or pass `verify=False` if you changed it yourself."
        )


def check_labels(labels: ArrayLike, num_classes: int, *, source: Path) -> Tensor:
    """The labels as int64, all of them in [0, num_classes)."""
    values = np.asarray(labels)
    if values.size == 0:
        raise ValueError(f"{source} holds no images. Fetch it again.")
    low, high = values.min(), values.max()
    if low < 0 or high >= num_classes:
        raise ValueError(
            f"{source} has labels from {low} to {high}, allowed are 0 to {num_classes - 1}. "
            "Fetch it again."
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
            while chunk := response.read(1 << 20):
                file.write(chunk)
        check_md5(part, md5, source=url)
        part.replace(target)
    except (OSError, http.client.HTTPException) as error:
        raise ValueError(
            f"Downloading {url} failed ({error}). Try again, or put the file at {target} yourself."
        ) from error
    finally:
        part.unlink(missing_ok=True)
