"""EGTEA Gaze+: cooking in a kitchen, 32 subjects, 86 sessions, SMI glasses, 24 frames a second.

`root` has the layout of GLC, the gaze model of Lai et al. (repository BolinLai/GLC). Clips are
`cropped_clips/SESSION/SESSION-startms-endms-Fstart-Fend.mp4`. Gaze is in text exports of SMI's
program BeGaze: `gaze_data/SESSION.txt` or `SESSION-GazeData.txt`. Each subject is a client; the
subject is the part of SESSION before the first dash. Frame numbers in clip names count from 1 in
the session video. So frame i of a clip, from 0, is frame i + Fstart - 1 of the gaze file. With
`split = "official"`, `root` must hold GLC's lists of clips too.

BeGaze exports have 7 or 26 columns below a header row `Time Type Trial`. Columns are found by name,
or else by position. A frame is a number or a time HH:MM:SS:FF with 24 frames a second. Messages
(rows of type MSG) are skipped. A sample with a dash, an empty cell or NaN counts as untracked.

The reader was written from public readers of the format, and not tried on original files.

Licence: research use, Georgia Tech; not redistributable.

Source: Li, Liu, Rehg, "In the eye of beholder: joint learning of gaze and actions in first person
video", ECCV 2018. The option `compat_glc` repeats how BolinLai/GLC reads the gaze files.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from vergence.core.federation import Dataset, Federation
from vergence.core.naming import by_key
from vergence.data.gaze_video.gaze import Event, Gaze
from vergence.data.gaze_video.official_split import (
    ListedClip,
    OfficialClips,
    OfficialOptions,
    check_clients,
    dealt_federation,
    need_list,
)
from vergence.data.gaze_video.published_clip_counts import STATED, paper_counts
from vergence.data.gaze_video.recording import Recording, check_videos
from vergence.data.gaze_video.temporal_splits import TEST, TRAIN
from vergence.data.io.checks import (
    Check,
    CheckedFolder,
    Checks,
    compare,
    data_folder,
    with_progress,
)
from vergence.data.io.delimited_text import COMMENTS, TextForm, listed_lines, text_lines
from vergence.errors import DataError

FPS = 24
WIDTH, HEIGHT = 1280, 960
# A clock of HH:MM:SS:FF counts to one day.
LAST_FRAME = 24 * 3600 * FPS
TRAIN_CLIPS, TEST_CLIPS, SESSIONS, SUBJECTS, WITHOUT_TEST = 8299, 2022, 86, 32, 6
SHARING = 559
"""Published number of official test clips that have frames in common with a training clip."""
LISTS = "train_gaze_official.csv", "test_gaze_official.csv"
CLIP = re.compile(r"((O?P\d\d)-R\d\d-\w+)-(\d+)-(\d+)-F(\d{1,9})-F(\d{1,9})(?:\.mp4)?")
EXPORT = re.compile(r"(O?P\d\d-R\d\d-\w+?)(?:-GazeData)?\.txt", re.IGNORECASE)
WHERE = (
    "holders of the licence get clips and gaze at https://cbs.ic.gatech.edu/fpv/ (EGTEA Gaze+): "
    "cropped_clips/SESSION/*.mp4 and gaze_data/SESSION.txt"
)
ABOUT = {
    "licence": "EGTEA Gaze+, research use, Georgia Tech; not redistributable",
    "citation": "Li, Liu, Rehg: In the eye of beholder: joint learning of gaze and actions in "
    "first person video. ECCV 2018",
}
EVENTS = {"Fixation": Event.FIXATION, "Saccade": Event.SACCADE}
NO_EVENT = {"Blink", "-"}
"""Words that BeGaze writes for samples without an eye event."""
HEADER = re.compile(r"Time[\s;,]+Type[\s;,]+Trial")
NUMBERS = TextForm(decimal=",")
"""How BeGaze writes numbers: with a decimal point or comma, depending on Windows' settings."""
BY_POSITION = {7: [3, 4, 5, 6], 26: [5, 6, 24, 25]}
"""Number of columns in a row -> positions of x, y, frame and event."""


@dataclass(frozen=True)
class EgteaClip:
    """One official clip; `first` and `last` are frame numbers of the session video, from 1."""

    name: str
    session: str
    subject: str
    first: int
    last: int

    @property
    def frames(self) -> int:
        """Number of frames according to the clip's name."""
        return self.last - self.first + 1

    @staticmethod
    def parse(name: str) -> EgteaClip:
        """Return the clip of a file name, with or without folder and `.mp4`.

        Raises:
            DataError: the name is not that of an EGTEA clip.
        """
        stem = name.strip().rsplit("/", 1)[-1].removesuffix(".mp4")
        if not (match := CLIP.fullmatch(stem)):
            raise DataError(
                f"'{name}' is not an EGTEA clip name (SESSION-startms-endms-Fstart-Fend.mp4)"
            )
        session, subject, _, _, first, last = match.groups()
        if not 1 <= int(first) <= int(last):
            raise DataError(
                f"'{name}' is from frame {int(first)} to {int(last)}; EGTEA clips count frames "
                "from 1 and end after they start"
            )
        return EgteaClip(stem, session, subject, int(first), int(last))


@dataclass(frozen=True)
class Egtea(OfficialOptions, CheckedFolder, Dataset):
    """Windows of EGTEA clips; a client is one subject or, with `clients`, several subjects.

    Attributes:
        strict_range: true: gaze outside the frame is marked OUT_OF_RANGE. False: such gaze is moved
            to the border.
        compat_glc: true: gaze is read as the official GLC code does. Samples of a frame are merged
            by a running average, the frame's event is that of the last sample, and gaze outside the
            frame is moved to the border. This option overrides strict_range.
    """

    short: Literal["error", "skip"] = "skip"
    strict_range: bool = True
    compat_glc: bool = False

    unit: ClassVar[str] = "subjects"

    def recordings(self, root: Path) -> Sequence[Recording]:
        """Return a folder's recordings of the subjects in `people`; see function `recordings`."""
        return recordings(root, self.people, self.strict_range, self.compat_glc)

    def load(self, root: str | None = None) -> Federation:
        """Read the clips, cut them into windows, and split in time or by the official lists.

        Raises:
            ConfigError: an option is out of range.
            DataError: a file is missing or damaged; the message says where a licence holder gets
                it. A subject or client has too few windows for the split.
        """
        folder = data_folder(root, "egtea", WHERE)
        official = read_official(folder) if self.split == "official" else None
        read = recordings(folder, self.people, self.strict_range, self.compat_glc)
        return dealt_federation(self, read, folder, ABOUT, official)

    def check(self, root: Path) -> list[Check]:
        """Compare a folder with the published numbers; return the lines of `vergence data check`.

        The last lines list the subjects of each client.
        """
        clips = (CLIP.fullmatch(path.name) for path in (root / "cropped_clips").rglob("*.mp4"))
        subjects = {match[2] for match in clips if match}
        return [*check(root), *check_clients(self, subjects, lambda: read_official(root))]


def recordings(
    root: Path, people: Sequence[str] = (), strict_range: bool = True, compat_glc: bool = False
) -> list[Recording]:
    """Return one recording per clip below `root/cropped_clips`.

    With `people`, only clips of these subjects are read. `strict_range` and `compat_glc` are the
    options of `Egtea`.

    Raises:
        DataError: there are no clips, or a session has no gaze file.
    """
    if not (paths := sorted((root / "cropped_clips").rglob("*.mp4"))):
        raise DataError(f"no clips in {root}/cropped_clips: {WHERE}")
    named = ((EgteaClip.parse(path.name), path) for path in paths)
    by_session = by_key(
        (clip.session, (clip, path)) for clip, path in named if not people or clip.subject in people
    )
    exports = gaze_files(root)
    out = []
    for session, clips in by_session.items():
        if session.lower() not in exports:
            raise DataError(
                f"session {session} has video without gaze: no {session}.txt in {root}/gaze_data; "
                f"{WHERE}"
            )
        gaze = read_begaze(exports[session.lower()], strict_range, compat_glc)
        out += [
            Recording(
                clip.name,
                clip.subject,
                clip_gaze(gaze, clip),
                path,
                session=session,
                start_s=(clip.first - 1) / FPS,
            )
            for clip, path in clips
        ]
    return out


def gaze_files(root: Path) -> dict[str, Path]:
    """Return a mapping: session in lower case -> its BeGaze export below `root/gaze_data`.

    An export is named SESSION.txt or SESSION-GazeData.txt.
    """
    # Lower case: one session has `-r03-` in the name of its export and `-R03-` in its clips.
    out: dict[str, Path] = {}
    for path in sorted((root / "gaze_data").rglob("*.txt"), key=lambda p: (len(p.name), str(p))):
        if match := EXPORT.fullmatch(path.name):
            out.setdefault(match[1].lower(), path)
    return out


def clip_gaze(gaze: Gaze, clip: EgteaClip) -> Gaze:
    """Return the part of a session's gaze that belongs to a clip.

    Time 0 of the result is the clip's first frame.
    """
    rows = (gaze.source_frame >= clip.first - 1) & (gaze.source_frame < clip.last)
    return gaze.select(rows, (clip.first - 1) / FPS)


def read_begaze(path: Path, strict_range: bool = True, compat_glc: bool = False) -> Gaze:
    """Read a BeGaze text export into a record with one sample per session frame.

    The time `t_s` of a sample is its frame number / 24. Columns are found by name, or else by
    position (7 columns in version 1, 26 in version 2). An export may have several measurements of a
    frame. The frame's event is the most frequent event of these measurements; of equally frequent
    events, the last one. The frame's gaze is the mean of the measurements with this event. Blinks
    and samples without an event are UNTRACKED. Rows of type MSG and the sample count in the header
    are ignored. `strict_range` and `compat_glc` are the options of `Egtea`.

    Raises:
        DataError: the file is not a BeGaze export or is of another version, or a row is damaged.
    """
    layout, rows = _read_export(path)
    samples = (layout.sample(line, number) for number, line in rows)
    frames = by_key((frame, (x, y, event)) for frame, x, y, event in samples)
    merge = _merge_glc if compat_glc else _merge
    numbers = np.array(sorted(frames), np.int64)
    merged = [merge(frames[int(f)]) for f in numbers]
    xs, ys = (np.array([m[i] for m in merged], np.float64) for i in (0, 1))
    events = np.array([m[2] for m in merged], np.int8)
    if compat_glc:
        xs, ys = np.clip(xs, 0, WIDTH - 1), np.clip(ys, 0, HEIGHT - 1)
    return Gaze.build(
        str(path),
        numbers / FPS,
        xs / WIDTH,
        ys / HEIGHT,
        tracked=events != Event.UNTRACKED,
        event=events,
        source_frame=numbers,
        out_of_range="drop" if strict_range and not compat_glc else "clip",
    )


def _read_export(path: Path) -> tuple[_BegazeLayout, list[tuple[int, str]]]:
    """Return the layout of an export, and its sample rows as (line number, line).

    Raises:
        DataError: the file has no header row or no samples, or its last row is incomplete.
    """
    lines = list(text_lines(path, f"BeGaze export; {WHERE}"))
    head = next((i for i, line in enumerate(lines) if HEADER.match(line)), None)
    if head is None:
        raise DataError(f"{path} is not a BeGaze export: no row 'Time Type Trial'; {WHERE}")
    layout = _BegazeLayout.of(path, lines[head])
    rows = [
        (number, line)
        for number, line in enumerate(lines[head + 1 :], head + 2)
        if line.strip()
        and not line.startswith(COMMENTS)
        and re.split(r"[\s;,]+", line, maxsplit=2)[1:2] != ["MSG"]
    ]
    if not rows:
        raise DataError(f"{path} has no samples behind its header; copy the file again")
    # A file that ends without a line end inside a row was cut while it was copied.
    number, last = rows[-1]
    if not last.endswith(("\n", "\r")) and last.split()[-1] not in {*EVENTS, *NO_EVENT}:
        raise DataError(f"{path}: row {number} is cut, the file ends in it; copy the file again")
    return layout, rows


@dataclass(frozen=True)
class _BegazeLayout:
    """Positions of x, y (pixels), frame and event in a row of an export.

    The positions are `by_name`, from the header. If `by_name` is None, or a row has another number
    of cells than the header, the positions are those of `BY_POSITION`.
    """

    path: Path
    names: list[str]
    by_name: list[int] | None
    delimiter: str = "\t"

    @staticmethod
    def of(path: Path, header: str) -> _BegazeLayout:
        delimiter = max("\t;,", key=header.count)
        names = [name.strip() for name in header.split(delimiter)]
        # Both eyes together are preferred to a single one.
        for eye in "BLR":
            wanted = [f"{eye} POR X [px]", f"{eye} POR Y [px]", "Frame", f"{eye} Event Info"]
            if all(name in names for name in wanted):
                return _BegazeLayout(path, names, list(map(names.index, wanted)), delimiter)
        return _BegazeLayout(path, names, None)

    def sample(self, line: str, number: int) -> tuple[int, float, float, Event]:
        """Return frame number, x and y in pixels, and event of one row.

        Raises:
            DataError: a cell cannot be read.
        """
        cells, picks = line.rstrip("\r\n").split(self.delimiter), self.by_name
        if picks is None or len(cells) != len(self.names):
            cells = line.replace(self.delimiter, " ").split()
            picks = BY_POSITION.get(len(cells))
        if picks is None:
            raise DataError(
                f"{self.path}: row {number} has {len(cells)} columns; BeGaze exports of EGTEA have "
                "7 (v1) or 26 (v2), or name 'B POR X [px]', 'Frame' and 'B Event Info'"
            )
        x, y, frame, event = (cells[i].strip() for i in picks)
        kind = EVENTS.get(event, Event.UNTRACKED)
        point = []
        for name, cell in (("POR X", x), ("POR Y", y)):
            try:
                value = NUMBERS.number(cell)
            except ValueError:
                raise self._fault(number, name, cell, "not a number of pixels") from None
            if kind != Event.UNTRACKED and np.isinf(value):
                raise self._fault(number, name, cell, f"not a place, in a {event}")
            point.append(value)
        kind = kind if np.isfinite(point).all() else Event.UNTRACKED
        try:
            return _frame(frame), point[0], point[1], kind
        except ValueError:
            fault = f"neither a frame number nor HH:MM:SS:FF at {FPS} frames a second"
            raise self._fault(number, "Frame", frame, fault) from None

    def _fault(self, number: int, column: str, cell: str, fault: str) -> DataError:
        return DataError(
            f"{self.path}: row {number}: '{column}' is '{cell}', {fault}; copy the file again"
        )


def _frame(cell: str) -> int:
    """Return a frame number from a cell with a number, or with HH:MM:SS:FF at 24 frames a second.

    Raises:
        ValueError: the cell holds neither.
    """
    if ":" not in cell:
        number = int(cell)
    else:
        hours, minutes, seconds, frames = (int(part) for part in cell.split(":"))
        if not (0 <= minutes < 60 and 0 <= seconds < 60 and 0 <= frames < FPS):
            raise ValueError
        number = ((hours * 60 + minutes) * 60 + seconds) * FPS + frames
    if not 0 <= number < LAST_FRAME:
        raise ValueError
    return number


def _merge(samples: list[tuple[float, float, Event]]) -> tuple[float, float, Event]:
    if not (tracked := [s for s in samples if s[2] != Event.UNTRACKED]):
        return np.nan, np.nan, Event.UNTRACKED
    if len(tracked) == 1:
        return tracked[0]
    counts = Counter(s[2] for s in tracked)
    event = next(s[2] for s in reversed(tracked) if counts[s[2]] == max(counts.values()))
    same = [s for s in tracked if s[2] == event]
    return float(np.mean([s[0] for s in same])), float(np.mean([s[1] for s in same])), event


def _merge_glc(samples: list[tuple[float, float, Event]]) -> tuple[float, float, Event]:
    # Not a mean of all: GLC averages each sample with the running value.
    x, y, _ = samples[0]
    for next_x, next_y, _ in samples[1:]:
        x, y = (x + next_x) / 2, (y + next_y) / 2
    return x, y, samples[-1][2]


def read_clip_list(path: Path) -> list[EgteaClip]:
    """Return the clips of a list.

    A line is `SESSION/CLIP.mp4`, or an action annotation whose first word is the clip.

    Raises:
        DataError: the list is missing or not text, or a line is not a clip.
    """
    words = (line.strip('"').split() for line in listed_lines(path, "clip list"))
    return [EgteaClip.parse(row[0]) for row in words if row]


def read_official(root: Path) -> OfficialClips:
    """Read GLC's two lists of clips in `root`, for training and for testing.

    Raises:
        DataError: a list is missing or damaged; the message says where to get it.
    """
    clips = [
        ListedClip(clip.name, clip.subject, clip.name, -np.inf, np.inf, part)
        for name, part in zip(LISTS, (TRAIN, TEST), strict=True)
        for clip in read_clip_list(need_list(root / name))
    ]
    return OfficialClips(LISTS, clips)


def check(root: Path) -> list[Check]:
    """Compare lists, clips and gaze with the published numbers; return the lines of a check.

    Lists are compared if they are there. Every BeGaze file is read; a line on a fault names its
    file, row and column.
    """
    out = _check_lists(root)
    paths, clips = sorted((root / "cropped_clips").rglob("*.mp4")), []
    for path in paths:
        with out.reading("clip"):
            clips.append(EgteaClip.parse(path.name))
    out.append(compare("clips", len(clips), TRAIN_CLIPS + TEST_CLIPS, WHERE))
    return [
        *out,
        *_people_checks("with clips", clips),
        *check_videos(paths),
        *_check_exports(root, clips),
    ]


def _check_lists(root: Path) -> Checks:
    out = Checks()
    lists: dict[str, list[EgteaClip]] = {}
    for part, name, expected in zip(
        ("train", "test"), LISTS, (TRAIN_CLIPS, TEST_CLIPS), strict=True
    ):
        path = root / name
        if path.is_file():
            with out.reading(path.name):
                lists[part] = read_clip_list(path)
                out.append(compare(f"clips in {path.name}", len(lists[part]), expected, WHERE))
    if len(lists) == 2:
        out += _people_checks("listed", lists["train"] + lists["test"])
        without = {c.subject for c in lists["train"]} - {c.subject for c in lists["test"]}
        out.append(compare("subjects without an official test clip", len(without), WITHOUT_TEST))
        sharing = _count_sharing(lists["train"], lists["test"])
        out.append(compare("test clips that share frames with training clips", sharing, SHARING))
    counts = {part: len(clips) for part, clips in lists.items()}
    pieces = {p: sum(c.frames // (5 * FPS) for c in clips) for p, clips in lists.items()}
    out.append(paper_counts("egtea", counts, pieces, _nearest(lists)))
    return out


def _nearest(lists: dict[str, list[EgteaClip]]) -> str:
    """Describe which minimal length of clips gives about the paper's number of clips.

    The text names two lengths in frames: the largest that leaves at least as many training clips as
    the paper states, and the next one. The text is "" if a list is missing.
    """
    if len(lists) < 2:
        return ""
    frames = {part: np.array([c.frames for c in clips]) for part, clips in lists.items()}
    enough = [n for n in range(1, 121) if (frames["train"] >= n).sum() >= STATED["egtea"][1]]
    if not enough:
        return ""
    texts = [
        f"{(frames['train'] >= n).sum():,} and {(frames['test'] >= n).sum():,} have {n} frames"
        for n in (enough[-1], enough[-1] + 1)
    ]
    return f"{', '.join(texts)} or more"


def _count_sharing(train: Iterable[EgteaClip], test: Iterable[EgteaClip]) -> int:
    """Count the test clips that have frames in common with a training clip."""
    by_session = by_key((clip.session, clip) for clip in train)
    return sum(
        any(own.first <= clip.last and clip.first <= own.last for own in by_session[clip.session])
        for clip in test
        if clip.session in by_session
    )


def _check_exports(root: Path, clips: Sequence[EgteaClip]) -> list[Check]:
    exports, sessions = gaze_files(root), {c.session.lower() for c in clips}
    lacking = sorted({c.session for c in clips if c.session.lower() not in exports})
    out = Checks(
        [
            compare("gaze files", len(exports), SESSIONS, WHERE),
            compare("sessions with clips and no gaze file", len(lacking), 0, ", ".join(lacking)),
            compare("gaze files without clips", len(exports.keys() - sessions), 0, WHERE),
        ]
    )
    usable, read, valid, samples = 0, 0, 0, 0
    for session, _ in zip(exports, with_progress(list(exports.values()), "gaze"), strict=True):
        with out.reading(exports[session].name):
            gaze = read_begaze(exports[session])
            read, valid, samples = read + 1, valid + int(gaze.valid.sum()), samples + len(gaze)
            own = [c for c in clips if c.session.lower() == session]
            usable += sum(bool(clip_gaze(gaze, c).valid.any()) for c in own)
    return [
        *out,
        compare("gaze files read to the end", read, len(exports)),
        Check("frames with valid gaze", f"{valid:,} of {samples:,}", "1 or more", valid > 0),
        Check("clips with valid gaze", f"{usable:,} of {len(clips):,}", "1 or more", usable > 0),
    ]


def _people_checks(what: str, clips: Iterable[EgteaClip]) -> list[Check]:
    clips = list(clips)
    return [
        compare(f"sessions {what}", len({c.session for c in clips}), SESSIONS, WHERE),
        compare(f"subjects {what}", len({c.subject for c in clips}), SUBJECTS, WHERE),
    ]
