"""Pages that are written from the code: up to date, complete, and reached from start and menu."""

import dataclasses
import re

import pytest

import vergence
from tests.conftest import ROOT
from tests.docs.pages import prose
from tools import experiment_keys, reference_pages, results_list, verdicts_list
from vergence.cli.commands import DAILY, GROUPS
from vergence.core.options import option_texts
from vergence.experiment.schema import KEYS

DOCS = ROOT / "docs"
ROOMS = ("how-to", "reference", "explanation")
LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)")
ROW = re.compile(r"^\|.*\|$", re.MULTILINE)


@pytest.mark.parametrize("name", reference_pages.pages())
def test_a_written_page_is_up_to_date(name):
    told = f"docs/{name} is out of date: python -m tools.reference_pages"
    assert (DOCS / name).read_text(encoding="utf-8") == reference_pages.written(name), told


def test_every_public_name_has_a_section_and_no_other():
    listed = " ".join(reference_pages.GROUPS.values()).split()
    known = set(vergence.__all__) - {"__version__", *reference_pages.PACKAGES}
    assert len(listed) == len(set(listed))
    assert set(listed) == known


def test_every_command_has_a_section():
    heads = set(re.findall(r"^#+ vergence (.+)$", (DOCS / "reference/cli.md").read_text(), re.M))
    inner = {f"{group.name} {name}" for group in GROUPS for name in group.subcommands}
    assert heads == inner | {each.name for each in (*DAILY, *GROUPS)}


def test_every_key_of_an_experiment_has_a_row():
    text = (DOCS / "reference/experiment.md").read_text()
    assert all(f"| `{key}` | " in text for key in KEYS)
    assert set(experiment_keys.TOP) == set(KEYS)


@dataclasses.dataclass
class Documented:
    """A record.

    Args:
        told: what it is, over
            two lines.
        untold
    """

    told: int = 1
    untold: tuple[str, ...] = ("a",)


def test_an_option_without_a_meaning_is_refused():
    assert option_texts(Documented) == {"told": "what it is, over two lines. untold"}
    with pytest.raises(KeyError, match="Documented says nothing of 'untold'"):
        experiment_keys.table(Documented, ())
    assert experiment_keys.table(Documented, ("untold",))[2:] == [
        "| `told` | whole number | `1` | what it is, over two lines. untold |"
    ]


@pytest.mark.parametrize(
    ("unit", "alone", "shared", "worst", "said"),
    [
        ("error (°)", "6.10", "7.73", "9.00", "error (°): best local-only 6.10, FedAvg 7.73"),
        ("NSS", "2.61", "2.70", "2.00", "NSS: local-only 2.61, best FedAvg 2.70"),
    ],
)
def test_the_outcome_of_a_page_is_its_best_row(unit, alone, shared, worst, said):
    """Better is what the person served worst has less of: more error, or a lower score."""
    text = f"""# a page

|  | {unit} | 95 % interval | worst |
| --- | ---: | ---: | ---: |
| *centre* (prior) | 0.01 |  | 0.01 |
| local-only | {alone} | [1, 2] | {worst} |
| FedAvg | {shared} | [1, 2] | {worst} |

| another | table |
"""
    assert results_list.outcome(text) == said


def pages_of_guides():
    found = {p.relative_to(DOCS).as_posix() for room in ROOMS for p in (DOCS / room).glob("*.md")}
    assert len(found) > 40
    return found


def test_the_first_page_leads_to_every_page():
    linked = set(LINK.findall(prose(DOCS / "index.md")))
    assert sorted(pages_of_guides() - linked) == []


def test_the_menu_leads_to_every_page():
    named = re.findall(r"([\w/.-]+(?:\.md|/\*))$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    folders = {entry[:-2] for entry in named if entry.endswith("/*")}
    every = {path.relative_to(DOCS) for path in (*DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb"))}
    every |= {path.relative_to(ROOT) for path in (ROOT / "papers").rglob("*.md")}
    left = {p.as_posix() for p in every if p.parent.as_posix() not in folders}
    assert sorted(left - set(named)) == []
    missing = {n for n in named if not (n.endswith("/*") or (DOCS / n).is_file())}
    top = {"architecture.md", "contributing.md", "changelog.md", "release.md", "security.md"}
    assert missing == {*top, "papers/README.md"}


def test_the_readme_is_one_screen():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    assert len(text.split()) <= 900
    assert max(row.count("|") - 1 for row in ROW.findall(text)) <= 6
    assert "private" not in text.lower(), "say by what"


def test_the_table_of_the_readme_is_that_of_its_page():
    own, whole = ((ROOT / p).read_text() for p in ("README.md", "docs/results/joining.md"))
    rows = ROW.findall(own)
    assert len(rows) == 8
    starts = [row.rsplit("|", 1)[0] for row in rows[2:]]
    assert all(any(row.startswith(start) for row in ROW.findall(whole)) for start in starts)
    assert rows[0].strip("| ").split(" | ") == ["method", "NSS", "worst", "harmed"]


def test_links_of_the_site():
    """A link out of docs leads to a page of the site or to a copy; one of a folder is no link."""
    pytest.importorskip("mkdocs")
    pytest.importorskip("nbconvert")
    from tools import site_hooks

    text = (
        "[a](../../CONTRIBUTING.md#x) [b](../../src/vergence/errors.py) [c](../../tests) `[d](e)`"
    )
    moved = site_hooks.linked(text, "how-to/python.md")
    assert moved == "[a](../contributing.md#x) [b](../files/src/vergence/errors.py) c `[d](e)`"
    assert site_hooks.linked("[a](docs/how-to/live.md)", "security.md") == "[a](how-to/live.md)"
    assert site_hooks.linked("[a](two.ipynb)", "tutorials/one.md") == "[a](two.md)"
    page, fig = (
        "papers/fedcpf/results/table1_osie.md",
        "papers/fedcpf/results/pictures/fig3_osie.jpg",
    )
    text = (
        "![a](pictures/fig3_osie.jpg) [b](../../../docs/how-to/reproduce.md#x) [c](../tables.toml)"
    )
    moved = "![a](pictures/fig3_osie.jpg) [b](../../../how-to/reproduce.md#x) "
    moved += "[c](../../../files/papers/fedcpf/tables.toml)"
    assert site_hooks.linked(text, page) == moved
    for uri in (page, fig):
        assert site_hooks.linked(f"[a](../../{uri})", "results/reproduce.md") == f"[a](../{uri})"


PAGE = """
- data: made_crops (real), 3 people; small
- seeds: 3, rounds: 2, 1 epochs of batch 32 per person and round
- machine: Linux, 2 cores; 30.0 minutes in rounds

## Verdicts

| claim | whose | verdict | better by | 95 % interval | people | printed | reason |
| --- | --- | --- | --- | --- | --- | --- | --- |
| a is better (1) | paper | not shown | +2.00 | [−0.48, 4.48] | 3 of 3 |  | no difference shown here |
| b is no worse (2) | paper | not shown | −1.00 | [−9, 7] | 1 of 3 |  | open (interval with the margin of 20%: [-0.48, 4.48]) |
| c is best (3) | paper | not shown | – |  |  |  | no difference shown here against e |
|  c against d |  |  | +5.00 | [2.52, 7.48] | 3 of 3 seeds |  |  |
|  c against e |  |  | −2.00 | [−4.48, 0.48] | 0 of 3 seeds |  |  |
| f (4) | paper | not shown | +1.00 | [−1, 3] | 2 of 3 |  | open; with the mean and spread seen here, 7 people show it with 80% power |
| g (5) | paper | holds | +5.00 | [2.52, 7.48] | 3 of 3 |  | every interval excludes 0 |
"""  # noqa: E501


def paper_page(folder, name, text):
    """Write a page of the SplitFed thesis, and return its path."""
    path = folder / "splitfed" / "results" / f"{name}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_open_claims_say_what_would_decide_them(tmp_path):
    """Three people who differ by 1 2 3 have the interval 2 -/+ 2.48, and five would decide."""
    paper_page(tmp_path, "fig", PAGE)
    told = verdicts_list.page(tmp_path)
    assert "| splitfed | real | paper | 1 | 3 | 0.5 | 1 | 0 | 4 | 0 | 0 | 0 | 0 | 0 | 0 |" in told
    ends = [row.rpartition(" | ")[2] for row in told.splitlines() if row.endswith(" |")][-4:]
    assert ends == ["5 people |", "5 people |", "no number |", "7 people |"]


def test_claims_are_counted_by_whose_they_are_and_shared_runs_once(tmp_path):
    """Two pages of the same runs have the same claims; one claim is ours."""
    for name in ("costs", "all_defences"):
        text = PAGE.replace("| g (5) | paper |", "| g (5) | ours |")
        paper_page(tmp_path, name, text)
    told = verdicts_list.page(tmp_path)
    assert "| splitfed | real | paper | 2 | 3 | 1.0 | 0 | 0 | 4 | 0 | 0 | 0 | 0 | 0 | 0 |" in told
    assert "| splitfed | real | ours |  |  |  | 1 | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 0 |" in told


def test_headlines_are_claims_of_their_pages(tmp_path):
    """They have the page's own numbers and words, and a claim that is not there is an error."""
    paper_page(tmp_path, "fig", PAGE)
    told = verdicts_list.page(tmp_path, [("who wins", "splitfed/fig", ["g", "a is"])])
    assert "| who wins | g (5) | [splitfed/fig]" in told
    assert "| +5.00 | [2.52, 7.48] | 3 of 3 | holds |" in told
    assert "| +2.00 | [−0.48, 4.48] | 3 of 3 | not shown |" in told
    for start in ("h", ""):
        with pytest.raises(ValueError, match="claims that begin with"):
            verdicts_list.headlines(tmp_path, [("who wins", "splitfed/fig", [start])])


@pytest.mark.parametrize("line", ["seeds: 1, rounds: 2", "1 seed, 1 round", "1 seed, 25 rounds"])
def test_a_page_of_one_seed_says_so(line, tmp_path):
    file = paper_page(tmp_path, "fig", PAGE.replace("seeds: 3, rounds: 2", line))
    assert verdicts_list.Page.read(file).seeds == 1
