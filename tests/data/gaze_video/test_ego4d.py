"""Ego4D gaze: CSV with its bottom-left origin, clip and interval lists, loading."""

import shutil

import numpy as np
import pytest

from tests.conftest import research_data
from tests.data.footage import write_csv, write_video
from tests.data.originals import EGO4D_HEADER, FIRST_INDEX, LEFT_OUT, ego4d_table, ego4d_tree
from vergence.data.gaze_video import ego4d
from vergence.data.gaze_video.ego4d import Ego4d, Ego4DClip
from vergence.data.gaze_video.gaze import Event
from vergence.errors import DataError

UID = "0d271871-c8ba-4249-9434-d39ce0060e58"
OTHER = "1e83c2d1-0000-4000-8000-000000000000"


def gaze_csv(path, rows):
    """Rows (canonical time, confidence, x, y from the bottom), in the form of released files."""
    cells = [(0, t, t, float(int(t * 30)), c, x, y, *[None] * 16) for t, c, x, y in rows]
    return write_csv(path, EGO4D_HEADER, cells)


def still(seconds, hz=100):
    return [(i / hz, 1.0, 0.25, 0.75) for i in range(round(seconds * hz))]


def test_origin_time_and_confidence(tmp_path):
    rows = [(0.0, 1.0, 0.25, 0.9), (0.005, 0.0, "", ""), (0.010, 1.0, 0.25, 1.1)]
    gaze = ego4d.read_gaze(gaze_csv(tmp_path / "g.csv", rows))
    assert gaze.y[0] == pytest.approx(0.1)
    assert gaze.event.tolist() == [Event.FIXATION, Event.UNTRACKED, Event.OUT_OF_RANGE]
    assert gaze.t_s.tolist() == [0.0, 0.005, 0.010]


def test_saccade_is_more_than_40_px_within_a_frame(tmp_path):
    """At 100 Hz from x 0.2: 30 px (0.0276) keeps the fixation, 60 px (0.0551) is a saccade.

    It lasts until the place 1/30 s before (3 samples back) is the new one.
    """
    for px, saccades in ((30, 0), (60, 3)):
        xs = [0.2] * 10 + [0.2 + px / 1088] * 10
        rows = [(i / 100, 1.0, x, 0.5) for i, x in enumerate(xs)]
        gaze = ego4d.read_gaze(gaze_csv(tmp_path / "g.csv", rows))
        assert np.flatnonzero(gaze.event == Event.SACCADE).tolist() == list(
            range(10, 10 + saccades)
        )


def test_untracked_intervals(tmp_path):
    gaze = ego4d.read_gaze(gaze_csv(tmp_path / "g.csv", still(3)), [(1.0, 2.0)])
    away = (gaze.t_s >= 1) & (gaze.t_s <= 2)
    assert (gaze.event[away] == Event.UNTRACKED).all()
    assert gaze.valid[~away].all()


def test_bad_gaze(tmp_path):
    path = gaze_csv(tmp_path / "g.csv", [(0.0, 1.0, 0.5, 0.5), (0.1, 1.0, "nan", 0.5)])
    assert ego4d.read_gaze(path).valid.tolist() == [True, False]
    write_csv(path, "timestamp,x,y", [(0, 1, 1)])
    with pytest.raises(DataError, match="missing columns canonical_timestamp_s, confidence"):
        ego4d.read_gaze(path)


@pytest.mark.data
def test_official_lists():
    """egovideo note 3.2: 15,310 clips of 20 videos, 5202 of 7 others, 73 intervals of 3158 s."""
    root = research_data("ego4d")
    train = ego4d.read_clip_list(root / "train_ego4d_gaze.csv")
    test = ego4d.read_clip_list(root / "test_ego4d_gaze.csv")
    assert (len(train), len(test)) == (15_310, 5202)
    videos = {c.video for c in train}, {c.video for c in test}
    assert (len(videos[0]), len(videos[1]), len(videos[0] & videos[1])) == (20, 7, 0)
    assert {c.end_s - c.start_s for c in train + test} == {5}
    spans = [s for row in ego4d.read_untracked(root / ego4d.UNTRACKED_LIST).values() for s in row]
    assert (len(spans), sum(b - a for a, b in spans)) == (73, 3158)


@pytest.mark.data
def test_check_of_lists_without_videos():
    found = {c.what: c for c in ego4d.check(research_data("ego4d"))}
    assert found["clips in train_ego4d_gaze.csv"].ok
    assert found["videos in test_ego4d_gaze.csv"].ok
    assert found["untracked seconds"].ok
    assert not found["videos"].ok
    assert "ego4d-data.org" in found["gaze files"].hint


def test_clip_names_and_damaged_intervals(tmp_path):
    clip = Ego4DClip.parse(f"{UID}/{UID}_t1005_t1010.mp4")
    assert (clip.video, clip.start_s, clip.end_s) == (UID, 1005, 1010)
    with pytest.raises(DataError, match="not an Ego4D gaze clip name"):
        Ego4DClip.parse("a_t0_t5.mp4")
    path = write_csv(tmp_path / "u.csv", f"{UID},00:00:01,00:00:02,1", [(UID, "00:00:01", "x", 1)])
    with pytest.raises(DataError, match=r"u\.csv: row 2 is not video"):
        ego4d.read_untracked(path)


@pytest.mark.slow
def test_load_whole_videos(tmp_path):
    write_video(tmp_path / "full_scale.gaze" / f"{UID}.mp4", np.arange(600) / 10, (32, 32))
    gaze_csv(tmp_path / "gaze" / f"{UID}.csv", still(60))
    data = Ego4d(size=(16, 16)).load(str(tmp_path))
    assert data.clients == (UID,)
    points = data.people[UID].train.columns["points"].numpy()
    assert points[..., 1] == pytest.approx(np.full(points.shape[:3], 0.25))
    assert data.about["untracked"] == "no ego4d_gaze_untracked.csv"


def test_clips_take_their_time_of_the_video(tmp_path):
    """Gaze x = t / 60: the clip t5_t10 begins at x = 5/60 and both clips share one session."""
    for start in (0, 5):
        name = f"{UID}_t{start}_t{start + 5}.mp4"
        write_video(tmp_path / "clips.gaze" / UID / name, np.arange(50) / 10, (32, 32))
    rows = [(i / 100, 1.0, i / 6000, 0.5) for i in range(1100)]
    gaze_csv(tmp_path / "gaze" / f"{UID}.csv", rows)
    first, second = ego4d.recordings(tmp_path)
    gaze = second.gaze_per_frame(second.footage())
    assert gaze.x[:3] == pytest.approx([5 / 60, 5.1 / 60, 5.2 / 60])
    assert (first.session, second.session, second.start_s) == (UID, UID, 5.0)


def test_missing_files(tmp_path):
    with pytest.raises(DataError, match=r"name its folder as root; .*signed licence"):
        Ego4d().load()
    with pytest.raises(DataError, match=r"no videos or gaze in .*ego4d-data\.org"):
        Ego4d().load(str(tmp_path))
    path = gaze_csv(tmp_path / "gaze" / f"{UID}.csv", still(1))
    with pytest.raises(DataError, match="is gaze without video"):
        Ego4d().load(str(tmp_path))
    path.unlink()
    write_video(tmp_path / "full_scale.gaze" / f"{UID}.mp4", np.arange(10) / 10)
    with pytest.raises(DataError, match="is video without gaze"):
        Ego4d().load(str(tmp_path))


def test_a_table_in_the_form_of_the_released_ones(tmp_path):
    """World indices are floats and start where the recording was cut out; line ends are either."""
    for lines in ("\n", "\r\n"):
        path = ego4d_table(tmp_path / f"{UID}.csv", 3.0, lines=lines)
        try:
            gaze = ego4d.read_gaze(path)
        except DataError as fault:
            pytest.fail(f"a table in the published form is refused: {fault}")
        assert len(gaze) > 400
        assert gaze.t_s[0] == 0
        assert gaze.source_frame[0] == FIRST_INDEX
        assert gaze.source_frame[-1] - FIRST_INDEX in (88, 89)
        assert gaze.valid.mean() > 0.95


def test_folder_of_the_official_tool(tmp_path):
    """The manifest is no table, a video without gaze no fault, four videos are left out."""
    root, names = ego4d_tree(tmp_path, people=2, seconds=2)
    try:
        found = ego4d.recordings(root)
    except DataError as fault:
        pytest.fail(f"the folder that the official tool leaves is refused: {fault}")
    assert [r.person for r in found] == sorted(names)
    assert {r.video.parent.name for r in found if r.video} == {"full_scale"}
    assert [r.person for r in ego4d.recordings(root, LEFT_OUT[:1])] == [LEFT_OUT[0]]


def test_videos_that_glc_leaves_out_are_told(tmp_path):
    root, names = ego4d_tree(tmp_path, people=1)
    data = Ego4d(size=(16, 16)).load(str(root))
    assert data.clients == (names[0],)
    assert all(uid in data.about["videos"] for uid in LEFT_OUT)


def test_glcs_folder_goes_before_the_tools(tmp_path):
    root, names = ego4d_tree(tmp_path, people=1, seconds=2, left_out=False)
    own = root / "full_scale.gaze" / f"{names[0]}.mp4"
    own.parent.mkdir()
    shutil.copy(root / "full_scale" / own.name, own)
    assert [r.video for r in ego4d.recordings(root)] == [own]


def test_root_of_the_tool_is_the_folder_of_the_version(tmp_path):
    root, _ = ego4d_tree(tmp_path, people=1, seconds=2)
    with pytest.raises(DataError, match=rf"no videos or gaze in {tmp_path}, but in {root}, the"):
        ego4d.recordings(tmp_path)
    hints = [c.hint for c in ego4d.check(tmp_path) if c.what == "gaze files"]
    assert f"but in {root}" in hints[0]


def _cell(column, value):
    """Put `value` into that column of the fourth line."""

    def change(text):
        lines = text.splitlines()
        cells = lines[3].split(",")
        cells[EGO4D_HEADER.split(",").index(column)] = value
        return "\n".join([*lines[:3], ",".join(cells), *lines[4:], ""])

    return change


DAMAGED = {
    "a time that is no number": (_cell("canonical_timestamp_s", "later"), "row 4: 'canonical"),
    "a time that is NaN": (_cell("canonical_timestamp_s", "nan"), "row 4: 'canonical_timestamp_s'"),
    "a time that is empty": (_cell("canonical_timestamp_s", ""), "row 4: 'canonical_timestamp_s'"),
    "an infinite place": (_cell("norm_pos_x", "inf"), "row 4: 'norm_pos_x' is 'inf'"),
    "a place that is a word": (_cell("norm_pos_x", "left"), "row 4: 'norm_pos_x' is 'left'"),
    "confidence of two": (_cell("confidence", "2.0"), "row 4: 'confidence' is '2.0', not between"),
    "confidence without end": (_cell("confidence", "inf"), "row 4: 'confidence' is 'inf'"),
    "half a frame": (_cell("world_index", "10583.5"), "row 4: 'world_index' is '10583.5'"),
    "a frame below zero": (_cell("world_index", "-1.0"), "row 4: 'world_index' is '-1.0'"),
    "a frame without end": (_cell("world_index", "1e300"), "row 4: 'world_index' is '1e300'"),
    "no column of places": (
        lambda text: text.replace("norm_pos_x", "x"),
        "missing columns norm_pos",
    ),
    "no header": (lambda text: text.split("\n", 1)[1], "missing columns canonical_timestamp_s"),
    "cut in a row": (
        lambda text: text[: text.rindex("0.")],
        "cells instead of 23; the file is trunc",
    ),
    "nothing": (lambda text: text[:0], "is empty"),
    "only a header": (lambda text: text.split("\n")[0] + "\n", "none of its 0 samples is valid"),
    "never sure": (lambda text: text.replace(",1.0,", ",0.0,"), "samples is valid gaze"),
    "no text": (lambda text: "\udcff\udcfe" + text, "is not a text table"),
}


@pytest.mark.parametrize("fault", DAMAGED)
def test_a_damaged_table_is_one_line_of_the_check(tmp_path, fault):
    """File, row and column of the fault; the tables beside it are still read."""
    change, words = DAMAGED[fault]
    root, names = ego4d_tree(tmp_path, people=3, seconds=1, left_out=False)
    path = root / "gaze" / f"{names[1]}.csv"
    path.write_bytes(change(path.read_text()).encode(errors="surrogateescape"))
    lines = [c for c in ego4d.check(root) if c.what.startswith("gaze/")]
    assert [(c.what, c.ok) for c in lines] == [(f"gaze/{names[1]}.csv", False)]
    assert str(path) in lines[0].hint
    assert words in lines[0].hint
    assert "\n" not in lines[0].hint
    assert {c.what: c.actual for c in ego4d.check(root)}["gaze files read to the end"] == "2"


def test_a_fault_in_an_untracked_interval_is_none_for_check_and_loader(tmp_path):
    root, names = ego4d_tree(tmp_path, people=1, seconds=3, left_out=False)
    path = root / "gaze" / f"{names[0]}.csv"
    path.write_text(_cell("norm_pos_x", "inf")(path.read_text()))
    assert not {c.what: c for c in ego4d.check(root)}["gaze files read to the end"].ok
    (root / ego4d.UNTRACKED_LIST).write_text(f"{names[0]},00:00:00,00:00:01,3\n")
    assert {c.what: c for c in ego4d.check(root)}["gaze files read to the end"].ok
    assert ego4d.recordings(root)[0].gaze.event[2] == Event.UNTRACKED


def test_places_far_outside_are_out_of_range(tmp_path):
    rows = [(i / 100, 1.0, x, 0.5) for i, x in enumerate((0.5, 1e308, -1e308, 0.5))]
    gaze = ego4d.read_gaze(gaze_csv(tmp_path / "g.csv", rows))
    assert gaze.valid.tolist() == [True, False, False, True]


def test_people_are_read_once_whatever_their_order(tmp_path):
    root, names = ego4d_tree(tmp_path, people=2, seconds=1)
    twice = [*sorted(names, reverse=True), names[0]]
    assert [r.person for r in ego4d.recordings(root, twice)] == sorted(names)


def test_gaze_that_is_sure_of_nothing_is_not_read_as_gaze(tmp_path):
    """A row without confidence is untracked, wherever it says that gaze is."""
    gaze = ego4d.read_gaze(
        gaze_csv(tmp_path / "g.csv", [(0.0, "", 0.5, 0.5), (0.1, 1.0, 0.5, 0.5)])
    )
    assert gaze.event.tolist() == [Event.UNTRACKED, Event.FIXATION]


def test_names_that_no_table_can_have(tmp_path):
    root, names = ego4d_tree(tmp_path, people=2, seconds=1, left_out=False)
    table = root / "gaze" / f"{names[0]}.csv"
    for wrong, words in (
        (table.with_name("holiday.csv"), r"holiday\.csv is not named by a video uid"),
        (table.with_name(names[0].upper() + ".csv"), "is not named by a video uid"),
        (table.with_suffix(".mp4"), "is a gaze table under the name of a video"),
    ):
        table.rename(wrong)
        with pytest.raises(DataError, match=words):
            ego4d.recordings(root)
        lines = {c.what: c for c in ego4d.check(root)}
        assert not lines["gaze file"].ok
        assert str(wrong) in lines["gaze file"].hint
        assert lines["gaze files read to the end"].actual == "1"
        wrong.rename(table)
    table.rename(table.with_name("._hidden.csv"))
    assert [r.person for r in ego4d.recordings(root)] == [names[1]]


def test_a_uid_of_another_video(tmp_path):
    """Gaze of one video and the picture of another are told by their uids, in both places."""
    root, names = ego4d_tree(tmp_path, people=2, seconds=1, left_out=False)
    table = root / "gaze" / f"{names[0]}.csv"
    table.rename(table.with_name(f"{OTHER}.csv"))
    with pytest.raises(
        DataError, match=rf"gaze/{OTHER}\.csv in .* is gaze without video: .*people"
    ):
        ego4d.recordings(root)
    lines = {c.what: c for c in ego4d.check(root)}
    assert OTHER in lines["gaze files without video"].hint
    with pytest.raises(
        DataError, match=f"has neither gaze nor video of {names[0]}; it has those of"
    ):
        ego4d.recordings(root, [names[0]])


def test_a_cut_video(tmp_path):
    root, names = ego4d_tree(tmp_path, people=1, seconds=2, left_out=False)
    video = root / "full_scale" / f"{names[0]}.mp4"
    video.write_bytes(video.read_bytes()[:-400])
    lines = {c.what: c for c in ego4d.check(root)}
    assert video.name in lines, "no line about the cut video"
    assert "is truncated or not a video" in lines[video.name].hint
    assert (lines["videos that open"].actual, lines["videos that open"].ok) == ("0", False)


def test_damaged_lists(tmp_path):
    path = tmp_path / ego4d.UNTRACKED_LIST
    for text in (f"{UID},00:00:01\n", "holiday,00:00:01,00:00:02,1\n", f"{UID},a:b:c,00:00:02,1\n"):
        path.write_text(f"{UID},00:00:01,00:00:02,1\n" + text)
        with pytest.raises(DataError, match=r"untracked\.csv: row 2 is not video, hh:mm:ss"):
            ego4d.read_untracked(path)
    for name in (ego4d.UNTRACKED_LIST, "train_ego4d_gaze.csv"):
        (tmp_path / name).write_bytes(b"\xff\xfe")
        lists = [c for c in ego4d.check(tmp_path) if c.what == "lists"]
        assert f"{name} is missing or not text" in lists[0].hint
        (tmp_path / name).unlink()


@pytest.mark.data
def test_an_interval_of_the_published_list_ends_before_it_starts():
    """It counts -113 s in the 3158 s, and leaves nothing out."""
    listed = ego4d.read_untracked(research_data("ego4d") / ego4d.UNTRACKED_LIST)
    wrong = [(a, b) for spans in listed.values() for a, b in spans if b < a]
    assert wrong == [(135, 22)]


@pytest.mark.data
def test_check_tells_the_papers_clips_and_that_they_cannot_be_met():
    found = [c for c in ego4d.check(research_data("ego4d")) if "told, not checked" in c.what]
    assert len(found) == 1
    line = found[0]
    assert line.actual == "official lists: 15,310 train, 5,202 test"
    assert line.expected.startswith("8,140 train, 2,035 test")
    assert "14,596 and 3,439" in line.hint


@pytest.mark.parametrize(("axis", "side"), [(0, 1088), (1, 1080)])
def test_saccades_are_longer_than_40_px_along_either_side(tmp_path, axis, side):
    """A jump of 39 or 41 px in one direction, and of 30 and 30 px (42.4) in both."""
    for px, other, saccades in ((39, 0, 0), (41, 0, 3), (30, 30, 3), (28, 28, 0)):
        places = np.full((20, 2), 0.25)
        places[10:, axis] += px / side
        places[10:, 1 - axis] += other / (1088 + 1080 - side)
        rows = [(i / 100, 1.0, *place) for i, place in enumerate(places)]
        gaze = ego4d.read_gaze(gaze_csv(tmp_path / "g.csv", rows))
        assert (gaze.event == Event.SACCADE).sum() == saccades, px


def test_events_are_those_of_a_search_through_all_samples():
    """The sample before is the earliest one within a 30th of a second and a microsecond."""
    rng = np.random.default_rng(0)
    t = rng.permutation(np.concatenate([np.arange(200) / 30, rng.uniform(0, 6, 200)]))
    x, y = rng.uniform(0.4, 0.45, (2, 400))
    y[::7] = np.nan
    wanted = []
    for now, a, b in zip(t, x, y, strict=True):
        inside = np.flatnonzero((t >= now - 1 / 30 - 1e-6) & (t <= now))
        first = inside[t[inside].argmin()]
        far = np.hypot((a - x[first]) * 1088, (b - y[first]) * 1080) > 40
        wanted.append(Event.SACCADE if far else Event.FIXATION)
    assert ego4d._events(t, x, y).tolist() == wanted
    assert 20 < wanted.count(Event.SACCADE) < 380


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("1.001", "'confidence' is '1.001', not between 0 and 1"),
        ("-0.001", "'confidence' is '-0.001'"),
        ("inf", "'norm_pos_x' is 'inf', not a place"),
        ("-inf", "'norm_pos_y' is '-inf', not a place"),
        ("nan", "'canonical_timestamp_s' is 'nan', not a time in seconds"),
        ("-1", "'world_index' is '-1', not the number of a frame"),
        ("1.5", "'world_index' is '1.5'"),
        (str(2**31), "'world_index' is '2147483648'"),
    ],
)
def test_the_first_cell_that_cannot_be_is_named(tmp_path, value, said):
    path = gaze_csv(tmp_path / "g.csv", [(i / 10, 1.0, 0.5, 0.5) for i in range(5)])
    lines = [line.split(",") for line in path.read_text().splitlines()]
    names = lines[0]
    at = names.index(said.split("'")[1])
    for row in (2, 4):
        lines[row][at] = value
    path.write_text("\n".join(map(",".join, lines)) + "\n")
    with pytest.raises(DataError) as caught:
        ego4d.read_gaze(path)
    assert f"{path}: row 3: {said}" in str(caught.value)


def test_values_at_the_limits_are_read(tmp_path):
    """An untracked sample may lie anywhere; the largest number of a frame is 2^31 - 1."""
    rows = [(0.0, 0.0, "inf", 0.5), (0.1, 0.6, 0.5, 0.5), (0.2, 0.59, 0.5, 0.5), (0.3, 1, 1, 0)]
    path = gaze_csv(tmp_path / "g.csv", rows)
    gaze = ego4d.read_gaze(path)
    assert gaze.valid.tolist() == [False, True, False, True]
    assert gaze.confidence.tolist() == [0, 0.6, 0.59, 1]
    lines = [line.split(",") for line in path.read_text().splitlines()]
    at = lines[0].index("world_index")
    for line, index in zip(lines[1:], ("0.0", "", "2147483647", "7.0"), strict=True):
        line[at] = index
    path.write_text("\n".join(map(",".join, lines)) + "\n")
    assert ego4d.read_gaze(path).source_frame.tolist() == [0, -1, 2**31 - 1, 7]
    for line in lines:
        del line[at]
    path.write_text("\n".join(map(",".join, lines)) + "\n")
    assert ego4d.read_gaze(path).source_frame.tolist() == [-1] * 4, "no column tells the frames"


def test_untracked_intervals_hold_their_ends(tmp_path):
    path = gaze_csv(tmp_path / "g.csv", still(0.1))
    gaze = ego4d.read_gaze(path, [(0.02, 0.04), (0.07, 0.07), (0.09, 0.08)])
    assert np.flatnonzero(~gaze.valid).tolist() == [2, 3, 4, 7]


def test_clocks_of_untracked_intervals_are_hours_minutes_and_seconds(tmp_path):
    path = tmp_path / "u.csv"
    path.write_text(f"{UID},01:02:03,10:00:59,why\n\n{UID}\t00:02:15\t00:00:22\t\n")
    assert ego4d.read_untracked(path) == {UID: [(3723.0, 36059.0), (135.0, 22.0)]}
    for line in ("a,00:00:01,00:00:02,1", f"{UID},00:01,00:00:02,1", f"{UID},00:00:01"):
        path.write_text(f"# video\n{line}\n")
        with pytest.raises(DataError, match=r"row 2 is not video"):
            ego4d.read_untracked(path)
