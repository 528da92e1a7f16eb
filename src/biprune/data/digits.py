"""The 1,797 handwritten digits that come with scikit-learn. They need no files."""

import numpy as np
import torch

from biprune.data.batches import MemoryImages, Transform
from biprune.data.dataset import Request, Source, needs_extra, stratified_cut

# No flips, because a mirrored digit is not that digit. The crop shifts by at most one pixel.
TRANSFORM = Transform((0.3053,), (0.3760,), pad=1, flips=False)

TEST_FRACTION = 0.2


def load_digits(request: Request) -> Source:
    """10 classes of 8 x 8 grey images. There is no official test set, so `seed` cuts 20 %."""
    # Imported here, because scikit-learn takes longer to import than all of biprune.
    with needs_extra():
        from sklearn.datasets import load_digits as read_digits

    pixels, targets = read_digits(return_X_y=True)
    # The pixels go from 0 to 16; spread them over the range of a byte.
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
