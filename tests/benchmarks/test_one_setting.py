"""What one setting costs: rows and table from numbers that are known, and a run of the toy."""

import csv

import pytest

from benchmarks.one_setting import Row, difference, main, table
from vergence.errors import ConfigError

PLAIN = Row("{}", "FedAvg", {"a": 2.0, "b": 4.0}, 1000, 1000, {"a": 5, "b": 5})
WORSE = Row("{ x = 1 }", "FedAvg", {"a": 2.1, "b": 4.12}, 250, 1000, {"a": 5, "b": 1})


def test_a_difference_is_bold_where_it_is_shown_to_be_worse():
    """0.11 on average: 0.1 and 0.12, so t(1) * 0.01 = 0.127 to either side; of three, far less."""
    assert difference(PLAIN, PLAIN, True, 2) == ""
    assert difference(WORSE, PLAIN, True, 2) == "+0.11 [-0.02, +0.24]"
    three = Row("", "", {**PLAIN.scores, "c": 3.0}, 1, 1, {})
    shown = Row("", "", {**WORSE.scores, "c": 3.11}, 1, 1, {})
    assert difference(shown, three, True, 2) == "**+0.11 [+0.09, +0.13]**"
    assert difference(shown, three, False, 2) == "+0.11 [+0.09, +0.13]"


def test_the_table_by_hand():
    head, _, first, second = table("loss", True, [PLAIN, WORSE], ["b"], paired=True).splitlines()
    assert head.endswith(
        "| worst | SD | of b | against the first | rounds | bytes up | bytes down |"
    )
    assert first.startswith("| `{}` | FedAvg | 3.00 [-9.71, 15.71] | 4.00 | 1.41 | 4.00 |  | 5.0 |")
    assert second.endswith("| 4.12 | +0.11 [-0.02, +0.24] | 3.0 | 250 | 1,000 |")


def test_a_codec_sends_less_and_the_rows_are_kept(tmp_path, capsys):
    place = ["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "rows.csv")]
    sets = ['methods=["fedavg"]', "run.rounds=2", "run.workers=1", "run.evaluate_every=0"]
    values = ["{}", '{ codec = "fp16" }']
    given = ["toy", "wire", *values, *(w for s in sets for w in ("--set", s)), *place]
    main(given)
    assert len(capsys.readouterr().out.splitlines()) == 4
    with (tmp_path / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    plain, half = ({float(r["bytes_up"]) for r in rows if r["wire"] == v} for v in values)
    assert len(plain) == len(half) == 1
    assert half.pop() * 2 == plain.pop()
    with pytest.raises(ConfigError, match="nobody is called nobody"):
        main([*given, "--of", "nobody"])
