"""The page docs/results/verdicts.md: verdicts by paper, and what would decide those left open."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from scipy.special import stdtrit

from vergence.metrics.sample_size import MOST, people_needed
from vergence_papers.verdicts import KINDS, kind_of

COUNTED = tuple(dict.fromkeys(KINDS.values()))
"""Columns of the table of counts."""

NUMBERS = re.compile(r"\[([\d.e+-]+), ([\d.e+-]+)\]")
COUNT = re.compile(r"\d+ of (\d+)( \w+)?")
SAID = re.compile(r"with the mean and spread seen here, ([\d,]+) (\w+) (show|would not)")
"""What `vergence reproduce` writes since it tells this itself."""
DATA = re.compile(r"^- data: (.*?) ?\((real|generated)\)", re.M)
SEEDS = re.compile(r"^- (?:seeds: )?(\d+)(?: seeds?)?, (?:rounds: )?\d+", re.M)
MINUTES = re.compile(r"([\d.]+) minutes in rounds")
HEAD = """# Verdicts on the papers' claims

Counted over the pages below `papers` that `vergence reproduce` wrote, by paper, by whether the data
are recorded or generated, and by whose claims they are: the paper's, or ours about its methods. A
claim that stands on several pages with the same numbers, as they share runs, is counted once; one
of several comparisons, which has no numbers of its own, once for each data set. Hours are those of
training rounds, on two shared cores; where pages share a run, each of them counts it.
[What a verdict means](../how-to/reproduce.md#what-a-verdict-means).

A verdict needs a winner that has learned, and the numbers behind it in `results/data`, from which
`python -m tools.examiner` computes it again. Older pages have no such numbers. Their claims are
*open* until they are run again, unless the page itself shows that no row has learned, that two rows
are the same or both at 99 % or more, or that a claim cannot be tested.
"""
CHANCE = """
Every interval is a 95 % interval of one comparison, and is not corrected for the number of claims.
A comparison without any true difference is found on the claimed side once in forty times, and on
the other side as often: {chance} of {tested} each way, if every tested claim were one such
comparison. A claim of several comparisons holds by chance less often and is contradicted more
often. One that allows a margin, or says that two are alike, is right where there is no difference.
Claims of one paper share runs, so they err together. A single verdict is a hint; the same verdict
on several data sets is more.
"""
PLAN = """
## What would decide the claims that are not shown

How many people (or seeds, where people share a score) would show the claim with 80 % power, if the
mean difference and its spread between people were those seen so far. The seen mean is itself
uncertain, so these are orders of magnitude for the planning of a study, and no promises. "No
number" means that the mean lies on the other side, or that {most:,} would not be enough; "not
known", that the page was written before it told what a claim of likeness needs.
"""
HEADLINES = """
## Headlines

The main claims of the papers, and what their pages say of them. Data and settings are those of the
page. "Gaining X a round" is in the unit of the score: for a share, such as F1, 0.01 is one point.

| asked | claim | page | better by | 95 % interval | better for | the page says |
|---|---|---|---:|---|---:|---|
"""
ASKED: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "FedCPF on real eyes",
        "fedcpf/table1_mpiigaze_crops_300",
        ("FedCPF improves on local-only", "FedCPF improves on FedAvg", "choosing by change"),
    ),
    (
        "FedCPF on video",
        "fedcpf/table1_hevc_video",
        ("FedCPF improves on local-only", "FedCPF improves on FedAvg", "choosing by change"),
    ),
    (
        "adaptive servers, rates as printed",
        "adaptive/headline-as-printed_mpiigaze_crops",
        ("adaptive FL beats FedAvg", "adaptive FL beats individual training"),
    ),
    (
        "adaptive servers, small client rate",
        "adaptive/headline-small-rate_mpiigaze_crops",
        ("adaptive FL beats FedAvg",),
    ),
    (
        "adaptive servers, rates of a search",
        "adaptive/headline_mpiigaze_crops",
        ("adaptive FL beats FedAvg", "adaptive FL beats individual training"),
    ),
    (
        "AP-FL on a trained base",
        "apfl/readings_fashion_mnist",
        (
            "AP-FL beats FedAvg by Equation 3.10",
            "AP-FL beats FedAvg as the text reads",
            "AP-FL by Equation 3.10 beats FedAvg on own tests",
            "AP-FL as the text reads beats FedAvg on own tests",
        ),
    ),
    (
        "SplitFed's defences together",
        "splitfed/combined_eye_synthetic",
        (
            "DP-SGD at epsilon 0.5 raises no error",
            "DP-SGD and noise together, as printed",
            "with l = 0.03 and epsilon 8 of both halves",
            "with l = 0.03 and epsilon 0.5 of both halves",
            "noise of l = 0.03 leaves an attacker",
        ),
    ),
    (
        "student of a white box, as printed",
        "pezsl/table5.2_cifar10_unseen",
        ("the white box's student is close to its teacher",),
    ),
    (
        "student of a white box, by moments",
        "pezsl/moments_cifar10_unseen",
        ("by moments the student is close to its teacher",),
    ),
)
"""What is asked, the page that answers it, and how its claims begin."""


@dataclass(frozen=True)
class Told:
    """A line of a page's table of verdicts; `whose` is empty in the lines of a claim's pairs."""

    page: Path
    text: str
    whose: str
    word: str
    better: str
    interval: str
    count: str
    reason: str


@dataclass(frozen=True)
class Page:
    """A page of a paper: kind and name of its data, seeds and minutes, if given, and its claims."""

    paper: str
    kind: str
    data: str
    seeds: int | None
    minutes: float
    lines: tuple[Told, ...]

    @classmethod
    def read(cls, path: Path) -> Page:
        """Read what `vergence reproduce` wrote; one that only counts the data has no seeds."""
        text = path.read_text(encoding="utf-8")
        kind, seeds, minutes = (told.search(text) for told in (DATA, SEEDS, MINUTES))
        return cls(
            _paper(path),
            kind[2] if kind else "no training",
            kind[1] if kind else "",
            int(seeds[1]) if seeds else None,
            float(minutes[1]) if minutes else 0.0,
            tuple(_lines(path)),
        )


def paper_pages(papers: Path) -> list[Path]:
    """The pages of results in the folders of papers."""
    return sorted(papers.glob("*/results/*.md"))


def page(papers: Path, asked: Sequence[tuple[str, str, Sequence[str]]] = ()) -> str:
    """The page about all pages in the folders of papers, with a table of headlines, if asked."""
    pages = [Page.read(path) for path in paper_pages(papers)]
    lines = [line for page in pages for line in page.lines]
    tested = sum(line.word in ("holds", "contradicted", "not shown") for line in _once(pages))
    groups: dict[tuple[str, str], list[Page]] = {}
    for page in pages:
        groups.setdefault((page.paper, page.kind), []).append(page)
    rows = [row for group in sorted(groups) for row in _count(*group, groups[group])]
    rows += _count("all", "", pages)
    heads = ["paper", "data", "whose", "pages", "seeds", "hours", *COUNTED]
    ruler = "|---|---|---|" + "---:|" * (len(heads) - 3)
    chance = CHANCE.format(tested=tested, chance=round(tested / 40))
    planned = [
        f"| {line.text} | [{_paper(line.page)}/{line.page.stem}]"
        f"(../../papers/{line.page.relative_to(papers).as_posix()}) | {needed(line)} |"
        for line in _open(lines)
    ]
    table = "\n".join([f"| {' | '.join(heads)} |", ruler, *rows])
    parts = [HEAD, table, chance if tested else "", *headlines(papers, asked)]
    if planned:
        parts += [PLAN.format(most=MOST), "| claim | page | shown with |\n|---|---|---:|", *planned]
    return "\n".join(parts)


def headlines(papers: Path, asked: Sequence[tuple[str, str, Sequence[str]]]) -> list[str]:
    """The table of headlines, from pages in the folders of papers.

    Raises:
        ValueError: a page has no claim, or several, that begin so.
    """
    rows = []
    for question, name, starts in asked:
        paper, _, stem = name.partition("/")
        path = papers / paper / "results" / f"{stem}.md"
        for start in starts:
            lines = [line for line in _lines(path) if line.whose and line.text.startswith(start)]
            if len(lines) != 1:
                raise ValueError(f"{path} has {len(lines)} claims that begin with: {start}")
            (line,) = lines
            link = f"[{name}](../../papers/{paper}/results/{stem}.md)"
            cells = [question, line.text, link, line.better, line.interval, line.count, line.word]
            rows.append(f"| {' | '.join(cells)} |")
    return [HEADLINES + "\n".join(rows) + "\n"] if rows else []


def needed(line: Told) -> str:
    """How many people or seeds would show a claim.

    >>> ends = "[\N{MINUS SIGN}0.48, 4.48]"
    >>> row = Told(Path("p.md"), "c", "paper", "not shown", "+2.00", ends, "3 of 3", "against a")
    >>> needed(row)
    '5 people'
    """
    told = SAID.search(line.reason)
    if told:
        return f"{told[1]} {told[2]}" if told[3] == "show" else "no number"
    count = COUNT.search(line.count)
    if "one-sided" in line.reason or count is None:
        return "not known"
    people, units = int(count[1]), (count[2] or " people").strip()
    margin = NUMBERS.search(line.reason) if "margin" in line.reason else None
    found = margin or NUMBERS.search(line.interval.replace("\N{MINUS SIGN}", "-"))
    if found is None:
        return "not known"
    low, high = float(found[1]), float(found[2])
    mean, half = (low + high) / 2, (high - low) / 2
    deviation = half * math.sqrt(people) / float(stdtrit(people - 1, 0.975))
    most = people_needed(mean, deviation) if mean > 0 else None
    return "no number" if most is None else f"{most:,} {units}"


def _open(lines: Sequence[Told]) -> Iterator[Told]:
    """Claims that are not shown; one of several comparisons is as far off as its furthest."""
    for at, line in enumerate(lines):
        if line.word != "not shown":
            continue
        if SAID.search(line.reason) or COUNT.search(line.count):
            yield line
            continue
        for pair in lines[at + 1 :]:
            if pair.word:
                break
            found = NUMBERS.search(pair.interval.replace("\N{MINUS SIGN}", "-"))
            if found and float(found[1]) <= 0 <= float(found[2]):
                text = f"{line.text}: {pair.text}"
                pair_cells = (pair.better, pair.interval, pair.count)
                yield Told(line.page, text, line.whose, line.word, *pair_cells, "")


def _lines(path: Path) -> Iterator[Told]:
    _, _, table = path.read_text(encoding="utf-8").partition("\n## Verdicts\n")
    for line in table.splitlines():
        cells = [cell.strip(" \u2003") for cell in line.strip("|").split(" | ")]
        known = cells[2:3] and cells[2].partition(" (")[0] in ("", *KINDS)
        if line.startswith("|") and len(cells) == 8 and known:
            yield Told(path, *cells[:6], cells[7].strip(" |"))


def _once(pages: Sequence[Page]) -> list[Told]:
    """Lines of all pages; those of one paper that say the same of the same numbers only once.

    A claim of several comparisons has no numbers in its own line: there the data must be the same.
    """
    found = {
        (
            page.paper,
            page.kind,
            line.text,
            line.interval or page.data,
            line.better,
            line.count,
        ): line
        for page in pages
        for line in page.lines
        if line.word
    }
    return list(found.values())


def _count(paper: str, kind: str, pages: Sequence[Page]) -> Iterator[str]:
    """Row of the paper's claims, and one of ours where there are any."""
    lines = _once(pages)
    for whose in ("paper", "ours"):
        found = Counter(kind_of(line.word) for line in lines if line.whose == whose)
        if whose == "ours" and not found:
            continue
        seeds = sorted({page.seeds for page in pages if page.seeds is not None})
        several = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else "".join(map(str, seeds))
        hours = f"{sum(page.minutes for page in pages) / 60:.1f}"
        runs = [str(len(pages)), several, hours] if whose == "paper" else ["", "", ""]
        cells = [paper, kind, whose, *runs, *(str(found[name]) for name in COUNTED)]
        yield f"| {' | '.join(cells)} |"


def _paper(page: Path) -> str:
    """The short name of the paper in whose folder a page of results lies."""
    return page.parent.parent.name
