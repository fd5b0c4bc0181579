"""One computing party: has its own folder with its shares, and talks to the others over TCP.

usage: party.py FOLDER

The folder holds party.json (rank, addresses, protocol, ...), program.bin, weights.npz and
input0.npz, input1.npz, ...; it gets answer0.npz, ... and, at the end, costs.json. What SPU counted,
bytes and messages, is on standard output. Runs in SPU's Python.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from pathlib import Path

import numpy as np
import spu
from owner import load, settings, to_arrays, to_share
from spu import api

PATIENCE_MS = 600_000


def end_with_parent() -> None:
    """End when who started this process does, even by a kill: then standard input closes."""

    def wait() -> None:
        sys.stdin.read()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def main(folder: Path) -> None:
    """Compute every batch with the others, in lockstep."""
    job = json.loads((folder / "party.json").read_text())
    about = spu.link.Desc()
    about.recv_timeout_ms = about.http_timeout_ms = PATIENCE_MS
    for rank, address in enumerate(job["addresses"]):
        about.add_party(f"party{rank}", address)
    link = spu.link.create_brpc(about, job["rank"])
    runtime = api.Runtime(link, settings(job))
    program = spu.Executable()
    program.ParseFromString((folder / "program.bin").read_bytes())
    give(runtime, folder / "weights.npz")
    seconds, processor = [], []
    for number in range(job["batches"]):
        give(runtime, folder / f"input{number}.npz")
        link.barrier()
        start, before = time.perf_counter(), time.process_time()
        runtime.run(program)
        link.barrier()
        seconds.append(time.perf_counter() - start)
        processor.append(time.process_time() - before)
        answer = to_arrays("answer0", runtime.get_var("answer0"))
        np.savez(folder / "unfinished.npz", **answer)
        (folder / "unfinished.npz").rename(folder / f"answer{number}.npz")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    costs = {"seconds": seconds, "cpu": processor, "peak_mb": peak}
    (folder / "costs.json").write_text(json.dumps(costs))
    link.stop_link()


def give(runtime: api.Runtime, file: Path) -> None:
    """Hand a file's shares to SPU."""
    arrays = load(file)
    for name in dict.fromkeys(key.rpartition("/")[0] for key in arrays):
        runtime.set_var(name, to_share(name, arrays))


if __name__ == "__main__":
    end_with_parent()
    main(Path(sys.argv[1]))
