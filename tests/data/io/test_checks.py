"""Checks of folders and files: named places, counts, and arrays at their limits."""

import io
import time

import numpy as np
import pytest
from PIL import Image

from tests.refusals import refuses
from vergence.data.io import checks
from vergence.data.io.checks import (
    Check,
    Checks,
    compare,
    data_folder,
    data_path,
    missing_folder,
    need_numbers,
    read_npz,
    read_pictures,
    refuse_nan,
    with_progress,
)
from vergence.errors import ConfigError, DataError


def test_counts_that_differ_have_a_hint_and_equal_ones_have_none():
    assert compare("rows", 1234, 1234, "look") == Check("rows", "1,234", "1,234", True)
    assert compare("rows", 1233, 1234, "look") == Check("rows", "1,233", "1,234", False, "look")


def test_faults_become_lines_and_others_go_on():
    lines = Checks()
    with lines.reading("files"):
        raise DataError("broken")
    with lines.reading("fine"):
        pass
    with lines.reading("options", ConfigError):
        raise ConfigError("wrong")
    assert lines == [
        Check("files", "unreadable", "readable", False, "broken"),
        Check("options", "unreadable", "readable", False, "wrong"),
    ]
    with pytest.raises(ConfigError), lines.reading("options"):
        raise ConfigError("wrong")


def test_folders_are_named_with_every_place_that_was_searched(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VERGENCE_DATA", "shared")
    (tmp_path / "file").touch()
    assert missing_folder(tmp_path / "file") == f"{tmp_path / 'file'} is a file, and no folder"
    assert missing_folder(tmp_path / "no") == f"no folder {tmp_path / 'no'}"
    where = tmp_path.relative_to(tmp_path) / "shared" / "osie"
    assert missing_folder(where) == ("no folder shared/osie, and no osie in the working directory,")
    # An absolute path is not below a data folder that was named by a relative one.
    assert missing_folder(tmp_path / "shared" / "osie").endswith("shared/osie")
    monkeypatch.setenv("VERGENCE_DATA", str(tmp_path / "shared"))
    assert "no osie in the working" in missing_folder(tmp_path / "shared" / "osie")
    assert missing_folder(where) == "no folder shared/osie"
    assert data_folder(tmp_path, "osie", "get it") == tmp_path
    with refuses("file-missing", "'osie'", "file", "get it"):
        data_folder(tmp_path / "file", "osie", "get it")


def test_paths_of_data_are_their_own_or_below_the_data_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VERGENCE_DATA", "/data")
    (tmp_path / "here").mkdir()
    assert data_path("here") == "here"
    assert data_path("there") == "/data/there"
    assert data_path(str(tmp_path / "no")) == str(tmp_path / "no")
    monkeypatch.delenv("VERGENCE_DATA")
    assert data_path("there") == "../shared/data/there"


def test_arrays_of_an_archive(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.zeros((2, 3)), y=np.zeros(2), words=np.array(["a"]))
    assert set(read_npz(path, {"x": 2}, "get it")) == {"x"}
    assert set(read_npz(path, {"x": 2}, "", optional=("y", "z"))) == {"x", "y"}
    assert set(read_npz(path, {"x": 2, "words": 1}, "", text=("words",))) == {"x", "words"}
    assert list(read_npz(path, {}, "", optional=None, text=("words",))) == ["words", "x", "y"]
    for rank in (1, 3):
        with refuses("file-layout", "x has shape (2, 3)", f"instead of {rank} dimensions"):
            read_npz(path, {"x": rank}, "get it")
    with refuses("file-layout", "lacks u, v", "needs x, v, u"):
        read_npz(path, {"x": 2, "v": 1, "u": 1}, "get it")
    with refuses("bad-value", "words holds <U1"):
        read_npz(path, {"words": 1}, "get it")


@pytest.mark.parametrize("kind", [bool, np.int8, np.uint16, np.float16])
def test_kinds_of_numbers(tmp_path, kind):
    need_numbers(np.zeros(2, kind), "x", tmp_path, "")


@pytest.mark.parametrize("kind", [complex, "U2", object, "datetime64[s]"])
def test_kinds_that_are_no_real_numbers(tmp_path, kind):
    with refuses("bad-value", "x holds"):
        need_numbers(np.zeros(2, kind), "x", tmp_path, "")


def test_rows_without_finite_numbers_are_counted_and_the_first_is_named(tmp_path):
    values = np.zeros((5, 2, 3))
    refuse_nan(values, "gaze", tmp_path)
    values[2, 1, 2], values[4, 0, 0] = np.nan, -np.inf
    with refuses("bad-value", "gaze is NaN or infinite in 2 of 5 rows, first in row 2"):
        refuse_nan(values, "gaze", tmp_path)


def test_pictures_are_decoded_in_order_and_resized(tmp_path):
    wide = Image.fromarray(np.arange(6 * 4 * 3, dtype=np.uint8).reshape(4, 6, 3))
    grey = Image.fromarray(np.full((8, 8), 77, np.uint8))
    for name, picture in (("a", wide), ("b", grey)):
        picture.save(tmp_path / f"{name}.png")
    paths = [tmp_path / "b.png", tmp_path / "a.png"]
    found = read_pictures(paths, (6, 4), "pictures", "get it")
    assert found.shape == (2, 4, 6, 3)
    assert (found[0] == 77).all()
    assert np.array_equal(found[1], np.asarray(wide))
    with refuses("file-missing", "c.png"):
        read_pictures([tmp_path / "c.png"], (6, 4), "pictures", "get it")


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("seconds", "shown"), [(0.9, 0), (1.0, 0), (1.1, 1)])
def test_progress_is_shown_after_two_seconds(monkeypatch, seconds, shown):
    """Three items, each `seconds` long: the third one begins after twice as many."""
    now, made = [10.0], []

    class Bar:
        task_ids = ("the bar",)

        def __init__(self, **options):
            made.append(self)
            self.said = []

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.said.append("closed")

        def add_task(self, what, total):
            self.said.append((what, total))

        def update(self, task, completed):
            self.said.append((task, completed))

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(checks, "Progress", Bar)
    monkeypatch.setattr("sys.stderr", Terminal())
    for i, item in enumerate(with_progress("abcd"[:3], "faces")):
        assert item == "abc"[i]
        now[0] += seconds
    assert len(made) == shown
    if shown:
        assert made[0].said == [("reading faces", 3), ("the bar", 2), "closed"]
    monkeypatch.setattr("sys.stderr", io.StringIO())
    now[0], made[:] = 10.0, []
    for _ in with_progress("abc", "faces"):
        now[0] += 9
    assert not made
