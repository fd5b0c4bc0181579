"""Rows of gaze tables: names, units, times and places, each computed by hand."""

from pathlib import Path

import numpy as np
import pytest

from tests.refusals import refuses
from vergence.data.gaze_video import gaze_columns
from vergence.data.gaze_video.gaze import Event
from vergence.data.gaze_video.gaze_columns import (
    LONGEST,
    GazeColumns,
    GazeRows,
    column,
    in_time_order,
    iso_ns,
    read_rows,
)
from vergence.errors import ConfigError, DataError

PLAIN = {"t": "t", "x": "x", "y": "y", "unit": "px", "t_unit": "ms"}
LAST = 2**62


def read(folder, text, optional=False, **more):
    (folder / "a.csv").write_text(text)
    return read_rows(folder / "a.csv", GazeColumns(**{**PLAIN, **more}), optional)


@pytest.mark.parametrize(
    ("header", "name", "found"),
    [
        (["t", "t [ms]"], "t", "t"),
        (["t [ms]", "x"], "t", "t [ms]"),
        (["t(ms)"], "t", "t(ms)"),
        (["t [ms]", "t [us]"], "t", ""),
        (["t [ms] of all"], "t", ""),
        (["at [ms]"], "t", ""),
        ([], "t", ""),
    ],
)
def test_a_name_may_leave_out_its_brackets(header, name, found):
    assert column(header, name) == found


def test_options_that_do_not_go_together():
    for name, count in (("media", 4), ("rows", 2)):
        GazeColumns(**{name: ("a",) * count})
        for other in (count - 1, count + 1):
            with pytest.raises(ConfigError, match=f"{name} must be {count} texts"):
                GazeColumns(**{name: ("a",) * other})
    GazeColumns(kind="running mean", fixation="f")
    with pytest.raises(ConfigError, match="needs fixation"):
        GazeColumns(kind="running mean")


def test_own_columns_come_before_those_of_another():
    other = GazeColumns(t="a", x="b", valid="c", valid_from=2.0)
    made = GazeColumns(x=("l", "r"), valid_from=1.0).or_from(other)
    assert (made.t, made.x, made.valid, made.valid_from) == ("a", ("l", "r"), "c", 1.0)
    made.check_needed(("t", "x"), "hint")
    with pytest.raises(ConfigError, match="columns: y must be given; hint"):
        made.check_needed(("t", "y", "unit"), "hint")


def test_names_of_a_role_and_those_that_a_header_lacks():
    made = GazeColumns(t="t", x=("l", "r"), y="y", rows=("kind", "gaze"), media=tuple("abcd"))
    assert made.names_for("rows") == ["kind"]
    assert made.names_for("media") == ["a", "b", "c", "d"]
    assert made.names_for("x") == ["l", "r"]
    assert made.names_for("person") == []
    assert made.missing_in(["t [ms]", "l", "a", "c"]) == ["r", "y", "b", "d"]
    made = GazeColumns(t="t", x="x", y="y", valid="ok", stimulus="s")
    header = ["t", "x", "y", "s"]
    assert "valid" not in made.names(header, Path("a"), True)
    with pytest.raises(DataError, match=r"no column 'ok' \(columns.valid\)"):
        made.names(header, Path("a"), False)
    with pytest.raises(DataError, match=r"no column 's' \(columns.stimulus\)"):
        made.names(header[:3], Path("a"), True)


def test_rows_are_read_into_arrays(tmp_path):
    text = (
        "t,x,y,ok,event,fix,who,pic,n,l,u,w,h\n"
        "10,1,2,0.5,Fixation,7,ann, a.png ,1,5,6,7,8\n"
        "20,3,,1,saccade,,bob,b.png,2,,,,\n"
        "30,5,6,0.4,FIX,8,ann,a.png,3,1,1,1,1\n"
    )
    more = {"valid": "ok", "event": "event", "fixation": "fix", "person": "who", "stimulus": "pic"}
    rows = read(tmp_path, text, trial="n", media=("l", "u", "w", "h"), **more)
    assert rows.line.tolist() == [2, 3, 4]
    assert rows.ticks.tolist() == [10, 20, 30]
    assert rows.valid.tolist() == [True, False, False]
    assert rows.event.tolist() == [Event.FIXATION, Event.SACCADE, Event.FIXATION]
    np.testing.assert_array_equal(rows.fixation, [7, np.nan, 8])
    assert rows.person.tolist() == ["ann", "bob", "ann"]
    assert rows.stimulus.tolist() == ["a.png", "b.png", "a.png"]
    assert rows.trial.tolist() == ["1", "2", "3"]
    assert rows.media[0].tolist() == [5, 6, 7, 8]
    assert np.isnan(rows.media[1]).all()
    assert (rows.unit, rows.t_unit, rows.scale, len(rows)) == ("px", "ms", 1e-3, 3)
    some = rows.select(np.array([2, 0]))
    assert some.line.tolist() == [4, 2]
    assert some.trial.tolist() == ["3", "1"]
    plain = read(tmp_path, text)
    assert (plain.event == Event.UNKNOWN).all()
    assert np.isnan(plain.fixation).all()
    assert np.isnan(plain.media).all()
    assert plain.person.tolist() == [""] * 3
    assert read(tmp_path, text, kind="fixation").fixation.tolist() == [0, 1, 2]
    assert read(tmp_path, text, kind="fixation", fixation="fix").fixation[0] == 7
    assert read(tmp_path, text, rows=("who", "ann")).line.tolist() == [2, 4]
    assert read(tmp_path, text, valid="ok", valid_from=0.3).valid.tolist() == [True, False, True]


def test_the_first_row_of_nobody_is_named(tmp_path):
    text = "t,x,y,who [id]\n1,2,3,ann\n2,2,3, \n3,2,3,\n"
    with pytest.raises(DataError, match=r"row 3: 'who \[id\]' is empty"):
        read(tmp_path, text, person="who")


def test_places_are_means_of_the_eyes_that_were_found(tmp_path):
    text = "t,l,r,y\n1,1,3,1\n2,1,-1,1\n3,,,1\n4,inf,3,1\n5,-1,-1,1\n6,0,0,0\n"
    rows = read(tmp_path, text, x=("l", "r"), missing=(-1.0,))
    np.testing.assert_array_equal(rows.x, [2, 1, np.nan, 3, np.nan, 0])
    assert rows.valid.tolist() == [True, True, False, True, False, True]


def test_a_running_mean_is_that_of_the_last_valid_row(tmp_path):
    """A fixation begins where its number or another key changes, or time goes back."""
    rows = [(1, 1, 1), (2, 2, 1), (3, "", 1), (4, 4, 2), (5, 5, 2), (5, 6, 2), (1, 7, 2)]
    rows += [(2, "", 3), (3, "", 3)]
    text = "t,x,y,f\n" + "".join(f"{t},{x},{x},{f}\n" for t, x, f in rows)
    found = read(tmp_path, text, kind="running mean", fixation="f")
    np.testing.assert_array_equal(found.x, [2, 2, 2, 6, 6, 6, 7, np.nan, np.nan])
    np.testing.assert_array_equal(found.y, found.x)
    text = "t,x,y,f,p\n1,1,1,1,a\n2,2,2,1,a\n3,3,3,1,b\n"
    more = {"kind": "running mean", "fixation": "f"}
    assert read(tmp_path, text, stimulus="p", **more).x.tolist() == [2, 2, 3]
    assert read(tmp_path, text, person="p", **more).x.tolist() == [2, 2, 3]
    assert read(tmp_path, text, **more).x.tolist() == [3, 3, 3]


def test_rows_behind_the_end_of_a_stimulus_are_left_out(tmp_path):
    events = [("", ""), ("", "a"), ("ImageStimulusStart", ""), ("", "a"), ("MediaEnd", "a")]
    events += [("", "a"), ("", ""), ("", "b"), ("VideoStimulusEnd", ""), ("", "")]
    events += [("WebStimulusStart", ""), ("other", "b"), ("", "a")]
    text = "t,x,y,Event,pic\n" + "".join(
        f"{i},1,1,{event},{name}\n" for i, (event, name) in enumerate(events)
    )
    found = read(tmp_path, text, stimulus="pic")
    assert found.ticks.tolist() == [0, 1, 2, 3, 7, 10, 11, 12]
    assert len(read(tmp_path, text)) == len(events)


def test_names_may_have_a_thousand_letters(tmp_path):
    rows = [f"{i},1,1,{'a' * n}\n" for i, n in enumerate((1, LONGEST, LONGEST))]
    read(tmp_path, "t,x,y,pic\n" + "".join(rows), stimulus="pic")
    rows[1:] = [f"{i},1,1,{'a' * (LONGEST + i)}\n" for i in (1, 2)]
    with pytest.raises(DataError, match="row 3: 'pic' has 1,001 characters, at most 1,000"):
        read(tmp_path, "t,x,y,pic\n" + "".join(rows), stimulus="pic")


@pytest.mark.parametrize(
    ("name", "unit", "cells", "scale"),
    [
        ("t [us]", "ms", "0 9", 1e-6),
        ("t [\u00b5s]", "ms", "0 9", 1e-6),
        ("t [\u03bcs]", "ms", "0 9", 1e-6),
        ("t [s]", "ms", "0 9", 1.0),
        ("t [px]", "ns", "0 9", 1e-9),
        ("t", "auto", "0 399 0", 1e-3),
        ("t", "auto", "0 400", 1e-6),
        ("t", "auto", "0 399 800 801", 1e-3),
        ("t", "auto", "5", 1e-3),
        ("t", "auto", "5 5", 1e-3),
        ("t", "auto", "0 0 4000 4000 8000 8000", 1e-6),  # a row for each eye
        ("t", "datetime", "2026-01-01T00:00:00 2026-01-01", 1e-9),
    ],
)
def test_units_of_times(tmp_path, name, unit, cells, scale):
    text = f"{name},x,y\n" + "".join(f"{cell},1,1\n" for cell in cells.split())
    assert read(tmp_path, text, t=name, t_unit=unit).scale == scale


def test_a_unit_has_to_be_stated(tmp_path):
    with pytest.raises(ConfigError, match="t_unit must be given: 't' of"):
        read(tmp_path, "t,x,y\n1,1,1\n", t_unit="")


@pytest.mark.parametrize(
    ("cells", "row"),
    [
        (["2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z", "2026-01-01T00:00:02"], 4),
        (["2026-01-01T00:00:00", "2026-01-01T00:00:01+01:00", "2026-01-01T00:00:02Z"], 3),
        (["2026-01-01T00:00:00-0500", "2026-01-01T00:00:01"], 3),
    ],
)
def test_the_first_time_of_another_kind_is_named(tmp_path, cells, row):
    text = "t,x,y\n" + "".join(f"{cell},1,1\n" for cell in cells)
    with pytest.raises(
        DataError, match=f"row {row}: 't' is '{cells[row - 2]}'.*".replace("+", r"\+")
    ):
        read(tmp_path, text, t_unit="datetime")


def test_dates_that_cannot_be_counted_are_refused(tmp_path):
    """2^62 ns are 146 years: 2116 can be counted, 2117 and what is no date cannot."""
    read(tmp_path, "t,x,y\n2116-02-19,1,1\n1823-11-13,1,1\n", t_unit="datetime")
    for cell in ("2117-01-01", "1820-01-01", "soon", ""):
        with refuses("bad-value", "row 2", f"'{cell}'", "needs a date and time"):
            read(tmp_path, f"t,x,y\n{cell},1,1\n", t_unit="datetime")
    assert iso_ns("1969-12-31T23:59:59.999999Z") == -1000
    assert iso_ns("1970-01-02T00:00:00.000001") == 86_400_000_001_000
    assert iso_ns("2000-02-29") == 951_782_400 * 10**9


def rows(ticks, scale=1e-3, kind=np.int64):
    n = len(ticks)
    texts, places = np.full(n, ""), np.zeros(n)
    return GazeRows(
        Path("a.csv"),
        np.arange(2, n + 2),
        np.array(ticks, kind),
        scale,
        np.arange(n, dtype=float),
        places,
        places == 0,
        places.astype(np.int8),
        places,
        *(texts, texts, texts),
        np.zeros((n, 4)),
        np.full((n, 0), ""),
        {"t": ["t"]},
    )


def test_seconds_from_a_start():
    assert rows([]).seconds().tolist() == []
    assert rows([5, 7]).seconds().tolist() == [0, 0.002]
    assert rows([5, 7]).seconds(4.0) == pytest.approx([0.001, 0.003])
    assert rows([5, 7]).seconds(4, 1.0) == pytest.approx([-3.995, -3.993])
    assert rows([5, 7], 1.0).seconds(4000, 1e-3) == pytest.approx([1, 3])
    assert rows([0.5], 1.0, float).seconds(0.25) == pytest.approx([0.25])
    assert rows([2000]).seconds("1970-01-01T00:00:01Z") == pytest.approx([1])
    assert rows([10**18 + 1], 1e-9).seconds(float(10**18)) == pytest.approx([1e-9])
    with pytest.raises(ConfigError, match="got 'soon'"):
        rows([5]).seconds("soon")


def test_starts_and_times_at_the_limit():
    assert rows([LAST], 1e-9).seconds(LAST).tolist() == [0]
    assert rows([0], 1e-9).seconds(-LAST) == pytest.approx([LAST * 1e-9])
    for start in (LAST + 1, -LAST - 1, float("nan")):
        with pytest.raises(ConfigError, match=r"within 2\^62"):
            rows([0], 1e-9).seconds(start)
    most = LAST // 10**6
    rows([most]).seconds(0, 1e-9)
    with pytest.raises(DataError, match=f"first frame is at 0 ns, gaze begins at {most + 1} ms"):
        rows([most + 1]).seconds(0, 1e-9)
    rows([-most]).seconds(0, 1e-9)
    with pytest.raises(DataError):
        rows([-most - 1]).seconds(0, 1e-9)
    rows([0], 1e-9).seconds(most, 1e-3)
    with pytest.raises(DataError, match=rf"at {most + 1} ms, gaze begins at 0 ns.*2\^62 of 1 ns"):
        rows([0], 1e-9).seconds(most + 1, 1e-3)


def test_rows_in_time_order_keep_the_first_of_equal_times():
    found, dropped = in_time_order(rows([3, 1, 1, 2, 3]), "sort", "p")
    assert (found.ticks.tolist(), found.x.tolist(), dropped) == ([1, 2, 3], [1, 3, 0], 2)
    found, dropped = in_time_order(rows([1, 1, 2]), "refuse", "p")
    assert (found.line.tolist(), dropped) == ([2, 4], 1)
    with pytest.raises(DataError, match=r"row 4: 't' goes back from 5 to 4 \(p\)"):
        in_time_order(rows([1, 5, 4, 3]), "refuse", "p")
    assert in_time_order(rows([]), "refuse", "p")[1] == 0


def test_angles_in_both_kinds_of_camera():
    right, down = np.array([0.0, 20, -30, 45]), np.array([0.0, 10, 5, -45])
    fov = (100.0, 80.0)
    x, y = gaze_columns.angles_to_fractions(right, down, fov)
    tangents = np.tan(np.radians(right)), np.tan(np.radians(down))
    half = np.tan(np.radians(50)), np.tan(np.radians(40))
    np.testing.assert_allclose(x, 0.5 + tangents[0] / half[0] / 2)
    np.testing.assert_allclose(y, 0.5 + tangents[1] / half[1] / 2)
    x, y = gaze_columns.angles_to_fractions(right, down, fov, "equidistant")
    rays = np.stack([*tangents, np.ones(4)], 1)
    off = np.degrees(np.arccos(1 / np.linalg.norm(rays, axis=1)))
    side = np.arctan2(rays[:, 1], rays[:, 0])
    np.testing.assert_allclose(x, 0.5 + off * np.cos(side) / 100)
    np.testing.assert_allclose(y, 0.5 + off * np.sin(side) / 80)
