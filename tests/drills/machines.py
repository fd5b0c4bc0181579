"""Drills: machines with a wrong clock, or a full disk, in the middle of a run.

unshare -rmn python -m tests.drills.machines FOLDER DRILL  # what a drill runs: real mounts
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.drills.deployment import CLIENTS, Deployment, deployed, fedcpf, simulated, sums_opened
from tests.drills.disks import mount
from tests.drills.drilling import Row
from tests.drills.networks import APART, apart, ip
from tests.drills.upgrades import one_line

ROUNDS = 2
HOUR = 3600
SECURE = {**fedcpf(ROUNDS), "methods": ["fedavg"], "privacy": {"aggregation": "secure"}}


class Clock:
    """A clock that is wrong by as many seconds as one sets, for processes with `environment`."""

    def __init__(self, folder: Path, name: str, seconds: int) -> None:
        self.file = folder / f"{name}.clock"
        self.set(seconds)
        self.environment = {
            "LD_PRELOAD": str(folder / "wrong_clock.so"),
            "CLOCK_WRONG_BY": str(self.file),
        }

    def set(self, seconds: int) -> None:
        # In place: processes have mapped these bytes.
        with os.fdopen(os.open(self.file, os.O_RDWR | os.O_CREAT), "r+b") as file:
            file.write(struct.pack("q", seconds))


def outcome(made: Deployment, served: Any, table: dict[str, Any], began: float) -> tuple[str, bool]:
    """Wait for the end; say whether turns were lost, and whether the bits are the simulator's."""
    ended = served.wait(200) == 0
    lost = [row for row in made.table("turns.csv") if row["status"] != "ok"]
    same = ended and made.fingerprints() == simulated(table, made.folder / "here")
    words = f"fingerprint {'equal' if same else 'DIFFERENT'}; {time.monotonic() - began:.0f} s"
    return f"{len(lost)} turns lost, {words}", same and not lost


def wrong_clocks(folder: Path) -> Row:
    """Let one clock be ahead by two hours, one behind by two days, and one jump in mid-run."""
    source, table = Path(__file__).with_name("wrong_clock.c"), fedcpf(ROUNDS)
    library = folder / "wrong_clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    wrong = (2 * HOUR, -48 * HOUR, 0)
    clocks = [Clock(folder, n, by) for n, by in zip(CLIENTS, wrong, strict=True)]
    began = time.monotonic()
    with deployed(folder, table) as made:
        served = made.serve()
        made.until("clients expected", 200)
        joined = [made.join(n, **c.environment) for n, c in zip(CLIENTS, clocks, strict=True)]
        invalid = joined[1].wait(200) != 0 and "is not valid yet" in made.said()
        made.until("300 s off: set it", 200, made.client("p00"))
        clocks[0].set(0)
        clocks[1].set(0)
        made.join("p01", **clocks[1].environment)
        made.until("round 1 of", 200)
        clocks[2].set(-3 * HOUR)
        time.sleep(5)
        clocks[2].set(0)
        said, good = outcome(made, served, table, began)
    return Row(
        "clocks wrong by +2 h and -2 days, set right; one jumps by -3 h for 5 s",
        "both say so; then the simulator's fingerprint",
        f"'has a clock that is more than 300 s off: set it', 'is not valid yet'; {said}",
        invalid and good,
    )


def fill(folder: Path) -> Path:
    """Leave no byte free on a disk; return the file that fills it."""
    ballast = folder / ".ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 10, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                pass
    return ballast


def full(folder: Path, where: Callable[[Deployment], Path], words: tuple[str, ...]) -> Row:
    """Fill the disk under a folder in the middle of secure sums; make room, and go on."""
    began = time.monotonic()
    with deployed(folder, SECURE, absent_s=100.0) as made:
        disk = where(made)
        disk.mkdir(parents=True, exist_ok=True)
        mount("-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk))
        served = made.serve()
        joined = [made.join(name) for name in CLIENTS]
        made.until("round 1 of", 200)
        ballast = fill(disk)
        stopped = served.wait(200)
        line = one_line(made.events(), "stopped:", "No space left on device", *words)
        ballast.unlink()
        # A client whose disk was full has told why, and waits; nothing of it was stored by halves.
        served = made.serve()
        said, good = outcome(made, served, SECURE, began)
        codes = [each.wait(60) for each in joined]
        sums = sums_opened(next((made.client("p00") / "state").glob("*/fedavg/sum.spent")))
        shutil.rmtree(made.folder / "here")
        made.close()
        subprocess.run(["umount", str(disk)], check=False)
    return Row(
        f"a full disk under secure sums: {disk.relative_to(folder / 'out')}",
        "one line, exit code not 0; then the simulator's fingerprint",
        f"exit {stopped}: {line[20:] or 'SILENT'}; then {sums} sums of {ROUNDS} rounds, {said}",
        stopped != 0 and bool(line) and good and codes == [0] * 3 and sums == ROUNDS,
    )


DRILLS: dict[str, Callable[[Path], Row]] = {
    "server's disk": lambda f: full(f, lambda made: made.server / "run", ("run",)),
    "client's disk": lambda f: full(f, lambda made: made.client("p01") / "state", ("p01",)),
    "clocks": wrong_clocks,
}


def machines() -> Iterator[Row]:
    """Drill clocks and disks, or say why not."""
    if subprocess.run([*APART, "true"], capture_output=True).returncode:
        yield Row("full disks", "the simulator's fingerprint", "skipped: no mounts here", True)
    else:
        for drill in ("server's disk", "client's disk"):
            yield apart("tests.drills.machines", drill)
    if shutil.which("cc") is None:
        yield Row("wrong clocks", "the simulator's fingerprint", "skipped: no C compiler", True)
        return
    with tempfile.TemporaryDirectory() as here:
        yield wrong_clocks(Path(here))


if __name__ == "__main__":
    ip("link", "set", "lo", "up")
    print(json.dumps(vars(DRILLS[sys.argv[2]](Path(sys.argv[1])))))
