"""What judges must say so by its exit code: every make target, and the programs behind them."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT
from tests.drills.drilling import Row, printed

MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = [
    t for t in re.findall(r"^([a-z-]+):.*##", MAKEFILE, re.M) if t not in ("help", "setup", "clean")
]
PROGRAM = """#!/bin/sh
echo "$(basename "$0") $*" >> "$CALLED"
[ "$(wc -l < "$CALLED")" -ne "$FAILS" ]
"""
"""Stands for each program of a recipe: notes that it was called, and fails if it is its turn."""


def told(command, folder, **environment):
    """Run a command; return its exit code and all that it printed."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env={**os.environ, **environment},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
    )
    return done.returncode, done.stdout


def set_up(folder):
    """Let make find everything set up."""
    (folder / "papers").mkdir()
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "papers/pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    (folder / ".venv").mkdir()
    ready(folder)


def ready(folder):
    """Make the set-up newer than all that it is made from."""
    for step in ("demo", "done", "docs"):
        (folder / ".venv" / step).touch()


UNINSTALLED = "PYTHON=false"
"""Setting up again fails: it would install the small project in place of this one."""


@pytest.fixture
def recipe(tmp_path):
    """Return how a target is made of programs of which one fails: its exit code, and the calls."""
    set_up(tmp_path)
    (tmp_path / "bin").mkdir()
    for name in set(re.findall(r"\$\(BIN\)/([a-z-]+)", MAKEFILE)):
        (tmp_path / "bin" / name).write_text(PROGRAM)
        (tmp_path / "bin" / name).chmod(0o755)

    def made(target, fails=0):
        called = tmp_path / "called"
        called.write_text("")
        command = ["make", target, f"BIN={tmp_path / 'bin'}", UNINSTALLED, "-s"]
        code, _ = told(command, tmp_path, CALLED=str(called), FAILS=str(fails))
        return code, called.read_text().splitlines()

    return made


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_fails_where_any_of_its_programs_fails_and_goes_no_further(recipe, target):
    code, called = recipe(target)
    assert code == 0
    assert called
    for at in range(1, len(called) + 1):
        code, until = recipe(target, fails=at)
        assert code != 0, called[at - 1]
        assert until == called[:at]


def test_targets_that_judge_are_there():
    assert {"test", "check", "drills", "drills-flower"} <= set(TARGETS)


YES, NO = np.True_, np.False_


@pytest.mark.parametrize(
    ("goods", "code"),
    [
        ([True], 0),
        ([YES], 0),
        ([YES, True, YES], 0),
        ([False], 1),
        ([NO], 1),
        ([True, NO], 1),
        ([NO, True], 1),
        ([], 1),
    ],
)
def test_a_table_of_drills_ends_with_the_code_that_its_rows_say(goods, code, capsys):
    """Whatever kind of truth a row has: numpy's once made 21 of 21 good rows a failure."""
    with pytest.raises(SystemExit) as end:
        printed([Row("a drill", "this", "that", good) for good in goods])
    assert (type(end.value.code), end.value.code) == (int, code)
    assert f"{sum(map(bool, goods))} of {len(goods)} as wanted" in capsys.readouterr().out


DRILLS = ("tests.drills.drills", "tests.drills.flower_drills")


@pytest.mark.slow
@pytest.mark.parametrize("drills", DRILLS)
@pytest.mark.parametrize(("row", "code"), [("right", 0), ("wrong", 1)])
def test_drills_end_with_the_code_of_their_row(drills, row, code):
    found, said = told([sys.executable, "-m", drills, "--row", row], ROOT)
    assert (found, f"{1 - code} of 1 as wanted" in said) == (code, True), said


@pytest.mark.slow
@pytest.mark.parametrize("drills", DRILLS)
def test_a_drill_that_there_is_not_is_named(drills):
    code, said = told([sys.executable, "-m", drills, "earthquake"], ROOT)
    assert (code, "no drill 'earthquake'; there are: " in said) == (2, True), said


@pytest.mark.nightly
def test_a_drill_that_is_as_wanted_ends_well():
    code, said = told([sys.executable, "-m", DRILLS[0], "clocks", "--small"], ROOT)
    assert (code, "1 of 1 as wanted" in said) == (0, True), said


PACKAGES = ("experiment", "methods", "core")
CONTRACT = """[tool.importlinter]
root_package = "vergence"

[[tool.importlinter.contracts]]
name = "core imports no experiment"
type = "layers"
layers = ["vergence.experiment", "vergence.methods", "vergence.core"]
"""
"""The package's own contract names modules that the small project does not have."""
SOUND = '"""A module."""\n\nNUMBER: int = 1\n'
TESTS = '"""Tests."""\n\nimport pytest\n\n\n@pytest.mark.slow\ndef test_slow():\n    assert SLOW\n'
QUICK = "\n\ndef test_quick():\n    assert QUICK\n"
BROKEN = {
    "ruff check": ("src/vergence/core/one.py", SOUND.replace("\n\n", "\n\nimport os\n\n", 1)),
    "ruff format": ("src/vergence/core/one.py", SOUND.replace(" = ", "=")),
    "pyright": ("src/vergence/core/one.py", SOUND.replace("1", '"1"')),
    "lint-imports": (
        "src/vergence/core/one.py",
        '"""A module."""\n\nimport vergence.experiment.two  # noqa: F401\n',
    ),
    "pytest": (
        "tests/test_one.py",
        TESTS.replace("SLOW", "not True") + QUICK.replace("QUICK", "True"),
    ),
}


@pytest.fixture
def project(tmp_path):
    """A project of a module and two tests under this one's Makefile and settings."""
    set_up(tmp_path)
    settings = tmp_path / "pyproject.toml"
    own, _, _ = settings.read_text().partition("[tool.importlinter]")
    settings.write_text(own + CONTRACT)
    ready(tmp_path)
    root = tmp_path / "src" / "vergence"
    for package in ("", *PACKAGES):
        (root / package).mkdir(parents=True, exist_ok=True)
        (root / package / "__init__.py").write_text('"""A package."""\n')
    for module in ("core/one.py", "experiment/two.py", "errors.py"):
        (root / module).write_text(SOUND)
    (root / "methods" / "three.py").write_text(SOUND)
    (root / "methods" / "four.py").write_text(SOUND)
    (tmp_path / "tests").mkdir()
    sound = TESTS.replace("SLOW", "True") + QUICK.replace("QUICK", "True")
    (tmp_path / "tests" / "test_one.py").write_text(sound)

    def made(target):
        return told(
            ["make", target, f"BIN={Path(sys.executable).parent}", UNINSTALLED],
            tmp_path,
            PYTHONPATH=str(tmp_path / "src"),
        )

    return tmp_path, made


@pytest.mark.slow
def test_make_check_passes_what_is_sound(project):
    code, said = project[1]("check")
    assert code == 0, said


@pytest.mark.slow
@pytest.mark.parametrize("tool", BROKEN)
def test_make_check_fails_by_the_tool_whose_rule_is_broken(project, tool):
    folder, made = project
    file, text = BROKEN[tool]
    (folder / file).write_text(text)
    code, said = made("check")
    assert code != 0, said
    begun = rf"^{re.escape(str(Path(sys.executable).parent))}/(?:python -m )?"  # as make echoes it
    programs = re.findall(begun + "([a-z-]+(?: check| format)?)", said, re.M)
    assert programs[-1] == tool, said


@pytest.mark.slow
@pytest.mark.parametrize("good", [True, False])
def test_make_test_says_whether_its_tests_passed(project, good):
    folder, made = project
    text = TESTS.replace("SLOW", "True") + QUICK.replace("QUICK", str(good))
    (folder / "tests" / "test_one.py").write_text(text)
    code, said = made("test")
    assert (code == 0) == good, said
