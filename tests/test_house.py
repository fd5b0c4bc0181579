"""The house itself: limits that `python tools/house.py` counts, and no circle of imports."""

import ast

import pytest

from tests.conftest import ROOT
from tools import house

LIMITS = {
    "files over 800 lines": 0,
    "functions over 60 lines": 0,
    "places that the formatter skips": 20,
    "import circles": 0,
    "class names used twice": 0,
    "identifiers with forbidden words": 0,
    "docstrings that begin with a relative clause": 0,
    "uses of one operating system": 0,
}
"""Where a limit is not what the rules ask for, it is today's count, and may only fall."""


@pytest.fixture(scope="module")
def counts():
    return house.counts()


@pytest.mark.parametrize("what", LIMITS)
def test_limits_hold(what, counts):
    places = counts[what]
    assert len(places) <= LIMITS[what], "\n".join(places)


def test_everything_that_is_counted_has_a_limit(counts):
    assert counts.keys() == LIMITS.keys()


def test_no_folder_has_more_modules_than_a_reader_overlooks():
    sizes = house.folders(house.modules())
    assert {
        folder: n for folder, n in sizes.items() if n > (30 if folder == "methods" else 25)
    } == {}


def test_no_folder_of_tests_has_more_than_forty_files():
    folders = [ROOT / "tests", *(p for p in (ROOT / "tests").rglob("*") if p.is_dir())]
    sizes = {folder.relative_to(ROOT).as_posix(): len([*folder.glob("*.py")]) for folder in folders}
    assert {folder: n for folder, n in sizes.items() if n > 40} == {}


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("Return what a reply is packed into.", True),
        ("Whether no entry is NaN.", True),
        ("Digest of packed bytes.", False),
        ("Return the digest of packed bytes.", False),
    ],
)
def test_a_relative_clause_is_known(said, found):
    assert bool(house.CLAUSE.match(said)) is found


def test_a_circle_is_found_under_type_checking_and_not_inside_a_function(tmp_path):
    files = {
        "one": "from pkg import two\n",
        "two": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pkg.one import x\n",
        "three": "def lazy():\n    from pkg import four\n",
        "four": "import pkg.three\n",
    }
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").touch()
    for name, text in files.items():
        (tmp_path / "pkg" / f"{name}.py").write_text(text)
    assert house.circles(house.imports(tmp_path / "pkg")) == [{"pkg.one", "pkg.two"}]


@pytest.mark.parametrize(
    "line",
    [
        "import fcntl",
        "from resource import getrusage",
        "os.fork()",
        "from os import fork",
        "socket.AF_UNIX",
    ],
)
def test_a_use_of_one_operating_system_is_known(line):
    found = {"core/one.py": ast.parse(line), "system/one.py": ast.parse(line)}
    (place,) = house.system_calls(found)
    assert place.startswith("core/one.py:1 ")
