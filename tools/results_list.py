"""The page docs/results/README.md: every page of measurements with its data and its outcome."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from tools.verdicts_list import paper_pages
from vergence.errors import ConfigError
from vergence.experiment.packaged import locate
from vergence.experiment.schema import read

ROOT = Path(__file__).resolve().parent.parent
RAN = re.compile(r"^`vergence (?:run|study evaluate)[^`]*?`: (.*?), \d+ rounds", re.M | re.S)
VERDICTS = re.compile(r"^\d+ hold, .*?\.$", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
SEEDS = re.compile(r"(1 seed)\(s\)|\(s\)")
"""An ending of pages that were written long ago."""
DATA = re.compile(r"^- data: ([^;\n]*)", re.MULTILINE)
LOCAL, COMMON = "local-only", "FedAvg"
HEAD = """# Results

Every page here holds measurements, with the commands that repeat them. Pages of experiments and of
papers are written by `tools/make_results.py` from finished runs. A link below each table of other
pages leads to its numbers as a CSV file. Begin with [what a person gains by joining](joining.md).
The [notes](notes.md) say what to keep in mind when you read single pages.
"""
EXPERIMENTS = """
## Experiments

The outcome is the mean over people of the headline metric: training alone, FedAvg, and the best
row. Whether a difference can be told from chance is on the page.
"""
PAPERS = """
## Claims of papers

A claim holds, is contradicted, or is not shown by these data where the better row has learned and
the numbers stand beside the page, in the folder of the paper; what the other words mean is
[told here](../how-to/reproduce.md#what-a-verdict-means).
"""


def page(folder: Path, papers: Path) -> str:
    """The list of the pages of a folder, and of those in the folders of papers."""
    guides, studies, claims = [], [], []
    for path in sorted(folder.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        title = _title(text)
        if path.name == "README.md":
            continue
        if ran := RAN.search(text):
            studies.append(
                _row(
                    path.name,
                    title,
                    _data_set(title) + SEEDS.sub(lambda m: m[1] or "s", ran[1]),
                    outcome(text),
                )
            )
        else:
            guides.append(f"| [{title}]({path.name}) | {_lead(text)} |")
    for path in paper_pages(papers):
        text = path.read_text(encoding="utf-8")
        data, verdict = DATA.search(text), VERDICTS.search(text)
        said = _lead(text) if verdict is None else f"{_lead(text)} {verdict[0]}"
        link = f"../../papers/{path.relative_to(papers).as_posix()}"
        claims.append(_row(link, _title(text), data[1] if data else "", said))
    head = "| page | data | outcome |\n|---|---|---|"
    parts = [HEAD, "## Questions\n", "| page | what it says |\n|---|---|", *guides, EXPERIMENTS]
    return "\n".join([*parts, head, *studies, PAPERS, head, *claims])


def outcome(text: str) -> str:
    """Training alone, FedAvg and the best row of a page's first table, in its first metric."""
    metric, rows = headline(text)
    if not rows:
        return ""
    lower = _lower_is_better(text)
    best = (min if lower else max)(rows, key=lambda name: float(rows[name]))
    named = dict.fromkeys(name for name in (LOCAL, COMMON, best) if name in rows)
    said = ", ".join(f"{'best ' if name == best else ''}{name} {rows[name]}" for name in named)
    return f"{metric}: {said}"


def headline(text: str) -> tuple[str, Mapping[str, str]]:
    """The metric that a page's first table begins with, and its mean for every method."""
    lines = list(_first_table(text))
    found = {row[0]: row[1] for row in lines[2:] if not row[0].startswith("*")}
    return (lines[0][1] if lines else ""), {k: v for k, v in found.items() if _number(v)}


def _lower_is_better(text: str) -> bool:
    """True where the person served worst has the larger value."""
    pairs = [(row[1], row[3]) for row in _first_table(text) if len(row) > 3]
    return any(float(b) > float(a) for a, b in pairs if _number(a) and _number(b))


def _first_table(text: str) -> Iterator[list[str]]:
    begun = False
    for line in text.splitlines():
        if line.startswith("|"):
            begun = True
            yield [cell.strip() for cell in line.strip("|").split("|")]
        elif begun:
            return


def _number(text: str) -> bool:
    return re.fullmatch(r"-?\d+(\.\d+)?", text) is not None


def _data_set(name: str) -> str:
    """The data set of the experiment with this name, and a comma; "" where there is no file."""
    stem = name if (ROOT / f"experiments/{name}.toml").is_file() else name.rpartition("_")[0]
    own = ROOT / f"experiments/{stem}.toml"
    try:
        table = read(own if own.is_file() else locate(Path(name)))
    except ConfigError:
        return ""
    return f"{table['federation']['name']}, "


def _lead(text: str) -> str:
    """The first sentence of a page; of a page that begins with a command, the command."""
    blocks = FENCE.sub("", text).split("\n\n")[1:]
    told = (" ".join(block.split()) for block in blocks)
    first = next((b for b in told if b and not b.startswith(("#", "|", "*", "!", "<", ">"))), "")
    return re.split(r"(?<=[a-z`)]\.) ", first)[0].removesuffix(":")


def _title(text: str) -> str:
    return text.partition("\n")[0].lstrip("# ")


def _row(link: str, title: str, *cells: str) -> str:
    told = (cell.replace("|", "\\|") for cell in cells)
    return f"| [{title}]({link}) | {' | '.join(told)} |"
