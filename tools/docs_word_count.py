"""Count of the words of hand-written pages: README, ARCHITECTURE and docs, as `wc -w` counts them.

    python -m tools.docs_word_count          # by folder, and the total
    python -m tools.docs_word_count --pages  # and by page

Left out are docs/results, whose pages are measurements, and what is generated: a page whose title
is followed by the comment "Written by ...", and of another page what follows such a comment.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOP = ("README.md", "ARCHITECTURE.md")
GENERATED = re.compile(r"<!-- Written by .*", re.DOTALL)


def hand_written(root: Path = ROOT) -> Iterator[tuple[str, int]]:
    """Pages with words of their own below a folder, each with how many it has."""
    results = root / "docs" / "results"
    below = (page for page in (root / "docs").rglob("*.md") if results not in page.parents)
    for page in [*(root / name for name in TOP), *sorted(below)]:
        text = GENERATED.sub("", page.read_text(encoding="utf-8"))
        if len(text.strip().splitlines()) > 1:
            yield page.relative_to(root).as_posix(), len(text.split())


def main() -> None:
    """Print the count."""
    pages = dict(hand_written())
    if "--pages" in sys.argv[1:]:
        for name, words in sorted(pages.items(), key=lambda each: -each[1]):
            sys.stdout.write(f"{words:7,} {name}\n")
        sys.stdout.write("\n")
    folders: Counter[str] = Counter()
    for name, words in pages.items():
        folders[name.rpartition("/")[0] or "."] += words
    for folder, words in sorted(folders.items()):
        sys.stdout.write(f"{words:7,} {folder}\n")
    sys.stdout.write(f"{folders.total():7,} total\n")


if __name__ == "__main__":
    main()
