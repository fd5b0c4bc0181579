"""Every command of README, CONTRIBUTING and docs: it exists, its options are known, it exits 0.

Commands run from the repository root and write below runs/docs, which is removed first. Those of a
block with `title="needs data"` (research data) or `title="takes minutes"` are not run, nor are
tests, and those of pages that take long run in `make nightly`; what they call is checked like the
others. A comment would be simpler, but an interactive zsh
hands `#` and the words after it to the program.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from importlib.util import find_spec

import pytest
from filelock import FileLock

from benchmarks.bench.commands import app as bench
from tests.conftest import ROOT
from tests.docs.fork_server import ForkServer
from tests.docs.pages import blocks, commands, pages
from vergence.cli.app import app

COMMANDS = commands()
NOT_RUN = ("needs data", "takes minutes")
"""Titles of blocks whose commands are checked, and not run."""
RUN = [c for c in COMMANDS if not c.note and not c.text.startswith("pytest ")]
"""Tests that a page names run by themselves."""
NIGHTLY = (
    *("docs/results/", "docs/explanation/cut.md", "docs/explanation/differential_privacy.md"),
    *("docs/explanation/statistics.md", "docs/explanation/secure_aggregation.md"),
    *("docs/how-to/attacks.md", "docs/how-to/ethics.md", "docs/how-to/forget.md"),
    *("docs/how-to/protocols.md", "docs/how-to/sweep.md", "docs/how-to/unlabelled.md"),
    *("docs/reference/composition.md", "docs/reference/coverage.md", "docs/reference/runs.md"),
)
"""Pages whose commands train and attack for long; other pages have commands of the same kinds."""
ZSH = shutil.which("zsh")
BIN = os.path.dirname(sys.executable)  # noqa: PTH120 - resolving the link would leave the venv


def environment():
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "COV_"))}
    return {**kept, "PATH": f"{BIN}{os.pathsep}{kept.get('PATH', '')}", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module", autouse=True)
def _fresh(testrun_uid):
    """The first of the processes that share a test run empties the folder."""
    mark = ROOT / "runs" / "docs" / testrun_uid
    mark.parents[1].mkdir(exist_ok=True)
    with FileLock(ROOT / "runs" / ".docs.lock"):
        if not mark.exists():
            shutil.rmtree(mark.parent, ignore_errors=True)
            mark.mkdir(parents=True)


def test_there_are_commands_to_check():
    assert {"vergence", "make"} <= {shlex.split(c.text)[0] for c in COMMANDS}


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_the_command_exists(command):
    """Its program is found; vergence accepts its options, make its target."""
    assert command.note in {"", *NOT_RUN}, f"unknown title '{command.note}'"
    program, *words = shlex.split(command.text)
    for word in words:
        if word.startswith(("benchmarks/", "docs/", "experiments/", "papers/", "src/", "tests/")):
            assert (ROOT / word).exists(), word
    if program == "vergence":
        app.parse_args(words, exit_on_error=False, print_error=False)
    elif program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(words) <= set(targets)
    elif program == "python" and words[:2] == ["-m", "benchmarks.bench"]:
        bench.parse_args(words[2:], exit_on_error=False, print_error=False)
    elif program == "python" and words[:1] == ["-m"]:
        assert find_spec(words[1]) is not None, f"no module '{words[1]}'"
    else:
        known = subprocess.run(
            ["bash", "-c", 'type "$0"', program],
            env=environment(),
            capture_output=True,
            check=False,
        )
        assert known.returncode == 0, f"no program '{program}'"


SHELLS = ("sh", "bash", "zsh", "shell", "console")


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_no_line_that_people_paste_has_a_comment(page):
    """zsh and cmd.exe take `# minutes` for two more words of the command."""
    lines = [
        f"{block}: {line}"
        for language in SHELLS
        for block in blocks(page, language)
        for line in block.text.splitlines()
        if re.search(r"(^|\s)#", line) and (language != "console" or line.startswith("$"))
    ]
    assert lines == []


@pytest.mark.skipif(ZSH is None, reason="zsh is not installed")
def test_zsh_passes_every_word_of_a_pasted_command(tmp_path):
    """Programs that write down their words stand in place of the real ones."""
    asked = [command for command in COMMANDS if "=" not in command.text.split()[0]]
    words = [shlex.split(command.text.replace("$VERGENCE_DATA", "/data")) for command in asked]
    for program in {each[0] for each in words}:
        stand_in = tmp_path / program
        stand_in.parent.mkdir(parents=True, exist_ok=True)
        stand_in.write_text('#!/bin/sh\nprintf "%s\\0" "$0" "$@" >> words\necho >> words\n')
        stand_in.chmod(0o755)
    subprocess.run(
        [ZSH, "-f", "-i"],
        input="\n".join(command.text for command in asked),
        cwd=tmp_path,
        env={
            "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "VERGENCE_DATA": "/data",
        },
        capture_output=True,
        text=True,
        check=True,
        start_new_session=True,
    )
    written = (tmp_path / "words").read_text().split("\0\n")[:-1]
    passed = [line.removeprefix(f"{tmp_path}/").removeprefix("./").split("\0") for line in written]
    assert passed == words


SECONDS = 240


@pytest.fixture(scope="module")
def forks():
    """Forks of a process that has imported the package, where the system can fork."""
    server = ForkServer(ROOT, environment(), SECONDS) if hasattr(os, "fork") else None
    yield server
    if server is not None:
        server.close()


@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [pytest.param(c, marks=pytest.mark.nightly) if str(c).startswith(NIGHTLY) else c for c in RUN],
    ids=str,
)
def test_the_command_exits_with_0(command, forks, tmp_path):
    """README's commands are pasted into a shell; others need one only where it would do much."""
    words = shlex.split(command.text)
    if forks and words[0] == "vergence" and command.page.parent != ROOT and "$" not in command.text:
        code = forks.run([f"{BIN}/vergence", *words[1:]], tmp_path / "printed")
        printed = (tmp_path / "printed").read_text(encoding="utf-8", errors="replace")
    else:
        code, printed = pasted(command)
    assert code == 0, f"`{command.text}` exits with {code}:\n{printed[-2000:]}"


def pasted(command):
    """Paste a command into a shell; README's as on a Mac, into an interactive zsh."""
    with subprocess.Popen(
        [ZSH, "-f", "-i"] if ZSH and command.page.name == "README.md" else ["bash", "-e"],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as running:
        try:
            printed, _ = running.communicate(command.text, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            # The shell alone would die: what it began would go on and slow all later tests.
            os.killpg(running.pid, signal.SIGKILL)
            raise
    return running.returncode, printed
