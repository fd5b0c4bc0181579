"""Which part of file names is the person, which tables are copies, and what a summary says."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from vergence.data.gaze_video import gaze_files
from vergence.data.gaze_video.gaze_columns import GazeColumns
from vergence.data.gaze_video.gaze_files import (
    GazeFiles,
    default_person,
    people_of_paths,
    person_pattern,
    why_no_gaze,
)
from vergence.errors import DataError

ROOT = Path("/root/folder")
COLUMNS = GazeColumns(t="t", x="x", y="y", unit="px", t_unit="ms")


@pytest.mark.parametrize(
    ("names", "pattern"),
    [
        (["S01_free.csv", "S01_search.csv", "S02_free.csv"], "{person}_*.csv"),
        # As many tasks as people are no people.
        (["free/S01.csv", "search/S01.csv", "free/S02.csv"], "*/{person}.csv"),
        (["free/S1.csv", "free/S2.csv", "look/S1.csv", "look/S2.csv"], "{condition}/{person}.csv"),
        (["sub-1_ses-1.csv", "sub-1_ses-2.csv", "sub-2_ses-1.csv"], "sub-{person}_ses-*.csv"),
        (
            ["sub-1_ses-01.csv", "sub-1_ses-02.csv", "sub-2_ses-01.csv", "sub-2_ses-02.csv"],
            "sub-{person}_ses-{session}.csv",
        ),
        (["S1/day1.csv", "S1/day2.csv", "S2/day1.csv", "S2/day2.csv"], ""),
        (["sub-1_run-1.csv", "sub-1_run-2.csv", "sub-2_run-1.csv"], "sub-{person}_run-*.csv"),
        (["run_1_p_7.csv", "run_2_p_7.csv", "run_1_p_8.csv"], "run_*_p_{person}.csv"),
        # Without a part such as S01, the part with most values is the person.
        (["a_ann.csv", "b_ann.csv", "a_bob.csv", "b_eve.csv"], "{condition}_{person}.csv"),
        (["ann_a.csv", "ann_b.csv", "bob_a.csv", "eve_b.csv"], "{person}_{condition}.csv"),
        # Of two parts with equally many values, the first.
        (["ann_x.csv", "ann_y.csv", "bob_x.csv", "bob_y.csv"], "{person}_{condition}.csv"),
        # A part such as S01 comes before one with more values, and of two, the first.
        (["a_S1.csv", "b_S1.csv", "c_S2.csv"], "*_{person}.csv"),
        (["P1_S1.csv", "P1_S2.csv", "P2_S3.csv"], "{person}_*.csv"),
        # Where every file or every folder is one person anyway, no pattern is needed.
        (["S01.csv", "S02.csv"], ""),
        (["S01/a.csv", "S02/a.csv"], ""),
        (["ann/x.csv", "ann/y.csv", "bob/x.csv"], ""),
        # Numbers and sessions alone are no people.
        (["run_1.csv", "run_2.csv", "run_3.csv"], ""),
        (["1_2.csv", "1_3.csv", "2_2.csv"], ""),
        (["same.csv"], ""),
        # Names of different shapes have no parts in common.
        (["S01_a.csv", "S01_b_c.csv"], ""),
        (["S01_a b.csv", "S02_a b c.csv", "S01_b.csv"], "{person}_*.csv"),
    ],
)
def test_the_person_among_the_parts_of_names(names, pattern):
    assert person_pattern(ROOT, [ROOT / name for name in names]) == pattern


@pytest.mark.parametrize(
    ("names", "pattern"),
    [
        (["all/1_2.csv", "all/1_3.csv", "all/2_2.csv"], "all/{person}_*.csv"),
        (["all/run_1.csv", "all/run_2.csv"], "all/run_{person}.csv"),
    ],
)
def test_numbers_are_people_where_that_is_said(names, pattern):
    paths = [ROOT / name for name in names]
    assert person_pattern(ROOT, paths) == ""
    assert person_pattern(ROOT, paths, numbers=True) == pattern


def test_people_of_paths_are_the_first_folders_that_differ():
    assert people_of_paths(["data/ann/1.csv", "data/bob/1.csv"]) == ["ann", "bob"]
    assert people_of_paths(["ann/day1/a.csv", "ann/day2/a.csv"]) == ["ann", "ann"]
    assert people_of_paths(["a\\x\\1.csv", "a\\y\\1.csv"]) == ["x", "y"]
    assert people_of_paths(["all/1.csv", "all/2.csv"]) == ["all", "all"]
    assert people_of_paths(["ann/1.csv", "2.csv"]) == ["ann", ""]
    assert people_of_paths(["all/ann/1.csv", "all/2.csv"]) == ["all", "all"]
    assert people_of_paths([]) == []
    assert default_person(ROOT, ROOT / "ann" / "day" / "x.csv") == "ann"
    assert default_person(ROOT, ROOT / "ann.csv") == "ann"


def rows(start, stop, places=None, valid=True):
    """Gaze rows at times `start` to `stop`, whose places tell the time, or are given."""
    t = np.arange(start, stop)
    x = np.sin(t) if places is None else places
    return SimpleNamespace(
        ticks=t,
        scale=1e-3,
        x=x,
        y=x / 3,
        valid=np.full(len(t), valid),
        stimulus=np.full(len(t), ""),
    )


@pytest.mark.parametrize(
    ("tables", "copies"),
    [
        ({"all": (0, 40), "a": (0, 20), "b": (20, 40)}, ["all"]),
        ({"a": (0, 20), "a (1)": (0, 20)}, ["a (1)"]),
        ({"a": (0, 19), "a (1)": (0, 19)}, []),
        # 18 of 20 samples are nine tenths, and no copy; 19 are one.
        ({"a": (0, 20), "b": (2, 30)}, []),
        ({"a": (0, 20), "b": (1, 30)}, ["a"]),
        # 9 of 10 samples of the parts lie in the whole table: the parts are not inside it.
        ({"all": (0, 20), "a": (-1, 9), "b": (9, 20)}, []),
        ({"all": (0, 21), "a": (-1, 10), "b": (10, 21)}, ["all"]),
        ({"a": (0, 30), "b": (30, 60)}, []),
    ],
)
def test_tables_that_repeat_others(tables, copies):
    made = [(Path(name), rows(*span)) for name, span in tables.items()]
    assert [path.name for path in gaze_files._copies(made)] == copies


def test_only_valid_samples_on_the_same_picture_are_repeated():
    assert (
        gaze_files._copies([(Path("a"), rows(0, 30, valid=False)), (Path("b"), rows(0, 30))]) == []
    )
    other = rows(0, 30)
    other.stimulus = np.full(30, "b.png")
    assert gaze_files._copies([(Path("a"), rows(0, 30)), (Path("b"), other)]) == []
    moved = rows(0, 30)
    moved.scale = 1.0
    assert gaze_files._copies([(Path("a"), rows(0, 30)), (Path("b"), moved)]) == []


def files(read, left_out):
    return GazeFiles(
        ROOT,
        {ROOT / name: {} for name in read},
        {ROOT / name: why for name, why in left_out.items()},
    )


def test_a_summary_counts_tables_and_people_and_names_six_of_each_reason():
    few = files(["a.csv"], {"readme.txt": "no table"})
    assert few.summary(["ann"]) == "1 of 1 table read, 1 person; left out: none"
    left_out = {f"{i}.csv": "no gaze" for i in range(7)} | {"b.csv": "no table", "c.csv": "without"}
    many = files(["a.csv", "b.csv"], left_out)
    assert many.summary(["ann", "bob"]) == (
        "1 of 10 tables read, 2 people; left out: 0.csv, 1.csv, 2.csv, 3.csv, 4.csv, 5.csv, ... "
        "(no gaze), b.csv (no table), c.csv (without)"
    )
    six = files([], dict([*left_out.items()][:6]))
    assert "5.csv (no gaze)" in six.summary([])


def written(folder, **texts):
    for name, text in texts.items():
        path = folder / name.replace("__", "/").replace("_csv", ".csv").replace("_txt", ".txt")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return folder


GAZE, OTHER = "t,x,y\n1,2,3\n", "name,age\nann,3\n"


def chosen(root, patterns=(), without=(), exact=False, sets=(COLUMNS,), pictures=None):
    made = GazeFiles.of(root, patterns, without, sets, exact, pictures)

    def names(paths):
        return {path.relative_to(root).as_posix(): value for path, value in paths.items()}

    return names(made.tables), names(made.left_out)


def test_tables_are_chosen_by_pattern_and_columns(tmp_path):
    root = written(tmp_path, a_csv=GAZE, b_csv=OTHER, c_csv="t,x\n1,2\n", d_txt="hello\n")
    (tmp_path / "e.png").touch()
    lacks = {"b.csv": "no gaze", "d.txt": "no table"}
    assert chosen(root) == ({"a.csv": {}, "c.csv": {}}, lacks)
    assert chosen(root, without=("a*", "b*")) == (
        {"c.csv": {}},
        {"a.csv": "without", "b.csv": "no gaze", "d.txt": "no table"},
    )
    named, left_out = chosen(root, ("x.csv", "{person}.csv", "*"), exact=True)
    assert named == {"a.csv": {"person": "a"}, "b.csv": {"person": "b"}, "c.csv": {"person": "c"}}
    assert left_out == {"d.txt": "no table"}
    named, left_out = chosen(root, ("a.csv",))
    assert named == {"a.csv": {}}
    assert left_out == {"c.csv": "no column 'y'", **lacks}
    assert chosen(root, ("b.csv",)) == (
        {"b.csv": {}},
        {"a.csv": "name is not 'b.csv'", "c.csv": "no column 'y'", "d.txt": "no table"},
    )
    with pytest.raises(DataError, match=r"fits files = '\*\.tsv' or '\*\.dat'"):
        chosen(root, ("*.tsv", "*.dat"))
    with pytest.raises(DataError, match=r"fits files = '\*\*/\*\.csv'"):
        chosen(root, without=("*",))


def test_tables_among_the_pictures_need_the_columns_even_if_a_pattern_names_them(tmp_path):
    root = written(tmp_path, pictures__b_csv=OTHER, a_csv=OTHER)
    assert chosen(root, ("**/*.csv",), exact=True, pictures=root / "pictures") == (
        {"a.csv": {}},
        {"pictures/b.csv": "no gaze"},
    )
    assert set(chosen(root, ("**/*.csv",), exact=True)[0]) == {"a.csv", "pictures/b.csv"}


def test_reasons_why_a_table_has_no_gaze(tmp_path):
    other = GazeColumns(t="t", x="u", y="v")
    for text, sets, why in (
        (GAZE, [COLUMNS], ""),
        (GAZE, [other, COLUMNS], ""),
        (GAZE, [other], "no gaze"),
        ("t,u\n1,2\n", [other], "no column 'v'"),
        ("t,u\n1,2\n", [COLUMNS, other], "no column 'x'"),
        ("t\n1\n", [COLUMNS], "no table"),
        (OTHER, [], "no gaze"),
    ):
        path = tmp_path / "a.csv"
        path.write_text(text)
        assert why_no_gaze(path, sets) == why, text
    path.write_bytes(b"\0" + b"a" * 99)
    assert why_no_gaze(path, [COLUMNS]) == "no table"
    with pytest.raises(DataError):
        why_no_gaze(path, [COLUMNS], strict=True)
    text = path.rename(tmp_path / "a.TXT")
    assert why_no_gaze(text, [COLUMNS], strict=True) == "no table"
