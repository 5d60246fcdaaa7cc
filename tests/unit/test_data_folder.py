from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import gyrograd as gg
from gyrograd.data.folder import read_image
from gyrograd.errors import UserError


def quarters(h: int, w: int) -> np.ndarray:
    """Red, green / blue, white: any turn, mirror or channel mix-up shows."""
    pixels = np.zeros((h, w, 3), np.uint8)
    pixels[: h // 2, : w // 2] = (255, 0, 0)
    pixels[: h // 2, w // 2 :] = (0, 255, 0)
    pixels[h // 2 :, : w // 2] = (0, 0, 255)
    pixels[h // 2 :, w // 2 :] = (255, 255, 255)
    return pixels


def save(path: Path, pixels: np.ndarray, **settings: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **settings)
    return path


def flat(value: int, side: int = 8) -> np.ndarray:
    return np.full((side, side, 3), value, np.uint8)


def tree(root: Path, counts: dict[str, int]) -> Path:
    """Images filled with 10 x class + number."""
    for label, (name, count) in enumerate(counts.items()):
        (root / name).mkdir(parents=True)
        for i in range(count):
            save(root / name / f"{i}.png", flat(10 * label + i))
    return root


def test_classes_are_sorted_folders_and_images_keep_their_class(tmp_path: Path) -> None:
    data = gg.dataset("folder", path=tree(tmp_path, {"ant": 3, "bee": 2, "cat": 1}), size=8)
    assert data.classes == ("ant", "bee", "cat")
    assert data.images[:, 1, 3, 3].tolist() == [0, 1, 2, 10, 11, 20]
    assert data.labels.tolist() == [0, 0, 0, 1, 1, 2]
    assert data.images.dtype == torch.uint8


def test_images_are_found_at_any_depth_and_other_and_hidden_files_are_not(tmp_path: Path) -> None:
    save(tmp_path / "ant" / "deep" / "er" / "A.PNG", flat(7))
    (tmp_path / "ant" / "notes.txt").write_text("no image")
    (tmp_path / "ant" / ".hidden.png").write_text("no image")
    save(tmp_path / "ant" / ".ipynb_checkpoints" / "A-checkpoint.png", flat(9))
    (tmp_path / ".cache").mkdir()
    data = gg.dataset("folder", path=tmp_path, size=8)
    assert data.images[:, 0, 0, 0].tolist() == [7]
    assert data.classes == ("ant",)


def test_a_class_missing_in_one_split_does_not_shift_the_labels(tmp_path: Path) -> None:
    tree(tmp_path / "train", {"ant": 1, "bee": 1, "cat": 1})
    tree(tmp_path / "val", {"ant": 1, "cat": 1})
    data = gg.dataset("folder", path=tmp_path, split="val", size=8)
    assert data.classes == ("ant", "bee", "cat")
    assert data.labels.tolist() == [0, 2]


def test_split_folders_ask_for_a_split(tmp_path: Path) -> None:
    tree(tmp_path / "train", {"ant": 1})
    tree(tmp_path / "test", {"ant": 1})
    with pytest.raises(UserError, match="holds the splits test, train; say which, for example split=test"):
        gg.dataset("folder", path=tmp_path)
    with pytest.raises(UserError, match=r"has no split 'trian': did you mean 'train'\?"):
        gg.dataset("folder", path=tmp_path, split="trian")


@pytest.mark.parametrize("names", [("Train", "Val"), ("training", "testing"), ("train", "testing")])
def test_splits_under_other_names_are_not_taken_for_classes(tmp_path: Path, names: tuple[str, str]) -> None:
    for name in names:
        tree(tmp_path / name, {"ant": 1, "bee": 1})
    with pytest.raises(
        UserError, match=f"{sorted(names)[0]}, .* look like splits, not classes; rename them train"
    ):
        gg.dataset("folder", path=tmp_path, size=8)
    assert gg.dataset("folder", path=tmp_path, split=names[0], size=8).classes == ("ant", "bee")


def test_classes_may_be_called_like_splits(tmp_path: Path) -> None:
    tree(tmp_path, {"Test": 1, "Training": 1})
    assert gg.dataset("folder", path=tmp_path, size=8).classes == ("Test", "Training")


def test_an_unlabelled_folder_is_read_when_asked_for(tmp_path: Path) -> None:
    save(tmp_path / "b.png", flat(2))
    save(tmp_path / "a.png", flat(1))
    data = gg.dataset("folder", path=tmp_path, size=8, labelled=False)
    assert data.images[:, 0, 0, 0].tolist() == [1, 2]
    assert data.labels.tolist() == [0, 0]
    with pytest.raises(UserError, match=r"has images but no class folders; .* labelled=False"):
        gg.dataset("folder", path=tmp_path)


def test_a_limit_takes_a_seeded_part_in_order(tmp_path: Path) -> None:
    path = tree(tmp_path, {"ant": 9, "bee": 9})
    taken = [
        gg.dataset("folder", path=path, size=8, limit=6, seed=seed).images[:, 0, 0, 0].tolist()
        for seed in (0, 1)
    ]
    assert taken[0] == sorted(taken[0])
    assert len(set(taken[0])) == 6
    assert taken[0] != taken[1]
    assert gg.dataset("folder", path=path, size=8, limit=6).images[:, 0, 0, 0].tolist() == taken[0]
    assert len(gg.dataset("folder", path=path, size=8, limit=100)) == 18


def test_the_centre_is_cut_out_of_the_shorter_side(tmp_path: Path) -> None:
    pixels = np.zeros((4, 8, 3), np.uint8)
    pixels[:, :, 0] = np.arange(8)
    wide, tall = (
        save(tmp_path / "wide.png", pixels),
        save(tmp_path / "tall.png", pixels.swapaxes(0, 1).copy()),
    )
    assert read_image(wide, (4, 4))[0, 0].tolist() == [2, 3, 4, 5]
    assert read_image(tall, (4, 4))[0, :, 0].tolist() == [2, 3, 4, 5]
    assert read_image(wide, (2, 2), resize=4)[0, 0].tolist() == [3, 4]
    assert read_image(wide, (4, 8))[0, 0].tolist() == list(range(8))


def test_the_largest_part_is_kept_when_the_wanted_shape_is_another(tmp_path: Path) -> None:
    path = save(tmp_path / "q.png", quarters(20, 20))
    image = read_image(path, (10, 6))
    assert image.shape == (3, 10, 6)
    assert image[:, 0, 0].tolist() == [255, 0, 0]
    assert image[:, -1, -1].tolist() == [255, 255, 255]


@pytest.mark.parametrize(("h", "w"), [(37, 52), (53, 38), (16, 16), (9, 21), (20, 33)])
def test_scaling_and_cropping_equal_torchvision(h: int, w: int, tmp_path: Path) -> None:
    from torchvision.transforms import CenterCrop, PILToTensor, Resize

    pixels = np.random.default_rng(0).integers(0, 256, (h, w, 3), np.uint8)
    path = save(tmp_path / "noise.png", pixels)
    picture = Image.fromarray(pixels)
    resized = PILToTensor()(CenterCrop(16)(Resize(20)(picture)))
    assert torch.equal(read_image(path, (16, 16), resize=20), resized)
    assert torch.equal(read_image(path, (16, 16)), PILToTensor()(CenterCrop(16)(Resize(16)(picture))))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_turned_photograph_stands_upright(orientation: int, tmp_path: Path) -> None:
    upright = Image.fromarray(quarters(8, 12))
    undo = {
        1: None,
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }[orientation]
    stored = upright if undo is None else upright.transpose(undo)
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored.save(tmp_path / "photo.png", exif=exif)
    assert np.array_equal(read_image(tmp_path / "photo.png", (8, 12)).movedim(0, -1).numpy(), quarters(8, 12))


def test_every_kind_of_pixel_becomes_eight_bit_colour(tmp_path: Path) -> None:
    grey = np.tile(np.arange(8, dtype=np.uint8) * 30, (8, 1))
    expected = torch.from_numpy(grey)[None].expand(3, 8, 8)
    Image.fromarray(grey).save(tmp_path / "grey.png")
    Image.fromarray(grey.astype(np.uint16) * 256 + 37).save(tmp_path / "deep.png")
    Image.fromarray(grey).convert("LA").save(tmp_path / "grey_alpha.png")
    Image.fromarray(grey).convert("P").save(tmp_path / "palette.gif")
    Image.fromarray(np.stack([grey] * 3, -1)).convert("CMYK").save(tmp_path / "print.tif")
    for name in ("grey.png", "deep.png", "grey_alpha.png", "palette.gif", "print.tif"):
        assert torch.equal(read_image(tmp_path / name, (8, 8)), expected), name


def test_one_bit_pictures_become_black_and_white(tmp_path: Path) -> None:
    board = np.indices((8, 8)).sum(0) % 2 == 1
    Image.fromarray(board).save(tmp_path / "board.png")
    assert torch.equal(read_image(tmp_path / "board.png", (8, 8))[1], torch.from_numpy(board) * 255)


def test_transparent_pixels_become_white(tmp_path: Path) -> None:
    pixels = np.zeros((4, 4, 4), np.uint8)
    pixels[:, :, 0] = 200
    pixels[:2, :, 3] = 255
    image = read_image(save(tmp_path / "glass.png", pixels), (4, 4))
    assert image[:, 0, 0].tolist() == [200, 0, 0]
    assert image[:, 3, 0].tolist() == [255, 255, 255]


def test_a_palette_with_a_transparent_entry_becomes_white_there(tmp_path: Path) -> None:
    picture = Image.new("P", (2, 2))
    picture.putpalette([9, 9, 9, 100, 150, 200])
    picture.putdata([0, 1, 1, 0])
    picture.save(tmp_path / "p.png", transparency=0)
    image = read_image(tmp_path / "p.png", (2, 2))
    assert image[:, 0, 0].tolist() == [255, 255, 255]
    assert image[:, 0, 1].tolist() == [100, 150, 200]


@pytest.mark.parametrize("keep", [0, 20, 200])
@pytest.mark.parametrize("ending", ["png", "jpg"])
def test_a_truncated_image_is_named(ending: str, keep: int, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)
    path = save(tmp_path / "ant" / f"cut.{ending}", noise)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(
        UserError, match=rf"cut.{ending} cannot be read as an image .* repair it or remove it\."
    ):
        gg.dataset("folder", path=tmp_path)


def test_float_pixels_are_refused(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((4, 4), np.float32)).save(tmp_path / "float.tif")
    with pytest.raises(UserError, match="its pixels are floats"):
        read_image(tmp_path / "float.tif", (4, 4))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 0}, r"The image size is \(0, 0\); give one positive number or \(height, width\)"),
        ({"size": (4, -1)}, "The image size is"),
        ({"resize": 31}, "resize is 31, less than the size 32 cut out of it"),
        ({"limit": 0}, "The limit is 0; give at least 1"),
        ({"size": 8, "labeled": True}, "did you mean 'labelled'"),
    ],
)
def test_wrong_settings_are_refused(settings: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        gg.dataset("folder", path=tree(tmp_path, {"ant": 1}), **settings)


def test_missing_and_empty_folders_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"There is no folder .*nowhere; give the folder that holds the images"
    ):
        gg.dataset("folder", path=tmp_path / "nowhere")
    with pytest.raises(UserError, match="is empty; put a folder for each class in it"):
        gg.dataset("folder", path=tmp_path)
    with pytest.raises(UserError, match=r"There are no images in .*known endings are"):
        gg.dataset("folder", path=tmp_path, labelled=False)
    (tmp_path / "ant").mkdir()
    with pytest.raises(UserError, match=r"There are no images in .*known endings are"):
        gg.dataset("folder", path=tmp_path)


def test_numbered_folders_have_the_labels_they_are_named_by(tmp_path: Path) -> None:
    for number, value in ((7, 70), (2, 20), (10, 100)):
        save(tmp_path / "images" / f"{number:04d}" / "a.png", flat(value))
    data = gg.dataset("folder", path=tmp_path, split="images", size=8, numbered=True)
    assert data.images[:, 0, 0, 0].tolist() == [20, 70, 100]
    assert data.labels.tolist() == [2, 7, 10]
    assert len(data.classes) == 11
    assert (data.classes[2], data.classes[7]) == ("0002", "0007")
    counted = gg.dataset("folder", path=tmp_path, split="images", size=8)
    assert counted.labels.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (("3", "bee"), "is named 'bee'; name each by its number, or leave out numbered"),
        (("3", "1234567"), "is named '1234567'"),
        (("3", "03"), "has the number of another"),
    ],
)
def test_folders_that_are_no_numbers_are_not_numbered(names, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=sentence):
        gg.dataset("folder", path=tree(tmp_path, dict.fromkeys(names, 1)), size=8, numbered=True)


def test_a_tiff_of_32_bit_numbers_is_refused_and_one_of_16_bits_is_scaled(tmp_path):
    """Pillow would clip the larger ones to white."""
    values = np.arange(64, dtype=np.int32).reshape(8, 8) * 1000
    Image.fromarray(values).save(tmp_path / "deep.tiff")
    with pytest.raises(UserError, match="32-bit whole numbers, whose range is unknown"):
        read_image(tmp_path / "deep.tiff", (8, 8))
    Image.fromarray(values.astype(np.uint16)).save(tmp_path / "grey.tiff")
    assert (read_image(tmp_path / "grey.tiff", (8, 8))[0].numpy() == values >> 8).all()
