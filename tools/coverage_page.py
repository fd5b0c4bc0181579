"""The page docs/reference/coverage.md: every row of the papers, what it is, and its verdict."""

from __future__ import annotations

import csv
from itertools import groupby

from tools.coverage import TABLE, read

ROWS = TABLE.with_name("coverage_rows.csv")
HEAD = """# What the papers have, row by row

Every system, experiment, table, figure and stated gap of the papers that this software rebuilds has
a number here. [coverage.csv](coverage.csv) gives for each row the commands and files that show its
verdict: `id,priority,verdict,evidence`. What a row is, is in
[coverage_rows.csv](coverage_rows.csv).

```sh
python tools/coverage.py
python tools/coverage.py --list
```

The tool counts rows by priority and verdict. It fails where a row names a command, an experiment, a
table, a file or a test that does not exist. It does not run the commands: `done` means that anybody
can run them. A row is done where its experiment was run and its result is told, whichever way it
came out; the numbers, with how many people and seeds, are in `docs/results`. A row that was decided
against names a section of [decisions](../explanation/decisions/rows-decided-against.md).

Priorities: P0, without it the claim to have rebuilt a paper is empty; P1, needed for a claim of
completeness; P2, completes the picture.
"""
PAPERS = {
    "A": "FedCPF",
    "B": "The SplitFed gaze thesis",
    "C": "Adaptive federated learning of gaze",
    "D": "AP-FL",
    "E": "CFed-VS",
    "F": "PE-ZSL and SG-ZSL",
    "G": "All of it",
}


def page() -> str:
    """The whole page.

    Raises:
        KeyError: a row has a verdict and no text, or a text and no verdict.
    """
    with ROWS.open(encoding="utf-8", newline="") as file:
        texts = {row["id"]: row["what"] for row in csv.DictReader(file)}
    rows = read(TABLE)
    if odd := texts.keys() ^ {row.id for row in rows}:
        raise KeyError(f"coverage.csv and coverage_rows.csv do not both have {sorted(odd)}")
    parts = [HEAD]
    for letter, group in groupby(rows, key=lambda row: row.id[0]):
        parts.append(f"## {letter}: {PAPERS[letter]}\n")
        parts.append("| row | what | priority | verdict |\n|---|---|---|---|")
        parts += [f"| {r.id} | {texts[r.id]} | {r.priority} | {r.verdict} |" for r in group]
        parts.append("")
    return "\n".join(parts)
