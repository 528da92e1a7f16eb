"""Data published as an archive: read from its extracted folder or straight from the .tar.gz."""

import tarfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from biprune.data.base import Request
from biprune.data.files import check_md5, download


@dataclass(frozen=True)
class Package:
    """One official archive. `files` maps the names inside `folder` to md5 sums, None if unknown."""

    archive: str
    md5: str
    folder: str
    files: Mapping[str, str | None]


def read_package(packages: Sequence[Package], url: str, request: Request) -> dict[Path, bytes]:
    """The files, by path, of the first package under `root`; extracted folders come first.

    Where none is there, `download=True` fetches the first one from `url`.
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
