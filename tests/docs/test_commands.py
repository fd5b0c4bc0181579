"""Every command of README, CONTRIBUTING and docs: it exists, its options are known, it exits 0.

Commands run from the repository root and write below runs/docs, which is removed first. A line that
ends in `# needs data` (research data) or `# minutes` is not run, nor are tests; what it calls is
checked like the others.
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

from benchmarks.bench.commands import app as bench
from tests.conftest import ROOT
from tests.docs.pages import commands
from vergence.cli.app import app

COMMANDS = commands()
NOT_RUN = {"needs data": "needs research data", "minutes": "takes minutes"}
BIN = os.path.dirname(sys.executable)  # noqa: PTH120 - resolving the link would leave the venv


def environment():
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "COV_"))}
    return {**kept, "PATH": f"{BIN}{os.pathsep}{kept.get('PATH', '')}", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module", autouse=True)
def _fresh():
    shutil.rmtree(ROOT / "runs" / "docs", ignore_errors=True)


def test_there_are_commands_to_check():
    assert {"vergence", "make"} <= {shlex.split(c.text)[0] for c in COMMANDS}


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_the_command_exists(command):
    """Its program is found; vergence accepts its options, make its target."""
    assert command.note in {"", *NOT_RUN}, f"unknown note '# {command.note}'"
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


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_the_command_exits_with_0(command):
    if command.note:
        pytest.skip(f"{NOT_RUN[command.note]}: {command.text}")
    if command.text.startswith("pytest "):
        pytest.skip(f"these tests run by themselves: {command.text}")
    with subprocess.Popen(
        ["bash", "-ec", command.text],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as running:
        try:
            printed, _ = running.communicate(timeout=240)
        except subprocess.TimeoutExpired:
            # The shell alone would die: what it began would go on and slow all later tests.
            os.killpg(running.pid, signal.SIGKILL)
            raise
    code = running.returncode
    assert code == 0, f"`{command.text}` exits with {code}:\n{printed[-2000:]}"
