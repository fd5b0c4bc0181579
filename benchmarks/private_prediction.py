"""Table 4.1 of the SplitFed thesis with parties as processes: offline and online, time and bytes.

    python -m benchmarks.private_prediction --out runs/docs/private_prediction.csv

The thesis's Model 2 as initialised is dealt to two to five parties. Each is a process that a client
in this one asks over TLS, about one image and about four, several times. Offline is what the
model's owner does before there is an image; online is from the client's first connection to the
last share of its answer. Every answer is compared with torch's in double precision.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from benchmarks.bench.machine import describe
from benchmarks.bench.mpc import FAR, Subject, fresh
from benchmarks.mpc.processes import free_ports
from vergence.core.files import csv_of, write_whole
from vergence.deployment.private_inference.agreement import PrivateFolder
from vergence.deployment.private_inference.client import ask
from vergence.deployment.private_inference.sharing import share_network
from vergence.errors import StateError
from vergence.privacy.inference.correlations import ComparisonMask, Holder
from vergence.privacy.inference.shared_network import SharedNetwork, records
from vergence.privacy.secure_aggregation.masking import new_seed

NAMES = "abcde"
PATIENCE = 600.0
"""Seconds that parties wait for each other; machines beside other work are slow."""
ANSWERED = re.compile(r"([\d,]+) bytes in (\d+) rounds")


@contextmanager
def parties(place: Path, names: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Serve parties as processes of their own, and end them."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    with ExitStack() as stack:
        running = []
        for name in names:
            command = [sys.executable, "-m", "vergence", "privacy", "party"]
            party = subprocess.Popen(
                [*command, str(place / "parties" / name), "--patience", str(PATIENCE)],
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
            running.append(stack.enter_context(party))
            stack.callback(party.terminate)
        for party in running:
            if "listens" not in (line := told(party)):
                raise StateError(f"a party did not start: {line}")
        yield running


def told(party: subprocess.Popen[str]) -> str:
    """Next line of a party."""
    assert party.stderr is not None
    return party.stderr.readline()


def measured(given: Subject, count: int, images: int, times: int) -> dict[str, Any]:
    """Return one cell of the grid.

    Raises:
        StateError: a party does not start, or an answer is far off.
    """
    names = NAMES[:count]
    image = tuple(given.x.shape[1:])
    with TemporaryDirectory(prefix="vergence-private-") as folder:
        place = Path(folder)
        ports = free_ports(count)
        addresses = {n: f"127.0.0.1:{port}" for n, port in zip(names, ports, strict=True)}
        dealt = share_network(given.network, image, addresses, ["client"], place, images * times)
        client = PrivateFolder(place / "clients" / "client")
        seconds, error, sent, rounds, own = [], 0.0, [], set(), []
        with parties(place, names) as running:
            for start in range(0, images * times, images):
                rows = torch.arange(start, start + images) % len(given.x)
                x, beside = given.x[rows], given.beside[rows]
                found = asyncio.run(ask(client, x.numpy(), beside.numpy(), PATIENCE))
                error = max(error, float(np.abs(found.values - wanted(given, rows)).max()))
                lines = [ANSWERED.findall(told(party))[0] for party in running]
                seconds.append(found.seconds)
                sent.append(sum(int(line[0].replace(",", "")) for line in lines))
                rounds.update(int(line[1]) for line in lines)
                own.append(found.sent)
        if not error <= FAR:
            raise StateError(f"answers are off by {error:g}, more than {FAR:g}")
        return {
            "parties": count,
            "images": images,
            "times": times,
            "offline_s": round(dealt.seconds * images, 4),
            "offline_mb": round(max(dealt.parties.values()) * images / 1e6, 3),
            "online_s": round(median(seconds), 3),
            "online_best_s": round(min(seconds), 3),
            "online_mb": round(median(sent) / 1e6, 3),
            "client_kb": round(median(own) / 1e3, 1),
            "rounds": rounds.pop(),
            "comparisons": comparisons(client.agreement.network) * images,
            "error_rad": f"{error:.1e}",
        }


def wanted(given: Subject, rows: torch.Tensor) -> np.ndarray:
    """Answers of the network in double precision."""
    with torch.no_grad():
        network = given.network.double()
        found = network(given.x[rows].double(), given.beside[rows].double()).numpy()
    given.network.float()
    return found


def comparisons(network: SharedNetwork) -> int:
    """Comparisons with 0 for one image."""
    found = records(network, Holder(new_seed(), 0, None), {})
    return sum(record.mask.size for record in found if isinstance(record, ComparisonMask))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the grid, print it as a table, and write it."""
    parser = argparse.ArgumentParser(description=__doc__, prog="benchmarks.private_prediction")
    parser.add_argument("--parties", type=int, nargs="+", default=[2, 3, 4, 5])
    parser.add_argument("--images", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--times", type=int, default=5, help="questions of each cell")
    parser.add_argument("--out", type=Path, default=Path("private_prediction.csv"))
    chosen = parser.parse_args(arguments)
    given = fresh(max(chosen.images) * chosen.times)
    found = []
    for count in chosen.parties:
        for images in chosen.images:
            found.append(measured(given, count, images, chosen.times))
            if len(found) == 1:
                print("| " + " | ".join(found[0]) + " |")
                print("|" + "---:|" * len(found[0]))
            print("| " + " | ".join(map(str, found[-1].values())) + " |", flush=True)
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    rows = [list(found[0]), *([*row.values()] for row in found)]
    write_whole(chosen.out, csv_of(rows).encode())
    print(f"written: {chosen.out}; {describe()}")


if __name__ == "__main__":
    main()
