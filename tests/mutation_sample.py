"""Small changes drawn at random from all that cosmic-ray's operators know: do tests notice them?

    pip install -e ".[mutation]"
    COVERAGE_FILE=map.data python -m pytest -n 2 --dist loadfile --cov=src/vergence \\
        --cov-context=test --cov-report=
    python -m tests.mutation_sample map.data --number 100 --seed "$(git rev-parse HEAD)"

The map tells which tests of `make test` reach which line; both commands must see the same commit.
A change is tried in a clone with the tests that reach its line, those that reach little else
first; then with all tests, slow ones among them, of the files that import the changed module, and
with the stored constants. It counts as noticed where one of them fails, or takes longer than
LONGEST seconds. Changes to annotations are left out, as nothing is computed from them.

`python -m tests.mutants` beside it opens holes that no operator makes.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import coverage
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

from tests.mutants import ROOT, ran

PACKAGES = ("privacy", "engine", "metrics", "core", "adaptation", "data")
LONGEST = 240.0
FIRST, MOST = 40, 400
"""Tests that a change is tried with at first, and where none of these notices it."""
NO_TESTS = 5
"""Exit code of pytest that ran none."""


@dataclass(frozen=True)
class Change:
    """One operator at one place of a file."""

    file: str
    line: int
    operator: str
    occurrence: int

    def text(self, source: str) -> str:
        """Source of the file with this change in it."""
        return mutate_code(source, get_operator(self.operator)(), self.occurrence)


@dataclass(frozen=True)
class Row:
    """Outcome of a change: the test that noticed it, or why none did."""

    change: Change
    before: str
    after: str
    outcome: str
    noticed: bool


def annotations(source: str) -> set[tuple[int, int]]:
    """Start and end lines and columns of annotations, as positions that they cover."""
    covered = set()
    for node in ast.walk(ast.parse(source)):
        places = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        for place in filter(None, places):
            for line in range(place.lineno, place.end_lineno + 1):
                first = place.col_offset if line == place.lineno else 0
                last = place.end_col_offset if line == place.end_lineno else 200
                covered |= {(line, column) for column in range(first, last)}
    return covered


def changes(file: Path) -> Iterator[list[Change]]:
    """Changes of a file, those of one place together."""
    source = file.read_text(encoding="utf-8")
    tree, skip = get_ast(source), annotations(source)
    places: dict[tuple[int, int], list[Change]] = defaultdict(list)
    for name in operator_names():
        operator = get_operator(name)
        if operator.arguments() or "no_op" in name.lower() or "noop" in name.lower():
            continue
        positions = (p for node in ast_nodes(tree) for p in operator().mutation_positions(node))
        for number, (start, _) in enumerate(positions):
            if start not in skip:
                at = file.relative_to(ROOT / "src/vergence").as_posix()
                places[start].append(Change(at, start[0], name, number))
    yield from places.values()


def tests_by_line(data: Path) -> tuple[dict[str, dict[int, list[str]]], Counter[str]]:
    """Tests that reach each line of each file of the package, and how many lines each reaches."""
    measured = coverage.CoverageData(basename=str(data))
    measured.read()
    reached, sizes = {}, Counter[str]()
    for path in measured.measured_files():
        lines = {}
        for line, contexts in measured.contexts_by_lineno(path).items():
            lines[line] = sorted({c.partition("|")[0] for c in contexts if c})
            sizes.update(lines[line])
        reached[path.partition("src/vergence/")[2]] = lines
    return reached, sizes


def tests_of(change: Change, lines: dict[int, list[str]], sizes: Counter[str]) -> list[str]:
    """Tests that reach a change; of a line that runs at import, those that reach its file."""
    tests = lines.get(change.line) or sorted({t for each in lines.values() for t in each})
    return sorted(tests, key=lambda test: (sizes[test], test))[:MOST]


def importing(tree: Path, change: Change) -> list[str]:
    """Options of pytest for the files of tests that import the changed module, and for its mark."""
    module = "vergence." + change.file.removesuffix(".py").replace("/", ".")
    package, _, name = module.rpartition(".")
    names = re.compile(rf"{re.escape(module)}\b|from {re.escape(package)} import .*\b{name}\b")
    files = sorted((tree / "tests").rglob("test_*.py"))
    named = [str(file) for file in files if names.search(file.read_text(encoding="utf-8"))]
    # It imports every module by its name, and compares constants, defaults and kinds of members.
    return ["-m", "not nightly", str(tree / "tests" / "golden" / "test_constants.py"), *named]


def tried(tree: Path, tests: Sequence[str]) -> tuple[str, bool]:
    """Run tests in a tree until one fails; return its name, or what happened."""
    try:
        done = ran(tree, tests, LONGEST, PYTHONDONTWRITEBYTECODE="1")
    except subprocess.TimeoutExpired:
        return f"more than {LONGEST:.0f} s", True
    failed = re.search(r"^FAILED (.+?)(?= - |$)", done.stdout, re.MULTILINE)
    if done.returncode in (0, NO_TESTS):
        return "SURVIVED", False
    return (failed[1] if failed else "cannot be imported"), True


def judged(change: Change, tree: Path, tests: Sequence[str]) -> Row:
    """Make one change in a tree, run its tests, and undo it.

    Raises:
        ValueError: a test that noticed the change fails without it, too.
    """
    file = tree / "src/vergence" / change.file
    source = file.read_text(encoding="utf-8")
    text = change.text(source)
    pairs = zip(source.splitlines(), text.splitlines(), strict=False)
    before, after = next(((a.strip(), b.strip()) for a, b in pairs if a != b), ("", ""))
    outcome, noticed = "SURVIVED", False
    # A compiled file counts as that of any source of its size and second.
    Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)
    try:
        file.write_text(text, encoding="utf-8")
        for some in filter(None, (tests[:FIRST], tests[FIRST:], importing(tree, change))):
            outcome, noticed = tried(tree, some)
            if noticed:
                break
    finally:
        file.write_text(source, encoding="utf-8")
    if noticed and "::" in outcome and tried(tree, [outcome])[1]:
        raise ValueError(f"{outcome} fails without a change, too")
    return Row(change, before, after, outcome, noticed)


def main() -> int:
    """Print a line for every change, and how many nobody noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation_sample", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("map", type=Path, help="coverage data with a context for each test")
    parser.add_argument("--number", type=int, default=100, help="how many changes")
    parser.add_argument("--seed", default="0", help="of the draw, such as a commit's hash")
    parser.add_argument("--skip", type=int, default=0, help="how many changes were tried already")
    parser.add_argument("--jobs", type=int, default=2, help="changes at a time")
    options, began, survivors = parser.parse_args(), time.monotonic(), 0
    reached, sizes = tests_by_line(options.map)
    files = [f for p in PACKAGES for f in sorted((ROOT / "src/vergence" / p).rglob("*.py"))]
    dice = random.Random(options.seed)
    places = dice.sample([place for file in files for place in changes(file)], options.number)
    drawn = [dice.choice(place) for place in places][options.skip :]
    with tempfile.TemporaryDirectory(prefix="vergence-changes-") as folder:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(options.jobs):
            tree = Path(folder) / str(number) / "tree"
            subprocess.run(["git", "clone", "--quiet", str(ROOT), str(tree)], check=True)
            trees.put(tree)

        def one(change: Change) -> Row:
            tree = trees.get()
            try:
                return judged(change, tree, tests_of(change, reached.get(change.file, {}), sizes))
            finally:
                trees.put(tree)

        with ThreadPoolExecutor(options.jobs) as pool:
            for number, row in enumerate(pool.map(one, drawn), 1 + options.skip):
                survivors += not row.noticed
                where = f"{row.change.file}:{row.change.line}"
                print(
                    f"{number}. {where} `{row.before}` -> `{row.after}`: {row.outcome}", flush=True
                )
    minutes = (time.monotonic() - began) / 60
    print(f"{survivors} of {len(drawn)} survived, {minutes:.0f} minutes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
