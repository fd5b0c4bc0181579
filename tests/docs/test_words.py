"""Prose has one spelling, and one word for one thing: the table at the end of the glossary."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"
CODE = re.compile(
    r"```.*?```|`[^`]*`|\]\([^)]*\)|https?://\S+|<!--.*?-->|^:::.*?$|^\s*[a-z_]\w*(?=:)|\S*/\S*",
    re.DOTALL | re.MULTILINE,
)
TITLES = re.compile(r"\*[^*\n]+\*|Source:.*?(?=\n\s*\n|\n\s*[A-Z]\w+:|\Z)|\"[^\"]*\"", re.DOTALL)
"""Titles of papers keep their spelling: in italics, in quotes, or after Source."""


def banned() -> dict[str, str]:
    """Words of the last table of the glossary, each with what to write."""
    table = GLOSSARY.read_text(encoding="utf-8").rpartition("|---|---|")[2]
    return dict(re.findall(r"^\| (\w+) \| (.+) \|$", table, re.MULTILINE))


def prose_of_code(path: Path) -> Iterator[tuple[int, str]]:
    """Docstrings and comments of a module, with their lines."""
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.lineno, str(node.value.value)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def faults(text: str, words: dict[str, str]) -> list[str]:
    """Banned words of a text, outside of code and titles."""
    plain = TITLES.sub(" ", CODE.sub(" ", text))
    # A word with "_" in it is a name, and names are spelled as the libraries spell them.
    pattern = re.compile(rf"(?<!\w)((?i:{'|'.join(words)}))[a-z]*+(?!\w)")
    return [f"{m[0]}: write {words[m[1].lower()]}" for m in pattern.finditer(plain)]


def pages() -> list[Path]:
    own = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")]
    below = (page for page in (ROOT / "docs").rglob("*.md") if "results" not in page.parts)
    return [page for page in [*own, *below] if page != GLOSSARY]


def test_written_pages_use_the_words_of_the_glossary():
    words = banned()
    assert len(words) > 20
    wrong = [f"{p.relative_to(ROOT)}: {f}" for p in pages() for f in faults(p.read_text(), words)]
    assert wrong == []


def test_docstrings_and_comments_use_the_words_of_the_glossary():
    words, wrong = banned(), []
    for path in sorted((ROOT / "src" / "vergence").rglob("*.py")):
        for line, text in prose_of_code(path):
            wrong += [f"{path.relative_to(ROOT)}:{line} {fault}" for fault in faults(text, words)]
    assert wrong == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("The behavior of strangers.", 2),
        ("The behaviour of `color`, see *Personalized learning*.", 0),
        ("One.\n\n    Source: Personalized federated learning, 2020.\n    Differs: the color.", 1),
    ],
)
def test_a_wrong_word_is_seen_in_prose_alone(text, wrong):
    assert len(faults(text, banned())) == wrong
