"""EGTEA Gaze+: BeGaze text of both versions (made here, after its layout), lists, loading."""

import numpy as np
import pytest

from tests.conftest import research_data
from tests.data.footage import write_video
from tests.data.originals import begaze_export, egtea_tree
from vergence.data.gaze_video import egtea
from vergence.data.gaze_video.egtea import Egtea, EgteaClip
from vergence.data.gaze_video.gaze import Event
from vergence.errors import DataError

V1 = ["Time", "Type", "Trial", "B POR X [px]", "B POR Y [px]", "Frame", "B Event Info"]
V2 = [
    *("Time", "Type", "Trial", "L POR X [px]", "L POR Y [px]", "B POR X [px]", "B POR Y [px]"),
    *(f"Other {i}" for i in range(17)),
    *("Frame", "B Event Info"),
]
SESSION = "P01-R01-PastaSalad"


def begaze(path, samples, version=1, named=True):
    """Write samples (x, y, frame, event) as BeGaze does: 34 header lines, the last with names."""
    count_line = 9 if version == 1 else 10
    lines = ["##"] * 33
    lines[count_line] = "## Number of Samples:\t7"
    names = V1 if version == 1 else V2
    lines.append("\t".join(names) if named else "Time Type Trial and the rest")
    for i, (x, y, frame, event) in enumerate(samples):
        if version == 1:
            row = [i, "SMP", 1, x, y, frame, event]
        else:
            clock = f"00:{frame // 1440:02d}:{frame // 24 % 60:02d}:{frame % 24:02d}"
            row = [i, "SMP", 1, 9, 9, x, y, *([0] * 17), clock, event]
        lines.append("\t".join(map(str, row)))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


SAMPLES = [
    (640, 480, 0, "Fixation"),
    (320, 240, 1, "Fixation"),
    (330, 240, 1, "Fixation"),
    (340, 240, 1, "Fixation"),
    (900, 700, 1, "Saccade"),
    (0, 0, 2, "Blink"),
    (0, 0, 3, "-"),
    (1300, 480, 1500, "Fixation"),
]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("named", [True, False])
def test_both_versions_by_name_and_by_position(tmp_path, version, named):
    """Frame 1: mean of its three fixation samples, 330 / 1280; frame 1500 = 00:01:02:12."""
    gaze = egtea.read_begaze(begaze(tmp_path / "g.txt", SAMPLES, version, named))
    assert gaze.source_frame.tolist() == [0, 1, 2, 3, 1500]
    assert gaze.t_s == pytest.approx(np.array([0, 1, 2, 3, 1500]) / 24)
    assert gaze.x[:2] == pytest.approx([0.5, 330 / 1280])
    assert gaze.y[:2] == pytest.approx([0.5, 0.25])
    fix, off, gone = Event.FIXATION, Event.OUT_OF_RANGE, Event.UNTRACKED
    assert gaze.event.tolist() == [fix, fix, gone, gone, off]
    assert gaze.valid.tolist() == [True, True, False, False, False]


def test_off_frame_gaze_kept_at_the_border_on_request(tmp_path):
    gaze = egtea.read_begaze(begaze(tmp_path / "g.txt", SAMPLES), strict_range=False)
    assert (gaze.x[-1], gaze.event[-1], gaze.valid[-1]) == (1.0, Event.FIXATION, True)


def test_compat_glc_repeats_the_official_reader(tmp_path):
    """Frame 1 as ((320 + 330)/2 + 340)/2 = 332.5, then with 900: 616.25, type of the last: saccade.

    Off-frame gaze is cut to pixel 1279 and stays a fixation.
    """
    gaze = egtea.read_begaze(begaze(tmp_path / "g.txt", SAMPLES), compat_glc=True)
    assert gaze.x[1] == pytest.approx(616.25 / 1280)
    assert gaze.event[1] == Event.SACCADE
    assert (gaze.x[-1], gaze.event[-1], gaze.valid[-1]) == (1279 / 1280, Event.FIXATION, True)


def test_bad_gaze_files(tmp_path):
    path = tmp_path / "g.txt"
    lost = egtea.read_begaze(begaze(path, [(1, 2, 0, "Fixation"), ("nan", 2, 1, "Fixation")]))
    assert lost.valid.tolist() == [True, False]
    with pytest.raises(DataError, match="row 35: 'POR X' is 'left', not a number of pixels"):
        egtea.read_begaze(begaze(path, [("left", 2, 0, "Fixation")]))
    path.write_text(path.read_text().replace("\tSMP", ""))
    with pytest.raises(DataError, match="row 35 has 6 columns; BeGaze exports of EGTEA have 7"):
        egtea.read_begaze(path)
    path.write_text("frame,x,y\n1,2,3\n")
    with pytest.raises(DataError, match="no row 'Time Type Trial'"):
        egtea.read_begaze(path)


def test_clip_names():
    """Frames count from 1: F000025-F000072 are session frames 24 to 71 of 0, 1, ..."""
    clip = EgteaClip.parse(
        "OP03-R04-ContinentalBreakfast/OP03-R04-ContinentalBreakfast-1-2-F000025-F000072.mp4"
    )
    assert (clip.subject, clip.session) == ("OP03", "OP03-R04-ContinentalBreakfast")
    assert (clip.first, clip.frames) == (25, 48)
    with pytest.raises(DataError, match="not an EGTEA clip name"):
        EgteaClip.parse("holiday.mp4")


@pytest.mark.data
def test_official_lists():
    """egovideo note 3.1: 8299 + 2022 clips, 86 sessions, 32 subjects, P21-P26 without a test clip.

    4502 training clips are below 64 frames (1.1, first and last both counted); the median length
    of 59 / 52 frames (3.1) is last minus first.
    """
    root = research_data("egtea")
    train = egtea.read_clip_list(root / "train_gaze_official.csv")
    test = egtea.read_clip_list(root / "test_gaze_official.csv")
    assert (len(train), len(test)) == (8299, 2022)
    subjects = {c.subject for c in train + test}
    assert len(subjects) == 32
    assert len({c.session for c in train + test}) == 86
    assert sorted(subjects - {c.subject for c in test}) == [f"P{i}" for i in range(21, 27)]
    frames = np.array([c.frames for c in train])
    assert (frames < 64).sum() == 4502
    assert (np.median(frames) - 1, np.median([c.frames for c in test]) - 1) == (59, 52)
    assert {c.name for c in egtea.read_clip_list(root / "test_split1.csv")} == {
        c.name for c in test
    }


@pytest.mark.data
def test_check_of_lists_without_videos():
    """The lists agree with the published totals; clips and gaze are missing, and from where."""
    found = {c.what: c for c in egtea.check(research_data("egtea"))}
    assert found["clips in train_gaze_official.csv"].ok
    assert found["subjects listed"].actual == "32"
    assert found["subjects without an official test clip"].ok
    assert not found["clips"].ok
    assert "cbs.ic.gatech.edu" in found["gaze files"].hint


def session(root, name, frames=1440, clips=((1, 700), (741, 1440))):
    """A session whose gaze x is its frame number / 1440, cut into two long clips."""
    samples = [(1280 * f / frames, 480, f, "Fixation") for f in range(frames)]
    begaze(root / "gaze_data" / f"{name}.txt", samples)
    for first, last in clips:
        path = root / "cropped_clips" / name / f"{name}-0-0-F{first:06d}-F{last:06d}.mp4"
        write_video(path, np.arange(last - first + 1) / 24, (32, 32))
    return root


def test_clips_get_their_part_of_the_session(tmp_path):
    """Clip F000741: its frame 0 is session frame 740, x = 740 / 1440, half a minute into it."""
    root = session(tmp_path, SESSION)
    first, second = egtea.recordings(root)
    assert (first.person, first.session) == ("P01", SESSION)
    assert second.start_s == pytest.approx(740 / 24)
    gaze = second.gaze_per_frame(second.footage())
    assert gaze.source_frame[:2].tolist() == [740, 741]
    assert gaze.x[:2] == pytest.approx([740 / 1440, 741 / 1440])
    assert gaze.valid.all()


@pytest.mark.slow
def test_load_splits_by_session_time(tmp_path):
    """x grows with session time, so every part lies to the right of the part before it."""
    session(session(tmp_path, SESSION), "P02-R01-Pizza")
    data = Egtea(size=(16, 16)).load(str(tmp_path))
    assert data.clients == ("P01", "P02")
    parts = data.people["P01"]
    x = [p.columns["points"][..., 0].numpy() for p in (parts.train, parts.val, parts.test)]
    # Five seconds are 120 of 1440 frames.
    assert np.nanmin(x[1]) - np.nanmax(x[0]) >= 120 / 1440
    assert np.nanmin(x[2]) - np.nanmax(x[1]) >= 120 / 1440
    assert Egtea(size=(16, 16), people=("P02",)).load(str(tmp_path)).clients == ("P02",)


def test_other_gaze_file_name_and_missing_gaze(tmp_path):
    root = session(tmp_path, SESSION)
    gaze = root / "gaze_data" / f"{SESSION}.txt"
    gaze.rename(gaze.with_name(f"{SESSION}-GazeData.txt"))
    assert len(egtea.recordings(root)) == 2
    gaze.with_name(f"{SESSION}-GazeData.txt").unlink()
    with pytest.raises(DataError, match="session P01-R01-PastaSalad has video without gaze"):
        egtea.recordings(root)


def test_load_without_files_says_where_a_licence_holder_gets_them(tmp_path):
    with pytest.raises(DataError, match=r"name its folder as root; .*cbs\.ic\.gatech\.edu/fpv"):
        Egtea().load()
    with pytest.raises(DataError, match=r"no clips in .*cropped_clips.*licence"):
        Egtea().load(str(tmp_path))


@pytest.mark.parametrize("version", [1, 2])
def test_an_export_in_the_form_of_the_released_ones(tmp_path, version):
    """34 header lines, the sample count on line 10 or 11, 7 or 26 tokens, 30 samples a second."""
    path = begaze_export(tmp_path / f"{SESSION}.txt", 240, version)
    lines = path.read_text().splitlines()
    assert lines[33].startswith("Time\tType\tTrial\t")
    assert lines[9 if version == 1 else 10].startswith("## Number of Samples:\t")
    assert {len(line.split()) for line in lines[34:]} == {7 if version == 1 else 26}
    gaze = egtea.read_begaze(path)
    assert gaze.source_frame.tolist() == list(range(240))
    assert {Event(e) for e in gaze.event} == {Event.FIXATION, Event.SACCADE, Event.UNTRACKED}
    unnamed = tmp_path / "unnamed.txt"
    unnamed.write_text("\n".join([*lines[:33], "Time Type Trial", *lines[34:], ""]))
    for column in ("t_s", "x", "y", "event"):
        same = getattr(egtea.read_begaze(unnamed), column), getattr(gaze, column)
        assert np.array_equal(*same, equal_nan=True)


@pytest.mark.parametrize("version", [1, 2])
def test_messages_and_dashes_between_samples(tmp_path, version):
    """BeGaze writes a message as a row of type MSG, and a dash where an eye was not found."""
    plain = begaze_export(tmp_path / "plain.txt", 240, version)
    told = begaze_export(tmp_path / "told.txt", 240, version, messages=True)
    assert told.stat().st_size > plain.stat().st_size
    told.write_text(told.read_text().replace("\t0.00\t0.00", "\t-\t-"))
    one, other = egtea.read_begaze(plain), egtea.read_begaze(told)
    assert np.array_equal(one.x, other.x, equal_nan=True)
    assert np.array_equal(one.event, other.event)


def _cell(column, value):
    """Put `value` into that column of the first sample, line 35."""

    def change(text):
        lines = text.splitlines()
        cells = lines[34].split("\t")
        cells[lines[33].split("\t").index(column)] = value
        return "\n".join([*lines[:34], "\t".join(cells), *lines[35:], ""])

    return change


DAMAGED = {
    "a place that is a word": (_cell("B POR X [px]", "left"), "row 35: 'POR X' is 'left'"),
    "an infinite place": (_cell("B POR X [px]", "1e999"), "row 35: 'POR X' is '1e999'"),
    "a frame that is a word": (_cell("Frame", "first"), "row 35: 'Frame' is 'first', neither"),
    "a frame below zero": (_cell("Frame", "-3"), "row 35: 'Frame' is '-3', neither"),
    "a frame of years": (_cell("Frame", "9" * 30), f"row 35: 'Frame' is '{'9' * 30}', neither"),
    "a frame of 30 a second": (_cell("Frame", "00:00:00:29"), "is '00:00:00:29', neither"),
    "a clock of three parts": (_cell("Frame", "00:00:03"), "is '00:00:03', neither"),
    "cut in a row": (lambda text: text[: text.rindex("SMP") + 3], "is cut, the file ends in it"),
    "cut in a word": (lambda text: text[:-3], "is cut, the file ends in it"),
    "only a header": (lambda text: "\n".join(text.splitlines()[:34]), "has no samples"),
    "no header": (lambda text: "\n".join(text.splitlines()[34:]), "no row 'Time Type Trial'"),
    "nothing": (lambda text: text[:0], "no row 'Time Type Trial'"),
    "a column less": (
        lambda text: "".join(f"{x.rpartition(chr(9))[0] or x}\n" for x in text.splitlines()),
        "columns; BeGaze exports of EGTEA have 7 (v1) or 26 (v2)",
    ),
}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("fault", DAMAGED)
def test_a_damaged_export_is_one_line_of_the_check(tmp_path, fault, version):
    """File, row and column of the fault; the exports beside it are still read."""
    change, words = DAMAGED[fault]
    names = ["OP01-R01-PastaSalad", SESSION]
    root = egtea_tree(tmp_path / "egtea", dict.fromkeys(names, version), clips=2)
    path = root / "gaze_data" / f"{SESSION}.txt"
    path.write_text(change(path.read_text()))
    lines = {c.what: c for c in egtea.check(root)}
    assert path.name in lines, "no line about the damaged export"
    assert not lines[path.name].ok
    assert str(path) in lines[path.name].hint
    assert words in lines[path.name].hint
    assert "\n" not in lines[path.name].hint
    assert (lines["gaze files read to the end"].actual, lines["clips with valid gaze"].actual) == (
        "1",
        "2 of 4",
    )


def test_check_names_what_does_not_belong_together(tmp_path):
    root = egtea_tree(tmp_path / "egtea", {SESSION: 1, "P02-R01-Pizza": 2}, clips=2)
    gaze = root / "gaze_data"
    (gaze / f"{SESSION}.txt").rename(gaze / "P09-R01-PastaSalad.txt")
    (gaze / "README.txt").write_text("no gaze")
    (root / "cropped_clips" / "holiday.mp4").write_bytes(b"no video")
    (root / "train_gaze_official.csv").write_bytes(b"\xff\xfe")
    try:
        lines = {c.what: c for c in egtea.check(root)}
    except (DataError, UnicodeDecodeError) as fault:
        pytest.fail(f"one damaged file ends the whole check: {fault}")
    assert lines["sessions with clips and no gaze file"].hint == SESSION
    assert lines["gaze files without clips"].actual == "1"
    assert lines["gaze files"].actual == "2"
    assert "is not an EGTEA clip name" in lines["clip"].hint
    assert "is truncated or not a video" in lines["holiday.mp4"].hint
    assert lines["videos that open"].actual == "4"
    assert "not text" in lines["train_gaze_official.csv"].hint
    assert lines["clips of the FedCPF paper (told, not checked)"].actual == "no official lists here"


@pytest.mark.data
def test_check_tells_the_papers_clips_and_that_they_cannot_be_met():
    """egovideo note 3.1: 3418 / 882 whole clips of 5 s in the official lists."""
    found = [c for c in egtea.check(research_data("egtea")) if "told, not checked" in c.what]
    assert len(found) == 1
    line = found[0]
    assert line.actual == (
        "official lists: 8,299 train, 2,022 test; whole 5 s in them: 3,418 train, 882 test"
    )
    assert line.expected.startswith("6,456 train, 1,404 test")
    assert "14,596 and 3,439" in line.hint


def test_an_export_under_another_spelling_of_its_session(tmp_path):
    root = egtea_tree(tmp_path / "egtea", {"P16-R03-BaconAndEggs": 2}, clips=2)
    path = root / "gaze_data" / "P16-R03-BaconAndEggs.txt"
    path.rename(path.with_name("P16-r03-BaconAndEggs.txt"))
    assert len(egtea.recordings(root)) == 2


def test_a_clip_that_ends_before_it_starts():
    for first, last in ((72, 25), (0, 25)):
        with pytest.raises(DataError, match="EGTEA clips count frames from 1 and end after"):
            EgteaClip.parse(f"{SESSION}-1-2-F{first:06d}-F{last:06d}")
