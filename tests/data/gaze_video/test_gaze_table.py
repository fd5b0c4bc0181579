"""Gaze tables of one's own: every way of writing the same numbers gives the same gaze."""

import numpy as np
import pytest

from tests.data.fabricated_exports import EXPORTS, FISHEYE, HZ, PEOPLE, SECONDS, look
from tests.data.footage import write_video
from vergence.data.gaze_video.gaze import Event
from vergence.data.gaze_video.gaze_columns import (
    GazeColumns,
    angles_to_fractions,
    iso_ns,
    read_rows,
    to_fractions,
)
from vergence.data.gaze_video.gaze_table import GazeTable, check_overlap
from vergence.data.io.path_patterns import matching_files
from vergence.errors import ConfigError, DataError

COLUMNS = {"t": "t", "x": "x", "y": "y", "unit": "fraction", "t_unit": "ms"}
TEXT = "t,x,y\n0,0.25,0.5\n100,0.75,0.125\n"


def table(tmp_path, text, encoding="utf-8", video=True):
    folder = tmp_path / "p1"
    folder.mkdir(exist_ok=True)
    (folder / "gaze.csv").write_bytes(text.encode(encoding))
    if video:
        write_video(folder / "scene.mp4", np.arange(10) / 5)
    return tmp_path


def gaze(root, columns=COLUMNS, **options):
    (recording,), _ = GazeTable(columns=columns, **options).read(root)
    return recording.gaze


@pytest.mark.parametrize("preset", ["pupil_player", "pupil_neon", "tobii_glasses3", "aria_mps"])
def test_presets_put_gaze_where_it_was(tmp_path, preset):
    """Rows that are valid lie at the places that the export was made from, at their times."""
    EXPORTS[preset](tmp_path)
    more = {"fov_deg": FISHEYE, "lens": "equidistant", "start": "first"}
    options = more if preset == "aria_mps" else {}
    found, _ = GazeTable(preset=preset, **options).read(tmp_path)
    assert [r.person for r in found] == [f"p{p + 1}" for p in range(PEOPLE)]
    for p, recording in enumerate(found):
        check_overlap(recording)
        there, made = recording.gaze, look(p, int(SECONDS * HZ))
        assert 0.9 * len(made) < there.valid.sum() <= len(made)
        assert there.t_s == pytest.approx(np.arange(len(made)) / HZ, abs=1e-5)
        got = np.stack([there.x, there.y], 1)[there.valid]
        assert np.abs(got - made[there.valid]).max() < 1e-4


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "latin-1"])
def test_encodings_and_byte_order_marks(tmp_path, encoding):
    columns = {**COLUMNS, "person": "Prüfling"}
    text = "Prüfling,t,x,y\nJörg,0,0.25,0.5\nJörg,100,0.75,0.125\n"
    root = table(tmp_path, text, encoding)
    (recording,), _ = GazeTable(columns=columns).read(root)
    assert recording.person == "Jörg"
    assert recording.gaze.x.tolist() == [0.25, 0.75]


@pytest.mark.parametrize(
    "text",
    [
        "t;x;y\n0;0.25;0.5\n100;0.75;0.125\n",
        "t;x;y\n0;0,25;0,5\n100;0,75;0,125\n",
        "t\tx\ty\n0\t0,25\t0,5\n100\t0,75\t0,125\n",
        "t\tx\ty\r\n0\t0.25\t0.5\r\n\r\n100\t0.75\t0.125\r\n",
        'x,"y",t\n0.25,"0.5",0\n0.75,0.125,100\n',
    ],
)
def test_signs_between_cells_and_decimal_commas(tmp_path, text):
    found = gaze(table(tmp_path, text))
    assert found.t_s.tolist() == [0.0, pytest.approx(0.1)]
    assert (found.x.tolist(), found.y.tolist()) == ([0.25, 0.75], [0.5, 0.125])


@pytest.mark.parametrize("nothing", ["", "NaN", "-", ".", "N/A", "null", "-1", "-1.0"])
def test_missing_values_are_no_gaze_and_no_fault(tmp_path, nothing):
    root = table(tmp_path, f"t,x,y\n0,0.25,0.5\n100,{nothing},{nothing}\n")
    found = gaze(root, {**COLUMNS, "missing": (-1.0,)})
    assert found.valid.tolist() == [True, False]
    assert found.event[1] == Event.UNTRACKED


def test_minus_one_is_a_place_where_nobody_says_otherwise(tmp_path):
    """It lies outside the picture: tracked, and not valid."""
    root = table(tmp_path, "t,x,y\n0,0.25,0.5\n100,-1,-1\n200,0.5,0.5\n")
    found = gaze(root)
    assert found.event.tolist() == [Event.UNKNOWN, Event.OUT_OF_RANGE, Event.UNKNOWN]
    assert found.valid.tolist() == [True, False, True]


def test_a_cell_that_is_no_number_is_named_with_file_row_and_column(tmp_path):
    root = table(tmp_path, "t,x,y\n0,0.25,0.5\n\n100,O.75,0.125\n")
    with pytest.raises(DataError, match=r"gaze.csv: row 4: 'x' is 'O.75', not a number"):
        gaze(root)


def test_two_decimal_signs_in_one_table_are_refused(tmp_path):
    root = table(tmp_path, "t;x;y\n0;0.25;0.5\n100;0,75;0.125\n")
    with pytest.raises(DataError, match=r"row 3: 'x' is '0,75', not a number"):
        gaze(root)


def test_time_zones_count(tmp_path):
    """12:00:00 at +02:00 is 10:00:00 UTC: half a second before 10:00:00.5 Z."""
    times = ("2026-03-29T12:00:00.000+02:00", "2026-03-29T10:00:00.500Z")
    root = table(tmp_path, f"t,x,y\n{times[0]},0.25,0.5\n{times[1]},0.75,0.125\n")
    columns = {**COLUMNS, "t_unit": "datetime"}
    assert gaze(root, columns, start="first").t_s.tolist() == [0.0, pytest.approx(0.5)]
    begun = gaze(root, columns, start="2026-03-29T11:59:59+02:00").t_s
    assert begun.tolist() == [pytest.approx(1.0), pytest.approx(1.5)]


def test_times_with_and_without_a_zone_do_not_mix(tmp_path):
    root = table(tmp_path, "t,x,y\n2026-03-29T12:00:00Z,0.2,0.5\n2026-03-29T12:00:01,0.7,0.1\n")
    with pytest.raises(DataError, match="row 3: 't' is '2026-03-29T12:00:01': some times name"):
        gaze(root, {**COLUMNS, "t_unit": "datetime"}, start="first")


def test_nanoseconds_since_1970_keep_their_last_digit(tmp_path):
    """As float64 these two are 256 ns apart, or none."""
    root = table(tmp_path, "t,x,y\n1700000000123456789,0.2,0.5\n1700000000123456889,0.7,0.1\n")
    found = gaze(root, {**COLUMNS, "t_unit": "ns"}, start="first")
    assert found.t_s[1] == pytest.approx(100e-9, rel=1e-9)


def test_repeated_times_keep_the_first_sample_and_are_counted(tmp_path):
    root = table(tmp_path, "t,x,y\n0,0.25,0.5\n0,0.9,0.9\n100,0.75,0.125\n100,0.75,0.125\n")
    (recording,), left_out = GazeTable(columns=COLUMNS).read(root)
    assert "2 samples that repeat an earlier time" in left_out
    assert recording.gaze.x.tolist() == [0.25, 0.75]


def test_a_clock_that_goes_back_is_refused_or_sorted_where_that_is_said(tmp_path):
    root = table(tmp_path, "t,x,y\n100,0.25,0.5\n200,0.75,0.125\n150,0.5,0.5\n")
    with pytest.raises(DataError, match=r"gaze.csv: row 4: 't' goes back from 200 to 150"):
        gaze(root)
    found = gaze(root, clock="sort")
    assert found.t_s == pytest.approx([0.1, 0.15, 0.2])
    assert found.x.tolist() == [0.25, 0.5, 0.75]


def test_gaze_outside_the_picture_is_not_valid_and_not_dropped(tmp_path):
    found = gaze(table(tmp_path, "t,x,y\n0,0.25,0.5\n100,1.2,0.5\n200,0.5,-0.01\n"))
    assert found.valid.tolist() == [True, False, False]
    assert (found.event == Event.OUT_OF_RANGE).tolist() == [False, True, True]


def test_pixels_called_fractions_are_refused_with_their_row(tmp_path):
    root = table(tmp_path, "t,x,y\n0,32,24\n100,48,12\n")
    with pytest.raises(DataError, match=r"2 of 2 valid samples lie outside .* row 2 \(32, 24"):
        gaze(root)
    found = gaze(root, {**COLUMNS, "unit": "px"})
    assert found.x.tolist() == [0.5, 0.75]
    assert found.y.tolist() == [0.5, 0.25]


def test_origins_and_units():
    """A quarter from the left and a quarter from the top, in every way of counting."""
    one = np.array([1.0])
    ways = {
        ("px", "top_left"): (160, 120),
        ("px", "bottom_left"): (160, 360),
        ("px", "centre"): (-160, -120),
        ("px", "centre_up"): (-160, 120),
        ("fraction", "bottom_left"): (0.25, 0.75),
    }
    for (unit, origin), (x, y) in ways.items():
        got = to_fractions(x * one, y * one, unit, (640, 480), origin)
        assert (got[0][0], got[1][0]) == pytest.approx((0.25, 0.25)), (unit, origin)


def test_angles_by_kind_of_lens():
    """At the edge of the view both give the edge; halfway a pinhole gives tan(20)/tan(40)/2."""
    edge = angles_to_fractions(np.array([40.0]), np.array([0.0]), (80, 60), "pinhole")
    assert (edge[0][0], edge[1][0]) == pytest.approx((1.0, 0.5))
    half = angles_to_fractions(np.array([20.0]), np.array([0.0]), (80, 60), "pinhole")
    assert half[0][0] == pytest.approx(0.5 + np.tan(np.radians(20)) / np.tan(np.radians(40)) / 2)
    fish = angles_to_fractions(np.array([20.0]), np.array([0.0]), (80, 60), "equidistant")
    assert fish[0][0] == pytest.approx(0.75)


def test_two_eyes_are_averaged_where_both_are_there(tmp_path):
    text = "t,lx,rx,ly,ry\n0,0.2,0.4,0.5,0.5\n100,,0.4,,0.6\n200,,,,\n"
    columns = {**COLUMNS, "x": ("lx", "rx"), "y": ("ly", "ry")}
    found = gaze(table(tmp_path, text), columns)
    assert found.x[:2] == pytest.approx([0.3, 0.4])
    assert found.valid.tolist() == [True, True, False]


def test_validity_as_number_or_word(tmp_path):
    text = "t,x,y,ok\n0,0.2,0.5,1\n100,0.2,0.5,0\n200,0.2,0.5,Valid\n300,0.2,0.5,Invalid\n"
    columns = {**COLUMNS, "valid": "ok"}
    assert gaze(table(tmp_path, text), columns).valid.tolist() == [True, False, True, False]
    with pytest.raises(DataError, match="row 2: 'ok' is 'good', needs a number, or one of valid"):
        gaze(table(tmp_path, "t,x,y,ok\n0,0.2,0.5,good\n"), columns)


def test_a_column_of_another_name_is_answered_with_the_header(tmp_path):
    root = table(tmp_path, TEXT)
    with pytest.raises(DataError, match=r"no column 'gx' \(columns.x\).* its header has t, x, y"):
        gaze(root, {**COLUMNS, "x": "gx"})


def test_brackets_behind_a_name_may_be_left_out_and_say_the_unit(tmp_path):
    path = table(tmp_path, "time [us],x [px],y\n0,1,2\n500000,3,4\n") / "p1" / "gaze.csv"
    rows = read_rows(path, GazeColumns(t="time", x="x", y="y", unit="px", t_unit="ms"))
    assert rows.seconds().tolist() == [0.0, 0.5]


def test_what_has_to_be_said(tmp_path):
    root = table(tmp_path, TEXT)
    with pytest.raises(
        ConfigError, match=r"columns: unit must be given; or preset, one of aria_mps, pupil"
    ):
        gaze(root, {"t": "t", "x": "x", "y": "y", "t_unit": "s"})
    with pytest.raises(
        ConfigError, match=r"preset 'gazepoint' is gaze on a screen: use .*'stimuli'"
    ):
        GazeTable(preset="gazepoint")
    with pytest.raises(ConfigError, match="unit = 'deg' needs fov_deg"):
        gaze(root, {**COLUMNS, "unit": "deg"})
    with pytest.raises(ConfigError, match="columns: media must be 4 texts"):
        GazeTable(columns={"media": ("a", "b")})


def test_clocks_without_a_moment_in_common_are_refused(tmp_path):
    root = table(tmp_path, "t,x,y\n1000000,0.25,0.5\n1000100,0.75,0.125\n")
    with pytest.raises(DataError, match=r"gaze from 1000.000 .* no moment in common; set start"):
        GazeTable(columns=COLUMNS).load(str(root))


@pytest.mark.parametrize(("said", "right"), [("s", "ms"), ("us", "ms"), ("ns", "ms"), ("ms", "us")])
def test_a_wrong_unit_of_time_is_named_with_the_one_that_fits(tmp_path, said, right):
    """18 samples in the 1.8 s of the video, written in `right` and read as `said`."""
    steps = {"ms": 100, "us": 100_000}[right]
    rows = "".join(f"{steps * i},0.5,0.5\n" for i in range(18))
    root = table(tmp_path, f"t,x,y\n{rows}")
    match = f"^columns.t_unit = '{said}' is wrong, '{right}' would fit"
    with pytest.raises(DataError, match=match):
        gaze(root, {**COLUMNS, "t_unit": said})
    assert len(gaze(root, {**COLUMNS, "t_unit": right}).t_s) == 18


def test_a_short_table_beside_a_long_video_is_no_wrong_unit(tmp_path):
    root = table(tmp_path, "t,x,y\n0,0.25,0.5\n1,0.75,0.125\n2,0.75,0.125\n")
    assert gaze(root).t_s[-1] == pytest.approx(0.002)


def test_a_person_who_is_left_out_needs_neither_table_nor_video(tmp_path):
    root = table(tmp_path, TEXT)
    (root / "p2").mkdir()
    (root / "p2" / "gaze.csv").write_text("broken")
    named = {"columns": COLUMNS, "files": "*/*.csv"}
    (recording,), left_out = GazeTable(**named, people=("p1",)).read(root)
    assert recording.person == "p1"
    assert "1 of 2 tables read, 1 person; left out: p2/gaze.csv (not in people)" in left_out
    with pytest.raises(DataError, match=r"has no recordings of p3; people there: p1, p2"):
        GazeTable(**named, people=("p1", "p3")).read(root)


def test_people_and_videos_by_the_names_of_files(tmp_path):
    for person in ("ann", "bob"):
        (tmp_path / f"{person}_day1_gaze.csv").write_text(TEXT)
        write_video(tmp_path / f"{person}_day1.mp4", np.arange(10) / 5)
    files = {"files": "{person}_{recording}_gaze.csv", "videos": "{person}_{recording}.mp4"}
    found, _ = GazeTable(columns=COLUMNS, **files).read(tmp_path)
    assert [r.person for r in found] == ["ann", "bob"]
    assert [r.video.name for r in found] == ["ann_day1.mp4", "bob_day1.mp4"]
    with pytest.raises(DataError, match=r"needs one scene video, './\*' has 2 \(ann_day1.mp4"):
        GazeTable(columns=COLUMNS, files="{person}_day1_*.csv").read(tmp_path)
    with pytest.raises(
        ConfigError, match=r"'\{name\}' in '\{name\}.csv': allowed are \{person\}, \{rec"
    ):
        matching_files(tmp_path, "{name}.csv", "files")


def test_frame_times_of_the_recorder(tmp_path):
    """The first frame is at 5,000 ms of the table's clock, so its first sample is 0.1 s later."""
    root = table(tmp_path, "t,x,y\n5100,0.25,0.5\n5200,0.75,0.125\n")
    stamps = "\n".join(["stamp", *(str(5000 + 200 * i) for i in range(10))])
    (root / "p1" / "frames.csv").write_text(stamps)
    (recording,), _ = GazeTable(columns=COLUMNS, frame_times=("frames.csv", "stamp")).read(root)
    assert recording.gaze.t_s == pytest.approx([0.1, 0.2])
    assert recording.footage().times_s == pytest.approx(np.arange(10) / 5)


def test_frame_times_have_the_unit_of_a_preset(tmp_path):
    """Pro Lab writes us or ms without a word ("auto"), so frame times are read in the same way."""
    EXPORTS["tobii_pro_lab_glasses"](tmp_path)
    stamps = "\n".join(["stamp", *(str(1_000_000 + 40_000 * i) for i in range(30))])
    (tmp_path / "frames.csv").write_text(stamps)
    options = {"preset": "tobii_pro_lab_glasses", "frame_times": ("frames.csv", "stamp")}
    found, _ = GazeTable(**options).read(tmp_path)
    for recording in found:
        assert recording.gaze.t_s[:3] == pytest.approx([-1, -0.95, -0.9])
        assert recording.frame_times_s == pytest.approx(np.arange(30) / 25)


SECOND = {"[s]": 1, "[ms]": 10**3, "[us]": 10**6, "[ns]": 10**9}


@pytest.mark.parametrize("ours", SECOND)
@pytest.mark.parametrize("theirs", SECOND)
def test_frame_times_in_another_unit_than_gaze(tmp_path, ours, theirs):
    """Gaze is 1 s before and 2 s after the first frame, whose time counts from 1970."""
    begin, columns = 1_700_000_000, {**COLUMNS, "t_unit": "auto"}
    rows = "".join(f"{(begin + t) * SECOND[ours]},0.25,0.5\n" for t in (3, 6))
    root = table(tmp_path, f"t {ours},x,y\n{rows}")
    stamps = [f"stamp {theirs}", *(str((begin + 4 + i) * SECOND[theirs]) for i in range(3))]
    (root / "p1" / "frames.csv").write_text("\n".join(stamps))
    named = ("frames.csv", f"stamp {theirs}")
    (recording,), _ = GazeTable(columns=columns, frame_times=named).read(root)
    assert recording.gaze.t_s == pytest.approx([-1, 2], abs=1e-12)
    assert recording.frame_times_s == pytest.approx([0, 1, 2])


def test_frame_times_of_nanoseconds_beside_gaze_of_microseconds_keep_their_last_digit(tmp_path):
    """As float64, times since 1970 are 256 ns apart."""
    root = table(tmp_path, "t [us],x,y\n1700000000000001,0.25,0.5\n1700000000000003,0.5,0.5\n")
    (root / "p1" / "frames.csv").write_text("stamp [ns]\n1700000000000000789\n")
    (recording,), _ = GazeTable(columns=COLUMNS, frame_times=("frames.csv", "stamp [ns]")).read(
        root
    )
    assert recording.gaze.t_s == pytest.approx([211e-9, 2211e-9], rel=1e-9)


def test_frame_times_that_the_unit_of_gaze_cannot_hold_are_refused_with_both_units(tmp_path):
    root = table(tmp_path, "t [ns],x,y\n5,0.25,0.5\n6,0.5,0.5\n")
    (root / "p1" / "frames.csv").write_text("stamp [s]\n5000000000\n")
    with pytest.raises(DataError, match=r"gaze.csv: .* first frame is at 5000000000 s, .* of 1 ns"):
        GazeTable(columns=COLUMNS, frame_times=("frames.csv", "stamp [s]")).read(root)


def test_a_date_as_start_has_the_unit_of_the_table(tmp_path):
    """1,700,000,000 s after 1970 is 2023-11-14 22:13:20."""
    root = table(tmp_path, "t,x,y\n1700000000500,0.25,0.5\n1700000001500,0.75,0.125\n")
    assert gaze(root, start="2023-11-14T22:13:20Z").t_s == pytest.approx([0.5, 1.5])


@pytest.mark.parametrize("unnamed", ["unit", "t_unit", "x"])
def test_a_preset_that_lacks_a_unit_is_refused(tmp_path, unnamed):
    lines = [f'{name} = "{value}"' for name, value in COLUMNS.items() if name != unnamed]
    head = ['title = "Mine"', 'data = "gaze_table"', 'source = "a page"', 'files = ["**/*.csv"]']
    (tmp_path / "mine.toml").write_text("\n".join([*head, "[[columns]]", *lines]))
    with pytest.raises(ConfigError, match=f"columns: {unnamed} must be given"):
        GazeTable(preset=str(tmp_path / "mine.toml")).read(table(tmp_path, TEXT))


def test_a_wrong_unit_of_time_in_a_preset_is_named(tmp_path):
    head = ['title = "Mine"', 'data = "gaze_table"', 'source = "a page"', 'files = ["**/*.csv"]']
    lines = [f'{name} = "{value}"' for name, value in {**COLUMNS, "t_unit": "s"}.items()]
    (tmp_path / "mine.toml").write_text("\n".join([*head, "[[columns]]", *lines]))
    rows = "".join(f"{100 * i},0.5,0.5\n" for i in range(18))
    with pytest.raises(DataError, match=r"^columns.t_unit = 's' is wrong, 'ms' would fit"):
        GazeTable(preset=str(tmp_path / "mine.toml")).read(table(tmp_path, f"t,x,y\n{rows}"))


def test_dates_and_times():
    assert iso_ns("1970-01-01T00:00:01,5") == 1_500_000_000
    assert iso_ns("1970-01-01 01:00:00+01:00") == 0
    assert iso_ns("31.01.2026") is None


MPS = "tracking_timestamp_us,yaw_rads_cpf,pitch_rads_cpf,depth_m\n"


def aria_recording(root, **files):
    folder = root / "p1"
    folder.mkdir(parents=True)
    write_video(folder / "rgb.mp4", np.arange(3) / 10)
    for name, text in files.items():
        (folder / f"{name}.csv").write_text(text)
    return root


def test_an_aria_recording_with_its_own_gaze_needs_no_field_of_view(tmp_path):
    text = "frame,frame_timestamp_us,gaze_timestamp_us,dt_ms,x,y\n0,0,0,0,0.25,0.5\n"
    root = aria_recording(tmp_path, gaze_2d=text)
    (recording,), said = GazeTable(preset="aria_mps").read(root)
    assert (recording.gaze.x.tolist(), recording.person) == ([0.25], "p1")
    assert said == "1 recording read, 1 person"


def test_gaze_of_mps_without_a_camera_is_placed_by_its_angles(tmp_path):
    """Yaw counts to the left and pitch upwards; the start is the first sample, or a time in us."""
    root = aria_recording(tmp_path, eyegaze=MPS + "1000000,0.1,0.2,1\n1500000,-0.1,0,1\n")
    for start, t in (("first", [0, 0.5]), (0.0, [1, 1.5]), (2e6, [-1, -0.5])):
        options = {"preset": "aria_mps", "fov_deg": (90.0, 60.0), "start": start}
        (recording,), _ = GazeTable(**options).read(root)
        assert recording.gaze.t_s == pytest.approx(t)
    gaze = recording.gaze
    assert gaze.x == pytest.approx([0.5 - np.tan(0.1) / 2, 0.5 + np.tan(0.1) / 2])
    assert gaze.y == pytest.approx([0.5 - np.tan(0.2) / np.tan(np.radians(30)) / 2, 0.5])
    with pytest.raises(ConfigError, match=r"start must be .* got '2026-01-31'"):
        GazeTable(preset="aria_mps", fov_deg=(90.0, 60.0), start="2026-01-31").read(root)
    with pytest.raises(ConfigError, match=r"set fov_deg"):
        GazeTable(preset="aria_mps").read(root)
    (root / "p1" / "eyegaze.csv").unlink()
    with pytest.raises(DataError, match="has 1 videos and no MPS eye gaze CSV"):
        GazeTable(preset="aria_mps").read(root)
    (root / "p1" / "eyegaze.csv").write_text(MPS)
    write_video(root / "p1" / "b.mp4", np.arange(3) / 10)
    with pytest.raises(DataError, match="has 2 videos and an MPS eye gaze CSV"):
        GazeTable(preset="aria_mps").read(root)


@pytest.mark.parametrize("fov", [(0.0, 60.0), (90.0, 180.0), (90.0,), (90.0, 60.0, 30.0)])
def test_fields_of_view_that_are_none(fov):
    with pytest.raises(ConfigError, match="fov_deg must be"):
        GazeTable(fov_deg=fov)
    GazeTable(fov_deg=(1e-6, 179.99))


@pytest.mark.parametrize(
    ("times", "fine"),
    [
        ([2.799], True),
        ([2.801], False),
        ([-1.0], True),
        ([-1.001], False),
        ([-5, 0.5], True),
    ],
)
def test_gaze_may_be_a_second_beside_the_video(tmp_path, times, fine):
    """The video lasts from 0 to 1.8 s."""
    rows = "".join(f"{1000 * t},0.5,0.5\n" for t in times)
    recording = GazeTable(columns=COLUMNS).read(table(tmp_path, f"t,x,y\n{rows}"))[0][0]
    if fine:
        check_overlap(recording)
    else:
        with pytest.raises(DataError, match=f"gaze from {times[0]:.3f} to {times[-1]:.3f} s"):
            check_overlap(recording)


@pytest.mark.parametrize(("outside", "fine"), [(1, True), (2, False)])
def test_a_share_of_gaze_may_lie_outside_the_picture(tmp_path, monkeypatch, outside, fine):
    from vergence.data.gaze_video import gaze_table

    monkeypatch.setattr(gaze_table, "MAX_OUTSIDE", 0.25)
    places = [0.5] * (4 - outside) + [1.5] * outside
    rows = "".join(f"{100 * i},{x},0.5\n" for i, x in enumerate(places))
    root = table(tmp_path, f"t,x,y\n{rows}")
    if fine:
        assert gaze(root).valid.sum() == 3
    else:
        with pytest.raises(DataError, match=r"2 of 4 valid .* in row 4 \(1\.5, 0\.5 fraction\)"):
            gaze(root)


def test_each_person_of_a_table_has_own_rows(tmp_path):
    rows = [("bob", 0, 0.1), ("ann", 0, 0.2), ("cat", 100, 0.3), ("bob", 100, 0.4)]
    text = "who,t,x,y\n" + "".join(f"{who},{t},{x},0.5\n" for who, t, x in rows)
    found, said = GazeTable(columns={**COLUMNS, "person": "who"}).read(table(tmp_path, text))
    assert [(r.person, r.id, r.gaze.x.tolist()) for r in found] == [
        ("ann", "p1/gaze/ann", [0.2]),
        ("bob", "p1/gaze/bob", [0.1, 0.4]),
        ("cat", "p1/gaze/cat", [0.3]),
    ]
    assert "1 of 1 table read, 3 people" in said
