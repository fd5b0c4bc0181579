"""The table of what the papers have: its evidence exists, and the tool finds where it does not."""

import pytest

from tools import coverage
from tools.coverage import Row

GOOD = Row("A01", "P0", "done", "tests/test_coverage.py::test_the_table_holds; vergence methods")
WHY = "docs/explanation/decisions/rows-decided-against.md#b61-blind-learning-and-fedsl"


def faults(**changed):
    return list(coverage.faults([GOOD._replace(**changed)]))


def test_the_table_holds(capsys):
    assert coverage.main([]) == 0, capsys.readouterr().err
    told = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in told[1:]] == ["109", "92", "33", "234"]


def test_a_good_row_has_no_fault():
    assert faults() == []
    assert faults(verdict="open", evidence="docs/explanation/cut.md; missing: a run") == []
    assert faults(verdict="decided against", evidence=WHY) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"id": "A02"}, "without gaps"),
        ({"priority": "P3"}, "P0, P1, P2"),
        ({"verdict": "partial"}, "done, decided against, open"),
        ({"evidence": ""}, "no evidence"),
        ({"evidence": "docs/explanation/cut.md; missing: all else"}, "open row, and no other"),
        ({"verdict": "open", "evidence": "docs/explanation/cut.md"}, "open row, and no other"),
        (
            {"verdict": "decided against", "evidence": "docs/explanation/cut.md"},
            "no section of docs/explanation/decisions",
        ),
        ({"evidence": "tests/test_of_nothing.py"}, "no such file"),
        ({"evidence": "/etc/passwd"}, "no such file"),
        ({"evidence": "tests/test_coverage.py::test_of_nothing"}, "nothing in it is called"),
        ({"evidence": WHY + "-2"}, "no section"),
        ({"evidence": "vergence fly"}, "fly"),
        ({"evidence": "vergence run experiments/none.toml"}, "there is no experiments/none.toml"),
        ({"evidence": "vergence run quickstart --fly 3"}, "--fly"),
        ({"evidence": "vergence reproduce fedcpf/table9"}, "no table 'fedcpf/table9'"),
        ({"evidence": "python -m benchmarks.nothing"}, "no module"),
        ({"evidence": "rm everything"}, "neither a command"),
    ],
)
def test_a_bad_row_is_told(changed, said):
    found = faults(**changed)
    assert len(found) == 1
    assert said in found[0]


def test_a_bad_table_ends_with_exit_code_1(tmp_path, capsys):
    table = tmp_path / "coverage.csv"
    table.write_text("id,priority,verdict,evidence\nA01,P0,done,docs/none.md\n")
    assert coverage.main(["--table", str(table)]) == 1
    assert "A01: 'docs/none.md': no such file" in capsys.readouterr().err
