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
from vergence.reproduce.verdicts import KINDS

NUMBERS = re.compile(r"\[([\d.e+-]+), ([\d.e+-]+)\]")
COUNT = re.compile(r"\d+ of (\d+)( \w+)?")
SAID = re.compile(r"with the mean and spread seen here, ([\d,]+) (\w+) (show|would not)")
"""What `vergence reproduce` writes since it tells this itself."""
DATA = re.compile(r"^- data: .*?\((real|generated)\)", re.M)
SEEDS = re.compile(r"^- (?:seeds: )?(\d+)(?: seeds?)?, (?:rounds: )?\d+", re.M)
MINUTES = re.compile(r"([\d.]+) minutes in rounds")
HEAD = """# Verdicts on the papers' claims

Counted over the pages of this folder that `vergence reproduce` wrote, by paper and by whether the
data are recorded or generated. Hours are spent in rounds on two shared cores; runs that several
pages share are counted on each. [What a verdict
means](../how-to/reproduce.md#what-a-verdict-means).
"""
CHANCE = """
Every interval is a 95 % interval of one comparison, and is not corrected for the number of claims.
A comparison without any true difference is found on the claimed side once in forty times, and on
the other side as often: {chance} of {tested} each way, if every tested claim were one such
comparison. A claim of several comparisons holds by chance less often and is contradicted more
often. One that allows a margin, or says that two are alike, is right where there is no difference.
Claims of one paper share runs, so they err together. A single verdict is a hint; the same verdict
on several data sets is more.

## What would decide the claims that are not shown

How many people (or seeds, where people share a score) would show the claim with 80 % power, if the
mean difference and its spread between people were those seen so far. The seen mean is itself
uncertain, so these are orders of magnitude for the planning of a study, and no promises. "No
number" means that the mean lies on the other side, or that {most:,} would not be enough; "not
known", that the page was written before it told what a claim of likeness needs.
"""


@dataclass(frozen=True)
class Told:
    """A line of a page's table of verdicts: its text, word, interval, count and reason."""

    page: str
    text: str
    word: str
    interval: str
    count: str
    reason: str


@dataclass(frozen=True)
class Page:
    """A page of a paper: kind of data, seeds and minutes, where it tells them, and its claims."""

    paper: str
    kind: str
    seeds: int | None
    minutes: float
    lines: tuple[Told, ...]

    @classmethod
    def read(cls, path: Path) -> Page:
        """Read what `vergence reproduce` wrote; one that only counts the data has no seeds."""
        text = path.read_text(encoding="utf-8")
        kind, seeds, minutes = (told.search(text) for told in (DATA, SEEDS, MINUTES))
        return cls(
            path.name.removeprefix("reproduce_").partition("_")[0],
            kind[1] if kind else "no training",
            int(seeds[1]) if seeds else None,
            float(minutes[1]) if minutes else 0.0,
            tuple(_lines(path)),
        )


def page(folder: Path) -> str:
    """The page about all pages of papers in a folder."""
    pages = [Page.read(path) for path in sorted(folder.glob("reproduce_*.md"))]
    lines = [line for page in pages for line in page.lines]
    tested = sum(line.word not in ("", "not testable here") for line in lines)
    groups: dict[tuple[str, str], list[Page]] = {}
    for page in pages:
        groups.setdefault((page.paper, page.kind), []).append(page)
    rows = [_count(*group, groups[group]) for group in sorted(groups)]
    rows.append(_count("all", "", pages))
    heads = ["paper", "data", "pages", "seeds", "hours", *KINDS.values()]
    ruler = "|---|---|" + "---:|" * (len(heads) - 2)
    chance = CHANCE.format(tested=tested, chance=round(tested / 40), most=MOST)
    planned = [
        f"| {line.text} | [{_name(line)}]({line.page}) | {needed(line)} |" for line in _open(lines)
    ]
    head = "| claim | page | shown with |\n|---|---|---:|"
    table = "\n".join([f"| {' | '.join(heads)} |", ruler, *rows])
    return "\n".join([HEAD, table, chance, head, *planned])


def needed(line: Told) -> str:
    """How many people or seeds would show a claim.

    >>> row = Told("p.md", "c", "not shown", "[\N{MINUS SIGN}0.48, 4.48]", "3 of 3", "against a")
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
                yield Told(line.page, text, line.word, pair.interval, pair.count, "")


def _lines(path: Path) -> Iterator[Told]:
    _, _, table = path.read_text(encoding="utf-8").partition("\n## Verdicts\n")
    for line in table.splitlines():
        cells = [cell.strip(" \u2003") for cell in line.strip("|").split(" | ")]
        if line.startswith("|") and len(cells) == 7 and cells[1] in ("", *KINDS):
            yield Told(path.name, cells[0], cells[1], cells[3], cells[4], cells[6].strip(" |"))


def _count(paper: str, kind: str, pages: Sequence[Page]) -> str:
    found = Counter(line.word for page in pages for line in page.lines)
    seeds = sorted({page.seeds for page in pages if page.seeds is not None})
    several = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else "".join(map(str, seeds))
    hours = f"{sum(page.minutes for page in pages) / 60:.1f}"
    cells = [paper, kind, str(len(pages)), several, hours]
    return f"| {' | '.join([*cells, *(str(found[word]) for word in KINDS)])} |"


def _name(line: Told) -> str:
    return line.page.removeprefix("reproduce_").removesuffix(".md")
