"""Tables of hand-written results pages: each is that of its CSV file, and none is typed."""

import re
import sys

import pytest

from tests.conftest import ROOT
from tools import results_list, results_tables

RESULTS = ROOT / "docs" / "results"
WRITTEN = {"recipe.md", "unlabelled.md"}
"""Pages without a run's first line whose tables `tools/make_results.py` writes."""
BEGIN, END = "<!-- table: tables/a.csv -->", "<!-- end of table -->"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "a.csv").write_text("method,NSS\nFedAvg,1.37 (2)\nearned,1.39 (0)\n")
    (tmp_path / "a.md").write_text(f"# A\n\n{BEGIN}\n{END}\n\nText.\n")
    return tmp_path


def test_every_table_is_that_of_its_csv_file():
    assert list(results_tables.faults()) == []


def typed(text):
    """Tables outside of markers that have a column of numbers."""
    left = results_tables.BLOCK.sub("", text)
    return re.findall(r"^\|.*-:.*\|$", left, re.MULTILINE)


def test_no_table_of_numbers_is_typed_on_a_page():
    texts = {path.name: path.read_text(encoding="utf-8") for path in RESULTS.glob("*.md")}
    guides = {
        name: text
        for name, text in texts.items()
        if name not in WRITTEN
        and "<!-- Written by" not in text
        and not results_list.RAN.search(text)
    }
    assert len(guides) > 30
    assert {name: found for name, text in guides.items() if (found := typed(text))} == {}


def test_numbers_beside_printed_ones_are_those_of_their_pages():
    rows = results_tables.read(RESULTS / "tables" / "printed_numbers.csv")
    assert len(rows) == 1 + 10
    for name, _, printed, here, link, why in rows[1:]:
        target = re.search(r"\]\(([^)#]+)", link)[1]
        text = (RESULTS / target).read_text(encoding="utf-8")
        assert re.search(rf"(?<![\d.]){re.escape(here)}(?![\d])", text), (name, here)
        assert float(printed) > 0
        assert why


def test_a_typed_table_is_known():
    table = "| a | b |\n|---|---:|\n| c | 1 |"
    assert typed(f"{table}\n\n{BEGIN}\n\n{table}\n\n{END}\n") == ["|---|---:|"]


def test_a_table_by_hand():
    """Columns two and three mostly begin with numbers; of equal ones both are bold."""
    rows = [
        ["P(y|x)", "error", "last", "who"],
        ["1 sample", "\u22120.5 (0)", "never", "p01"],
        ["2 samples", "", "1,200", "all"],
        ["5 samples", "-.5 [.4, .6]", "<30", "1 of 5"],
    ]
    assert results_tables.markdown(rows, "min").splitlines() == [
        "| P(y\\|x) | error | last | who |",
        "|---|---:|---:|---|",
        "| 1 sample | **\u22120.5** (0) | never | p01 |",
        "| 2 samples |  | 1,200 | all |",
        "| 5 samples | **-.5** [.4, .6] | <**30** | 1 of 5 |",
    ]
    assert "| **1,200** |" in results_tables.markdown(rows, "max")
    assert "**" not in results_tables.markdown(rows)


def test_a_page_is_written_once_and_text_around_stays(folder):
    (fault,) = results_tables.faults(folder)
    assert fault.startswith("a.md: the table differs from tables/a.csv; write the numbers into the")
    made = results_tables.page((folder / "a.md").read_text(), folder)
    table = "| method | NSS |\n|---|---:|\n| FedAvg | 1.37 (2) |\n| earned | 1.39 (0) |"
    assert made == f"# A\n\n{BEGIN}\n\n{table}\n\n[CSV](tables/a.csv)\n\n{END}\n\nText.\n"
    assert results_tables.page(made, folder) == made
    (folder / "a.md").write_text(made)
    assert list(results_tables.faults(folder)) == []
    (folder / "a.md").write_text(made.replace("1.39", "1.93"))
    assert len(list(results_tables.faults(folder))) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,a\n1,2\n", r"a.csv: columns \['a', 'a'\]; give each a name of its own"),
        (",a\n1,2\n", r"a.csv: columns \['', 'a'\]; give each"),
        ("a,b\n1\n", "row 2 has 1 cells, allowed is 2"),
        ("a,b\n", "1 lines; need names of columns and a row"),
        ('a,b\n1,"2\n3"\n', "row 2 has a cell of several lines"),
        (None, "no such file"),
    ],
)
def test_a_csv_file_without_a_table_is_refused(folder, text, said):
    (folder / "tables" / "a.csv").unlink()
    if text is not None:
        (folder / "tables" / "a.csv").write_text(text)
    with pytest.raises(results_tables.TableError, match=said):
        results_tables.page((folder / "a.md").read_text(), folder)
    assert any(re.search(said, fault) for fault in results_tables.faults(folder))


@pytest.mark.parametrize(
    "text",
    [
        f"{BEGIN}\n",
        f"{END}\n",
        f"{BEGIN}\n{BEGIN}\n{END}\n",
        f"{BEGIN.replace(' -->', ' best=last -->')}\n{END}\n",
        f"{BEGIN} here\n{END}\n",
    ],
)
def test_a_block_that_is_not_well_formed_is_refused(folder, text):
    with pytest.raises(results_tables.TableError, match="each on a line of its own"):
        results_tables.page(text, folder)


def test_a_file_that_no_page_shows_is_told(folder):
    (folder / "tables" / "b.csv").write_text("a,b\n1,2\n")
    found = list(results_tables.faults(folder))
    assert found[-1].startswith("tables/b.csv: no page shows it")


def test_the_command_line_checks_and_writes(folder, monkeypatch, capsys):
    before = (folder / "a.md").read_text()
    monkeypatch.setattr(sys, "argv", ["results_tables", "--check"])
    assert results_tables.main(folder) == 1
    assert (folder / "a.md").read_text() == before
    assert "run python -m tools.results_tables\n" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["results_tables"])
    assert results_tables.main(folder) == 0
    assert "| FedAvg | 1.37 (2) |" in (folder / "a.md").read_text()
    monkeypatch.setattr(sys, "argv", ["results_tables", "--check"])
    assert results_tables.main(folder) == 0
