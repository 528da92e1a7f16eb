"""The 1,797 handwritten digits of scikit-learn: no files, trains in seconds."""

import numpy as np
import torch

from biprune.data.augmentation import Transform
from biprune.data.base import Request, Source
from biprune.data.memory import MemoryImages
from biprune.data.splits import stratified_cut

# A mirrored digit is another sign, so no flips; the crop shifts by at most one pixel.
TRANSFORM = Transform((0.3053,), (0.3760,), pad=1, flips=False)

TEST_FRACTION = 0.2


def load_digits(request: Request) -> Source:
    """10 classes of 8 x 8 grey images. There is no official test set: `seed` cuts 20 % for it."""
    # Here, because scikit-learn takes longer to import than all of this library.
    from sklearn.datasets import load_digits as read_digits

    pixels, targets = read_digits(return_X_y=True)
    # Sixteen grey levels, spread over the range of a byte.
    scaled = np.round(np.asarray(pixels) * (255 / 16)).astype(np.uint8)
    images = torch.from_numpy(scaled).view(-1, 1, 8, 8)
    labels = torch.from_numpy(np.asarray(targets, dtype=np.int64))
    train, test = stratified_cut(labels, TEST_FRACTION, seed=request.seed)
    return Source(
        MemoryImages(images[train], labels[train], TRANSFORM),
        MemoryImages(images[test], labels[test], TRANSFORM),
        num_classes=10,
        in_channels=1,
        image_size=8,
    )
