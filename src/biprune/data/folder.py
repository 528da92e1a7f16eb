"""Your own images, a class a folder: folder:PATH."""

from functools import partial
from pathlib import Path

from torch import Tensor

from biprune.data.augmentation import Transform
from biprune.data.base import Request, Source
from biprune.data.class_folders import class_names, read_class_folders
from biprune.data.decoding import centre_crop, open_rgb
from biprune.data.imagenet import MEAN, STD
from biprune.data.splits import stratified_cut
from biprune.data.stream import DiskImages

TEST_FRACTION = 0.2


def load_folder(request: Request) -> Source:
    """PATH/train/<class>/* with PATH/test or else PATH/val; or PATH/<class>/*, 20 % cut for test.

    Images of any mode become RGB. `image_size` is by default the shorter side of the first image;
    every image is resized to it by its shorter side, then cropped at the centre. Training: crop
    with padding of an eighth of the size, and horizontal flip. Normalised as ImageNet.
    """
    root = request.root
    if not root.is_dir():
        raise ValueError(f"{root} is not a folder. In folder:PATH, give the path to your images.")
    has_train = (root / "train").is_dir()
    train_folder = root / "train" if has_train else root
    classes = class_names(train_folder)
    paths, labels = read_class_folders(train_folder, classes)
    size = request.image_size or min(open_rgb(paths[0]).size)

    def images(paths: tuple[str, ...], labels: Tensor) -> DiskImages:
        decode = partial(centre_crop, size=size, shorter_side=size)
        transform = Transform(MEAN, STD, pad=size // 8, flips=True)
        return DiskImages(paths, labels, decode, decode, transform, request.workers)

    if has_train:
        train = images(paths, labels)
        test = images(*read_class_folders(_test_folder(root), classes))
    else:
        stay, cut = stratified_cut(labels, TEST_FRACTION, seed=request.seed)
        if len(cut) == 0:
            raise ValueError(
                f"{root} has {len(labels)} images, too few to cut 20 % of them for the test. "
                "Add images, or a train and a test folder."
            )
        train = images(tuple(paths[i] for i in stay.tolist()), labels[stay])
        test = images(tuple(paths[i] for i in cut.tolist()), labels[cut])
    return Source(train, test, len(classes), 3, size)


def _test_folder(root: Path) -> Path:
    for name in ("test", "val"):
        if (root / name).is_dir():
            return root / name
    raise ValueError(
        f"{root} has a train folder, but neither test nor val. Add {root / 'test'}/<class>/*, or "
        f"put the classes directly into {root} to have 20 % of the images cut for the test."
    )
