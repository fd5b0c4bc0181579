"""Patterns of file paths with named parts, such as `{person}/day_*/{recording}.csv`."""

from __future__ import annotations

import re
from pathlib import Path

from vergence.errors import ConfigError

PARTS = ("person", "recording")


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
    for path in sorted(root.rglob("*")):
        hit = rule.fullmatch(path.relative_to(root).as_posix())
        if hit and path.is_file():
            found.append((path, {k: v for k, v in hit.groupdict().items() if v}))
    return found


def filled(pattern: str, parts: dict[str, str]) -> str:
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
