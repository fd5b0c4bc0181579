"""Commands of `vergence` in forks of a process that has imported it: most of a start is imports.

Every command still has a process, a session, arguments and an exit code of its own.
"""

import json
import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

IMPORTED = (
    *("vergence.cli.main", "vergence.cli.app", "vergence.api.train", "vergence.reports.html"),
    *("vergence.reports.explain", "vergence.studies.compare", "scipy.stats", "pandas"),
)
"""What most commands load; a fork imports the rest."""


class ForkServer:
    """A process that has imported the package, and forks for every command."""

    def __init__(self, folder: Path, environment: dict[str, str], seconds: float) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.docs.fork_server", str(seconds)],
            cwd=folder,
            env={**environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, words: list[str], output: Path) -> int:
        """Run a command, its output in a file; return its exit code, -9 after too many seconds."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"words": words, "output": str(output)}) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


def ended(child: int, seconds: float) -> int:
    """Wait for a command; what outlasts its seconds is killed with all that it began."""
    end = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            os.killpg(child, signal.SIGKILL)
        time.sleep(0.02)


def serve(seconds: float) -> bool:
    """Fork for every order; return in a fork, as whose command, and at the end of the orders."""
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            os.setsid()
            file = os.open(order["output"], os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
            for stream, to in ((0, os.open(os.devnull, os.O_RDONLY)), (1, file), (2, file)):
                os.dup2(to, stream)
            sys.argv = order["words"]
            return True
        print(ended(child, seconds), flush=True)
    return False


if __name__ == "__main__":
    for module in IMPORTED:
        import_module(module)
    if serve(float(sys.argv[1])):
        from vergence.cli.main import main

        main()
