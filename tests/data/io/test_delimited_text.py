"""Cells of text tables: numbers, times, flags and forms at their limits, and the first bad row."""

from pathlib import Path

import numpy as np
import pytest

from tests.refusals import refuses
from vergence.data.io.delimited_text import (
    DelimitedTable,
    TextForm,
    delimited_rows,
    detect_form,
    listed_lines,
    read_table,
    text_lines,
)

LAST, PLAIN = 2**62, TextForm()


def table(cells, form=PLAIN):
    """A table of one column x, its rows every other line of the file from the third on."""
    return DelimitedTable(Path("a.csv"), {"x": cells}, range(3, 3 + 2 * len(cells), 2), form)


@pytest.mark.parametrize("mantissa", ["1.12345678", "1,12345678", "-1.12", "+9", "1."])
def test_a_rounded_exponent_has_fewer_than_nine_decimals(mantissa):
    """8 decimals and the digit before them are 9 of 10 digits; 1E+11 is the smallest one."""
    cells = ["5", f"{mantissa}E+11", f"{mantissa}E+12"]
    if mantissa == "1.":
        cells[1:] = ["1.1e11", "1.2E12"]
    for read in (table(cells).integers, table(cells).ticks):
        with refuses("bad-value", "a.csv: row 5: 'x'", cells[1], "rounded by a spreadsheet"):
            read("x")


@pytest.mark.parametrize(
    "cells",
    [
        ["1.123456789E+11", "1.1E+11"],
        ["1.1E+10", "2"],
        ["1.12345678E+10"],
        ["1.5", "12"],
    ],
)
def test_exponents_that_keep_their_digits_are_times(cells):
    assert table(cells).ticks("x").tolist() == [float(cell) for cell in cells]


def test_times_are_exact_integers_or_else_floats():
    exact = table(["1700000000123456789", f"-{LAST}", str(LAST)]).ticks("x")
    assert exact.dtype == np.int64
    assert exact.tolist() == [1700000000123456789, -LAST, LAST]
    assert table(["1", "2.5"]).ticks("x").tolist() == [1, 2.5]
    for cell in (str(LAST + 1), f"-{LAST + 1}", str(2**63), "nan", "", "inf"):
        with refuses("bad-value", "row 5", f"'{cell}'", "needs a time"):
            table(["1", cell, cell]).ticks("x")


def test_integers_and_floats_name_the_first_cell_that_is_none():
    assert table(["7", " -8 ", str(2**60 + 1)]).integers("x").tolist() == [7, -8, 2**60 + 1]
    with refuses("bad-value", "row 5: 'x' is '2.5', not a number; export"):
        table(["1", "2.5", "no"]).integers("x")
    numbers = table(["1e3", "NULL", " n/a ", "-.5", "inf"]).floats("x")
    np.testing.assert_array_equal(numbers, [1000, np.nan, np.nan, -0.5, np.inf])
    for cell, told in (
        ("1.2.3", True),
        ("1 000", True),
        ("1'000", True),
        ("1\u00a0000", True),
        ("a1", False),
    ):
        with pytest.raises(Exception, match="row 3: 'x' is") as caught:
            table([cell, "b"]).floats("x")
        assert ("one decimal sign and none between thousands" in str(caught.value)) == told


def test_flags_are_words_or_numbers_from_a_limit_on():
    cells = ["Valid", "TRUE", "yes", "ok", "invalid", "False", "no", "", "nan", " Yes "]
    assert table(cells).flags("x").tolist() == [True] * 4 + [False] * 5 + [True]
    cells = ["0.5", "0.499", "1", "0", "-1"]
    assert table(cells).flags("x").tolist() == [True, False, True, False, False]
    assert table(cells).flags("x", 1).tolist() == [False, False, True, False, False]
    with refuses("bad-value", "row 5", "'maybe'", "valid, true, yes, ok", "invalid, false, no"):
        table(["1", "maybe", "2"]).flags("x")


SEMICOLONS, QUOTED = TextForm(delimiter=";", decimal=","), TextForm(decimal=",")
POINTS = TextForm(delimiter=";")


@pytest.mark.parametrize(
    ("form", "cells", "row"),
    [
        (SEMICOLONS, ["998", "1,250", "2,500"], 5),
        (SEMICOLONS, ["1,250", "998"], 3),
        (SEMICOLONS, ["-998", "-1,250"], 5),
        (SEMICOLONS, [" 12 ", " 123,250 "], 5),
        (QUOTED, ["1,250", "1,500"], 3),
        (POINTS, ["998", "1.250"], 5),
    ],
)
def test_a_sign_that_may_separate_thousands_is_refused(form, cells, row):
    sign = form.decimal
    with refuses("bad-value", f"row {row}: 'x'", f"'{sign}' may stand between thousands"):
        table(cells, form).floats("x")


@pytest.mark.parametrize(
    ("form", "cells"),
    [
        (SEMICOLONS, ["1,250", "2,500"]),
        (SEMICOLONS, ["1000", "1,250"]),
        (SEMICOLONS, ["-1000", "1,250"]),
        (SEMICOLONS, ["998", "1,25"]),
        (SEMICOLONS, ["998", "0,250"]),
        (SEMICOLONS, ["998", "1234,250"]),
        (SEMICOLONS, ["998", "1,250", "1,2"]),
        (QUOTED, ["0,250", "1"]),
        (POINTS, ["1.250", "2.500"]),
        (TextForm(), ["998", "1.250"]),
    ],
)
def test_a_sign_that_can_only_be_a_decimal_one_is_read(form, cells):
    wanted = [float(cell.replace(",", ".")) for cell in cells]
    assert table(cells, form).floats("x").tolist() == wanted


def test_rows_of_a_table_keep_their_lines():
    whole = table(["a", "b", "c", "d"])
    assert len(whole) == 4
    assert "x" in whole
    assert "y" not in whole
    some = whole.select([3, 1])
    assert (some.text("x"), list(some.lines), some.line(0)) == (["d", "b"], [9, 5], 9)
    assert len(DelimitedTable(whole.path, {}, [])) == 0


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("a,b\n1,2\n", TextForm()),
        ("a;b\n1;2\n", TextForm(delimiter=";")),
        ("a\tb\n1\t2\n", TextForm(delimiter="\t")),
        ("a;b\n1,5;2\n", TextForm(delimiter=";", decimal=",")),
        ("a;b\n1,5;2.5\n", TextForm(delimiter=";")),
        ("a;b\n1,5;.5\n", TextForm(delimiter=";")),
        ("note\n\na,b\n1,2\n3,4\n", TextForm(skipped=2)),
        ("# one\n\n// two\na,b\n1,2\n", TextForm(skipped=3)),
        ("# one\n# a,b\n1,2\n3,4\n", TextForm(skipped=1)),
        ("# a;b\n1,2\n3,4\n", TextForm(skipped=1)),
        ("1,2\n3,4\n", TextForm()),
        ("x\n1\n2\n", TextForm(delimiter="\t")),
        ("", TextForm(delimiter="\t")),
        ("a;b,c\n1;2,3\n1;2,4\n", TextForm(delimiter=";", decimal=",")),
        ("a,b,c\n1,2,3;4\n", TextForm()),
    ],
)
def test_forms_of_tables(tmp_path, text, form):
    (tmp_path / "a.csv").write_text(text)
    assert detect_form(tmp_path / "a.csv", "table") == form


@pytest.mark.parametrize(
    ("content", "encoding"),
    [
        (b"a,b\n1,2\n", "utf-8-sig"),
        ("\ufeffa,b\n".encode(), "utf-8-sig"),
        ("a,b\n".encode("utf-16-le"), "utf-16-le"),
        ("a,b\n".encode("utf-16-be"), "utf-16-be"),
        ("a,b\n".encode("utf-16"), "utf-16"),
        ("J\u00f6rg,\u00e4\n".encode(), "utf-8-sig"),
        ("J\u00f6rg,\u00e4\n".encode("cp1252"), "cp1252"),
        ("\u00e4".encode() + b"\xe4a", "utf-8-sig"),
        ("\u00e4".encode() + b"\xe4a\xe4a", "cp1252"),
        (b"\x7f\x7f\xe4a", "cp1252"),
        # Two of eight letters of UTF-16 have a zero byte, which is enough.
        ("\u4e2dab\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d".encode("utf-16-be"), "utf-16-be"),
        ("\u4e2dab\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d".encode("utf-16-le"), "utf-16-le"),
        (b"a" * (1 << 16) + "\u00e4\u00f6".encode() + b"\xe4", "utf-8-sig"),
        # A letter of two bytes that lies across the end of the first piece is whole.
        (b"a" * ((1 << 16) - 1) + "\u00e4".encode(), "utf-8-sig"),
    ],
)
def test_encodings(tmp_path, content, encoding):
    (tmp_path / "a.csv").write_bytes(content)
    assert detect_form(tmp_path / "a.csv", "table").encoding == encoding


@pytest.mark.parametrize(
    "content",
    [
        b"abc\0" * 40 + b"a" * 200,
        b"\xff\xfe" + b"abcd" * 9,
        "a\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d".encode("utf-16-be"),
    ],
)
def test_bytes_that_no_text_has_are_refused(tmp_path, content):
    (tmp_path / "a.bin").write_bytes(content)
    with refuses("file-unreadable", "a.bin", "bytes that no text has", "the report"):
        read_table(tmp_path / "a.bin", [], "report")
    with refuses("file-missing", "b.bin", "the report"):
        list(text_lines(tmp_path / "b.bin", "report"))


def test_rows_that_are_left_out_and_rows_that_are_damaged(tmp_path):
    path = tmp_path / "a.csv"
    lines = ["# made", "t,x", "1,2", "", " , ", "# note", "#,7", "3,4,,", "MSG", "5,6"]
    path.write_text("\n".join(lines) + "\n")
    found = read_table(path, ["x"], "table")
    assert found.text("t") == ["1", "#", "3", "5"]
    assert found.text("x") == ["2", "7", "4", "6"]
    assert list(found.lines) == [3, 7, 8, 10]
    few = read_table(path, [], "table", lambda names: [names[1], "", names[1]], max_rows=1)
    assert few.columns == {"x": ["2"]}
    assert read_table(path, [], "table", max_rows=0).columns == {"t": [], "x": []}
    for row, cells in (("7", 1), ("7,8,9", 3)):
        path.write_text("t,x\n1,2\n" + f"{row}\n1\n")
        with refuses("file-unreadable", f"row 3 has {cells} cells instead of 2"):
            read_table(path, [], "table")
    with refuses("file-layout", "missing columns y, z", "found t, x"):
        read_table(path, ["t", "y", "z"], "table")
    path.write_text("# only this\n")
    with refuses("file-layout", "missing columns t"):
        read_table(path, ["t"], "table")


def test_lists_and_rows_without_a_header(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("# clips\n  one \n\ntwo\n")
    assert listed_lines(path, "list") == ["", "one", "", "two"]
    for content in (b"", b" \n\n", b"\0" + b"a" * 64):
        path.write_bytes(content)
        with refuses("file-unreadable", "list", "a.csv"):
            listed_lines(path, "list")
    path.write_text("1;2,5\n# note\n\n;\n3;4\n")
    form, rows = delimited_rows(path, "table")
    assert (form.delimiter, form.decimal) == (";", ",")
    assert rows == [["1", "2,5"], ["3", "4"]]
