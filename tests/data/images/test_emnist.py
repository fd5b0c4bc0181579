"""EMNIST: the published files, turned upright; letters are numbered from 1 there."""

import gzip

import numpy as np
import pytest

from tests.data.images.test_fashion_mnist import idx
from vergence.data.images.emnist import FILES, Emnist, check
from vergence.errors import DataError

COUNTS = {"train": 104, "test": 52}


def write(folder, kind="letters", first=1, classes=26):
    """Image n has its label at row 2, column 20 (upright), and 99 at row 20, column 2."""
    for part, count in COUNTS.items():
        labels = np.arange(count) % classes + first
        upright = np.zeros((count, 28, 28))
        upright[:, 2, 20], upright[:, 20, 2] = labels, 99
        for what, array in (("images-idx3", upright.transpose(0, 2, 1)), ("labels-idx1", labels)):
            path = folder / f"emnist-{kind}-{part}-{what}-ubyte.gz"
            path.write_bytes(gzip.compress(idx(array), 1, mtime=0))


@pytest.mark.parametrize(("kind", "first"), [("letters", 1), ("balanced", 0), ("digits", 0)])
def test_images_stand_upright_beside_labels_from_zero(tmp_path, kind, first):
    classes = FILES[kind].classes
    write(tmp_path, kind, first, len(classes))
    federation = Emnist(people=4, kind=kind).load(str(tmp_path))
    for splits in federation.people.values():
        for part in (splits.train, splits.val, splits.test):
            image, label = part.columns["image"], part.columns["label"]
            assert (image[:, 0, 2, 20].long() == label + first).all()
            assert (image[:, 0, 20, 2] == 99).all()
            assert image.is_contiguous()
            assert int(label.min()) >= 0
            assert int(label.max()) < len(classes)
    assert federation.about["classes"] == ", ".join(classes)


def test_the_numbers_of_classes():
    assert {kind: len(files.classes) for kind, files in FILES.items()} == {
        "letters": 26,
        "balanced": 47,
        "digits": 10,
    }
    for files in FILES.values():
        assert all(count % len(files.classes) == 0 for count in files.counts.values())


def test_bad_files_are_named(tmp_path):
    write(tmp_path, first=0)
    with pytest.raises(DataError, match=r"labels must be 1 to 26, got 0.*nist.gov"):
        Emnist().load(str(tmp_path))
    write(tmp_path)
    assert [(line.actual, line.expected) for line in check(tmp_path)] == [
        ("104", "124,800"),
        ("4", "4,800"),
        ("52", "20,800"),
        ("2", "800"),
    ]
    with pytest.raises(DataError, match=r"missing file .*emnist-digits"):
        Emnist(kind="digits").load(str(tmp_path))
