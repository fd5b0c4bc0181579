"""Files below a folder, and patterns of their paths, such as `{person}/day_*/{recording}.csv`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from vergence.errors import ConfigError

PARTS = ("person", "recording")
NOT_DATA = re.compile(r"\..*|~\$.*|Thumbs\.db|desktop\.ini|__MACOSX", re.IGNORECASE)
"""Names of what systems and office programs leave in folders: `._a.csv`, `.~lock.a#`, `~$a.csv`."""


def files_below(root: Path) -> list[Path]:
    """Files in and below a folder, in order; none whose name, or folder's name, is `NOT_DATA`.

    Links to files and folders are followed; a folder that is there twice is listed once.
    """
    found: list[Path] = []
    folders, links, known = [root], list[Path](), set[Path]()
    while folders or links:
        # Folders before links to them, so that their files go by their own names.
        folder = folders.pop() if folders else links.pop(0)
        real = folder.resolve()
        if real in known or (folder != root and root.resolve().is_relative_to(real)):
            continue
        known.add(real)
        with suppress(PermissionError):
            for path in sorted(folder.iterdir()):
                if NOT_DATA.fullmatch(path.name):
                    continue
                if path.is_dir():
                    (links if path.is_symlink() else folders).append(path)
                elif path.is_file():
                    found.append(path)
    return sorted(found)


def matching(root: Path, pattern: str, option: str) -> list[tuple[Path, dict[str, str]]]:
    """Files below a folder whose path fits a pattern, in order, and the text of its named parts.

    `*` stands for any characters of one name, `**/` for any folders (also none), `{person}` and
    `{recording}` for one or more characters of a name. Capitals count.

    Args:
        root: the folder.
        pattern: of paths below it, with `/` between names.
        option: what the pattern is called in an error.

    Raises:
        ConfigError: another name stands in braces, or a part is named twice.
    """
    rule = _rule(pattern, option)
    found = []
    for path in files_below(root):
        hit = rule.fullmatch(path.relative_to(root).as_posix())
        if hit:
            found.append((path, {k: v for k, v in hit.groupdict().items() if v}))
    return found


def filled(pattern: str, parts: Mapping[str, str]) -> str:
    """The pattern with the text of its named parts in their places."""
    for name, text in parts.items():
        pattern = pattern.replace(f"{{{name}}}", text.replace("*", ""))
    return pattern


def _rule(pattern: str, option: str) -> re.Pattern[str]:
    out = []
    for token in re.split(r"(\*\*/|\*|\{\w*\})", pattern):
        if token == "**/":
            out.append("(?:.*/)?")
        elif token == "*":
            out.append("[^/]*")
        elif token.startswith("{"):
            if token[1:-1] not in PARTS or f"(?P<{token[1:-1]}>[^/]+)" in out:
                raise ConfigError(
                    f"{option}: '{token}' in '{pattern}': allowed are {{person}} and "
                    "{recording}, each once"
                )
            out.append(f"(?P<{token[1:-1]}>[^/]+)")
        else:
            out.append(re.escape(token))
    return re.compile("".join(out))
