"""`vergence data import`: each maker's export, imported, checked, trained on and predicted."""

import tomllib

import numpy as np
import pytest

from tests.cli.commands import vergence
from tests.data.fabricated_exports import EXPORTS, FISHEYE, PICTURES, SCREEN, look, pictures
from tests.data.footage import write_video
from vergence.data.gaze_video.gaze_presets import PRESETS

SAID = {
    "aria_mps": f"federation.fov_deg={list(FISHEYE)}",
    "eyelink_fixation_report": f"federation.screen={list(SCREEN)}",
    "imotions": f"federation.screen={list(SCREEN)}",
    "smi_begaze": f"federation.screen={list(SCREEN)}",
}
"""What the files of these do not hold."""
SMALL = "federation.size=[64,48]"
QUICK = (
    *("run.rounds=1", "run.workers=1", "local.steps=1", "model.width=8"),
    'methods=["fedavg"]',
)
DAILY = ("pupil_neon", "gazepoint")


def imported(tmp_path, *sets):
    """The command on `tmp_path/data`, and the file that it is to write."""
    out = tmp_path / "own.toml"
    given = [word for item in (SMALL, *sets) for word in ("--set", item)]
    return vergence("data", "import", tmp_path / "data", "--out", out, *given), out


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")


@pytest.mark.parametrize("preset", list(EXPORTS))
def test_every_export_is_named_and_checked(tmp_path, preset):
    EXPORTS[preset](tmp_path / "data")
    said, out = imported(tmp_path, *([SAID[preset]] if preset in SAID else []))
    assert said.code == 0, said.err
    assert f"format: {PRESETS[preset].title}, certain (" in said.out
    experiment = tomllib.loads(out.read_text())
    written = experiment["federation"]
    assert (written["name"], written["preset"]) == (PRESETS[preset].data, preset)
    video = PRESETS[preset].data != "stimuli"
    network = ("glc_causal", 10) if video else ("glc_features", 20)
    assert (experiment["model"]["name"], experiment["local"]["batch"]) == network
    assert (written.get("window"), written.get("stride_s")) == ((8, 2.0) if video else (None, None))
    checked = vergence("data", "check", out)
    assert checked.code == 0, checked.out
    assert checked.out.count("valid gaze") == 2


@pytest.mark.parametrize(
    "preset",
    [name if name in DAILY else pytest.param(name, marks=pytest.mark.slow) for name in EXPORTS],
)
def test_what_was_written_trains_and_predicts(tmp_path, preset):
    EXPORTS[preset](tmp_path / "data")
    said, out = imported(tmp_path, *([SAID[preset]] if preset in SAID else []))
    assert said.code == 0, said.err
    quick = [word for item in QUICK for word in ("--set", item)]
    ran = vergence("run", out, "--out", tmp_path / "out", *quick)
    assert ran.code == 0, ran.err
    video = write_video(tmp_path / "new.mp4", np.arange(4) / 5)
    seen = vergence("predict", tmp_path / "out" / "fedavg", video, "--out", tmp_path / "seen.mp4")
    assert seen.code == 0, seen.err
    assert len((tmp_path / "seen.csv").read_text().splitlines()) == 5


def plain(tmp_path, delimiter=";", decimal=",", unit="px", people=("ann", "bob")):
    """Tables of somebody's own program with one scene video each."""
    size = (64, 48) if unit == "px" else (1, 1)
    for p, person in enumerate(people):
        folder = tmp_path / "data" / person
        write_video(folder / "scene.mp4", np.arange(180) / 5)
        rows = [["frame", "time_ms", "gaze_x", "gaze_y", "confidence"]]
        for i, xy in enumerate(look(p, 720)):
            x, y = (f"{value:.4f}".replace(".", decimal) for value in xy * size)
            rows.append([str(i // 4), str(50 * i), x, y, "0" if i % 50 == 3 else "1"])
        text = "\n".join(delimiter.join(row) for row in rows)
        (folder / "my gaze.csv").write_text(text + "\n", encoding="utf-8-sig")
    return tmp_path


def test_a_plain_table_is_guessed_and_said_to_be_a_guess(tmp_path):
    said, out = imported(plain(tmp_path))
    assert said.code == 0, said.err
    assert (
        "format: gaze table with video, a guess (my gaze.csv has time_ms, gaze_x, gaze_y)"
        in said.out
    )
    assert tomllib.loads(out.read_text())["federation"]["columns"] == {
        "t": "time_ms",
        "x": "gaze_x",
        "y": "gaze_y",
        "t_unit": "ms",
        "unit": "px",
        "valid": "confidence",
    }
    assert "# LOOK AT THIS: columns of my gaze.csv were chosen by their names" in out.read_text()
    assert "# LOOK AT THIS: t_unit = 'ms' and unit = 'px' were guessed" in out.read_text()
    row = next(line for line in said.out.splitlines() if "ann" in line and "720" in line)
    cells = [cell.strip() for cell in row.replace("│", "|").strip(" |").split("|")]
    assert cells[:8] == ["ann", "1", "0.6", "720", "97.9%", "0.0%", "0", "0.0 s"]
    assert cells[8:] == ["8/2/2"]  # of 18 windows, 3 are lost in each of two gaps
    few = "warning: fewer than 10 test samples (ann 2, bob 2)"
    assert few in said.out
    assert "record minutes per person, not seconds" in said.out
    assert "# WARNING: fewer than 10 test samples (ann 2, bob 2)" in out.read_text()


def flat(tmp_path, people=("ann", "bob")):
    """The tables and videos of `plain`, all in one folder."""
    data = plain(tmp_path, people=people) / "data"
    for person in people:
        (data / person / "scene.mp4").rename(data / f"{person}.mp4")
        (data / person / "my gaze.csv").rename(data / f"{person}.csv")
        (data / person).rmdir()
    return data


def test_names_in_one_folder_are_people_and_that_is_said(tmp_path):
    (flat(tmp_path) / "notes.csv").write_text("who,age\nann,31\n")
    said, out = imported(tmp_path)
    assert said.code == 0, said.err
    assert "look at this: each file is taken for a person, by its name: 2 people (ann, bob)" in (
        said.out
    )
    assert "# LOOK AT THIS: each file is taken for a person" in out.read_text()
    written = tomllib.loads(out.read_text())["federation"]
    assert (written["files"], written["without"]) == ("{person}.csv", ["notes.csv"])
    assert "2 of 3 tables read, 2 people; left out: notes.csv (no gaze)" in said.out
    out.unlink()
    said, out = imported(tmp_path, "federation.files=[ab]*.csv")
    said.complains(3, "no gaze table in")
    (tmp_path / "data" / "notes.csv").unlink()
    said, out = imported(tmp_path, "federation.files=*.csv")  # as the note says
    assert said.code == 0, said.err
    assert "each file is taken" not in said.out
    assert "# data: 1.2 min" in out.read_text()


def test_a_missing_video_names_the_person_who_can_be_left_out(tmp_path):
    (flat(tmp_path, ("ann", "bob", "cal")) / "cal.mp4").unlink()
    said, out = imported(tmp_path)
    said.complains(3, "person 'cal' needs one scene video", "people = [...]")
    said, out = imported(tmp_path, 'federation.people=["ann", "bob"]')
    assert said.code == 0, said.err
    assert "cal" not in out.read_text().split("Samples for")[1].split("\n")[0]


def test_much_gaze_outside_the_picture_is_to_be_looked_at(tmp_path):
    """Every other sample is moved to the right of the picture, none of those nearest to a frame."""
    path = plain(tmp_path) / "data" / "ann" / "my gaze.csv"
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    for i in range(2, len(lines), 2):
        frame, t, _, *rest = lines[i].split(";")
        lines[i] = ";".join([frame, t, "99,5", *rest])
    path.write_text("\n".join(lines))
    said, out = imported(tmp_path)
    assert said.code == 0, said.err
    assert "of ann's gaze lies outside the picture: are columns.unit, origin and scene_size" in (
        said.out
    )
    assert "of bob's gaze" not in said.out
    assert "of ann's gaze lies outside" in out.read_text()


def test_gaps_are_counted(tmp_path):
    """Without rows 100 to 139 nothing is valid from row 99, 4.95 s, to row 140, 7.0 s."""
    path = plain(tmp_path, people=("ann",)) / "data" / "ann" / "my gaze.csv"
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    path.write_text("\n".join([*lines[:101], *lines[141:]]))
    said, out = imported(tmp_path)
    assert said.code == 0, said.err
    assert "1 gaps of more than 0.5 s" in out.read_text()
    assert "2.0 s" in said.out


def test_a_table_of_gaze_on_pictures_is_guessed(tmp_path):
    names = pictures(tmp_path / "data" / "images")
    rows = ["participant\ttimestamp\tx\ty\timage"]
    for person in ("ann", "bob"):
        for n, name in enumerate(names):
            for i, (x, y) in enumerate(look(n, 40)):
                stamp = f"2026-01-31T12:00:{n:02d}.{25 * i:03d}+01:00"
                rows.append(f"{person}\t{stamp}\t{640 * x:.1f}\t{480 * y:.1f}\t{name}")
    (tmp_path / "data" / "all.tsv").write_text("\n".join(rows), encoding="utf-16")
    said, out = imported(tmp_path)
    assert said.code == 0, said.err
    assert "table of gaze on stimuli, a guess" in said.out
    written = tomllib.loads(out.read_text())["federation"]
    assert (written["stimuli"], written["place"]) == ("images", "picture")
    assert written["columns"]["t_unit"] == "datetime"
    assert written["columns"]["person"] == "participant"


@pytest.mark.slow
def test_videos_on_a_screen_get_the_causal_network(tmp_path):
    rows = ["participant,time_ms,x,y,video"]
    for n in range(8):
        write_video(tmp_path / "data" / "shown" / f"{n}.mp4", np.arange(12) / 5)
        places = look(n, 48) * (64, 48)
        rows += [f"ann,{50 * i},{x:.1f},{y:.1f},{n}.mp4" for i, (x, y) in enumerate(places)]
    (tmp_path / "data" / "gaze.csv").write_text("\n".join(rows))
    said, out = imported(tmp_path)
    assert said.code == 0, said.err
    written = tomllib.loads(out.read_text())
    assert (written["model"]["name"], written["federation"]["window"]) == ("glc_causal", 8)


@pytest.mark.slow
def test_a_length_of_clips_that_is_said_sets_where_samples_begin(tmp_path):
    said, out = imported(plain(tmp_path), "federation.clip_s=1.6")
    assert said.code == 0, said.err
    written = tomllib.loads(out.read_text())["federation"]
    assert (written["clip_s"], written["window"], "stride_s" in written) == (1.6, 8, False)


def test_a_clock_that_goes_back_is_refused_with_its_row_until_it_is_said_what_to_do(tmp_path):
    path = plain(tmp_path) / "data" / "bob" / "my gaze.csv"
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    lines[300], lines[301] = lines[301], lines[300]
    path.write_text("\n".join(lines))
    said, out = imported(tmp_path)
    said.complains(3, "bob/my gaze.csv: row 302: 'time_ms' goes back from 15000 to 14950", "clock")
    assert not out.exists()
    said, out = imported(tmp_path, "federation.clock=sort")
    assert said.code == 0, said.err
    assert tomllib.loads(out.read_text())["federation"]["clock"] == "sort"


def test_a_cell_that_is_no_number_is_refused_with_file_row_and_column(tmp_path):
    path = plain(tmp_path) / "data" / "ann" / "my gaze.csv"
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    lines[400] = "100;20000;oops;1,0;1"
    path.write_text("\n".join(lines))
    said, out = imported(tmp_path)
    said.complains(3, "ann/my gaze.csv: row 401: 'gaze_x' is 'oops', not a number")
    assert not out.exists()


def test_columns_that_cannot_be_told_are_asked_for(tmp_path):
    path = plain(tmp_path, people=("ann",)) / "data" / "ann" / "my gaze.csv"
    text = path.read_text(encoding="utf-8-sig").replace("gaze_x;gaze_y", "a;b")
    path.write_text(text)
    said, _ = imported(tmp_path)
    columns = "frame, time_ms, a, b, confidence"
    said.complains(3, "no columns of time, x and y are recognised", columns)
    assert 't_unit="ms"' in said.err
    columns = '{t="time_ms", x="a", y="b", unit="px", t_unit="ms"}'
    said, out = imported(tmp_path, f"federation.columns={columns}")
    assert said.code == 0, said.err
    assert "format: gaze table with video, as said (--set)" in said.out
    assert tomllib.loads(out.read_text())["federation"]["columns"]["x"] == "a"


def test_what_is_refused(tmp_path):
    (tmp_path / "data").mkdir()
    said, out = imported(tmp_path)
    said.complains(3, "holds no gaze: no table", "found nothing")
    (tmp_path / "data" / "photo.jpg").touch()
    imported(tmp_path)[0].complains(3, "holds no gaze", "1 .jpg")
    out.write_text("")
    imported(tmp_path)[0].complains(2, "own.toml is there already")
    out.unlink()
    imported(tmp_path, "run.rounds=3")[0].complains(2, "--set takes federation.KEY=VALUE here")
    EXPORTS["gazepoint"](tmp_path / "data" / "a")
    EXPORTS["pupil_neon"](tmp_path / "data" / "b")
    said, _ = imported(tmp_path)
    said.complains(3, "holds several formats: ", "Gazepoint", "Pupil Cloud", "a folder of its own")
    vergence("data", "import", tmp_path / "nowhere", "--out", out).complains(3, "no folder")


def test_formats_of_one_reader_are_one(tmp_path):
    """The Aria reader takes gaze_2d.csv where there is MPS eye gaze beside it."""
    EXPORTS["aria_mps"](tmp_path / "data")
    for person in ("p1", "p2"):
        header = "frame,frame_timestamp_us,gaze_timestamp_us,dt_ms,x,y"
        rows = [f"{i},{200_000 * i},{200_000 * i},0,0.5,0.25" for i in range(180)]
        path = tmp_path / "data" / person / "gaze_2d.csv"
        path.write_text("\n".join([header, *rows]))
    said, out = imported(tmp_path)
    assert said.code == 0, said.err
    assert "format: upright Aria video with gaze_2d.csv, certain" in said.out
    assert tomllib.loads(out.read_text())["federation"]["name"] == "aria"


def test_check_of_an_experiment_names_the_row(tmp_path):
    EXPORTS["gazepoint"](tmp_path / "data")
    said, out = imported(tmp_path)
    assert said.code == 0, said.err
    path = tmp_path / "data" / "result" / "User 2_all_gaze.csv"
    path.write_text(path.read_text().replace(",,,0,0,", ",,0,0,", 1))
    checked = vergence("data", "check", out)
    assert checked.code == 3
    said = "".join(checked.out.replace("│", " ").split())  # a long path is folded
    assert "User2_all_gaze.csv:row2has18cellsinsteadof19" in said


def screen_table(tmp_path, *heads: str):
    """One table of two people's gaze on pictures, with these names of its first columns."""
    count = len(pictures(tmp_path / "data" / "shown"))
    rows = [[*heads, "time_ms", "x", "y"]]
    for p, person in enumerate(("ann", "bob")):
        cells = {"picture": "scene_{:02}.png", "who": person, "item": "{}"}
        keys = [
            "item" if head == "item" else ("picture", "who")[i % 2] for i, head in enumerate(heads)
        ]
        for i in range(count):
            for k, (x, y) in enumerate(look(p, 12) * (640, 480)):
                own = [cells[key].format(i) for key in keys]
                rows.append([*own, str(1000 * i + 20 * k), f"{x:.1f}", f"{y:.1f}"])
    text = "\n".join(",".join(row) for row in rows)
    (tmp_path / "data" / "gaze.csv").write_text(text + "\n")
    return tmp_path


@pytest.mark.parametrize(
    "heads", [("pictures", "name"), ("image_file", "participants"), ("file", "names")]
)
def test_people_and_pictures_of_one_table_are_told_apart_by_its_columns(tmp_path, heads):
    """Two people in one table were one person of the table's name."""
    said, out = imported(screen_table(tmp_path, *heads))
    assert said.code == 0, said.err
    columns = tomllib.loads(out.read_text())["federation"]["columns"]
    assert (columns["stimulus"], columns["person"]) == heads
    assert "ann " in said.out
    assert "bob " in said.out


def test_a_table_without_a_column_of_people_is_said_to_be_one_persons(tmp_path):
    said, out = imported(screen_table(tmp_path, "picture", "code"))
    assert said.code == 0, said.err
    assert "look at this: gaze.csv is taken for one person's" in said.out
    out.unlink()
    said, out = imported(tmp_path, 'federation.columns={person="code"}')
    assert said.code == 0, said.err
    assert "is taken for one person's" not in said.out
    assert "ann " in said.out
    assert "bob " in said.out


def test_of_two_columns_of_people_the_first_counts_and_that_is_said(tmp_path):
    said, out = imported(screen_table(tmp_path, "picture", "person", "scene", "viewer"))
    assert said.code == 0, said.err
    assert "look at this: person = 'person', the first of person, viewer" in said.out
    assert tomllib.loads(out.read_text())["federation"]["columns"]["person"] == "person"


def test_a_column_of_pictures_that_is_said_makes_gaze_on_a_screen(tmp_path):
    """Numbers alone are never guessed to be pictures."""
    path = screen_table(tmp_path, "item", "name")
    for i in range(PICTURES):
        (path / "data" / "shown" / f"scene_{i:02}.png").rename(path / "data" / "shown" / f"{i}.png")
    said, out = imported(path, 'federation.columns={stimulus="item"}')
    assert said.code == 0, said.err
    written = tomllib.loads(out.read_text())["federation"]
    assert (written["name"], written["stimuli"]) == ("stimuli", "shown")
    assert "ann " in said.out
    assert "bob " in said.out


def test_what_a_folder_of_pictures_needs_is_said(tmp_path):
    """A table without known names, then without a stimulus, then without a screen."""
    names = pictures(tmp_path / "data" / "images")
    rows = [f"{40 * i},{4 * i},{3 * i},{names[0]}" for i in range(9)]
    (tmp_path / "data" / "ann.csv").write_text("\n".join(["ms,a,b,shown", *rows]))
    said, _ = imported(tmp_path)
    said.complains(3, 't_unit="ms", stimulus="..."}')
    columns = 'federation.columns={t="ms", x="a", y="b", unit="px", t_unit="ms"'
    said, _ = imported(tmp_path, columns + "}")
    said.complains(3, "needs one scene video", "name columns.stimulus, if pictures were on a")
    said, _ = imported(tmp_path, columns + ', stimulus="shown"}', 'federation.files="*.csv"')
    said.complains(2, "place", "'picture'")
