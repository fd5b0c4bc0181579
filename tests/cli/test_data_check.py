"""`vergence data check`: what it prints is what was found, square brackets and all."""

import pytest

from tests.cli.commands import ONE, vergence, write

OWN = "time_ns,x,y\n1,0.5,0.5\n"
STAMPS = "timestamp [ns]\n1\n2\n"


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")


@pytest.mark.parametrize("name", ["mine", "[/x]", "[bold]", "a [b"])
def test_columns_and_paths_keep_their_square_brackets(tmp_path, name):
    folder = tmp_path / name / "001"
    folder.mkdir(parents=True)
    (folder / "gaze.csv").write_text(OWN)
    (folder / "world_timestamps.csv").write_text(STAMPS)
    said = vergence("data", "check", "pupil", "--root", tmp_path / name)
    assert said.code == 3, said.err
    shown = " ".join(said.out.replace("│", " ").split())
    for words in (
        "missing columns",
        "timestamp [ns]",
        "gaze x [px]",
        "gaze y [px]",
        str(folder),
        "found time_ns, x, y",
        "rename the columns that hold these, or export it again",
    ):
        assert words in shown, (words, shown)
    assert "Traceback" not in said.err


def test_a_folder_that_is_not_there_is_named_with_all_places(monkeypatch):
    monkeypatch.setenv("VERGENCE_DATA", "/nowhere/data")
    said = vergence("data", "check", "pupil", "--root", "PUPIL")
    words = "no folder /nowhere/data/PUPIL, and no PUPIL in the working directory", "--root"
    said.complains(3, *words)
    assert said.out == ""


def test_a_run_names_the_places_of_its_data_too(tmp_path, monkeypatch):
    monkeypatch.setenv("VERGENCE_DATA", "/nowhere/data")
    text = ONE.replace('name = "toy", people = 3', 'name = "pupil", root = "PUPIL"')
    said = vergence("run", write(tmp_path, text), "--out", tmp_path / "out")
    said.complains(
        3, "no folder /nowhere/data/PUPIL, and no PUPIL in the working directory", "root"
    )


def test_a_missing_folder_with_brackets_is_one_line(tmp_path):
    said = vergence("data", "check", "osie", "--root", tmp_path / "[/x]")
    assert said.code == 3, said.err
    assert "[/x]" in said.out + said.err
