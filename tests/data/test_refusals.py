"""What readers of tables, videos and gaze refuse, one row each: the code, what is named, the call.

A row is a file or a value that is wrong in one way. The wording of messages stands nowhere here.
"""

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from tests.data.footage import write_video
from tests.refusals import refuses
from vergence.data.gaze_video.gaze import Gaze
from vergence.data.io.checks import data_folder, need_file, read_mat, read_npz, refuse_nan
from vergence.data.io.delimited_text import read_table
from vergence.data.io.image_files import open_image
from vergence.data.io.video import Video

TIMES = np.arange(60) * 0.04
GAZE = Gaze.build("gaze.csv", np.array([0.0, 1.0]), np.full(2, 0.5), np.full(2, 0.5))


def written(path: Path, content: str | bytes) -> Path:
    """Write a file and return its path."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def cut(path: Path, share: float) -> Path:
    """Cut a file down to a share of its bytes."""
    data = path.read_bytes()
    return written(path, data[: int(len(data) * share)])


def arrays(path: Path, **named: np.ndarray) -> Path:
    """Write an npz file and return its path."""
    np.savez(path, **named)
    return path


def gaze(t: list[float], **more: list[float]) -> Gaze:
    """Gaze in the middle, but for what is given."""
    at = np.asarray(t)
    return Gaze.build("gaze.csv", at, *(more.get(axis, at * 0 + 0.5) for axis in ("x", "y")))


def changed(**columns: np.ndarray) -> Gaze:
    """Build a record of gaze from its columns, some of them others."""
    return Gaze(**{f.name: columns.get(f.name, getattr(GAZE, f.name)) for f in fields(Gaze)})


def table(folder: Path, text: str, *needed: str) -> object:
    """Read a table of this text."""
    return read_table(written(folder / "a.csv", text), list(needed), "thing")


ROWS = {
    # Videos.
    "no video": ("file-missing", ["none.mp4"], lambda at: Video.open(at / "none.mp4")),
    "text as a video": (
        "file-unreadable",
        ["text.mp4"],
        lambda at: Video.open(written(at / "text.mp4", "hello")),
    ),
    "an mp4 without frames": (
        "file-unreadable",
        ["empty.mp4", "video stream"],
        lambda at: Video.open(write_video(at / "empty.mp4", np.zeros(0))),
    ),
    "an avi without frames": (
        "file-unreadable",
        ["empty.avi", "frames"],
        lambda at: Video.open(write_video(at / "empty.avi", np.zeros(0))),
    ),
    **{
        f"a video of which {share:.0%} is there": (
            "file-unreadable",
            ["cut.mp4"],
            lambda at, share=share: Video.open(cut(write_video(at / "cut.mp4", TIMES), share)),
        )
        for share in (0.0, 0.5, 0.95)
    },
    "a time outside the video": (
        "outside-video",
        ["9.000 s"],
        lambda at: Video.open(write_video(at / "a.mp4", TIMES)).rows_at([1.0, 9.0]),
    ),
    # Gaze.
    "an infinite place": (
        "bad-value",
        ["gaze.csv", "sample 3"],
        lambda _: gaze([0, 1, 2], x=[0.1, 0.2, np.inf]),
    ),
    "times that go back": ("bad-value", ["sample 3", "time"], lambda _: gaze([0, 2, 1])),
    "pixels marked as valid": (
        "bad-value",
        ["sample 1"],
        lambda _: changed(x=np.array([640.0, 0.5])),
    ),
    "columns that differ in length": (
        "unequal-lengths",
        ["columns"],
        lambda _: changed(source_frame=GAZE.source_frame[:1]),
    ),
    # Tables.
    "no table": ("file-missing", ["no.csv"], lambda at: read_table(at / "no.csv", [], "thing")),
    "an empty table": ("file-unreadable", ["a.csv"], lambda at: table(at, "")),
    "columns that are not there": (
        "file-layout",
        ["y, z"],
        lambda at: table(at, "t,x\n0,1\n", "t", "y", "z"),
    ),
    "a row cut short": ("file-unreadable", ["row 3"], lambda at: table(at, "t,x\n0,1\n2\n", "t")),
    "a word as a number": (
        "bad-value",
        ["row 2", "'x'", "'one'"],
        lambda at: table(at, "t,x\n0,one\n", "t").floats("x"),
    ),
    # Arrays and pictures.
    "no folder named": ("file-missing", ["osie"], lambda _: data_folder(None, "osie", "get it")),
    "a folder that is not there": (
        "file-missing",
        ["nowhere"],
        lambda at: data_folder(at / "nowhere", "osie", "get it"),
    ),
    "no file": ("file-missing", ["a.npz"], lambda at: need_file(at / "a.npz", "get it")),
    "an archive that is none": (
        "file-unreadable",
        ["a.npz"],
        lambda at: read_npz(written(at / "a.npz", "x"), {"x": 1}, "get it"),
    ),
    "an array that is not there": (
        "file-layout",
        ["a.npz", "y"],
        lambda at: read_npz(arrays(at / "a.npz", x=np.zeros(2)), {"x": 1, "y": 1}, "get it"),
    ),
    "an array of another shape": (
        "file-layout",
        ["a.npz", "x"],
        lambda at: read_npz(arrays(at / "a.npz", x=np.zeros((2, 2))), {"x": 1}, "get it"),
    ),
    "text in an array": (
        "bad-value",
        ["a.npz", "x"],
        lambda at: read_npz(arrays(at / "a.npz", x=np.array(["a"])), {"x": 1}, "get it"),
    ),
    "NaN in an array": (
        "bad-value",
        ["heat", "row 1"],
        lambda at: refuse_nan(np.array([0.0, np.nan]), "heat", at / "a.npz"),
    ),
    "a MATLAB file that is none": (
        "file-unreadable",
        ["a.mat"],
        lambda at: read_mat(written(at / "a.mat", "x" * 200), "data", "get it"),
    ),
    "text as a picture": (
        "file-unreadable",
        ["a.png"],
        lambda at: open_image(written(at / "a.png", "x"), "a.png", "get it").__enter__(),
    ),
}


@pytest.mark.parametrize("what", ROWS)
def test_it_is_refused_by_its_code_and_named(what, tmp_path):
    code, nouns, call = ROWS[what]
    with refuses(code, *nouns):
        call(tmp_path)
