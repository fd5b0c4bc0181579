"""What became of every verdict on the papers' claims since a former state of the project.

`python -m tools.verdict_changes REVISION` prints how many claims went from which word to which,
and for each claim of a page in papers/*/results whose verdict differs from that of the git
revision, what it was and what it is. Claims of new pages are counted apart.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from pathlib import Path

from tools.verdicts_list import Page, paper_pages
from vergence_papers.verdicts import kind_of

ROOT = Path(__file__).resolve().parent.parent
NOWHERE = "no page"
Claim = tuple[str, str]
"""Page, such as `fedcpf/table1_osie`, and the claim's text."""


def verdicts(papers: Path) -> dict[Claim, tuple[str, str]]:
    """Return claim -> whose it is and its verdict's column, of all pages in folders of papers."""
    return {
        (f"{line.page.parts[-3]}/{line.page.stem}", line.text): (line.whose, kind_of(line.word))
        for path in paper_pages(papers)
        for line in Page.read(path).lines
        if line.whose
    }


def formerly(revision: str, root: Path = ROOT) -> dict[Claim, tuple[str, str]]:
    """Return the verdicts of a git revision.

    Raises:
        subprocess.CalledProcessError: git does not know the revision, or it has no papers.
    """
    command = ["git", "-C", str(root), "archive", revision, "papers"]
    packed = subprocess.run(command, check=True, capture_output=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(packed)) as files:
            files.extractall(folder, filter="data")
        return verdicts(Path(folder) / "papers")


def page(before: dict[Claim, tuple[str, str]], after: dict[Claim, tuple[str, str]]) -> str:
    """Return two tables: how many claims went from which word to which, and each of them.

    >>> claim = ("a/table1_x", "it is better")
    >>> print(page({claim: ("paper", "open")}, {claim: ("paper", "hold")}))
    | before | after | claims of the paper | ours |
    |---|---|---:|---:|
    | open | hold | 1 | 0 |
    <BLANKLINE>
    | page | claim | whose | before | after |
    |---|---|---|---|---|
    | a/table1_x | it is better | paper | open | hold |
    """
    moves = {
        claim: (before.get(claim, ("", NOWHERE))[1], after.get(claim, ("", NOWHERE))[1])
        for claim in sorted(before | after)
    }
    whose = {claim: told[0] for claim, told in (before | after).items()}
    counts = Counter((*move, whose[claim]) for claim, move in moves.items())
    lines = ["| before | after | claims of the paper | ours |", "|---|---|---:|---:|"]
    lines += [
        f"| {old} | {new} | {counts[old, new, 'paper']} | {counts[old, new, 'ours']} |"
        for old, new in sorted(set(moves.values()))
    ]
    lines += ["", "| page | claim | whose | before | after |", "|---|---|---|---|---|"]
    lines += [
        f"| {claim[0]} | {claim[1]} | {whose[claim]} | {old} | {new} |"
        for claim, (old, new) in moves.items()
        if old != new
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tools.verdict_changes REVISION")
    print(page(formerly(sys.argv[1]), verdicts(ROOT / "papers")))
