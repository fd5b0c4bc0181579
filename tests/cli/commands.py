"""The command line inside a test: arguments in; exit code and both streams out."""

import io
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from vergence.cli.main import main
from vergence.experiment.run import resume, start
from vergence.experiment.schema import load

METHODS = 'methods = ["local_only", "fedavg", { name = "fedcpf", rate = 0.2 }]'
ALONE = 'method = { name = "fedcpf", rate = 0.2 }'
TOY = """
task       = { name = "toy" }
model      = { name = "linear" }
federation = { name = "toy", people = 3 }
METHODS
local      = { optimizer = "sgd", epochs = 1, batch = 8, lr = 0.05 }
run        = { rounds = 3, evaluate_every = 0, workers = 1 }
"""
SEVERAL, ONE = TOY.replace("METHODS", METHODS), TOY.replace("METHODS", ALONE)


@dataclass(frozen=True)
class Said:
    """What a command left: exit code, stdout, stderr."""

    code: int
    out: str
    err: str

    def complains(self, code: int, *words: str) -> None:
        """Check that this was one clear line on stderr which holds all `words`."""
        assert self.code == code, (self.code, self.err)
        lines = self.err.strip().splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("vergence: ")
        for word in words:
            assert word in lines[0], (word, lines[0])


def vergence(*args: object) -> Said:
    """The command in this process."""
    return called(main, "vergence", *args)


def called(program: Callable[[], None], *argv: object) -> Said:
    """A program in this process, with its name and arguments."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    words = [str(word) for word in argv]
    with patch.object(sys, "argv", words), redirect_stdout(out), redirect_stderr(err):
        try:
            program()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    return Said(code, out.getvalue(), err.getvalue())


def write(folder: Path, text: str = SEVERAL, name: str = "toy.toml") -> Path:
    """Write an experiment file and return its path."""
    path = folder / name
    path.write_text(text)
    return path


def run(folder: Path, text: str = SEVERAL, *sets: str, out: str = "out") -> Path:
    """Run an experiment without its report and return its OUT."""
    start(load(write(folder, text), sets), folder / out)
    return folder / out


def go_on(out: Path) -> None:
    """Resume a run without its report."""
    resume(load(out / "config.toml"), out)
