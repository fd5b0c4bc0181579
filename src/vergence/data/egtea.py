"""EGTEA Gaze+: cooking in a kitchen, 32 subjects, 86 sessions, SMI glasses, 24 frames a second.

Layout of `root` (as GLC arranges it): `cropped_clips/SESSION/SESSION-startms-endms-Fstart-Fend.mp4`
and `gaze_data/SESSION.txt` (or `SESSION-GazeData.txt`), BeGaze text exports of either version. The
client is the subject, the part of SESSION before the first dash. Frame numbers in clip names count
from 1 in the session video; clip frame i is session frame i + Fstart - 1 of the gaze file.

Source: Li, Liu, Rehg, "In the eye of beholder: joint learning of gaze and actions in first person
video", ECCV 2018; `compat_glc` repeats how BolinLai/GLC reads the gaze files.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vergence.core.site import Dataset, Federation
from vergence.data.checks import Check, compare, data_folder
from vergence.data.gaze import Event, Gaze
from vergence.data.recording import Recording, WindowOptions, federation
from vergence.errors import DataError

FPS = 24
WIDTH, HEIGHT = 1280, 960
TRAIN_CLIPS, TEST_CLIPS, SESSIONS, SUBJECTS, WITHOUT_TEST = 8299, 2022, 86, 32, 6
CLIP = re.compile(r"((O?P\d\d)-R\d\d-\w+)-(\d+)-(\d+)-F(\d+)-F(\d+)(?:\.mp4)?")
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


@dataclass(frozen=True)
class Clip:
    """One official clip: `first` and `last` are session frames, counted from 1."""

    name: str
    session: str
    subject: str
    first: int
    last: int

    @property
    def frames(self) -> int:
        """Number of frames the name announces."""
        return self.last - self.first + 1

    @staticmethod
    def parse(name: str) -> Clip:
        """Read a clip name, with or without folder and `.mp4`.

        Raises:
            DataError: not the name of an EGTEA clip.
        """
        stem = name.strip().rsplit("/", 1)[-1].removesuffix(".mp4")
        match = CLIP.fullmatch(stem)
        if not match:
            raise DataError(
                f"'{name}' is not an EGTEA clip name (SESSION-startms-endms-Fstart-Fend.mp4)"
            )
        session, subject, _, _, first, last = match.groups()
        return Clip(stem, session, subject, int(first), int(last))


@dataclass(frozen=True)
class Egtea(WindowOptions, Dataset):
    """Windows of EGTEA clips; a subject is a client.

    Attributes:
        strict_range: gaze outside the frame is OUT_OF_RANGE; off, it moves to the border.
        compat_glc: read gaze as the official GLC code does (running average, type of the last
            sample, off-frame gaze kept at the border); overrides strict_range.
    """

    short: str = "skip"
    strict_range: bool = True
    compat_glc: bool = False

    def load(self, root: str | None = None) -> Federation:
        """Read, cut and split per subject in time.

        Raises:
            ConfigError: an option is out of range.
            DataError: files are missing (says where a licence holder gets them) or damaged, or a
                subject has too few clips.
        """
        self.validate()
        folder = data_folder(root, "egtea", WHERE)
        found = recordings(folder, self.people, self.strict_range, self.compat_glc)
        return federation("egtea", self.choose(found, str(folder)), self, ABOUT)


def recordings(
    root: Path, people: Sequence[str] = (), strict_range: bool = True, compat_glc: bool = False
) -> list[Recording]:
    """Return one recording per clip below `root/cropped_clips`, of these people (empty = all).

    Raises:
        DataError: there are no clips, or a session has no gaze file.
    """
    paths = sorted((root / "cropped_clips").rglob("*.mp4"))
    if not paths:
        raise DataError(f"no clips in {root}/cropped_clips: {WHERE}")
    by_session: dict[str, list[tuple[Clip, Path]]] = {}
    for path in paths:
        clip = Clip.parse(path.name)
        if not people or clip.subject in people:
            by_session.setdefault(clip.session, []).append((clip, path))
    out = []
    for session, clips in by_session.items():
        source = gaze_file(root, session)
        gaze = read_begaze(source, strict_range, compat_glc)
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


def gaze_file(root: Path, session: str) -> Path:
    """Return the BeGaze export of a session, under either of its names.

    Raises:
        DataError: there is none: video without gaze.
    """
    for name in (f"{session}.txt", f"{session}-GazeData.txt"):
        found = sorted((root / "gaze_data").rglob(name))
        if found:
            return found[0]
    raise DataError(
        f"session {session} has video without gaze: no {session}.txt in {root}/gaze_data; {WHERE}"
    )


def clip_gaze(gaze: Gaze, clip: Clip) -> Gaze:
    """Return the part of a session's gaze that belongs to a clip, in the clip's own time."""
    rows = (gaze.source_frame >= clip.first - 1) & (gaze.source_frame < clip.last)
    return gaze.select(rows, (clip.first - 1) / FPS)


def read_begaze(path: Path, strict_range: bool = True, compat_glc: bool = False) -> Gaze:
    """Read a BeGaze text export, one sample per session frame (`t_s` = frame / 24).

    Columns go by name, else by position (v1: 7 tokens, v2: 26). Several measurements of a frame
    become the mean of those with the frame's event (the most frequent one; ties: the later).
    Blinks and samples without an event are UNTRACKED. The sample count in the header is ignored,
    it is unreliable.

    Raises:
        DataError: not a BeGaze export, of another version, or a row is damaged or NaN.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); {WHERE}") from None
    head = next((i for i, line in enumerate(lines) if re.match(r"Time\s+Type\s+Trial", line)), None)
    if head is None:
        raise DataError(f"{path} is not a BeGaze export: no row 'Time Type Trial'; {WHERE}")
    names = [name.strip() for name in lines[head].split("\t")]
    frames: dict[int, list[tuple[float, float, Event]]] = {}
    for number, line in enumerate(lines[head + 1 :], head + 2):
        if line.strip():
            frame, x, y, event = _sample(line, names, path, number)
            frames.setdefault(frame, []).append((x, y, event))
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
        first_row=head + 2,
    )


def _sample(
    line: str, names: list[str], path: Path, number: int
) -> tuple[int, float, float, Event]:
    """Return frame, x and y (pixels) and event of one row."""
    cells = [cell.strip() for cell in line.split("\t")]
    by_name = _by_name(names) if len(cells) == len(names) else None
    tokens = line.split()
    try:
        if by_name:
            x, y, frame, event = (cells[i] for i in by_name)
        elif len(tokens) == 7:
            x, y, frame, event = tokens[3:]
        elif len(tokens) == 26:
            x, y, frame, event = tokens[5], tokens[6], tokens[24], tokens[25]
        else:
            raise DataError(
                f"{path}: row {number} has {len(tokens)} columns; BeGaze exports of EGTEA have 7 "
                "(v1) or 26 (v2), or name 'B POR X [px]', 'Frame' and 'B Event Info'"
            )
        kind = EVENTS.get(event, Event.UNTRACKED)
        point = (float(x), float(y))
        if kind != Event.UNTRACKED and not np.isfinite(point).all():
            raise DataError(f"{path}: row {number}: gaze is NaN in a {event}; remove the row")
        return _frame(frame), *point, kind
    except ValueError as error:
        raise DataError(f"{path}: row {number} is damaged ({error}); copy the file again") from None


def _by_name(names: list[str]) -> tuple[int, int, int, int] | None:
    for eye in "BLR":
        wanted = [f"{eye} POR X [px]", f"{eye} POR Y [px]", "Frame", f"{eye} Event Info"]
        if all(name in names for name in wanted):
            x, y, frame, event = (names.index(name) for name in wanted)
            return x, y, frame, event
    return None


def _frame(cell: str) -> int:
    """Return a frame number written as such (v1) or as HH:MM:SS:FF at 24 frames a second (v2)."""
    if ":" not in cell:
        return int(cell)
    hours, minutes, seconds, frames = (int(part) for part in cell.split(":"))
    return ((hours * 60 + minutes) * 60 + seconds) * FPS + frames


def _merge(samples: list[tuple[float, float, Event]]) -> tuple[float, float, Event]:
    tracked = [s for s in samples if s[2] != Event.UNTRACKED]
    if not tracked:
        return np.nan, np.nan, Event.UNTRACKED
    counts = Counter(s[2] for s in tracked)
    event = next(s[2] for s in reversed(tracked) if counts[s[2]] == max(counts.values()))
    same = [s for s in tracked if s[2] == event]
    return float(np.mean([s[0] for s in same])), float(np.mean([s[1] for s in same])), event


def _merge_glc(samples: list[tuple[float, float, Event]]) -> tuple[float, float, Event]:
    x, y, _ = samples[0]
    for next_x, next_y, _ in samples[1:]:
        x, y = (x + next_x) / 2, (y + next_y) / 2
    return x, y, samples[-1][2]


def read_clip_list(path: Path) -> list[Clip]:
    """Read a list of clips: `SESSION/CLIP.mp4` lines, or action rows whose first word is the clip.

    Raises:
        DataError: the list is missing, or a line is not a clip.
    """
    if not path.is_file():
        raise DataError(f"clip list {path} is missing")
    lines = path.read_text(encoding="utf-8").splitlines()
    return [Clip.parse(line.strip().strip('"').split()[0]) for line in lines if line.strip()]


def check(root: Path) -> list[Check]:
    """Compare clip lists (where there are any), clips and gaze files with the published totals."""
    out = []
    lists: dict[str, list[Clip]] = {}
    for part, expected in (("train", TRAIN_CLIPS), ("test", TEST_CLIPS)):
        path = root / f"{part}_gaze_official.csv"
        if path.is_file():
            lists[part] = read_clip_list(path)
            out.append(compare(f"clips in {path.name}", len(lists[part]), expected, WHERE))
    if len(lists) == 2:
        out += _people_checks("listed", lists["train"] + lists["test"])
        without = {c.subject for c in lists["train"]} - {c.subject for c in lists["test"]}
        out.append(compare("subjects without an official test clip", len(without), WITHOUT_TEST))
    clips = [Clip.parse(p.name) for p in (root / "cropped_clips").rglob("*.mp4")]
    out.append(compare("clips", len(clips), TRAIN_CLIPS + TEST_CLIPS, WHERE))
    out += _people_checks("with clips", clips)
    gaze = len(list((root / "gaze_data").rglob("*.txt")))
    out.append(compare("gaze files", gaze, SESSIONS, WHERE))
    return out


def _people_checks(what: str, clips: Iterable[Clip]) -> list[Check]:
    clips = list(clips)
    return [
        compare(f"sessions {what}", len({c.session for c in clips}), SESSIONS, WHERE),
        compare(f"subjects {what}", len({c.subject for c in clips}), SUBJECTS, WHERE),
    ]
