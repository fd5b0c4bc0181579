"""A folder of pictures per class: what is taken, cut, split and refused."""

import shutil

import pytest
import torch
from PIL import Image

from vergence.data.images.image_folder import ImageFolder, check
from vergence.data.owner import OWNER
from vergence.errors import ConfigError, DataError

COLOURS = {"grizzly+bear": (200, 0, 0), "cat": (0, 200, 0), "sea_lion": (0, 0, 200)}


@pytest.fixture
def root(tmp_path):
    """Ten wide pictures of a class, white at both ends; sRGB, one PNG among them."""
    for name, colour in COLOURS.items():
        (tmp_path / name).mkdir()
        for i in range(10):
            picture = Image.new("RGB", (80, 40), (255, 255, 255))
            picture.paste(colour, (20, 0, 60, 40))
            picture.save(tmp_path / name / f"{i}.{'png' if i else 'JPG'}")
        (tmp_path / name / "notes.txt").write_text("not a picture")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "__MACOSX").mkdir()
    (tmp_path / "cat" / "._1.png").write_bytes(b"\0\5\x16\7")
    return tmp_path


def classes(samples):
    return samples.columns["y"].bincount(minlength=3).tolist()


def test_folders_are_classes_and_squares_are_their_pictures_middles(root):
    federation = ImageFolder(unseen=("sea_lion",), side=32, teacher="quasi").load(str(root))
    assert federation.about["classes"] == "cat, grizzly bear, sea lion"
    assert federation.about["unseen"] == "sea lion"
    splits = federation.people[OWNER]
    assert [classes(s) for s in (splits.train, splits.val, splits.test)] == [
        [7, 7, 0],
        [1, 1, 0],
        [2, 2, 10],
    ]
    batch = splits.test.take(slice(0, 14))
    assert batch["image"].shape == (14, 3, 32, 32)
    colour = torch.tensor([COLOURS[n] for n in ("cat", "grizzly+bear", "sea_lion")])[batch["y"]]
    off = batch["image"][:, :, 4::24, 4::24].float() - colour[:, :, None, None]
    assert off.abs().max() < 12  # white at both ends is cut off, the rest is the class's colour


def test_an_omniscient_teacher_gets_eight_of_ten_unseen_pictures(root):
    splits = ImageFolder(unseen=("cat",), side=32).load(str(root)).people[OWNER]
    assert [classes(s) for s in (splits.train, splits.val, splits.test)] == [
        [7, 7, 7],
        [1, 1, 1],
        [2, 2, 2],
    ]
    banks = {id(part.banks["image"].rows) for part in (splits.train, splits.val, splits.test)}
    assert len(banks) == 1  # one bank, so that pictures are turned into features once


def test_what_is_refused(root):
    load = str(root)
    assert [line.actual for line in check(root)] == ["3", "10 to 10"]
    with pytest.raises(ConfigError, match=r"some of the 3 classes but not all, of cat, grizzly"):
        ImageFolder().load(load)
    with pytest.raises(ConfigError, match=r"no class 'cta' \(did you mean 'cat'"):
        ImageFolder(unseen=("cta",)).load(load)
    (root / "cat" / "3.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"cannot decode .*3\.png"):
        ImageFolder(unseen=("cat",)).load(load)
    assert "3.png" in check(root)[0].hint
    for i in range(3, 10):
        (root / "cat" / f"{i}.png").unlink()
    with pytest.raises(DataError, match="cat has 3 pictures, a class needs 5 or more"):
        ImageFolder(unseen=("cat",)).load(load)
    shutil.rmtree(root / "cat")
    shutil.copytree(root / "sea_lion", root / "sea+lion")
    with pytest.raises(DataError, match="two folders are called 'sea lion'"):
        ImageFolder(unseen=("sea lion",)).load(load)
    with pytest.raises(DataError, match=r"holds 0 classes"):
        ImageFolder(unseen=("cat",)).load(str(root / "sea_lion"))
    (root / "alone").mkdir()
    shutil.move(root / "grizzly+bear", root / "alone" / "bear")
    with pytest.raises(DataError, match=r"alone holds 1 classes, 2 or more are needed"):
        ImageFolder(unseen=("bear",)).load(str(root / "alone"))
    with pytest.raises(DataError, match="name its folder as root"):
        ImageFolder(unseen=("cat",)).load()
