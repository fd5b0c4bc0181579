"""CIFAR-10: both published layouts and the JPEG subset, read or refused."""

import io
import os
import pickle
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import research_data
from tests.data.python2 import python2
from vergence.data.images.cifar10 import CLASSES, FILES, SUBSET, Cifar10, check, find_reader
from vergence.errors import DataError

EACH = 8
"""Images per file."""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VERGENCE_CACHE", str(tmp_path / "cache"))


def made(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and pixels of one file: red is the label, green the file, blue the image."""
    labels = (np.arange(EACH) + number) % 10
    pixels = np.stack([labels, np.full(EACH, number), np.arange(EACH)], 1).repeat(1024, 1)
    return labels, pixels.astype(np.uint8)


def names():
    return [*FILES["train"], *FILES["test"]]


def write_binary(folder):
    for number, name in enumerate(names()):
        labels, pixels = made(number)
        records = np.concatenate([labels[:, None].astype(np.uint8), pixels], 1)
        (folder / f"{name}.bin").write_bytes(records.tobytes())


def write_python(folder):
    home = folder / "cifar-10-batches-py"
    home.mkdir()
    for number, name in enumerate(names()):
        labels, pixels = made(number)
        told = {
            b"batch_label": name.encode(),
            b"labels": labels.tolist(),
            b"data": pixels,
            b"filenames": [b"x.png"] * EACH,
        }
        (home / name).write_bytes(python2(told))


@pytest.mark.parametrize("write", [write_binary, write_python])
def test_every_record_is_dealt_once_with_its_label_and_colours(tmp_path, write):
    write(tmp_path)
    federation = Cifar10(people=4).load(str(tmp_path))
    seen = {"train": [], "test": []}
    for splits in federation.people.values():
        for name, part in (("train", splits.train), ("train", splits.val), ("test", splits.test)):
            image = part.columns["image"]
            assert image.dtype == torch.uint8
            assert image.shape[1:] == (3, 32, 32)
            assert (image == image[:, :, :1, :1]).all()
            red, green, blue = image[:, :, 0, 0].T.tolist()
            assert red == part.columns["label"].tolist()
            seen[name] += list(zip(green, blue, strict=True))
    assert sorted(seen["train"]) == [(file, i) for file in range(5) for i in range(EACH)]
    assert sorted(seen["test"]) == [(5, i) for i in range(EACH)]
    assert federation.about["classes"].startswith("airplane, automobile")


def write_subset(folder, *, classes=CLASSES, shift=0, counts=(60, 20), broken=False):
    for part, count in zip(("train", "test"), counts, strict=True):
        labels, files = np.arange(count) % 10, []
        for index, label in enumerate(labels):
            body = io.BytesIO()
            colour = (255 if label % 2 else 0, index + 60 * (part == "test"), 25 * label)
            Image.new("RGB", (32, 32), tuple(map(int, colour))).save(body, "JPEG", quality=95)
            files.append(body.getvalue()[: 100 if broken else None])
        np.savez(
            folder / f"cifar10_{part}_{count}_jpeg.npz",
            classes=np.array(classes),
            blob=np.frombuffer(b"".join(files), np.uint8),
            labels=labels.astype(np.uint8),
            offsets=np.cumsum([0, *map(len, files)]) + shift,
        )


@pytest.mark.parametrize("page", ["docs/how-to/images.md", "docs/reference/options/data.md"])
def test_pages_name_the_files_of_the_subset_as_they_are_looked_for(page):
    text = Path(page).read_text(encoding="utf-8")
    for part in ("train", "test"):
        said = set(re.findall(rf"cifar10_{part}_\w+\.npz", text))
        assert said
        assert all(SUBSET.fullmatch(name.replace("_N_", "_16_")) for name in said)


def test_a_folder_of_jpeg_files_is_no_subset(tmp_path):
    for part in ("train", "test"):
        (tmp_path / part / "cat").mkdir(parents=True)
        Image.new("RGB", (32, 32)).save(tmp_path / part / "cat" / "1.jpeg")
    with pytest.raises(DataError, match=r"no cifar10_train_N_jpeg\.npz"):
        Cifar10().load(str(tmp_path))


def test_the_subset_is_decoded_once_and_then_kept(tmp_path, monkeypatch):
    write_subset(tmp_path)
    first = Cifar10(people=2).load(str(tmp_path))
    for splits in first.people.values():
        image, label = splits.train.columns["image"][:, :, 9, 9].float(), splits.train.columns
        assert (image[:, 0] - 255 * (label["label"] % 2)).abs().max() < 12
        assert (image[:, 2] - 25 * label["label"]).abs().max() < 12
    assert "60 + 20 images, JPEG" in first.about["files"]
    assert [line.ok for line in check(tmp_path)] == [True] * 4
    monkeypatch.setattr("vergence.data.images.cifar10._decoded", None)
    again = Cifar10(people=2).load(str(tmp_path))
    for one, other in zip(first.people.values(), again.people.values(), strict=True):
        assert torch.equal(one.train.columns["image"], other.train.columns["image"])


def test_several_files_of_a_part_are_read_together(tmp_path):
    write_subset(tmp_path)
    whole = Cifar10(people=1, split="iid").load(str(tmp_path)).people
    for part, count in (("train", 60), ("test", 20)):
        path = tmp_path / f"cifar10_{part}_{count}_jpeg.npz"
        with np.load(path) as arrays:
            blob, labels, offsets, classes = (
                arrays[k] for k in ("blob", "labels", "offsets", "classes")
            )
        path.unlink()
        for name, rows in (("", range(12)), ("rest_0_", range(12, count))):
            a, b = rows[0], rows[-1] + 1
            np.savez(
                tmp_path / f"cifar10_{part}_{name}{b - a}_jpeg.npz",
                classes=classes,
                blob=blob[offsets[a] : offsets[b]],
                labels=labels[a:b],
                offsets=offsets[a : b + 1] - offsets[a],
            )
    assert [line.ok for line in check(tmp_path)] == [True] * 4
    cut = Cifar10(people=1, split="iid").load(str(tmp_path))
    assert "60 + 20 images, JPEG" in cut.about["files"]
    for person, splits in cut.people.items():
        for part in ("train", "test"):
            ours, theirs = getattr(splits, part).columns, getattr(whole[person], part).columns
            assert all(torch.equal(ours[k], theirs[k]) for k in ("image", "label"))


def test_an_image_in_two_files_is_refused(tmp_path):
    """As when a smaller subset lies beside the one it was taken from."""
    write_subset(tmp_path)
    shutil.copy(tmp_path / "cifar10_train_60_jpeg.npz", tmp_path / "cifar10_train_a_60_jpeg.npz")
    with pytest.raises(DataError, match=r"an image is in cifar10_train_60_jpeg\.npz too; keep one"):
        Cifar10(people=2).load(str(tmp_path))


def fewer(folder):
    (folder / "cifar10_test_20_jpeg.npz").unlink()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"shift": 1}, "offsets do not cut blob into 60 images"),
        ({"broken": True}, "cannot decode an image"),
        ({"classes": CLASSES[::-1]}, "classes must be airplane"),
        (fewer, "no cifar10_test_N_jpeg.npz"),
    ],
)
def test_a_damaged_subset_is_refused(tmp_path, change, says):
    write_subset(tmp_path, **({} if callable(change) else change))
    if callable(change):
        change(tmp_path)
    with pytest.raises(DataError, match=says) as caught:
        Cifar10(people=2).load(str(tmp_path))
    assert "cs.toronto.edu" in str(caught.value)


class Nasty:
    def __reduce__(self):
        return os.mkdir, ("made_by_a_pickle",)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("data_batch_3", None, "missing file"),
        ("data_batch_3", b"", "cannot read"),
        ("data_batch_3", python2({b"labels": [0]}), "lacks b'data'"),
        (
            "data_batch_3",
            python2({b"labels": [0, 1], b"data": made(0)[1]}),
            "no images of 3072 bytes",
        ),
        (
            "data_batch_3",
            python2({b"labels": [-1] * EACH, b"data": made(0)[1]}),
            "no images of 3072",
        ),
        ("data_batch_3", python2({b"labels": [11] * EACH, b"data": made(0)[1]}), "0 to 9, got 11"),
        ("test_batch", pickle.dumps(Nasty(), 2), "names posix.mkdir, which no image needs"),
    ],
)
def test_a_bad_pickle_is_refused_and_runs_nothing(tmp_path, monkeypatch, name, content, says):
    monkeypatch.chdir(tmp_path)
    write_python(tmp_path)
    path = tmp_path / "cifar-10-batches-py" / name
    path.write_bytes(content) if content is not None else path.unlink()
    with pytest.raises(DataError, match=says) as caught:
        Cifar10(people=2).load(str(tmp_path))
    assert name in str(caught.value)
    assert not (tmp_path / "made_by_a_pickle").exists()


def test_a_truncated_pickle_or_record_is_refused(tmp_path):
    write_python(tmp_path)
    path = tmp_path / "cifar-10-batches-py" / "data_batch_2"
    whole = path.read_bytes()
    for kept in range(0, len(whole), 997):
        path.write_bytes(whole[:kept])
        with pytest.raises(DataError, match="data_batch_2"):
            Cifar10(people=2).load(str(tmp_path))
    write_binary(tmp_path)
    path = tmp_path / "data_batch_2.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="no whole records of 3,073"):
        Cifar10(people=2).load(str(tmp_path))


def test_a_folder_without_any_layout_is_refused(tmp_path):
    with pytest.raises(DataError, match="holds neither version"):
        Cifar10().load(str(tmp_path))


@pytest.mark.slow
@pytest.mark.data
def test_the_labels_of_the_subset_at_hand():
    read, told, counts = find_reader(research_data("cifar10"))
    assert {part: len(read(part).labels) for part in counts} == counts
    assert f"{counts['train']:,} + {counts['test']:,} images, JPEG" in told


@pytest.mark.data
@pytest.mark.slow
def test_the_images_of_the_subset_at_hand():
    assert all(line.ok for line in check(research_data("cifar10")))
