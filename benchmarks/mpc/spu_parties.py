"""Private inference: SPU's parties as processes of their own, given files, never objects.

What travels is .npz and SPU's own bytes. All parties run on this machine and talk over 127.0.0.1
without TLS: that measures a protocol and tests its answers, and keeps no secret from anybody here.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from benchmarks.mpc.processes import LOG, free_ports, last_line, run_parties
from benchmarks.mpc.protocols import protocol
from vergence.errors import ConfigError, StateError
from vergence.privacy.inference.network import NetworkParts

HERE = Path(__file__).parent / "spu_scripts"
FRACTION = 22
"""Bits after the point in SPU's 64-bit ring: sums of products must stay below 2^18. With SPU's own
18 bits answers of about 1 are off by 1e-4."""
SAME = 1e-5
"""How far JAX's answer in clear may be from torch's."""
SENT = re.compile(r"total send bytes (\d+), recv bytes \d+, send actions (\d+)")
LOOK = "import spu, jax, sys; sys.exit(sys.version_info >= (3, 12))"
INSTALL = (
    "python3.11 -m venv .venv-spu && .venv-spu/bin/pip install -r "
    f"{HERE / 'requirements.txt'}, then --python .venv-spu/bin/python"
)
Say = Callable[[str, float], None]


@dataclass(frozen=True)
class InferenceQuestion:
    """Request of a private inference: the computation, and its parties.

    Attributes:
        parts: the network.
        protocol: its name, see `PROTOCOLS`.
        parties: how many.
        public: whether the parties may see the weights; inputs are always secret.
        fraction: bits after the point.
    """

    parts: NetworkParts
    protocol: str
    parties: int
    public: bool = False
    fraction: int = FRACTION

    def __post_init__(self) -> None:
        protocol(self.protocol, self.parties)


@dataclass(frozen=True)
class InferenceAnswer:
    """Result and its cost; offline material is made on the fly and is part of all costs.

    Attributes:
        values: `[batches, batch, ...]`.
        clear: the same by JAX without any protocol; none where nobody computed that.
        seconds: of every batch, of the slowest party, from shared inputs to shared answers, or to
            answers told where the protocol notices lies.
        cpu: seconds of all parties and batches; MP-SPDZ's sharing of weights is in them.
        sent: bytes by every party, of all batches.
        messages: sent by every party, of all batches, as many rounds at most; MP-SPDZ's rounds.
        peak_mb: largest memory of a party; MP-SPDZ's is never told as less than this process's.
    """

    values: NDArray[np.float32]
    clear: NDArray[np.float32] | None
    seconds: tuple[float, ...]
    cpu: float
    sent: tuple[int, ...]
    messages: tuple[int, ...]
    peak_mb: float


@cache
def check_python(python: Path) -> None:
    """Refuse a Python that cannot run SPU.

    Raises:
        ConfigError: says how to make one.
    """
    try:
        done = subprocess.run([python, "-c", LOOK], capture_output=True, check=False)
    except OSError:
        raise ConfigError(f"private inference: no Python at {python}: {INSTALL}") from None
    if done.returncode:
        raise ConfigError(f"private inference: {python} has no SPU: {INSTALL}")


def infer(
    question: InferenceQuestion,
    inputs: Mapping[str, NDArray],
    python: Path,
    say: Say = lambda _what, _share: None,
) -> InferenceAnswer:
    """Run the parties; return their answer together with its cost.

    Args:
        question: network and protocol.
        inputs: `x` `[batches, batch, ...]`, and `beside` where the network reads it.
        python: the Python that has SPU.
        say: is told how far it is.

    Raises:
        ConfigError: no such Python.
        StateError: a party failed.
    """
    check_python(python)
    with TemporaryDirectory(prefix="vergence-mpc-") as name:
        folder = Path(name)
        _write(folder, question, inputs)
        say("sharing", 0.0)
        _call(python, "share", folder)
        _compute(python, folder, question.parties, len(inputs["x"]), say)
        _call(python, "open", folder)
        return _read(folder, question.parties)


def _write(folder: Path, question: InferenceQuestion, inputs: Mapping[str, NDArray]) -> None:
    parts = question.parts
    job = {
        "protocol": question.protocol,
        "parties": question.parties,
        "public": question.public,
        "fraction": question.fraction,
        "batches": len(inputs["x"]),
        "layers": [asdict(layer) for layer in parts.layers],
    }
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8", newline="\n")
    columns = {f"columns/{name}": kept for name, kept in parts.columns.items()}
    np.savez(folder / "weights.npz", allow_pickle=False, **parts.arrays, **columns)
    np.savez(
        folder / "inputs.npz",
        allow_pickle=False,
        **{k: v.astype(np.float32) for k, v in inputs.items()},
    )
    addresses = [f"127.0.0.1:{port}" for port in free_ports(question.parties)]
    for rank in range(question.parties):
        place = folder / f"party{rank}"
        place.mkdir(mode=0o700)
        (place / "party.json").write_text(
            json.dumps({**job, "rank": rank, "addresses": addresses}),
            encoding="utf-8",
            newline="\n",
        )


def _call(python: Path, what: str, folder: Path) -> None:
    done = subprocess.run(
        [python, HERE / "owner.py", what, folder], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise StateError(f"private inference: could not {what}: {last_line(done.stderr)}")


def _compute(python: Path, folder: Path, parties: int, batches: int, say: Say) -> None:
    places = [folder / f"party{rank}" for rank in range(parties)]

    def meanwhile() -> None:
        done = len(list(places[0].glob("answer*.npz")))
        say(f"batch {min(done + 1, batches)} of {batches}", done / batches)

    found = Path(which(python) or python).absolute()  # parties run in folders of their own
    run_parties([[found, HERE / "party.py", place] for place in places], places, meanwhile)


def _read(folder: Path, parties: int) -> InferenceAnswer:
    costs, counted = [], []
    for rank in range(parties):
        place = folder / f"party{rank}"
        costs.append(json.loads((place / "costs.json").read_text(encoding="utf-8")))
        found = SENT.findall((place / LOG).read_text(encoding="utf-8", errors="replace"))
        counted.append(np.array(found, np.int64).sum(0).tolist())  # it counts every run anew
    return InferenceAnswer(
        np.load(folder / "answers.npy", allow_pickle=False),
        np.load(folder / "clear.npy", allow_pickle=False),
        tuple(max(times) for times in zip(*(c["seconds"] for c in costs), strict=True)),
        sum(sum(c["cpu"]) for c in costs),
        tuple(sent for sent, _ in counted),
        tuple(messages for _, messages in counted),
        max(c["peak_mb"] for c in costs),
    )
