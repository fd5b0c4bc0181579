"""The house itself: limits that `python tools/house.py` counts, circles of imports among them."""

import ast
import subprocess

import pytest

from tests.conftest import ROOT
from tools import house

LIMITS = {
    "files over 800 lines": 0,
    "functions over 60 lines": 0,
    "places that the formatter skips": 20,
    "import circles": 0,
    "pairs of packages that import each other": 0,
    "packages on circles of imports": 0,
    "modules that no user path reaches": 0,
    "modules that name a false user": 0,
    "class names used twice": 0,
    "identifiers with forbidden words": 0,
    "names that are a bare participle": 1,
    "Any in core, engine and privacy": 53,
    # Seven, and `vergence adapt` since it takes correction files: options of a command.
    "functions with more than 8 parameters": 8,
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


def test_statements_are_counted_without_imports_and_docstrings(tmp_path):
    """A class, its field, a function and its return are four."""
    text = '"""A."""\nimport os\nclass A:\n    """B."""\n    a = 1\ndef f():\n    return 2\n'
    (tmp_path / "one.py").write_text(text)
    (tmp_path / "two.py").write_text("from os import path\nx = [\n 1]\n")
    assert house.statements(tmp_path) == 5
    assert all(house.statements(house.ROOT / room) > 1000 for room in house.ROOMS)


def test_nothing_lies_at_the_top_that_nobody_put_there():
    """A command that writes a page beside the code, and `git add -A`, committed one."""
    if not (ROOT / ".git").exists():
        pytest.skip("no checkout of git")
    files = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    folders = {name.split("/")[0] for name in files.stdout.splitlines() if "/" in name}
    assert folders == {
        *(".ci", ".github", "benchmarks", "docs", "examples", "experiments", "papers"),
        *("src", "tests", "tools"),
    }


def test_no_folder_of_tests_has_more_than_forty_files():
    folders = [ROOT / "tests", *(p for p in (ROOT / "tests").rglob("*") if p.is_dir())]
    sizes = {folder.relative_to(ROOT).as_posix(): len([*folder.glob("*.py")]) for folder in folders}
    assert {folder: n for folder, n in sizes.items() if n > 40} == {}


def test_no_package_has_more_statements_than_it_may():
    """Whoever adds names in the same change what is cut, or raises the number and says why."""
    allowed = house.allowed_statements()
    counted = house.statements_by_package()
    assert counted.keys() == allowed.keys()
    over = {name: count - allowed[name] for name, count in counted.items() if count > allowed[name]}
    assert not over, f"statements too many, see tools/statements.toml: {over}"


def test_names_of_a_thing_are_known_from_what_happened_to_it():
    text = (
        "class Kept:\n    told: int\n    left = 1\n    kept_out: int\n"
        "def said(held, *given, value=lambda chosen: 1):\n    self._found = drawn = 2\n"
    )
    names = [place.split()[1] for place in house.participles({"core/one.py": ast.parse(text)})]
    assert sorted(names) == sorted(["told", "left", "said", "held", "given", "chosen", "found"])
    eyes = ast.parse("class Eyes:\n    left: int\n    right: int\n    told: int\n")
    assert house.participles({"one.py": eyes}) == ["one.py:4 told"]


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


def test_a_circle_of_packages_is_found_inside_functions(tmp_path):
    files = {
        "one/a.py": "import pkg.errors\ndef lazy():\n    from pkg.two import b\n",
        "two/b.py": "import pkg.three.c\n",
        "two/d.py": "from pkg.two import b\n",
        "three/c.py": "from pkg.one.a import name\nfrom pkg import three\n",
        "four/e.py": "from pkg.errors import name\n",
        "five/f.py": "from pkg.six import g\n",
        "six/g.py": "import pkg.five.f\n",
        "errors.py": "",
        "__init__.py": "from pkg.one import a\n",
    }
    for name, text in files.items():
        file = tmp_path / "pkg" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    graph = house.package_imports(tmp_path / "pkg")
    assert graph["one"] == {"errors", "two"}
    assert sorted(map(sorted, house.circles(graph))) == [["five", "six"], ["one", "three", "two"]]
    assert house.two_way_pairs(graph) == ["five, six"]


def test_a_module_that_no_path_of_a_user_reaches_is_found(tmp_path, monkeypatch):
    files = {
        "src/pkg/__init__.py": "HOMES = {'name': 'core:name'}\nfrom pkg import alone\n",
        "src/pkg/__main__.py": "from pkg.cli.main import main\n",
        "src/pkg/cli/__init__.py": "",
        "src/pkg/cli/main.py": "COMMAND = 'pkg.cli.new:new'\n",
        "src/pkg/cli/new.py": "def new():\n    from pkg import lazy\n",
        "src/pkg/lazy.py": "",
        "src/pkg/core.py": "",
        "src/pkg/method.py": "",
        "src/pkg/alone.py": "import pkg.beside\n",
        "src/pkg/beside.py": "import pkg.core\n",
        "docs/reference/api.md": "::: pkg.method.Method\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(house, "ROOT", tmp_path)
    monkeypatch.setattr(house, "PACKAGE", tmp_path / "src" / "pkg")
    assert house.unreached() == ["pkg.alone", "pkg.beside"]


def test_a_module_that_names_a_false_user_is_found(tmp_path, monkeypatch):
    """The users of a module are where it is imported, by whole names, and nowhere else."""
    files = {
        "__init__.py": "",
        "a/one.py": '"""One.\n\nUsed by `b.two`,\n`b.three` and `b.tw`.\n\nSource: `b.x`.\n"""\n',
        "a/two.py": '"""Two.\n\nUsed in `b` and `c`.\n"""\n',
        "a/three.py": '"""Three. Used by `nobody`."""\n',
        "b/two.py": "def lazy():\n    from pkg.a import one, two\n",
        "b/three.py": "import pkg.a.two\n",
        "c/four.py": "TABLE = {'name': 'pkg.a.two:name'}\n",
    }
    for name, text in files.items():
        (tmp_path / "pkg" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "pkg" / name).write_text(text)
    monkeypatch.setattr(house, "PACKAGE", tmp_path / "pkg")
    assert house.false_users() == ["pkg.a.one: pkg.b.three", "pkg.a.one: pkg.b.tw"]


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
