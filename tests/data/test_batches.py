import pytest
import torch

from biprune.data.batches import Transform, crop_and_flip

GREY = Transform((0.25,), (0.5,), pad=1, flips=False)


def slow_crop_and_flip(image, top, left, is_flipped, pad):
    """One pixel at a time: output (row, column) looks at input (row + top - pad, ...)."""
    channels, height, width = image.shape
    result = torch.zeros_like(image)
    for c in range(channels):
        for row in range(height):
            for column in range(width):
                source_row = row + top - pad
                source_column = (width - 1 - column if is_flipped else column) + left - pad
                if 0 <= source_row < height and 0 <= source_column < width:
                    result[c, row, column] = image[c, source_row, source_column]
    return result


@pytest.mark.parametrize("pad", [0, 1, 3])
def test_matches_the_slow_reference(pad):
    draw = torch.Generator().manual_seed(0)
    pixels = torch.randint(1, 256, (12, 3, 6, 5), dtype=torch.uint8, generator=draw)
    top, left = torch.randint(2 * pad + 1, (2, 12), generator=draw)
    flipped = torch.rand(12, generator=draw) < 0.5
    result = crop_and_flip(pixels, top, left, flipped, pad)
    for i in range(12):
        expected = slow_crop_and_flip(pixels[i], top[i].item(), left[i].item(), flipped[i], pad)
        assert torch.equal(result[i], expected)
    assert result.dtype == torch.uint8


def test_centre_offset_changes_nothing():
    pixels = torch.arange(32, dtype=torch.uint8).view(2, 1, 4, 4)
    middle = torch.tensor([1, 1])
    assert torch.equal(crop_and_flip(pixels, middle, middle, torch.tensor([False] * 2), 1), pixels)


def test_augment_reaches_every_offset_and_flips_half():
    transform = Transform((0.0,), (1.0,), pad=1, flips=True)
    image = torch.arange(1, 10, dtype=torch.uint8).view(1, 1, 3, 3)
    torch.manual_seed(0)
    results = transform.augment(image.expand(1800, 1, 3, 3))
    places = {
        tuple(crop_and_flip(image, *(torch.tensor([v]) for v in key), 1).flatten().tolist()): key
        for key in [(t, x, f) for t in range(3) for x in range(3) for f in (False, True)]
    }
    counts = dict.fromkeys(places.values(), 0)
    for result in results:
        counts[places[tuple(result.flatten().tolist())]] += 1
    assert min(counts.values()) > 60  # 100 expected, standard deviation 10.
    assert max(counts.values()) < 140


def test_without_flips_only_shifts():
    image = torch.arange(1, 10, dtype=torch.uint8).view(1, 1, 3, 3)
    shifts = {
        tuple(slow_crop_and_flip(image[0], t, x, False, 1).flatten().tolist())
        for t in range(3)
        for x in range(3)
    }
    results = GREY.augment(image.expand(200, 1, 3, 3))
    assert {tuple(result.flatten().tolist()) for result in results} == shifts


def test_normalise_by_value():
    transform = Transform((0.0, 0.5, 0.2), (1.0, 0.25, 0.4), pad=0, flips=False)
    pixels = torch.tensor([0, 255, 51], dtype=torch.uint8).view(1, 3, 1, 1)
    result = transform.normalise(pixels)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result.flatten(), torch.tensor([0.0, 2.0, 0.0]))
    assert pixels.flatten().tolist() == [0, 255, 51]
