"""Files below a folder, and patterns of their paths, such as `{person}/day_*/{recording}.csv`.

Used throughout `data`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from vergence.errors import ConfigError

PARTS = ("person", "recording", "session", "condition")
NOT_DATA = re.compile(r"\..*|~\$.*|Thumbs\.db|desktop\.ini|__MACOSX", re.IGNORECASE)
"""Names of files that operating systems and office programs leave behind, such as `._a.csv`."""


def files_below(root: Path) -> list[Path]:
    """Return the files in and below a folder, sorted, without names that `NOT_DATA` matches.

    Folders with such names are left out too. Links to files and folders are followed, and a folder
    that is reached twice is listed once.
    """
    files: list[Path] = []
    folders, links, known = [root], list[Path](), set[Path]()
    while folders or links:
        # Folders before links to them, so that their files go by their own names.
        folder = folders.pop() if folders else links.pop(0)
        # A link to a folder above would be followed without end.
        real = folder.resolve()
        if real in known or (folder != root and root.resolve().is_relative_to(real)):
            continue
        known.add(real)
        # A folder of somebody else below root is no reason to refuse the others.
        with suppress(PermissionError):
            for path in sorted(folder.iterdir()):
                if NOT_DATA.fullmatch(path.name):
                    continue
                if path.is_dir():
                    (links if path.is_symlink() else folders).append(path)
                elif path.is_file():
                    files.append(path)
    return sorted(files)


def matching_files(root: Path, pattern: str, option: str) -> list[tuple[Path, dict[str, str]]]:
    """Return the files whose paths fit a pattern, each with named part -> text.

    In a pattern, `*` stands for any characters except `/`, and `**/` for any number of folders, or
    none. Named parts (`{person}`, `{recording}`, `{session}`, `{condition}`) stand for one or more
    characters except `/`.
    Capital and small letters differ.

    Args:
        root: the folder with the files.
        pattern: pattern of paths relative to root, with `/` between names.
        option: name of the option with the pattern, for error messages.

    Raises:
        ConfigError: the pattern has another name in braces, or a named part twice.
    """
    rule = _pattern_regex(pattern, option)
    return [
        (path, {k: v for k, v in match.groupdict().items() if v})
        for path in files_below(root)
        if (match := rule.fullmatch(path.relative_to(root).as_posix()))
    ]


def fill_pattern(pattern: str, parts: Mapping[str, str]) -> str:
    """Return the pattern with its named parts, such as `{person}`, replaced by their texts."""
    # An asterisk in a folder's name would become a wildcard of the new pattern.
    for name, text in parts.items():
        pattern = pattern.replace(f"{{{name}}}", text.replace("*", ""))
    return pattern


def _pattern_regex(pattern: str, option: str) -> re.Pattern[str]:
    out = []
    for token in re.split(r"(\*\*/|\*|\{\w*\})", pattern):
        if token == "**/":
            out.append("(?:.*/)?")
        elif token == "*":
            out.append("[^/]*")
        elif token.startswith("{"):
            if token[1:-1] not in PARTS or f"(?P<{token[1:-1]}>[^/]+)" in out:
                raise ConfigError(
                    f"{option}: '{token}' in '{pattern}': allowed are "
                    f"{', '.join(f'{{{part}}}' for part in PARTS)}, each once"
                )
            out.append(f"(?P<{token[1:-1]}>[^/]+)")
        else:
            out.append(re.escape(token))
    return re.compile("".join(out))
