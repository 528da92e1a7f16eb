"""ImageNet (ILSVRC 2012), a class a folder: train/<class>/*.JPEG and val/<class>/*.JPEG."""

from functools import partial

from biprune.data.augmentation import Transform
from biprune.data.base import Request, Source
from biprune.data.class_folders import class_names, read_class_folders
from biprune.data.decoding import centre_crop, random_resized_crop
from biprune.data.stream import DiskImages

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


def load_imagenet(request: Request) -> Source:
    """The official validation images are the test set.

    Training: random resized crop of 224 and horizontal flip. Test: shorter side 256, centre 224.
    Another `image_size` scales both.
    """
    folder = request.root / "train"
    if not folder.is_dir():
        raise ValueError(
            f"{folder} is missing. Put the ILSVRC 2012 training images at {folder}/<class>/*.JPEG "
            f"and the validation images at {request.root / 'val'}/<class>/*.JPEG; "
            "`download=True` does not cover them."
        )
    size = request.image_size or 224
    classes = class_names(folder)

    def images(split: str) -> DiskImages:
        paths, labels = read_class_folders(request.root / split, classes)
        return DiskImages(
            paths,
            labels,
            decode=partial(centre_crop, size=size, shorter_side=round(size * 256 / 224)),
            decode_augmented=partial(random_resized_crop, size=size),
            transform=Transform(MEAN, STD, pad=0, flips=True),
            workers=request.workers,
        )

    return Source(images("train"), images("val"), len(classes), 3, size)
