"""What was given away is on the disk before it is: a power cut must not let it be given again."""

import os

import pytest

from vergence.deployment.secure_sum_client import SecureSumFiles
from vergence.privacy.release_log import Release, ReleaseLog


@pytest.fixture
def flushed(monkeypatch):
    """Return how long each file was when it was last flushed, by inode."""
    found, honest = {}, os.fsync

    def fsync(number):
        honest(number)
        file = os.fstat(number)
        found[file.st_ino] = file.st_size

    monkeypatch.setattr(os, "fsync", fsync)
    return found


def kept(path, flushed):
    """Tell whether all of a file would outlast a power cut."""
    file = path.stat()
    return file.st_size > 0 and flushed.get(file.st_ino) == file.st_size


def test_which_sum_was_opened_is_on_the_disk(tmp_path, flushed):
    """A client that forgot it would help to open another sum of the same words."""
    spent = SecureSumFiles(tmp_path / "sum.spent")
    for number in range(3):
        spent[f"run {number}.train"] = "aa"
        assert kept(spent.path, flushed)


def test_a_release_is_on_the_disk(tmp_path, flushed):
    """A budget that forgot it would be spent twice."""
    book = ReleaseLog(tmp_path / "book.csv")
    for number in range(3):
        book.enter(Release(str(number), f"{number}.0.x", 2.0, 1.0, 1))
        assert kept(book.path, flushed)
