"""`vergence data import` on folders as labs leave them: who is a person, and which tables are read.

Each layout writes tables of gaze on eight pictures, and what else lies about; the test says how
many people and tables there are.
"""

import shutil
import tomllib

import numpy as np
import pytest

from tests.cli.commands import vergence
from tests.data.fabricated_exports import LAB, beside, look, pictures
from tests.data.footage import write_video

NAMES = [f"scene_{i:02d}" for i in range(8)]


def gaze(seed, person="", delimiter=",", names=NAMES, head="time_ms,x_px,y_px,image"):
    """A table of a person's gaze on all pictures, with a column of people if one is named."""
    lines = [head + (",participant" if person else "")]
    for n, name in enumerate(names):
        for i, (x, y) in enumerate(look(100 * seed + n, 20)):
            cells = [1000 * n + 20 * i, f"{640 * x:.1f}", f"{480 * y:.1f}", f"{name}.png"]
            lines.append(",".join(map(str, [*cells, *([person] if person else [])])))
    return "\n".join(lines).replace(",", delimiter) + "\n"


def flat(names, **more):
    return {name: gaze(i) for i, name in enumerate(names)} | more


FREE_SEARCH = [f"S{i:02d}_{task}.csv" for i in range(1, 4) for task in ("free", "search")]
SIDE = {
    "questionnaire.csv": "id,q1,q2\n1,3,4\n",
    "events.csv": "time_ms,event\n0,start\n",
    "summary.csv": "participant,image,fixations,dwell_ms\n1,scene_00.png,3,900\n",
    "readme.txt": "",
    "protocol.txt": "Thursday: lamp broken; x was 3, y was 4.\nFriday: fine\n",
}
LAYOUTS = {
    # name: files, people, tables read, tables in all
    "participants beside": (flat([f"P{i}.csv" for i in range(6)], **LAB, **SIDE), 6, 6, 11),
    "two tasks each": (flat(FREE_SEARCH), 3, 6, 6),
    "two tasks each, below data": (flat([f"data/{n}" for n in FREE_SEARCH]), 3, 6, 6),
    "folder of a task": (
        flat([f"{task}/S{i}.csv" for task in ("free", "search") for i in (1, 2, 3)]),
        3,
        6,
        6,
    ),
    "folder of a person": (
        flat([f"{who}/{task}.csv" for who in ("ann", "bob", "cy") for task in ("a", "b")]),
        3,
        6,
        6,
    ),
    "folder of a person with a date": (
        flat([f"sub-0{i}/ses-1/sub-0{i}_task-free_gaze.csv" for i in (1, 2, 3)]),
        3,
        3,
        3,
    ),
    "sessions of a person in names": (
        flat([f"sub-0{i}_ses-{s}_gaze.csv" for i in (1, 2, 3) for s in (1, 2)]),
        3,
        6,
        6,
    ),
    "one folder above": (flat(["export/ann.csv", "export/bob.csv"]), 2, 2, 2),
    "numbers in one folder": (
        flat([f"data/0{i}_view_2024-02-0{i}_10h12.33.1_gaze.csv" for i in (1, 2, 3)]),
        3,
        3,
        3,
    ),
    "numbers": (flat(["1.csv", "2.csv", "10.csv"]), 3, 3, 3),
    "copies": (
        {"P1.csv": gaze(1), "P2.csv": gaze(2), "P1 (1).csv": gaze(1), "copy of P2.csv": gaze(2)},
        2,
        2,
        4,
    ),
    "csv and tsv": (
        {
            "P1.csv": gaze(1),
            "P2.csv": gaze(2),
            "P1.tsv": gaze(1, "", "\t"),
            "P2.tsv": gaze(2, "", "\t"),
        },
        2,
        2,
        4,
    ),
    "all people in one table": (
        {"all.csv": gaze(1, "a") + gaze(2, "b").split("\n", 1)[1]},
        2,
        1,
        1,
    ),
    "all people in one table beside theirs": (
        {
            "P1.csv": gaze(1, "P1"),
            "P2.csv": gaze(2, "P2"),
            "all.csv": gaze(1, "P1") + gaze(2, "P2").split("\n", 1)[1],
        },
        2,
        2,
        3,
    ),
    "column beside name": ({f"P0{i}.csv": gaze(i, str(i)) for i in (1, 2, 3)}, 3, 3, 3),
    "two tasks with a column": (
        {n: gaze(i, f"S0{i // 2 + 1}") for i, n in enumerate(FREE_SEARCH)},
        3,
        6,
        6,
    ),
    "calibration": (
        flat(["P1.csv", "P2.csv", "P1_calibration.csv", "P2_calibration.csv"]),
        2,
        2,
        4,
    ),
    "mouse without pictures": (
        flat(["P1.csv", "P2.csv"], **{"mouse.csv": "time_ms,x_px,y_px\n0,3,4\n"}),
        2,
        2,
        3,
    ),
    "pictures beside": (flat(["pics/ann.csv", "pics/bob.csv"]), 2, 2, 2),
}


def lab(tmp_path, files, shown="stimuli"):
    root = tmp_path / "data"
    pictures(root / shown)
    beside(root, files)
    return root


def imported(tmp_path, *sets, place="picture"):
    out = tmp_path / "own.toml"
    given = ["federation.size=[32,24]", *([f"federation.place={place}"] if place else []), *sets]
    said = vergence(
        "data", "import", tmp_path / "data", "--out", out, *[w for s in given for w in ("--set", s)]
    )
    return said, out


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_people_and_tables_of_a_folder(tmp_path, layout):
    files, people, read, total = LAYOUTS[layout]
    lab(tmp_path, files, "pics" if layout == "pictures beside" else "stimuli")
    said, out = imported(tmp_path)
    assert said.code == 0, said.err
    assert f"\n{read} of {total} table{'s' * (total > 1)} read, {people} people; left out: " in (
        said.out
    )
    asked = "look at this: " in said.out and f"{read} tables are of {people} people" in said.out
    assert asked == (read > people)
    # The file that was written says the same when it is read by itself.
    checked = vergence("data", "check", out)
    assert checked.code == 0, checked.out
    assert checked.out.count("valid gaze") == people


def written(out):
    return tomllib.loads(out.read_text())["federation"]


def test_every_option_of_the_page_goes_through_for_gaze_on_a_screen(tmp_path):
    """Pictures lie outside of the folder; columns, files and place are all given, some by key."""
    root = lab(tmp_path, flat(["raw/S1.csv", "raw/S2.csv", "old/S1.csv", "raw/S3.csv"], **LAB))
    (root / "stimuli").rename(tmp_path / "shown")
    sets = {
        "files": "raw/{person}.csv",
        "without": ["raw/S3.csv"],
        "stimuli": str(tmp_path / "shown"),
        "place": "centre",
        "screen": [640, 480],
        "shown_size": [640, 480],
        "origin": "top_left",
        "clock": "sort",
        "unknown": "skip",
        "points": 5,
        "people": ["S2", "S1"],
        "split_seed": 3,
        "shares": [0.6, 0.2, 0.2],
        "columns.t_unit": "ms",
        "columns.missing": [-1],
        "columns.unit": "px",
    }
    said, out = imported(tmp_path, *(f"federation.{k}={v}" for k, v in sets.items()), place="")
    assert said.code == 0, said.err
    own = written(out)
    for key, value in sets.items():
        found = own["columns"][key[8:]] if key.startswith("columns.") else own[key]
        assert found == value, key
    assert "place = 'picture'" not in said.out + out.read_text()
    assert "were guessed" not in said.out
    assert "chosen by their names" in said.out
    assert "2 of 5 tables read, 2 people; left out: old/S1.csv (name is not " in said.out
    assert "participants.csv (no gaze)" in said.out


@pytest.mark.parametrize(
    "columns", ['{t="time_ms", x="x_px", y="y_px", unit="px", t_unit="ms", stimulus="image"}']
)
@pytest.mark.parametrize("ending", [".csv", ".tsv", ".txt"])
def test_columns_that_are_given_find_tables_of_every_ending(tmp_path, columns, ending):
    """Beside their pictures: flat, with notes and a table of participants."""
    files = {f"{who}{ending}": gaze(i) for i, who in enumerate(("ann", "bob"))}
    lab(tmp_path, files | LAB, ".")
    said, out = imported(tmp_path, f"federation.columns={columns}")
    assert said.code == 0, said.err
    assert "2 of 3 tables read, 2 people" in said.out
    assert "look at this" not in said.out
    assert "files" not in written(out)


def test_offset_in_place_of_place(tmp_path):
    lab(tmp_path, flat(["ann.csv", "bob.csv"]))
    sets = ["federation.offset=[0,0]", "federation.screen=[640,480]"]
    said, out = imported(tmp_path, *sets, place="")
    assert said.code == 0, said.err
    out.unlink()
    said, _ = imported(tmp_path, "federation.name=gaze_table")
    said.complains(2, "is read as 'stimuli'", "not as 'gaze_table'")
    said, _ = imported(tmp_path, "federation.root=elsewhere")
    said.complains(2, "federation.root out")


def glasses(tmp_path, tables):
    for i, name in enumerate(tables):
        rows = [
            f"{50 * k},{640 * x:.1f},{480 * y:.1f},0.9" for k, (x, y) in enumerate(look(i, 720))
        ]
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(["time_ms,gaze_x,gaze_y,confidence", *rows]))
        write_video(path.with_suffix(".mp4"), np.arange(180) / 5)
    beside(tmp_path / "data", LAB)


def test_every_option_of_the_page_goes_through_for_glasses(tmp_path):
    glasses(tmp_path, ["ann_1.csv", "ann_2.csv", "bob_1.csv", "bob_2.csv"])
    sets = {
        "files": "{person}_{recording}.csv",
        "videos": "{person}_{recording}.mp4",
        "start": "first",
        "scene_size": [640, 480],
        "origin": "top_left",
        "lens": "pinhole",
        "fov_deg": [80, 60],
        "clock": "refuse",
        "stride_s": 2.0,
        "people": ["ann"],
        "columns.valid_from": 0.6,
    }
    said, out = imported(tmp_path, *(f"federation.{k}={v}" for k, v in sets.items()), place="")
    assert said.code == 0, said.err
    own = written(out)
    for key, value in sets.items():
        assert (own["columns"][key[8:]] if key.startswith("columns.") else own[key]) == value, key
    assert (
        "2 of 5 tables read, 1 person; left out: bob_1.csv, bob_2.csv (not in people)" in said.out
    )


def test_recordings_of_one_person_of_glasses_are_told_by_names(tmp_path):
    """Two recordings of each of two people in one folder, and what macOS leaves beside a video."""
    glasses(tmp_path, ["ann_1.csv", "ann_2.csv", "bob_1.csv", "bob_2.csv"])
    (tmp_path / "data" / "._ann_1.mp4").write_bytes(b"\0\5\x16\7")
    sets = ["federation.scene_size=[640,480]"]
    said, out = imported(tmp_path, *sets, place="")
    assert said.code == 0, said.err
    assert written(out)["files"] == "{person}_*.csv"
    assert "4 of 5 tables read, 2 people; left out: participants.csv (no gaze)" in said.out
    assert "look at this: 4 tables are of 2 people: ann (ann_1.csv, ann_2.csv); bob (" in said.out


def test_a_name_that_tells_another_person_than_the_column_is_asked_about(tmp_path):
    files = {f"P0{i}.csv": gaze(i, f"P{i}") for i in (1, 2, 3)} | {"P04.csv": gaze(4, "P5")}
    lab(tmp_path, files)
    said, _ = imported(tmp_path)
    assert said.code == 0, said.err
    assert "look at this: P04.csv is of 'P5': the column of people and the name" in said.out


def test_one_person_is_said_to_be_no_comparison(tmp_path):
    lab(tmp_path, {"a/x.csv": gaze(1), "a/y.csv": gaze(2)})
    said, _ = imported(tmp_path)
    assert said.code == 0, said.err
    assert "look at this: only one person" in said.out or "2 people" in said.out


def test_links_are_followed_once_and_without_end(tmp_path):
    """A folder of a person elsewhere, a linked table, a link to the folder itself and upwards."""
    elsewhere = tmp_path / "disk"
    beside(elsewhere, {"ann/gaze.csv": gaze(1), "bob.csv": gaze(2)})
    root = lab(tmp_path, {"cy/gaze.csv": gaze(3)})
    (root / "ann").symlink_to(elsewhere / "ann")
    (root / "bob").mkdir()
    (root / "bob" / "gaze.csv").symlink_to(elsewhere / "bob.csv")
    (root / "again").symlink_to(root / "cy")
    (root / "loop").symlink_to(root)
    (root / "up").symlink_to(tmp_path)
    (root / "broken").symlink_to(tmp_path / "nowhere")
    shutil.move(root / "stimuli", tmp_path / "pictures")
    (root / "stimuli").symlink_to(tmp_path / "pictures")
    said, _ = imported(tmp_path)
    assert said.code == 0, said.err
    assert "3 of 3 tables read, 3 people" in said.out
    for person in ("ann", "bob", "cy"):
        assert f"│ {person} " in said.out


def test_a_table_that_is_damaged_is_refused_and_may_be_left_out(tmp_path):
    """An empty .csv may be somebody's failed recording: nobody is dropped without a word."""
    lab(tmp_path, flat(["P1.csv", "P2.csv"], **{"P3.csv": ""}))
    said, _ = imported(tmp_path)
    said.complains(3, "P3.csv is empty")
    said, _ = imported(tmp_path, 'federation.without=["P3.csv"]')
    assert said.code == 0, said.err
    assert "2 of 3 tables read, 2 people; left out: P3.csv (no table)" in said.out


def test_exports_of_two_makers_are_told_apart_by_a_preset(tmp_path):
    from tests.data.fabricated_exports import EXPORTS

    EXPORTS["gazepoint"](tmp_path / "data")
    EXPORTS["pupil_neon"](tmp_path / "data")
    said, _ = imported(tmp_path, place="")
    said.complains(3, "holds several formats", "--set federation.preset=")
    said, _ = imported(tmp_path, "federation.preset=gazepoint", place="")
    assert said.code == 0, said.err
    assert "tables read, 2 people; left out: " in said.out


def test_a_preset_of_ones_own_is_a_file(tmp_path):
    """A tracker that the package does not know; a misspelt key of the file is named."""
    root = lab(tmp_path, {f"{who}.log.csv": gaze(i) for i, who in enumerate("ab")} | LAB)
    text = """
title = "My tracker"
data = "stimuli"
source = "my lab"
files = ["**/{person}.log.csv"]
known_by = ["x_px"]
[[columns]]
t = "time_ms"
x = "x_px"
y = "y_px"
unit = "px"
t_unit = "ms"
stimulus = "image"
"""
    own = tmp_path / "my_tracker.toml"
    own.write_text(text)
    said, out = imported(tmp_path, f"federation.preset={own}")
    assert said.code == 0, said.err
    assert "format: My tracker, as said (--set)" in said.out
    assert "2 of 3 tables read, 2 people" in said.out
    assert vergence("data", "check", out).code == 0
    own.write_text(text.replace("source", "sourse"))
    out.unlink()
    said, out = imported(tmp_path, f"federation.preset={own}")
    said.complains(2, "my_tracker.toml is no preset", "sourse")
    said, out = imported(tmp_path, "federation.preset=my_trakker.toml")
    said.complains(2, "my_trakker.toml is no preset", "No such file")
    assert root.is_dir()
