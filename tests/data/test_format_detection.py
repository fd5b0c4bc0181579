"""Formats of gaze recordings by names and numbers: one small folder for each rule."""

import pytest
from PIL import Image

from vergence.data import format_detection
from vergence.data.format_detection import find_format
from vergence.data.io.delimited_text import read_table
from vergence.errors import DataError

GAZE = "time_ms,gaze_x,gaze_y\n0,0.5,0.5\n20,0.5,0.5\n40,0.25,0.5\n"
MPS = "tracking_timestamp_us,pitch_rads_cpf,yaw_rads_cpf\n0,0,0\n"


def folder(root, **texts):
    """Files by their names, with __ for a slash and _. for the dot of an ending."""
    for name, text in texts.items():
        path = root / name.replace("__", "/").replace("_D_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".png":
            Image.new("RGB", (8, 8)).save(path)
        else:
            path.write_text(text)
    return root


def test_a_table_of_a_preset_under_its_own_name_is_certain(tmp_path):
    found = find_format(folder(tmp_path, p1__general_eye_gaze_D_csv=MPS))
    assert (found.data, found.certainty) == ("gaze_table", "certain")
    assert found.options["preset"] == "aria_mps"
    assert "files" not in found.options
    assert (found.options["start"], found.options["lens"]) == ("first", "equidistant")
    assert "no VRS" in found.notes["fov_deg start lens"]
    assert found.evidence == "1 table with tracking_timestamp_us, pitch_rads_cpf"


def test_a_folder_with_several_exports_of_one_reader_names_all(tmp_path):
    """A lab's folder has a recording of the device's own beside exports of two programs."""
    player = "gaze_timestamp,world_index,norm_pos_x,norm_pos_y\n0,0,0.5,0.5\n"
    files = {"p1__gaze ps1_D_raw": "", "p2__gaze_positions_D_csv": player}
    found = find_format(folder(tmp_path, **files))
    assert (found.data, found.certainty) == ("pupil", "certain")
    assert "Neon native" in found.title
    assert "Pupil Player" in found.title
    assert found.evidence.startswith("1 gaze ps1.raw; 1 table with gaze_timestamp, ")


def test_with_a_vrs_the_camera_is_known(tmp_path):
    found = find_format(folder(tmp_path, p1__general_eye_gaze_D_csv=MPS, p1__a_D_vrs=""))
    assert "lens" not in found.options
    assert "fov_deg start lens" not in found.notes


@pytest.mark.parametrize(
    ("names", "pattern"), [(("a_D_csv", "b_D_csv"), "**/*.csv"), (("a_D_csv", "b_D_txt"), "**/*")]
)
def test_tables_of_a_preset_under_other_names_are_likely(tmp_path, names, pattern):
    found = find_format(folder(tmp_path, **{f"p1__{name}": MPS for name in names}))
    assert found.certainty == "likely"
    assert found.options["files"] == pattern
    assert "without" not in found.options


def test_other_tables_that_the_pattern_fits_are_left_out(tmp_path):
    files = {"p1__a_D_csv": MPS, "p1__{b}_D_csv": "name,age\nann,3\n", "p1__c_D_csv": "x,y\n1,2\n"}
    found = find_format(folder(tmp_path, **files))
    assert found.options["without"] == ["p1/c.csv", "p1/*b*.csv"]


def test_one_table_under_its_own_name_is_enough(tmp_path):
    root = folder(tmp_path, p1__general_eye_gaze_D_csv=MPS, p1__other_D_csv=MPS)
    assert find_format(root).certainty == "certain"
    assert "files" not in find_format(root, {"files": "**/*.csv"}).notes


def test_two_formats_together_are_refused_with_both_names(tmp_path):
    player = "gaze_timestamp,world_index,norm_pos_x\n1,2,3\n"
    root = folder(tmp_path, p1__general_eye_gaze_D_csv=MPS, p2__gaze_positions_D_csv=player)
    with pytest.raises(DataError, match=r"several formats: .*\(aria_mps\); .*\(pupil_player\)"):
        find_format(root)
    assert find_format(root, {"preset": "aria_mps"}).certainty == "as said"


def test_what_the_user_says_is_not_guessed(tmp_path):
    root = folder(tmp_path, p1__a_D_csv=GAZE)
    columns = {"t": "time_ms", "x": "gaze_x", "y": "gaze_y"}
    plain = find_format(root, {"columns": columns})
    assert (plain.data, plain.certainty) == ("gaze_table", "as said")
    assert plain.options == {}
    folder(root, shown__a_D_png="")
    (root / "p1" / "a.csv").write_text("time_ms,gaze_x,gaze_y,image\n0,1,1,a.png\n")
    shown = find_format(root, {"columns": {**columns, "stimulus": "image"}})
    assert (shown.data, shown.certainty) == ("stimuli", "as said")
    assert shown.options == {"stimuli": "shown"}
    assert find_format(root, {"columns": {"t": "time_ms"}}).certainty == "a guess"
    assert find_format(root, {"columns": "wrong"}).certainty == "a guess"


def test_nothing_is_told_by_endings(tmp_path):
    with pytest.raises(DataError, match=r"holds no gaze: .*; found nothing"):
        find_format(tmp_path)
    folder(tmp_path, a_D_md="", b_D_md="", Makefile="")
    with pytest.raises(DataError, match=r"found 2 \.md, 1 Makefile"):
        find_format(tmp_path)


@pytest.mark.parametrize(
    ("header", "rows", "columns", "start"),
    [
        ("time_ms,gaze_x,gaze_y", "0,.5,.5\n20,.5,.5\n", ("ms", "fraction"), None),
        ("time_ms,gaze_x,gaze_y", "60000,.5,.5\n60020,.5,.5\n", ("ms", "fraction"), None),
        ("time_ms,gaze_x,gaze_y", "60001,.5,.5\n60021,.5,.5\n", ("ms", "fraction"), "first"),
        ("time,gaze_x,gaze_y", "0,300,200\n0.02,300,200\n", ("s", "px"), None),
        ("time,gaze_x,gaze_y", "0,1.5,1.5\n20,1.5,1.5\n", ("ms", "fraction"), None),
        ("time,gaze_x,gaze_y", "0,1.51,1.51\n20000,1.51,1.51\n", ("us", "px"), None),
        ("time,gaze_x,gaze_y", "0,-2,0\n20000000,-2,0\n", ("ns", "px"), None),
        ("time [us],x_deg,y_deg", "0,300,200\n9,300,200\n", ("us", "deg"), None),
        ("time,gaze_x,gaze_y", "2026-01-31T12:00:00,1,1\n", ("datetime", "fraction"), "first"),
    ],
)
def test_units_are_guessed_from_names_and_numbers(tmp_path, header, rows, columns, start):
    found = find_format(folder(tmp_path, p1__a_D_csv=f"{header}\n{rows}"))
    assert (found.options["columns"]["t_unit"], found.options["columns"]["unit"]) == columns
    assert found.options.get("start") == start
    assert ("start" in found.notes) == (start is not None)
    assert found.certainty == "a guess"
    assert found.evidence == f"a.csv has {', '.join(header.split(','))}"


@pytest.mark.parametrize("step", [0.3999e-3, 0.4])
def test_steps_of_no_tracker_are_refused(tmp_path, step):
    """In seconds from 0.4 ms to below 0.4 s; 0.4 s are 0.4 ms in thousandths of them."""
    rows = "".join(f"{i * step},0.5,0.5\n" for i in range(4))
    path = folder(tmp_path, a_D_csv=f"time,x,y\n{rows}") / "a.csv"
    low, high = format_detection.SAMPLING_S
    table = read_table(path, [], "table")
    inside = [u for u, s in format_detection.SECONDS.items() if low <= step * s < high]
    if inside:
        assert format_detection._time_unit(table, "time") == inside[0]
    else:
        with pytest.raises(DataError, match=f"rises by {step:g} from row"):
            format_detection._time_unit(table, "time")
    still = folder(tmp_path, b_D_csv="time,x,y\n1,0.5,0.5\n1,0.5,0.5\n") / "b.csv"
    with pytest.raises(DataError, match="rises by 0 from row"):
        format_detection._time_unit(read_table(still, [], "table"), "time")


def test_a_tenth_of_outliers_does_not_make_pixels(tmp_path):
    for outliers, unit in ((9, "fraction"), (11, "px")):
        x = [900] * outliers + [0.5] * (100 - outliers)
        rows = "".join(f"{i},{side},{side}\n" for i, side in enumerate(x))
        path = folder(tmp_path, a_D_csv=f"t,x,y\n{rows}n,,\n") / "a.csv"
        table = read_table(path, [], "table")
        assert format_detection._place_unit(table, {"x": "x", "y": "y"}) == unit
    path.write_text("t,x,y\n1,,nan\n")
    with pytest.raises(DataError, match="'x' and 'y' hold no number at all"):
        format_detection._place_unit(read_table(path, [], "table"), {"x": "x", "y": "y"})


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["time", "x", "y"], ("time", "x", "y")),
        (["time", "gaze_time", "X", "Y"], ("gaze_time", "X", "Y")),
        (
            ["timestamp", "mouse_x", "mouse_y", "gaze_x", "gaze_y"],
            ("timestamp", "gaze_x", "gaze_y"),
        ),
        (
            ["t", "left_gaze_x", "left_gaze_y", "gaze_x", "gaze_y"],
            ("t", "gaze_x", "gaze_y"),
        ),
        (["t", "left_x", "left_y", "right_x", "right_y"], ("t", "left_x", "left_y")),
        (
            ["RecordingTime", "GazePointX", "GazePointY"],
            ("RecordingTime", "GazePointX", "GazePointY"),
        ),
        (["time", "x"], None),
        (["x", "y"], None),
        (["time", "max", "may"], None),
    ],
)
def test_columns_of_gaze_by_their_names(names, found):
    wanted = {} if found is None else dict(zip(("t", "x", "y"), found, strict=True))
    assert format_detection._gaze_columns(names) == wanted


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        *(("time_ms", "ms"), ("t [us]", "us"), ("t (\u00b5s)", "us"), ("t \u03bcs", "us")),
        *(("t_ns", "ns"), ("items", ""), ("time", ""), ("t_s", ""), ("TIME_MS", "ms")),
    ],
)
def test_units_in_names(name, unit):
    assert format_detection._named_unit(name) == unit


def test_people_and_validity_are_the_first_column_of_such_a_name(tmp_path):
    text = "time_ms,x,y,user,subject,tracked\n0,.5,.5,a,b,1\n20,.5,.5,a,b,1\n"
    found = find_format(folder(tmp_path, p1__a_D_csv=text))
    assert (found.options["columns"]["person"], found.options["columns"]["valid"]) == (
        "user",
        "tracked",
    )
    assert found.notes["columns.person"] == "person = 'user', the first of user, subject"
    assert "columns.valid" not in found.notes


def test_tables_with_other_columns_are_told_and_the_usual_ones_read(tmp_path):
    root = folder(
        tmp_path,
        p1__a_D_csv="time_ms,eye_x,eye_y\n0,.5,.5\n20,.5,.5\n",
        p2__b_D_csv=GAZE,
        p3__c_D_csv=GAZE,
    )
    found = find_format(root)
    assert found.options["columns"]["x"] == "gaze_x"
    assert "p1/a.csv: gaze in other columns than b.csv" in found.notes["files"]


def test_pictures_are_found_by_what_the_cells_name(tmp_path):
    rows = "".join(f"{20 * i},0.5,0.5,C:\\x\\A.PNG,{i}\n" for i in range(4))
    root = folder(tmp_path, shown__a_D_png="", g_D_csv=f"time_ms,x,y,what,trial\n{rows}")
    found = find_format(root)
    assert found.data == "stimuli"
    assert found.options["stimuli"] == "shown"
    assert found.options["place"] == "picture"
    assert found.options["columns"]["stimulus"] == "what"
    assert "taken for one person's" in found.notes["columns.person"]
    half = rows.replace("A.PNG", "other", 2)
    (root / "g.csv").write_text(f"time_ms,x,y,what,trial\n{half}")
    assert find_format(root).data == "gaze_table"
    (root / "g.csv").write_text(f"time_ms,x,y,what,trial\n{rows.replace('A.PNG', '-', 1)}")
    assert find_format(root).options["columns"]["stimulus"] == "what"
    (root / "g.csv").write_text(f"time_ms,x,y,image name,trial\n{half}")
    assert find_format(root).options["columns"]["stimulus"] == "image name"
    (root / "g.csv").write_text(f"time_ms,x,y,image name,picture\n{half}")
    assert find_format(root).data == "gaze_table"


def test_the_folder_of_most_pictures_is_that_of_the_stimuli(tmp_path):
    names = ("a__1_D_png", "b__1_D_png", "b__2_D_png", "c__d__1_D_png", "c__d__2_D_png")
    folder(tmp_path, **dict.fromkeys(names, ""), v__1_D_mp4="", v__2_D_mp4="", v__3_D_mp4="")
    assert format_detection._stimulus_folder(tmp_path, {}) == {"stimuli": "b"}
    assert format_detection._stimulus_folder(tmp_path, {"stimuli": "x"}) == {}
    for path in tmp_path.rglob("*.png"):
        path.unlink()
    assert format_detection._stimulus_folder(tmp_path, {}) == {"stimuli": "v"}
    for path in tmp_path.rglob("*.mp4"):
        path.unlink()
    with pytest.raises(DataError, match="no pictures or videos"):
        format_detection._stimulus_folder(tmp_path, {})


def test_no_columns_of_gaze_are_answered_with_the_longest_header(tmp_path):
    root = folder(tmp_path, a_D_csv="time_us,a\n1,2\n", b_D_csv="time_us,b,c\n1,2,3\n")
    with pytest.raises(DataError, match=r"b\.csv: no columns of time, x and y") as caught:
        find_format(root)
    assert "header: time_us, b, c; name them" in str(caught.value)
    assert 't_unit="us"}' in str(caught.value)
    folder(root, a_D_png="")
    with pytest.raises(DataError, match=r't_unit="us", stimulus="\.\.\."'):
        find_format(root)
    (root / "b.csv").write_text("time,b,c\n1,2,3\n")
    with pytest.raises(DataError, match='t_unit="s"'):
        find_format(root)


def test_each_file_beside_its_video_is_a_person(tmp_path):
    names = [f"{who}_D_csv" for who in ("ann", "bob", "cat", "dan", "eve")]
    root = folder(tmp_path, **dict.fromkeys(names, GAZE), ann_D_mp4="")
    found = find_format(root)
    assert found.options["files"] == "{person}.csv"
    assert "5 people (ann, bob, cat, dan, ...)" in found.notes["files"]
    assert "federation.files='*.csv'" in found.notes["files"]
    (root / "eve.csv").rename(root / "eve.txt")
    assert find_format(root).options["files"] == "{person}.*"
    (root / "ann.mp4").unlink()
    assert "files" not in find_format(root).options
    four = folder(tmp_path / "four", **dict.fromkeys(names[:4], GAZE), bob_D_mp4="")
    assert "4 people (ann, bob, cat, dan);" in find_format(four).notes["files"]
    one = folder(tmp_path / "one", ann_D_csv=GAZE, ann_D_mp4="")
    assert "files" not in find_format(one).options


def test_tables_of_other_things_are_left_out_by_name_or_columns(tmp_path):
    files = {
        f"S0{i}_{what}_D_csv": GAZE for i in (1, 2) for what in ("free", "look", "calibration")
    }
    root = folder(tmp_path, **files, S01_info_D_csv="name,age\na,3\n")
    found = find_format(root)
    assert found.options["files"] == "{person}_{condition}.csv"
    assert found.options["without"] == [
        "S01_calibration.csv",
        "S01_info.csv",
        "S02_calibration.csv",
    ]
    assert found.notes["without"].startswith("S01_calibration.csv, S02_calibration.csv not read")
    assert "files" not in find_format(root, {"files": "*.csv"}).options
