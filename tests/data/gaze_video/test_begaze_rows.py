"""EGTEA: names of clips, cells of BeGaze and frames that several samples share, by hand."""

import numpy as np
import pytest

from vergence.data.gaze_video import egtea
from vergence.data.gaze_video.egtea import EgteaClip, _BegazeLayout, _frame, clip_gaze, read_begaze
from vergence.data.gaze_video.gaze import Event, Gaze
from vergence.errors import DataError

HEAD = "Time\tType\tTrial\tB POR X [px]\tB POR Y [px]\tFrame\tB Event Info"
FIX, JUMP, LOST = Event.FIXATION, Event.SACCADE, Event.UNTRACKED


@pytest.mark.parametrize(
    ("cell", "frame"),
    [
        ("0", 0),
        ("00:00:00:23", 23),
        ("00:00:59:00", 59 * 24),
        ("00:59:00:00", 59 * 60 * 24),
        ("23:59:59:23", 24 * 3600 * 24 - 1),
        (str(24 * 3600 * 24 - 1), 24 * 3600 * 24 - 1),
    ],
)
def test_frames_as_numbers_and_as_clocks(cell, frame):
    assert _frame(cell) == frame


@pytest.mark.parametrize(
    "cell",
    [
        *("-1", str(24 * 3600 * 24), "24:00:00:00", "00:60:00:00", "00:00:60:00", "00:00:00:24"),
        *("00:-1:00:00", "00:00:-1:00", "00:00:00:-1", "00:00:01", "1.5", ""),
    ],
)
def test_cells_that_are_no_frame(cell):
    with pytest.raises(ValueError):  # noqa: PT011
        _frame(cell)


def test_frames_of_several_samples():
    a, b, c = (1.0, 2.0, FIX), (3.0, 6.0, JUMP), (5.0, 10.0, FIX)
    lost = (9.0, 9.0, LOST)
    assert egtea._merge([a, b, c]) == (3, 6, FIX)
    assert egtea._merge([a, b]) == b
    assert egtea._merge([b, a]) == a
    assert egtea._merge([lost, a, lost]) == a
    assert egtea._merge([a, b, (5.0, 8.0, JUMP), c]) == (3, 6, FIX)
    assert egtea._merge([lost])[2] == LOST
    assert np.isnan(egtea._merge([lost])[:2]).all()
    assert egtea._merge_glc([a, b, (0.0, 0.0, LOST)]) == (1, 2, LOST)
    assert egtea._merge_glc([a]) == a


def export(folder, *rows, head=HEAD, end="\n"):
    path = folder / "P01-R01-Toast.txt"
    path.write_text("\n".join([head, *rows]) + end)
    return path


def row(frame, x, y, event="Fixation"):
    return f"{frame}\tSMP\t1\t{x}\t{y}\t{frame}\t{event}"


def test_gaze_of_an_export(tmp_path):
    rows = [row(2, 640, 480), row(1, "320,5", 240, "Saccade"), row(1, 321.5, 240, "Saccade")]
    rows += [row(3, 1281, 0), row(4, "-", 5), row(5, 5, 5, "Blink"), row(6, 1280, 960)]
    gaze = read_begaze(export(tmp_path, *rows))
    assert gaze.source_frame.tolist() == [1, 2, 3, 4, 5, 6]
    assert gaze.t_s == pytest.approx(np.arange(1, 7) / 24)
    assert gaze.x[[0, 1, 5]] == pytest.approx([321 / 1280, 0.5, 1])
    assert gaze.y[[0, 1, 5]] == pytest.approx([0.25, 0.5, 1])
    assert gaze.event.tolist() == [JUMP, FIX, Event.OUT_OF_RANGE, LOST, LOST, FIX]
    clipped = read_begaze(export(tmp_path, *rows), strict_range=False)
    assert (clipped.x[2], clipped.event[2], bool(clipped.valid[2])) == (1, FIX, True)
    glc = read_begaze(export(tmp_path, *rows), compat_glc=True)
    assert (glc.x[2], glc.y[5]) == (1279 / 1280, 959 / 960)


def test_an_export_that_is_cut_and_cells_that_are_wrong(tmp_path):
    for end in ("\n", "\r", ""):
        read_begaze(export(tmp_path, row(1, 2, 3), row(2, 2, 3, "-"), end=end))
    with pytest.raises(DataError, match="row 3 is cut"):
        read_begaze(export(tmp_path, row(1, 2, 3), row(2, 2, 3, "Fixat"), end=""))
    for cells, said in (
        ((1, "a", 3), "row 2: 'POR X' is 'a', not a number of pixels"),
        ((1, 2, "inf"), "row 2: 'POR Y' is 'inf', not a place, in a Fixation"),
        (("x", 2, 3), "row 2: 'Frame' is 'x', neither a frame number"),
    ):
        with pytest.raises(DataError, match=said):
            read_begaze(export(tmp_path, row(*cells)))
    read_begaze(export(tmp_path, row(1, 2, "inf", "Blink")))
    with pytest.raises(DataError, match="row 2 has 2 columns; BeGaze exports"):
        read_begaze(export(tmp_path, "1\t2"))
    with pytest.raises(DataError, match="no samples behind its header"):
        read_begaze(export(tmp_path, "1\tMSG\t1\tx", "", "# made"))
    with pytest.raises(DataError, match="no row 'Time Type Trial'"):
        read_begaze(export(tmp_path, row(1, 2, 3), head="Type"))


def test_columns_by_name_of_the_best_eye_or_by_position(tmp_path):
    for names, picks in (
        (HEAD, [3, 4, 5, 6]),
        (HEAD.replace("\t", ";"), [3, 4, 5, 6]),
        ("Frame,R POR X [px],R POR Y [px],R Event Info,L POR X [px]", [1, 2, 0, 3]),
        ("Time\tType\tTrial\tB POR X [px]", None),
    ):
        assert _BegazeLayout.of(tmp_path, names).by_name == picks
    plain = _BegazeLayout(tmp_path, ["a"], None)
    assert plain.sample("1 SMP 1 10 20 7 Saccade\n", 2) == (7, 10, 20, JUMP)
    long = ["0"] * 26
    long[5], long[6], long[24], long[25] = "10", "20", "7", "Fixation"
    assert plain.sample("\t".join(long), 2) == (7, 10, 20, FIX)
    for count in (6, 8, 25, 27):
        with pytest.raises(DataError, match=f"row 2 has {count} columns"):
            plain.sample(" ".join(["0"] * count), 2)


def test_a_clip_has_the_samples_from_its_first_to_its_last_frame():
    frames = np.arange(10)
    gaze = Gaze.build("g", frames / 24, frames / 10, frames / 10, source_frame=frames)
    clip = EgteaClip.parse("P01-R01-Toast-0-1-F000003-F000006.mp4")
    assert (clip.first, clip.last, clip.frames) == (3, 6, 4)
    own = clip_gaze(gaze, clip)
    assert own.source_frame.tolist() == [2, 3, 4, 5]
    assert own.t_s == pytest.approx(np.arange(4) / 24)


def clip(first, last, session="P01-R01-Toast"):
    return EgteaClip(f"{session}-{first}", session, session[:3], first, last)


@pytest.mark.parametrize(
    ("first", "last", "shared"), [(1, 9, 0), (1, 10, 1), (20, 30, 1), (21, 30, 0)]
)
def test_clips_that_share_a_frame(first, last, shared):
    train = [clip(10, 20), clip(10, 20, "P02-R01-Tea")]
    test = [clip(first, last), clip(first, last, "P03-R01-Tea")]
    assert egtea._count_sharing(train, test) == shared


def test_the_length_that_leaves_as_many_clips_as_the_paper_has(monkeypatch):
    monkeypatch.setitem(egtea.STATED, "egtea", (0, 3, 1))
    train = [clip(1, n) for n in (10, 20, 30, 120)]
    lists = {"train": train, "test": [clip(1, 20), clip(1, 21)]}
    assert egtea._nearest(lists) == "3 and 2 have 20 frames, 2 and 1 have 21 frames or more"
    assert egtea._nearest({"train": train}) == ""
    monkeypatch.setitem(egtea.STATED, "egtea", (0, 5, 1))
    assert egtea._nearest(lists) == ""
    monkeypatch.setitem(egtea.STATED, "egtea", (0, 1, 1))
    assert egtea._nearest(lists).startswith("1 and 0 have 120 frames, 0 and 0 have 121")


def test_exports_by_their_session_in_any_case(tmp_path):
    folder = tmp_path / "gaze_data" / "x"
    folder.mkdir(parents=True)
    names = ("P01-r01-Tea.txt", "P01-R01-Tea-GazeData.txt", "OP02-R03-A_b-GazeData.TXT", "note.txt")
    for name in names:
        (folder / name).touch()
    found = egtea.gaze_files(tmp_path)
    assert {key: path.name for key, path in found.items()} == {"p01-r01-tea": names[0]}
    (folder / names[2]).rename(folder / names[2].replace("TXT", "txt"))
    assert set(egtea.gaze_files(tmp_path)) == {"p01-r01-tea", "op02-r03-a_b"}
