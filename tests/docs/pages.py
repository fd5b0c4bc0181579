"""README, CONTRIBUTING and docs, read: fenced blocks, tables, and the commands of sh blocks."""

import re
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import ROOT

TOP = (
    "README.md",
    "CONTRIBUTING.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "RELEASE.md",
    "SECURITY.md",
)
FENCE = re.compile(r"^```(\S*)[ \t]*(.*?)\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    label: str
    text: str

    def __str__(self):
        return f"{self.page.relative_to(ROOT).as_posix()}:{self.line}"


@dataclass(frozen=True)
class Command:
    page: Path
    line: int
    text: str
    note: str

    def __str__(self):
        return f"{self.page.relative_to(ROOT).as_posix()}:{self.line}"


def pages():
    """Return the pages that exist, README first."""
    top = [ROOT / name for name in TOP if (ROOT / name).is_file()]
    return top + sorted((ROOT / "docs").rglob("*.md")) + sorted((ROOT / "papers").rglob("*.md"))


def blocks(page, language):
    """Return the fenced blocks of one language, or of all (None)."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, text.count("\n", 0, m.start()) + 1, m[1], m[2], m[3])
        for m in FENCE.finditer(text)
        if language in (None, m[1])
    ]


def prose(page):
    """Return a page without its fenced blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def commands():
    """Return every command of every sh block; the title of its block is its note."""
    found = []
    for page in pages():
        for block in blocks(page, "sh"):
            joined, start = "", 0
            for number, line in enumerate(block.text.splitlines(), block.line + 1):
                start = start if joined else number
                joined += line
                if joined.endswith("\\"):
                    joined = joined[:-1]
                    continue
                if joined.strip():
                    note = block.label.removeprefix("title=").strip('"')
                    found.append(Command(page, start, joined.strip(), note))
                joined = ""
    return found


def options(page, heading):
    """Return name -> default (as TOML text, or 'none') of the table under a heading."""
    _, _, below = page.read_text(encoding="utf-8").partition(f"\n{heading}\n")
    section = re.split(r"^#+ ", below, maxsplit=1, flags=re.MULTILINE)[0]
    rows = re.findall(r"^\| `(\w+)` \| (?:`(.*?)`|(none)) \|", section, re.MULTILINE)
    return {name: default or none for name, default, none in rows}
