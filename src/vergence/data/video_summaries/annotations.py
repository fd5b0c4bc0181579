"""Annotations of SumMe and TVSum as their authors published them, without features or shots.

There are three layouts:

    GT, a folder   SumMe: <video>.mat with user_score [frames, people]; a frame with a score above
                   0 is in the person's summary
    *.tsv          TVSum, ydata-tvsum50-anno.tsv: video, category, and the ratings 1 to 5 of all
                   frames, separated by commas; one line per person and video
    *.mat          TVSum, ydata-tvsum50.mat (MATLAB 7.3): tvsum50 with video, category and user_anno
                   [people, frames]

Licence: research only, not packaged. Source: Gygli et al., ECCV 2014; Song et al., CVPR 2015.

Used by `data.video_summaries.h5_files`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8

from vergence.data.io.checks import need_file, read_mat
from vergence.data.io.delimited_text import text_lines
from vergence.data.io.hdf5_files import open_hdf5
from vergence.errors import DataError

PLACES = {
    "summe": ("GT",),
    "tvsum": tuple(
        f"{folder}{name}"
        for name in ("ydata-tvsum50-anno.tsv", "ydata-tvsum50.mat")
        for folder in ("", "data/", "matlab/")
    ),
}
"""Data set -> paths at which its annotations may be, relative to root."""
HINT = (
    "give the annotations as published, or the h5 file in the usual layout "
    "(docs/how-to/summaries.md)"
)


class Original(NamedTuple):
    """The annotations of one video.

    `users` holds each person's choice (0 or 1) or, if `rated`, rating (1 to 5) of every frame.
    """

    name: str
    category: str
    users: UInt8[np.ndarray, "people frames"]
    rated: bool


def originals(path: Path) -> list[Original]:
    """Return the videos in a folder or file of annotations; those of SumMe are sorted by name.

    Raises:
        ConfigError: h5py is not installed, which TVSum's MATLAB file needs.
        DataError: the annotations are missing, damaged or of another layout, or hold no videos.
    """
    if path.is_dir():
        videos = [_summe(file) for file in sorted(path.glob("*.mat"))]
    else:
        videos = list(_lines(path) if path.suffix == ".tsv" else _struct(path))
    if not videos:
        raise DataError(f"{path} holds no videos: {HINT}")
    return videos


def _summe(path: Path) -> Original:
    score = read_mat(path, "user_score", HINT)
    if score.ndim != 2 or not np.issubdtype(score.dtype, np.number):
        raise DataError(f"{path}: user_score is no table of frames and people: {HINT}")
    return Original(path.stem, "", (score.T > 0).astype(np.uint8), False)


def _lines(path: Path) -> Iterator[Original]:
    videos: dict[tuple[str, str], list[np.ndarray]] = {}
    for number, line in enumerate(text_lines(need_file(path, HINT), "annotations"), 1):
        try:
            name, category, ratings = line.rstrip("\r\n").split("\t")
            row = np.array(ratings.split(","), np.uint8)
        except ValueError as fault:
            raise DataError(f"{path}, line {number} ({fault}): {HINT}") from fault
        videos.setdefault((name, category), []).append(row)
    for (name, category), rows in videos.items():
        if len({len(row) for row in rows}) > 1:
            raise DataError(f"{path}: people rated different numbers of frames of {name}: {HINT}")
        yield Original(name, category, np.stack(rows), True)


def _struct(path: Path) -> Iterator[Original]:
    with open_hdf5(path, "reading annotations", HINT) as reader:
        if (whole := reader.group(reader.file, "tvsum50")) is None:
            raise reader.fault("it lacks tvsum50")
        cells = {
            field: reader.dataset(reader.child(whole, field), field, "O")[()]
            for field in ("video", "category", "user_anno")
        }

        def cell(field: str, row: int) -> np.ndarray:
            return np.asarray(reader.dataset(reader.file[cells[field][row, 0]], field)[()])

        for row in range(len(cells["video"])):
            name, category = (
                # MATLAB stores text as numbers of characters.
                "".join(map(chr, cell(field, row).ravel().tolist()))
                for field in ("video", "category")
            )
            users = cell("user_anno", row)
            if users.ndim != 2 or not users.size:
                raise reader.fault(f"user_anno of {name} is {users.shape}, needs [people, frames]")
            yield Original(name, category, users.astype(np.uint8), True)
