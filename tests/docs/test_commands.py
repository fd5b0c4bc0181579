"""Every command of README, CONTRIBUTING and docs: it exists, its options are known, it exits 0.

Commands run from the repository root and write below runs/docs, which is removed first. Those of a
block with `title="needs data"` (research data) or `title="takes minutes"` are not run, nor are
tests; what they call is checked like the others. A comment would be simpler, but an interactive zsh
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
from tests.docs.pages import blocks, commands, pages
from vergence.cli.app import app

COMMANDS = commands()
NOT_RUN = {"needs data": "needs research data", "takes minutes": "takes minutes"}
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


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_the_command_exits_with_0(command):
    if command.note:
        pytest.skip(f"{NOT_RUN[command.note]}: {command.text}")
    if command.text.startswith("pytest "):
        pytest.skip(f"these tests run by themselves: {command.text}")
    # README's commands run as they are pasted on a Mac: in an interactive zsh.
    pasted = ZSH is not None and command.page.name == "README.md"
    with subprocess.Popen(
        [ZSH, "-f", "-i"] if pasted else ["bash", "-e"],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as running:
        try:
            printed, _ = running.communicate(command.text, timeout=240)
        except subprocess.TimeoutExpired:
            # The shell alone would die: what it began would go on and slow all later tests.
            os.killpg(running.pid, signal.SIGKILL)
            raise
    code = running.returncode
    assert code == 0, f"`{command.text}` exits with {code}:\n{printed[-2000:]}"
