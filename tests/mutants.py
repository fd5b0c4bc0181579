"""Holes made on purpose: each goes into a copy of the tree, where the tests beside it must fail.

    python -m tests.mutants [--list] [--only WORDS] [--holes FILE] [--jobs 2]

`mutants.toml` holds them: what would be wrong, the file, one piece of its text, what stands there
instead, and the tests that must notice. First all of those tests must pass without any hole. A hole
is caught where a test *fails*: not where nothing can be imported or no test is found. Text that is
no longer there, or there twice, is an error of the run.

Why no library: mutmut and cosmic-ray make every small change that their operators know, and run one
command for each. That is hours for this tree, most changes open nothing, and most holes here (a key
that is not bound to a name, a lock that is left out) are none that an operator makes.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parent.parent
HOLES = Path(__file__).with_suffix(".toml")
LONGEST = 300.0
"""Seconds that the tests of one hole may take; all of them without a hole, ten times as many."""


@dataclass(frozen=True)
class Mutant:
    """A hole: `old` in a file of the package becomes `new`, and `tests` must notice."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def opened(self, tree: Path) -> str:
        """The file's text with the hole in it.

        Raises:
            ValueError: the text to replace is not there once.
            SyntaxError: what comes is no Python; JavaScript is not parsed.
        """
        text = (tree / "src/vergence" / self.file).read_text()
        if (found := text.count(self.old)) != 1:
            raise ValueError(f"its text is found {found} times in {self.file}, and must be once")
        text = text.replace(self.old, self.new)
        if self.file.endswith(".py"):
            compile(text, self.file, "exec")
        return text


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    mutant: Mutant
    found: str
    caught: bool
    seconds: float


def read(path: Path) -> list[Mutant]:
    """The holes of a file.

    Raises:
        ValueError: two have one name, or one is not described whole.
    """
    holes = tomllib.loads(path.read_text())["mutant"]
    try:
        mutants = [Mutant(**{**hole, "tests": tuple(hole["tests"])}) for hole in holes]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: a hole is not described whole: {error}") from None
    names = [mutant.name for mutant in mutants]
    if double := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"{path}: two holes are called {sorted(double)}")
    return mutants


def ran(
    tree: Path, tests: Sequence[str], longest: float, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run tests of a tree, against the package of that tree."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-rf", "-p", "no:cacheprovider", *tests]
    env = {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(tree / "src"),
        "VERGENCE_MARKS": "written",
        **env,
    }
    env = {**os.environ, **env}
    return subprocess.run(
        command, cwd=tree, env=env, capture_output=True, text=True, timeout=longest, check=False
    )


def judged(mutant: Mutant, tree: Path) -> Row:
    """Open one hole in a tree, run its tests, and close it again."""
    began, file = time.monotonic(), tree / "src/vergence" / mutant.file
    try:
        whole, text = file.read_bytes(), mutant.opened(tree)
    except (OSError, ValueError, SyntaxError) as error:
        return Row(mutant, f"ERROR: {error}", False, 0.0)
    # A compiled file counts as that of any source of its size and second.
    Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)
    try:
        file.write_text(text)
        done = ran(tree, mutant.tests, LONGEST, PYTHONDONTWRITEBYTECODE="1")
        failed = re.search(r"^FAILED (.+?)(?= - |$)", done.stdout, re.MULTILINE)
        found, caught = "SURVIVED", False
        if done.returncode == 1 and failed:
            found, caught = failed[1], True
        elif done.returncode:
            found = f"ERROR: {done.stdout.strip().splitlines()[-1:]} {done.stderr.strip()[-200:]}"
    except subprocess.TimeoutExpired:
        found, caught = f"ERROR: its tests took more than {LONGEST:.0f} s", False
    finally:
        file.write_bytes(whole)
    return Row(mutant, found, caught, time.monotonic() - began)


def copied(to: Path, source: Path = ROOT) -> Path:
    """Copy what tests need: never is a hole opened in the tree itself."""
    skip = shutil.ignore_patterns("__pycache__") if source == ROOT else None
    for name in ("src", "tests", "benchmarks"):  # Parties of compared systems lie in benchmarks.
        shutil.copytree(source / name, to / name, ignore=skip)
    shutil.copy2(source / "pyproject.toml", to)
    return to


def rows(mutants: Sequence[Mutant], folder: Path, jobs: int) -> Iterator[Row]:
    """Judge holes in so many copies at a time, in their order.

    Raises:
        ValueError: their tests do not pass without any hole.
    """
    if not mutants:
        return
    first = copied(folder / "0")
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    done = ran(first, tests, 10 * LONGEST)
    if done.returncode:
        raise ValueError(f"tests must pass without a hole:\n{done.stdout[-4000:]}{done.stderr}")
    trees: SimpleQueue[Path] = SimpleQueue()
    for tree in (first, *(copied(folder / str(i), first) for i in range(1, jobs))):
        trees.put(tree)

    def one(mutant: Mutant) -> Row:
        tree = trees.get()
        try:
            return judged(mutant, tree)
        finally:
            trees.put(tree)

    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(one, mutants)


def main(given: Sequence[str] | None = None) -> int:
    """Print the table and how many holes were caught; return 1 if one was not."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--list", action="store_true", help="print the holes, run nothing")
    parser.add_argument("--only", default="", metavar="WORDS", help="holes whose name holds this")
    parser.add_argument("--holes", type=Path, default=HOLES, help="another list")
    parser.add_argument("--jobs", type=int, default=2, help="holes at a time")
    asked, began, caught, total = parser.parse_args(given), time.monotonic(), 0, 0
    mutants = [m for m in read(asked.holes) if asked.only in m.name or asked.only in m.file]
    if asked.list:
        print("\n".join(f"{mutant.file}: {mutant.name}" for mutant in mutants))
        return 0
    print("| hole | noticed by | seconds |\n|---|---|--:|", flush=True)
    with tempfile.TemporaryDirectory(prefix="vergence-mutants-") as folder:
        for row in rows(mutants, Path(folder), asked.jobs):
            caught, total = caught + row.caught, total + 1
            name = f"{row.mutant.file}: {row.mutant.name}"
            print(f"| {name} | {row.found} | {row.seconds:.1f} |", flush=True)
    print(f"\n{(time.monotonic() - began) / 60:.1f} minutes\n{caught} of {total} caught")
    return int(not total or caught < total)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ValueError as error:
        sys.exit(str(error))
