"""A received folder of recordings: `data import` ends in one line, in bounded time and memory.

Whoever made the folder chose every cell, and the names of files and columns.
"""

import gzip
import json
import tomllib

import numpy as np
import pytest

from tests.cli.commands import vergence
from tests.data.footage import write_video
from vergence.data.gaze_video.gaze_columns import GazeColumns, read_rows
from vergence.data.gaze_video.gaze_table import GazeTable
from vergence.data.gaze_video.tobii import read_gazedata, read_livedata
from vergence.data.saliency.eyelink_asc import read_asc
from vergence.errors import ConfigError, DataError

COLUMNS = GazeColumns(t="t", x="x", y="y", unit="fraction", t_unit="ms", person="who")
HZ, SECONDS = 10, 36


def table(folder, header="t,x,y,who", row="{t},0.5,0.5,me", count=HZ * SECONDS):
    """A gaze table of a recording, and its scene video where there is none."""
    (folder / "p1").mkdir(exist_ok=True)
    path, video = folder / "p1" / "gaze.csv", folder / "p1" / "scene.mp4"
    rows = [row.format(t=i * 1000 // HZ, s=i // HZ, i=i) for i in range(count)]
    path.write_text("\n".join([header, *rows]) + "\n")
    if not video.exists():
        write_video(video, np.arange(5 * SECONDS) / 5)
    return path


@pytest.mark.parametrize(
    "time",
    ["9999-01-01T00:00:{s:02d}.000", "0001-01-01T00:00:00.000+23:59", "-9223372036854775808"],
)
def test_times_that_no_clock_has(tmp_path, time):
    """Their differences do not fit 64 bits: they end with a traceback, or come out wrong."""
    unit = "datetime" if "T" in time else "ms"
    path = table(tmp_path, row=time + ",0.5,0.5,me")
    with pytest.raises(DataError, match=r"gaze.csv: row 2: 't' is '.*', needs a"):
        read_rows(path, GazeColumns(t="t", x="x", y="y", unit="fraction", t_unit=unit))


@pytest.mark.parametrize("start", [1e300, 1e30, float("nan"), "9999-01-01T00:00:00"])
def test_a_start_that_no_clock_has(tmp_path, start):
    table(tmp_path)
    with pytest.raises(ConfigError, match=r"start must lie within 2\^62"):
        GazeTable(columns=COLUMNS, start=start).read(tmp_path)


def test_one_long_name_takes_no_memory_in_every_row(tmp_path):
    """Of fixed width, 60,000 names beside one of 120,000 characters take 27 GiB."""
    path = table(tmp_path, count=100)
    path.write_text(path.read_text() + f"999999,0.5,0.5,{'a' * 120_000}\n")
    with pytest.raises(DataError, match=r"row 102: 'who' has 120,000 characters, at most 1,000"):
        read_rows(path, COLUMNS)


def test_names_of_columns_act_on_no_terminal_and_break_no_experiment(tmp_path):
    """A control character in a comment makes the file one that no TOML reader takes."""
    table(tmp_path, header="timestamp\x01,x\x1b[31m,y\x1b[31m,z")
    out = tmp_path / "own.toml"
    said = vergence(
        *("data", "import", tmp_path, "--out", out, "--set", "federation.size=[64,48]"),
    )
    assert said.code == 0, said.err
    assert "\x1b" not in said.out
    assert "\x01" not in said.out
    written = tomllib.loads(out.read_text())
    assert set(written) == {"federation", "task", "model", "methods", "local", "run"}
    assert written["federation"]["columns"]["x"] == "x\x1b[31m"


@pytest.mark.parametrize("name", ["\x1b[31mred", '"a""\n[federation]\nname=""x.py"', "../../x"])
def test_names_of_people_are_refused_before_anything_is_written(tmp_path, name):
    table(tmp_path, header="timestamp,x,y,person", row="{t},0.5,0.5," + name)
    out = tmp_path / "own.toml"
    said = vergence(
        *("data", "import", tmp_path, "--out", out, "--set", "federation.size=[64,48]"),
    )
    said.complains(3, "person id")
    assert "\x1b" not in said.out
    assert not out.exists()


def test_one_long_picture_of_eyelink_takes_no_memory_in_every_row(tmp_path):
    path = tmp_path / "p1.asc"
    path.write_text(f"MSG 1 TRIALID 0\nMSG 2 !V IMGLOAD CENTER {'a' * 100_000} 1 2\n3 1 1 1\n")
    with pytest.raises(DataError, match=r"line 2 is 'MSG 2 !V IMGLOAD CENTER a*', no line of an"):
        read_asc(path)


def record(**more):
    return {"type": "gaze", "timestamp": 0.5, "data": {"gaze2d": [0.5, 0.5]}, **more}


@pytest.mark.parametrize(
    "entry", [record(timestamp=10**400), record(data={"gaze2d": [10**400, 0.5]})]
)
def test_numbers_beyond_all_floats_of_glasses_3(tmp_path, entry):
    path = tmp_path / "gazedata.gz"
    path.write_bytes(gzip.compress(json.dumps(entry).encode()))
    with pytest.raises(DataError, match="line 1 is not a record of Glasses 3"):
        read_gazedata(path)


def test_numbers_beyond_64_bits_of_glasses_2(tmp_path):
    path = tmp_path / "livedata.json.gz"
    for entry in ({"gp": [0.5, 0.5], "ts": 10**30, "s": 0}, {"ts": 1, "vts": 10**30}):
        path.write_bytes(gzip.compress(json.dumps(entry).encode()))
        with pytest.raises(DataError, match="line 1 is not a record of Glasses 2"):
            read_livedata(path)


@pytest.mark.parametrize("line", [b" " * 2_000_000, (b" " * 999 + b"\n") * 33_000])
def test_a_file_that_unpacks_to_far_more_than_it_is(tmp_path, line):
    """One long line, or many short ones: a small part of either lies on the disk."""
    path = tmp_path / "gazedata.gz"
    path.write_bytes(gzip.compress(line))
    assert path.stat().st_size < len(line) / 400
    with pytest.raises(DataError, match="is too long, or the file unpacks to more than"):
        read_gazedata(path)
