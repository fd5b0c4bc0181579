"""What pages and tables of many people cost: CPU seconds, memory and bytes.

python -m benchmarks.many_people [--people 1000] [--rounds 2]: trains local-only, FedAvg and FedCPF
on so many generated people (four inputs, 20 samples each), then measures `vergence report`,
`vergence compare` and, where MLflow is installed, `vergence study mlflow`, each as a process of its
own; lists the bytes of the page and of FedCPF's tables.

python -m benchmarks.many_people --states 10000: writes and reads so many states of FedCPF, first a
file each as a run does, then all of them as one piece.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from benchmarks.common.options import options
from vergence.core.serialization import Packed, unpack
from vergence.engine.records import ClientState
from vergence.engine.storage.client_states import ClientStateStore
from vergence.methods.fedcpf import FedCPF, MaskWindow, Personal
from vergence.models.linear import Linear
from vergence.tasks.toy import ToyTask

PLAN = """
task       = {{ name = "toy" }}
model      = {{ name = "linear", inputs = 4 }}
federation = {{ name = "crowd", people = {people} }}
methods    = ["local_only", "fedavg", "fedcpf"]
local      = {{ optimizer = "sgd", epochs = 1, batch = 8, lr = 0.05 }}
run        = {{ rounds = {rounds}, seeds = [0], evaluate_every = 0, workers = 1 }}
"""


def command(*words: str) -> None:
    """Run `vergence WORDS`, and print its CPU seconds and its peak of memory."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "vergence", *words], stdout=output, stderr=output
        )
        _, status, used = os.wait4(process.pid, 0)
        printed = output.seek(0, os.SEEK_END)
    if status:
        sys.exit(f"vergence {' '.join(words)} failed")
    print(
        f"vergence {words[0]}: {used.ru_utime + used.ru_stime:.1f} CPU s, peak "
        f"{used.ru_maxrss / 1024:.0f} MB, {printed / 1000:.0f} kB printed",
        flush=True,
    )


def seconds(work: Callable[[], object]) -> float:
    """Return the CPU seconds of some work."""
    begun = time.process_time()
    work()
    return time.process_time() - begun


def cost_of_states(count: int) -> None:
    """Print what so many states of a network of five numbers cost in files, and as one piece."""
    made, records = ClientState(FedCPF().client(ToyTask(Linear(4)))), (MaskWindow, Personal)
    with tempfile.TemporaryDirectory() as place:
        store = ClientStateStore(Path(place), 0, records)
        names: list[str] = []
        wrote = seconds(
            lambda: names.extend(
                store.write(f"p{i}", "1.1", Packed(made), None).file for i in range(count)
            )
        )
        read = seconds(lambda: [store.read(name) for name in names])
        stats = [(Path(place) / name).stat() for name in names]
        size, blocks = sum(s.st_size for s in stats), 512 * sum(s.st_blocks for s in stats)
    piece = b"".join(Packed(made).chunks())
    packed = seconds(lambda: [b"".join(Packed(made).chunks()) for _ in range(count)])
    again = seconds(lambda: [unpack(piece, ClientState, *records) for _ in range(count)])
    print(
        f"{count} files: write {wrote:.1f} CPU s, read {read:.1f}, {size / 1e6:.1f} MB in blocks "
        f"of {blocks / 1e6:.1f} MB; as one piece: write {packed:.1f}, read {again:.1f}"
    )


def main() -> None:
    given = options(__doc__, people=1000, rounds=2, states=0)
    if given.states:
        cost_of_states(given.states)
        return
    with tempfile.TemporaryDirectory() as place:
        plan, out = Path(place, "plan.toml"), Path(place, "out")
        plan.write_text(PLAN.format(people=given.people, rounds=given.rounds))
        command("run", str(plan), "--out", str(out))
        command("report", str(out))
        command("compare", str(out))
        if find_spec("mlflow"):
            command("study", "mlflow", str(out), "--to", f"sqlite:///{place}/mlflow.db")
        for path in [out / "report.html", *sorted((out / "fedcpf").rglob("*"))]:
            if path.is_file() and "state" not in path.parts:
                print(f"{path.relative_to(out)}: {path.stat().st_size / 1000:.1f} kB")
        states = [*(out / "fedcpf" / "state").rglob("*")]
        print(f"fedcpf/state: {sum(path.is_file() for path in states)} files")


if __name__ == "__main__":
    main()
