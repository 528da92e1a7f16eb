import itertools
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

from biprune.data import load_data
from biprune.data.folders import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    centre_crop,
    random_box,
    random_resized_crop,
)


def save(path, red, size=(64, 64), mode="RGB"):
    """A picture whose red identifies it, at `size` = (width, height)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    colour = {"RGB": (red, 100, 200), "L": red, "RGBA": (red, 100, 200, 128)}[mode]
    Image.new(mode, size, colour).save(path, quality=100)


def reds(batches, mean=IMAGENET_MEAN, std=IMAGENET_STD):
    """The red byte at the centre of each image; JPEG may be off by one."""
    x = torch.cat([x for x, _ in batches])
    centre = x[:, 0, x.shape[2] // 2, x.shape[3] // 2]
    return ((centre * std[0] + mean[0]) * 255).round().int().tolist()


def labels(batches):
    return torch.cat([y for _, y in batches]).tolist()


@pytest.fixture
def tiny(tmp_path):
    """Three classes of eight, numbered through; the classes are not in alphabetical order."""
    root = tmp_path / "tiny-imagenet-200"
    for label, wnid in enumerate(["n03", "n01", "n02"]):
        for i in range(8):
            save(root / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", 10 * (8 * label + i))
    lines = [f"val_{i}.JPEG\t{wnid}\t0\t0\t63\t63" for i, wnid in enumerate(["n02", "n03", "n01"])]
    for i in range(3):
        save(root / "val" / "images" / f"val_{i}.JPEG", 50 + i * 10)
    (root / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    (root / "wnids.txt").write_text("n03\nn01\nn02\n")
    return partial(load_data, "tiny_imagenet", root=tmp_path, workers=0)


def test_tiny_imagenet(tiny):
    data = tiny(val_fraction=0.25, augment=False)
    assert (data.num_classes, data.in_channels, data.image_size) == (3, 3, 64)
    assert data.options["batch_size"] == 32
    statistics = (0.4802,), (0.2770,)
    assert labels(data.test) == [2, 0, 1]
    assert np.allclose(reds(data.test, *statistics), [50, 60, 70], atol=1)
    numbers = reds(data.val, *statistics)
    assert labels(data.val) == [round(number / 10) // 8 for number in numbers]
    assert sorted(labels(data.val)) == [0, 0, 1, 1, 2, 2]
    assert len(labels(data.train)) == 18


def test_tiny_imagenet_errors(tiny, tmp_path):
    root = tmp_path / "tiny-imagenet-200"
    annotations = root / "val" / "val_annotations.txt"
    annotations.write_text("val_0.JPEG\tn99\t0\t0\t1\t1\n")
    with pytest.raises(ValueError, match=r"'val_0.JPEG' the class 'n99', which wnids.txt lacks"):
        tiny()
    annotations.write_text("")
    with pytest.raises(ValueError, match=r"val_annotations.txt is empty"):
        tiny()
    annotations.write_bytes(b"val_0.JPEG\t\xff")
    with pytest.raises(
        ValueError, match=r"val_annotations.txt is not a text file. Extract all of"
    ) as error:
        tiny()
    assert type(error.value) is ValueError  # a decoder's own names no file
    for image in (root / "train" / "n01" / "images").iterdir():
        image.unlink()
    with pytest.raises(ValueError, match="n01/images has no images"):
        tiny()
    (root / "wnids.txt").unlink()
    with pytest.raises(ValueError, match=r"wnids.txt is missing. Extract tiny-imagenet-200.zip"):
        tiny()


@pytest.mark.parametrize("workers", [0, 2])
def test_the_global_seed_decides_streamed_batches(tiny, workers):
    data = tiny(workers=workers, batch_size=4, val_fraction=0)

    def epoch(seed):
        torch.manual_seed(seed)
        return torch.cat([x for x, _ in data.train])

    first = epoch(0)
    assert first.shape == (24, 3, 64, 64)
    assert torch.equal(first, epoch(0))
    assert not torch.equal(first, epoch(1))


def test_workers_change_neither_order_nor_pixels_of_the_test(tiny):
    alone = list(tiny(workers=0, batch_size=2).test)
    helped = list(tiny(workers=2, batch_size=2).test)
    assert len(alone) == len(helped) == 2
    for (x, y), (other_x, other_y) in zip(alone, helped, strict=True):
        assert torch.equal(x, other_x)
        assert torch.equal(y, other_y)


@pytest.mark.parametrize("workers", [0, 2])
def test_reading_the_test_leaves_the_global_rng_alone(tiny, workers):
    data = tiny(workers=workers)
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    list(data.test)
    assert torch.rand(1) == expected


@pytest.fixture
def imagenet(tmp_path):
    for label, name in enumerate(["n01", "n02"]):
        for i in range(4):
            save(tmp_path / "train" / name / f"{i}.JPEG", 10 * (4 * label + i), size=(60, 40))
        save(tmp_path / "val" / name / "0.JPEG", 100 + label, size=(40, 60))
    return partial(load_data, "imagenet", root=tmp_path)


def test_imagenet(imagenet):
    data = imagenet(workers=0, batch_size=3, val_fraction=0.25)
    assert (data.num_classes, data.in_channels, data.image_size) == (2, 3, 224)
    assert [tuple(x.shape) for x, _ in data.train] == [(3, 3, 224, 224)] * 2
    assert labels(data.test) == [0, 1]
    assert np.allclose(reds(data.test), [100, 101], atol=1)
    assert sorted(labels(data.val)) == [0, 1]


def test_imagenet_crops_repeat_with_the_seed(imagenet):
    data = imagenet(workers=2, batch_size=4, image_size=16, val_fraction=0)
    assert data.image_size == 16
    torch.manual_seed(0)
    first = list(data.train)
    torch.manual_seed(0)
    for (x, y), (again_x, again_y) in zip(first, data.train, strict=True):
        assert torch.equal(x, again_x)
        assert torch.equal(y, again_y)


def test_imagenet_errors(imagenet, tmp_path):
    save(tmp_path / "val" / "n09" / "0.JPEG", 0)
    with pytest.raises(ValueError, match="val has the classes n09, which the training images lack"):
        imagenet()
    (tmp_path / "val").rename(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="val is missing"):
        imagenet()
    with pytest.raises(ValueError, match=r"train is missing.*`download=True` does not fetch them"):
        load_data("imagenet", root=tmp_path / "nowhere")


@pytest.fixture
def photos(tmp_path):
    """Two classes of ten; the first image is 20 wide and 12 high."""
    root = tmp_path / "photos"
    for label, name in enumerate(["cat", "dog"]):
        for i in range(10):
            save(root / name / f"{i}.png", 10 * label + i, size=(20, 12))
    return root


def load_folder(path, **options):
    return load_data(f"folder:{path}", workers=0, **options)


def test_folder_without_a_test(photos):
    data = load_folder(photos, val_fraction=0.25, augment=False)
    assert (data.num_classes, data.in_channels, data.image_size) == (2, 3, 12)
    numbers = [number for split in (data.train, data.val, data.test) for number in reds(split)]
    assert sorted(numbers) == list(range(20))
    assert sorted(labels(data.test)) == [0, 0, 1, 1]
    assert labels(data.test) == [number // 10 for number in reds(data.test)]
    assert reds(load_folder(photos, seed=1).test) != reds(data.test)
    assert data.name == data.options["name"] == f"folder:{photos}"


@pytest.mark.parametrize("split", ["test", "val"])
def test_folder_with_a_test(photos, split):
    root = photos.parent / "split"
    root.mkdir()
    photos.rename(root / "train")
    save(root / split / "dog" / "0.JPG", 77, size=(30, 50))
    data = load_folder(root, image_size=8, batch_size=5)
    assert labels(data.test) == [1]
    x, _ = next(iter(data.test))
    assert x.shape == (1, 3, 8, 8)
    assert abs(reds(data.test)[0] - 77) <= 1
    assert len(labels(data.train)) == 18


@pytest.mark.parametrize("mode", ["L", "RGBA"])
def test_folder_images_become_rgb(photos, mode):
    for path in (photos / "cat").iterdir():
        save(path, 40, size=(20, 12), mode=mode)
    data = load_folder(photos)
    x, y = next(iter(data.test))
    assert x.shape == (4, 3, 12, 12)
    cats = [red for red, label in zip(reds(data.test), y.tolist(), strict=True) if label == 0]
    assert cats == [40, 40]


def test_other_files_are_passed_over(photos):
    (photos / ".hidden").mkdir()
    (photos / "notes.txt").write_text("not a class")
    (photos / "cat" / "Thumbs.db").write_text("not an image")
    assert load_folder(photos).num_classes == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_unreadable_image(photos, workers):
    (photos / "dog" / "3.png").write_bytes(b"broken")
    data = load_data(f"folder:{photos}", workers=workers)
    with pytest.raises(ValueError, match=r"dog/3.png") as caught:
        list(itertools.chain(data.train, data.val, data.test))
    assert str(caught.value).startswith(f"Cannot read the image {photos / 'dog' / '3.png'} (")
    assert "\n" not in str(caught.value)


def test_folder_errors(photos, tmp_path):
    with pytest.raises(ValueError, match="nowhere is not a folder"):
        load_folder(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="`root` must be None"):
        load_folder(photos, root=tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty has no class folders"):
        load_folder(tmp_path / "empty")
    save(tmp_path / "few" / "cat" / "0.png", 0)
    with pytest.raises(ValueError, match="few has 1 images, too few to cut 20 %"):
        load_folder(tmp_path / "few")
    (photos / "eel").mkdir()
    with pytest.raises(ValueError, match=r"eel has no images. Add some \(.bmp, "):
        load_folder(photos)
    (tmp_path / "half").mkdir()
    photos.rename(tmp_path / "half" / "train")
    (tmp_path / "half" / "train" / "eel").rmdir()
    with pytest.raises(ValueError, match="half has a train folder, but neither test nor val"):
        load_folder(tmp_path / "half")


def test_centre_crop_takes_the_centre():
    columns = np.broadcast_to(np.arange(30, dtype=np.uint8), (10, 30))
    image = Image.fromarray(np.stack([columns] * 3, axis=2))
    crop = centre_crop(image, size=10, shorter_side=10)
    assert crop.shape == (10, 10, 3)
    assert crop[0, :, 0].tolist() == list(range(10, 20))
    assert centre_crop(image, size=4, shorter_side=5).shape == (4, 4, 3)


def test_random_box_is_inside_and_of_the_right_size_and_shape():
    torch.manual_seed(0)
    for width, height in [(60, 40), (40, 60), (50, 50)]:
        for _ in range(100):
            left, top, right, bottom = random_box(width, height)
            assert 0 <= left < right <= width
            assert 0 <= top < bottom <= height
            box_width, box_height = right - left, bottom - top
            assert 0.07 <= box_width * box_height / (width * height) <= 1
            assert 0.7 <= box_width / box_height <= 1.43


def test_random_box_of_a_strip_is_the_central_square():
    assert random_box(100_000, 10) == (49_995, 0, 50_005, 10)


def test_random_resized_crop_draws_from_torch():
    image = Image.effect_noise((40, 30), 50).convert("RGB")
    torch.manual_seed(0)
    first = random_resized_crop(image, size=8)
    torch.manual_seed(0)
    again = random_resized_crop(image, size=8)
    assert first.shape == (8, 8, 3)
    assert (first == again).all()
    assert (first != random_resized_crop(image, size=8)).any()
