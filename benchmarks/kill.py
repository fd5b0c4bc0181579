"""Kill -9 a run at random moments, resume it, and compare the fingerprints with an undisturbed run.

Only the parent is killed; its workers must notice and end by themselves. Prints `20/20 equal`.

    python -m benchmarks.kill [EXPERIMENT] [--kills 20] [--seed 0] [--set a.b=c ...]
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from vergence.results.read import read

TOY = Path(__file__).parent.parent / "src" / "vergence" / "experiments" / "toy.toml"
COMMAND = [sys.executable, "-c", "from vergence.cli.main import main; main()"]
PATIENCE_S = 5.0


def fingerprints(out: Path) -> dict[str, dict[str, str]]:
    """Return label -> seed -> fingerprint."""
    return {run.label: dict(run.results["fingerprint"]) for run in read(out).runs}


def children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone_after(pids: list[int]) -> float | None:
    """Return the seconds until none of them is left, None if some are after `PATIENCE_S`."""
    began = time.monotonic()
    while time.monotonic() - began < PATIENCE_S:
        if not any(map(alive, pids)):
            return time.monotonic() - began
        time.sleep(0.005)
    return None


def standing(out: Path) -> str:
    """Say how far a run has come."""
    files = sorted(out.rglob("checkpoint.json"), key=lambda p: p.stat().st_mtime)
    if not files:
        return "before the first checkpoint"
    told = json.loads(files[-1].read_text())
    return f"{files[-1].parent.parent.name} seed {told['seed']} round {told.get('round')}"


class Trials:
    """One experiment, run whole once, then killed as often as wanted."""

    def __init__(self, experiment: Path, sets: list[str], home: Path) -> None:
        self.args = [str(experiment), *(word for change in sets for word in ("--set", change))]
        self.home = home
        began = time.monotonic()
        process = self.start(home / "whole")
        from_s = self.wait(process, home / "whole" / "config.toml", began)
        self.seconds = self.wait(process, home / "whole" / "SHA256SUMS", began) - from_s
        if process.wait():
            sys.exit("the undisturbed run failed")
        self.whole = fingerprints(home / "whole")

    def start(self, out: Path) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*COMMAND, "run", *self.args, "--out", str(out)], stdout=subprocess.DEVNULL
        )

    def wait(self, process: subprocess.Popen[bytes], path: Path, began: float) -> float:
        """Return the seconds until the run has written this file."""
        while process.poll() is None and not path.exists():
            time.sleep(0.005)
        return time.monotonic() - began

    def kill(self, number: int, share: float) -> bool:
        """Kill a run after this share of its time, resume it, and tell whether all is equal."""
        out = self.home / f"kill{number}"
        process = self.start(out)
        self.wait(process, out / "config.toml", time.monotonic())
        time.sleep(share * self.seconds)
        workers = children(process.pid) if process.poll() is None else []
        process.send_signal(signal.SIGKILL)
        process.wait()
        left_s, where = gone_after(workers), standing(out)
        went_on = subprocess.run([*COMMAND, "resume", str(out)], stdout=subprocess.DEVNULL)
        equal = went_on.returncode == 0 and fingerprints(out) == self.whole
        ended = "LEFT" if left_s is None else f"gone in {left_s:.2f} s"
        print(
            f"{number:3d}: killed at {share:4.0%}, {where}; {len(workers)} workers {ended}; "
            f"{'equal' if equal else 'DIFFERENT'}",
            flush=True,
        )
        shutil.rmtree(out)
        return equal and left_s is not None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("experiment", type=Path, nargs="?", default=TOY)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", dest="sets", default=[])
    given = parser.parse_args()
    sets = given.sets
    if given.experiment == TOY and not any(s.startswith("run.rounds=") for s in sets):
        sets = ["run.rounds=50", *sets]  # ten seconds or more
    shares = np.random.default_rng(given.seed).uniform(0, 1, given.kills)
    with tempfile.TemporaryDirectory() as home:
        trials = Trials(given.experiment, sets, Path(home))
        print(f"undisturbed: {trials.seconds:.1f} s, {len(trials.whole)} methods", flush=True)
        equal = sum(trials.kill(i + 1, float(share)) for i, share in enumerate(shares))
    print(f"{equal}/{given.kills} equal")
    sys.exit(equal != given.kills)


if __name__ == "__main__":
    main()
