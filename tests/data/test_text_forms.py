"""One text reader: every form in which tables are passed on gives every reader the same gaze."""

import re

import numpy as np
import pytest

from tests.data.small_recordings import ANY, MP4
from vergence.data.gaze_video import ego4d
from vergence.data.io.delimited_text import FORM_LINES, read_table, text_lines
from vergence.data.zero_shot.semantics import meanings
from vergence.engine.participation import Participation
from vergence.errors import DataError

READERS = {
    name: read for name, read in {**ANY, **MP4}.items() if not name.startswith(("tobii", "ego4d_c"))
}
"""Tobii's files are lines of JSON."""
PARTS = re.compile("[,\t]")


def excel(text):
    """A German spreadsheet: semicolons, decimal commas, quotes where they are needed."""
    return PARTS.sub(";", text).replace(".", ",")


def above(text):
    return f"## [made up]\n## Rate: 50, of 60\n# \u00e4\n\n{text}"


FORMS = {
    "semicolons": lambda text: PARTS.sub(";", text).encode(),
    "tabs": lambda text: PARTS.sub("\t", text).encode(),
    "decimal commas": lambda text: excel(text).encode(),
    "decimal commas, byte order mark": lambda text: excel(text).encode("utf-8-sig"),
    "byte order mark": lambda text: text.encode("utf-8-sig"),
    "UTF-16": lambda text: text.encode("utf-16"),
    "UTF-16 without a mark": lambda text: text.encode("utf-16-le"),
    "ends of lines of Windows": lambda text: text.replace("\n", "\r\n").encode(),
    "empty lines": lambda text: text.replace("\n", "\n\n").encode(),
    "comments above, UTF-8": lambda text: above(text).encode(),
    "comments above, Latin-1": lambda text: above(text).encode("cp1252"),
    "comments above, in quotes": lambda text: f'"# rate, 50"\n{text}'.encode(),
    "sign between cells told": lambda text: f"sep=;\n{PARTS.sub(';', text)}".encode(),
    "a GBK comment at the end": lambda text: f"{text}# ".encode() + b"\x81\x30\xd5\xc5\n",
    "empty cells behind": lambda text: re.sub(r"(?m)(?<=.)$", ",,", text).encode(),
}
ONLY_COMMAS = ("empty cells behind",)


def tables(root):
    return [p for p in sorted(root.rglob("*")) if p.suffix in (".csv", ".txt")]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("reader", READERS)
def test_every_form_of_a_table_gives_the_same_gaze(tmp_path, reader, form):
    (plain,) = READERS[reader](tmp_path, 0.0, "mp4")
    if reader == "egtea_clip" and form in ONLY_COMMAS:
        pytest.skip("BeGaze has tabs, or columns by position")
    for path in tables(tmp_path):
        path.write_bytes(FORMS[form](path.read_text()))
    (found,) = again(reader, tmp_path)
    for name in ("t_s", "x", "y", "valid", "event", "source_frame"):
        assert np.array_equal(
            getattr(found.gaze, name), getattr(plain.gaze, name), equal_nan=True
        ), name
    assert plain.frame_times_s is None or np.array_equal(found.frame_times_s, plain.frame_times_s)


def again(reader, root):
    """Read a folder that one of the builders has written."""
    from tests.data import small_recordings as small
    from vergence.data.gaze_video import aria, egtea, pupil
    from vergence.data.gaze_video.gaze_table import GazeTable

    if reader == "table":
        return GazeTable(columns=small.TABLE).read(root)[0]
    if reader == "aria_mps":
        return GazeTable(preset="aria_mps", start=5e6, fov_deg=(90, 90)).read(root)[0]
    modules = {"aria": aria, "pupil": pupil, "ego4d": ego4d, "egtea": egtea}
    return modules[reader.partition("_")[0]].recordings(root)


COLUMN = {
    "table": "x",
    "aria_2d": "x",
    "aria_mps": "yaw_rads_cpf",
    "pupil_player": "norm_pos_x",
    "pupil_cloud": "gaze x [px]",
    "ego4d_whole": "norm_pos_x",
    "egtea_clip": "B POR X [px]",
}


@pytest.mark.parametrize("cell", ["", "NaN", "-", ".", "NA", "null"])
@pytest.mark.parametrize("reader", COLUMN)
def test_a_cell_without_a_number_is_no_gaze(tmp_path, reader, cell):
    (plain,) = READERS[reader](tmp_path, 0.0, "mp4")
    (path,) = (p for p in tables(tmp_path) if COLUMN[reader] in p.read_text())
    head, *rows = path.read_text().splitlines()
    sign = "\t" if "\t" in head else ","
    at = head.split(sign).index(COLUMN[reader])
    for i in (12, 13):
        cells = rows[i].split(sign)
        cells[at] = cell
        rows[i] = sign.join(cells)
    path.write_text("\n".join([head, *rows]) + "\n")
    (found,) = again(reader, tmp_path)
    lost = np.flatnonzero(plain.gaze.valid & ~found.gaze.valid)
    assert len(lost) == 2
    assert lost[1] == lost[0] + 1


@pytest.mark.parametrize("reader", [r for r in COLUMN if r != "egtea_clip"])
def test_a_cell_with_a_sign_between_thousands_is_refused(tmp_path, reader):
    """In a table with commas 1,250 is quoted; 998 beside it shows what the comma is."""
    READERS[reader](tmp_path, 0.0, "mp4")
    (path,) = (p for p in tables(tmp_path) if COLUMN[reader] in p.read_text())
    head, *rows = path.read_text().splitlines()
    at = head.split(",").index(COLUMN[reader])
    for i, row in enumerate(rows):
        cells = row.split(",")
        cells[at] = '"1,250"' if i % 2 else "998"
        rows[i] = ",".join(cells)
    path.write_text("\n".join([head, *rows]) + "\n")
    with pytest.raises(DataError, match=r"row 3: '.*' is '1,250', .*thousands"):
        again(reader, tmp_path)


@pytest.mark.parametrize("cell", ["1,72E+18", "1.72E+18", "1.72e18"])
def test_times_that_a_spreadsheet_has_rounded_are_refused(tmp_path, cell):
    READERS["pupil_cloud"](tmp_path, 0.0, "mp4")
    path = tmp_path / "p1" / "gaze.csv"
    text = re.sub(r"(?m)^\d{19}", cell.replace(",", "."), path.read_text())
    path.write_text(excel(text) if "," in cell else text)
    with pytest.raises(DataError, match=r"row 2: 'timestamp .ns.' is '1.72.*rounded by a spread"):
        again("pupil_cloud", tmp_path)
    columns = {"t": "timestamp", "t_unit": "ns", "x": "gaze x", "y": "gaze y", "unit": "px"}
    from vergence.data.gaze_video.gaze_columns import GazeColumns, read_rows

    with pytest.raises(DataError, match="rounded by a spreadsheet"):
        read_rows(path, GazeColumns(**columns))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("t;x\n0;512,125\n1;500,250\n", 512.125),
        ("t,x\n100000,1e+05\n1,2\n", 1e5),
        ("t;x\n0;0,125\n1;1\n", 0.125),
        ("t,x\n0,1.125\n1,2\n", 1.125),
        ("t\tx\n0\t1,5\n1\t2\n", 1.5),
        ("t,x\n0,1.7546902300001e+18\n1,1.75469023e+18\n", 1.7546902300001e18),
    ],
)
def test_numbers_that_only_look_so_are_read(tmp_path, text, number):
    (tmp_path / "a.csv").write_text(text)
    table = read_table(tmp_path / "a.csv", ["t", "x"], "table")
    assert table.floats("x")[0] == number
    assert table.ticks("x")[0] == number


def test_a_header_is_told_from_what_stands_above_it(tmp_path):
    """Preambles with and without signs, a header that is a comment, messages of SMI."""
    forms = {
        "Study: a\nRecorded: today, by me\n\nt,x,y\n1,2,3\n4,5,6\n": ["t", "x", "y"],
        "#METADATA,,\n#Device,a,b\n#DATA,,\nRow,Time stamp,x\n1,2,3\n": ["Row", "Time stamp", "x"],
        "# made by numpy\n# t x,y\n1,2\n3,4\n": ["# t x", "y"],
        "# timestamps [seconds]\n1.5\n2.5\n": ["# timestamps [seconds]"],
        "# timestamps [seconds],pts\n": ["# timestamps [seconds]", "pts"],
        ";t;x\n0;1;2\n": ["t", "x"],
        "## SMI\nTime\tType\tx\n1\tMSG\t# Message: a.png\n2\tMSG\n3\tSMP\t4\n": [
            "Time",
            "Type",
            "x",
        ],
    }
    for text, names in forms.items():
        (tmp_path / "a.csv").write_text(text)
        assert list(read_table(tmp_path / "a.csv", names, "table").columns) == names
    assert read_table(tmp_path / "a.csv", [], "table").text("x") == ["# Message: a.png", "4"]


def test_cells_with_ends_of_lines_and_very_long_ones(tmp_path):
    rows = "".join(f'{t},"a\nb;c;d",0.5\n' for t in range(9))
    (tmp_path / "a.csv").write_text(f"t,note,x\n{rows}")
    assert (
        read_table(tmp_path / "a.csv", ["t", "note", "x"], "table").floats("x").tolist()
        == [0.5] * 9
    )
    (tmp_path / "a.csv").write_text("t,x\n1," + "9" * 200_000 + "\n")
    with pytest.raises(DataError, match="is not a text table"):
        read_table(tmp_path / "a.csv", [], "table")


def test_short_rows_are_still_refused(tmp_path):
    (tmp_path / "a.csv").write_text("t,x,y\n1,2,3\n4,5\n")
    with pytest.raises(DataError, match="row 3 has 2 cells instead of 3"):
        read_table(tmp_path / "a.csv", [], "table")


def test_utf_8_with_a_damaged_byte_stays_utf_8(tmp_path):
    """A name keeps its umlaut; the damaged byte in a line of its own becomes an escape."""
    many = "1,J\u00f6rg\n" * FORM_LINES
    (tmp_path / "a.csv").write_bytes(f"t,who\n{many}".encode() + b"# \x81\n")
    assert set(read_table(tmp_path / "a.csv", [], "table").text("who")) == {"J\u00f6rg"}
    assert list(text_lines(tmp_path / "a.csv", "table"))[-1] == "# \\x81\n"


def test_lists_and_vectors_of_others(tmp_path):
    uid = "0a1b2c3d-0000-4000-8000-000000000000"
    for encoding in ("utf-8-sig", "utf-16"):
        (tmp_path / "list.csv").write_text(f"# clips\n{uid}/{uid}_t0_t5.mp4\n\n", encoding=encoding)
        assert len(ego4d.read_clip_list(tmp_path / "list.csv")) == 1
        (tmp_path / "away.csv").write_text(f"{uid};00:00:01;00:00:02;1\n", encoding=encoding)
        assert ego4d.read_untracked(tmp_path / "away.csv") == {uid: [(1.0, 2.0)]}
        (tmp_path / "v.csv").write_text("cat;3,5;0\ndog;0;2,5\n", encoding=encoding)
        found = meanings(("cat", "dog"), str(tmp_path / "v.csv")).vectors
        assert found.tolist() == [[1.0, 0.0], [0.0, 1.0]]
        (tmp_path / "t.csv").write_text("client;round;idle;charging\na;0;1;1\n", encoding=encoding)
        Participation(trace=str(tmp_path / "t.csv")).check(["a"])
