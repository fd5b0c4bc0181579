"""CIFAR-100: both published layouts, fine and coarse labels."""

import numpy as np
import pytest

from tests.data.python2 import python2
from vergence.data.images.cifar100 import CLASSES, Cifar100, check
from vergence.errors import DataError

COUNTS = {"train": 200, "test": 100}


def made(part: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return coarse and fine labels and pixels, whose red is the fine label."""
    fine = np.arange(COUNTS[part]) % 100
    pixels = np.zeros((len(fine), 3072), np.uint8)
    pixels[:, :1024] = fine[:, None]
    return fine // 5, fine, pixels


def write_binary(folder):
    home = folder / "cifar-100-binary"
    home.mkdir()
    for part in COUNTS:
        coarse, fine, pixels = made(part)
        records = np.column_stack([coarse, fine, pixels]).astype(np.uint8)
        (home / f"{part}.bin").write_bytes(records.tobytes())


def write_python(folder):
    for part in COUNTS:
        coarse, fine, pixels = made(part)
        told = {b"fine_labels": fine.tolist(), b"coarse_labels": coarse.tolist(), b"data": pixels}
        (folder / part).write_bytes(python2(told))


@pytest.mark.parametrize("write", [write_binary, write_python])
@pytest.mark.parametrize("labels", ["fine", "coarse"])
def test_labels_of_either_kind_go_with_their_images(tmp_path, write, labels):
    write(tmp_path)
    federation = Cifar100(people=3, labels=labels).load(str(tmp_path))
    count = 0
    for splits in federation.people.values():
        for part in (splits.train, splits.val, splits.test):
            red = part.columns["image"][:, 0, 5, 5].long()
            assert (part.columns["label"] == (red if labels == "fine" else red // 5)).all()
            assert not part.columns["image"][:, 1:].any()
            count += len(part)
    assert count == 300
    assert len(federation.about["classes"].split(", ")) == len(CLASSES[labels])


def test_classes_are_named_by_their_number():
    """Fine labels are numbered by the alphabet, coarse ones as published."""
    fine, coarse = CLASSES["fine"], CLASSES["coarse"]
    assert (len(fine), len(set(fine)), len(coarse)) == (100, 100, 20)
    assert [fine[i] for i in (0, 41, 53, 99)] == ["apple", "lawn mower", "orange", "worm"]
    assert [coarse[i] for i in (0, 14, 19)] == ["aquatic mammals", "people", "vehicles 2"]


def test_the_table_cuts_a_hundred_classes_into_tenths(tmp_path):
    write_binary(tmp_path)
    people = Cifar100(split="table").load(str(tmp_path)).people
    assert set(people["p008"].test.columns["label"].tolist()) == set(range(80, 100))
    assert set(people["p004"].test.columns["label"].tolist()) <= {*range(20, 30), *range(40, 50)}


def test_bad_files_are_named(tmp_path):
    with pytest.raises(DataError, match="holds neither version of CIFAR-100"):
        Cifar100().load(str(tmp_path))
    write_binary(tmp_path)
    assert [line.actual for line in check(tmp_path)] == [
        "200",
        "2",
        "100",
        "1",
        "200",
        "10",
        "100",
        "5",
    ]
    path = tmp_path / "cifar-100-binary" / "test.bin"
    path.write_bytes(b"\x14\x64" + bytes(3072))
    for labels, last in (("fine", "99, got 100"), ("coarse", "19, got 20")):
        with pytest.raises(DataError, match=f"labels must be 0 to {last}"):
            Cifar100(labels=labels).load(str(tmp_path))
