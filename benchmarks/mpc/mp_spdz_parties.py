"""Private inference secure against a lying party: an installed MP-SPDZ's parties, given files.

Every party has a folder with its own key and inputs, and talks TLS over 127.0.0.1. The first owns
the parameters, the second the images, and only the second is told answers. A party that notices a
lie ends; answers are read when all have ended well. Source: Keller 2020, MP-SPDZ.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from benchmarks.mpc.processes import LOG, Costs, free_ports, last_line, run_parties
from benchmarks.mpc.protocols import protocol
from benchmarks.mpc.spu_parties import InferenceAnswer, InferenceQuestion, Say
from vergence.errors import ConfigError, StateError

PROGRAM = Path(__file__).parent / "mp_spdz" / "network.py"
FRACTION = 20
"""Bits after the point."""
BITS = 31
"""Of any number, with its sign: an exact truncation takes 51 of the ring's 64 bits."""
OWNERS = ("parameters", "inputs")
"""What the first and the second party own."""
TIMER = re.compile(r"^Time[1-9]\d* = (\S+) seconds \((\S+) MB, (\d+) rounds\)$", re.MULTILINE)
SETUP = "docs/results/private_inference.md says how to build MP-SPDZ"


def check_install(place: Path | None, name: str) -> Path:
    """Return the program a party runs.

    Raises:
        ConfigError: no MP-SPDZ there, or not this protocol's party; says what to run.
    """
    if place is None:
        raise ConfigError(f"private inference: {name} needs --mp-spdz DIRECTORY; {SETUP}")
    if not (place / "Compiler" / "compilerLib.py").is_file():
        raise ConfigError(f"private inference: no MP-SPDZ in {place}: {SETUP}")
    party = place.resolve() / protocol(name).party
    if not os.access(party, os.X_OK):
        raise ConfigError(f"private inference: {name} is not built: make -C {place} {party.name}")
    return party


def infer(
    question: InferenceQuestion,
    inputs: Mapping[str, NDArray],
    place: Path | None,
    say: Say = lambda _what, _share: None,
) -> InferenceAnswer:
    """Run the parties; return their answer together with its cost.

    Args:
        question: network and protocol; all weights are secret, and none is pruned.
        inputs: `x` `[batches, batch, ...]`, and `beside` where the network reads it.
        place: an installed MP-SPDZ.
        say: is told how far it is.

    Raises:
        ConfigError: no such install, or a network or number that does not fit.
        StateError: it does not compile, or a party failed or noticed a lie.
    """
    party = check_install(place, question.protocol)
    if question.public or question.parts.columns:
        raise ConfigError(
            f"private inference: {question.protocol} takes secret weights, none of them pruned"
        )
    with TemporaryDirectory(prefix="vergence-mpc-") as name:
        folder = Path(name)
        say("compiling", 0.0)
        _compile(folder, party.parent, question, inputs)
        _write(folder, question, inputs)
        say("computing", 0.0)
        places = [folder / f"party{rank}" for rank in range(question.parties)]
        low, high = protocol(question.protocol, question.parties).parties
        many = ["-N", str(question.parties)] if low < high else []
        usage = run_parties(
            [[party, "-p", str(i), *many, "-ip", "hosts", "network"] for i in range(len(places))],
            places,
        )
        return _read(folder, inputs["x"].shape[:2], usage)


def fixed(values: NDArray, what: str) -> NDArray[np.int64]:
    """Return numbers in fixed point, rounded.

    Raises:
        ConfigError: one is too large, or none.
    """
    limit = 2.0 ** (BITS - 1 - FRACTION)
    if not np.all(np.abs(values) < limit):
        raise ConfigError(
            f"private inference: {what} holds {np.abs(values).max():g}; numbers must be below "
            f"{limit:g}: scale them"
        )
    return np.rint(values.astype(np.float64) * 2.0**FRACTION).astype(np.int64)


def _compile(
    folder: Path, install: Path, question: InferenceQuestion, inputs: Mapping[str, NDArray]
) -> None:
    parts = question.parts
    job = {
        "layers": [asdict(layer) for layer in parts.layers],
        "parameters": {name: array.shape for name, array in parts.arrays.items()},
        "inputs": {name: array.shape[1:] for name, array in inputs.items()},
        "batches": len(inputs["x"]),
        "fraction": FRACTION,
        "bits": BITS,
        "options": protocol(question.protocol).options,
    }
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8", newline="\n")
    path = os.environ | {"PYTHONPATH": str(install)}
    _run("compile", [sys.executable, PROGRAM, "job.json"], folder, path)


def _run(
    what: str, command: list[str | Path], folder: Path, environment: Mapping[str, str] | None = None
) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise ConfigError(f"private inference: no {command[0]} to {what} with; {SETUP}") from None
    if done.returncode:
        told = last_line(done.stderr or done.stdout)
        raise StateError(f"private inference: could not {what}: {told}")


def _write(folder: Path, question: InferenceQuestion, inputs: Mapping[str, NDArray]) -> None:
    """Give every party the certificates of all, its own key, and what it owns."""
    parameters = [fixed(array, name) for name, array in question.parts.arrays.items()]
    images = [fixed(a[i], k) for i in range(len(inputs["x"])) for k, a in inputs.items()]
    hosts = "".join(f"127.0.0.1:{port}\n" for port in free_ports(question.parties))
    places = [folder / f"party{rank}" / "Player-Data" for rank in range(question.parties)]
    for rank, place in enumerate(places):
        place.parent.mkdir(mode=0o700)
        place.mkdir()
        (place.parent / "Programs").symlink_to(folder / "Programs")
        (place.parent / "hosts").write_text(hosts, encoding="utf-8", newline="\n")
        new = [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-subj",
            f"/CN=P{rank}",
            "-keyout",
            f"P{rank}.key",
            "-out",
            f"P{rank}.pem",
        ]
        _run("make a key", [*new], place)
    for rank, place in enumerate(places):
        for other in places:
            name = f"{other.parent.name.replace('party', 'P')}.pem"
            (place / name).write_bytes((other / name).read_bytes())
        _run("list certificates", ["openssl", "rehash", "."], place)
        if rank < len(OWNERS):
            owned = (parameters, images)[rank]
            np.concatenate([a.ravel() for a in owned]).tofile(place / f"Input-Binary-P{rank}-0")


def _read(folder: Path, shape: tuple[int, ...], usage: Sequence[Costs]) -> InferenceAnswer:
    owner = OWNERS.index("inputs")
    file = folder / f"party{owner}" / "Player-Data" / f"Binary-Output-P{owner}-0"
    words = np.fromfile(file, np.int64)
    told = [
        (folder / f"party{rank}" / LOG).read_text(encoding="utf-8") for rank in range(len(usage))
    ]
    seconds, sent, rounds = costs(told, shape[0])
    return InferenceAnswer(
        (words.reshape(*shape, -1) / 2.0**FRACTION).astype(np.float32),
        None,
        seconds,
        sum(used.processor_s for used in usage),
        sent,
        rounds,
        max(used.peak_kb for used in usage) / 1024,
    )


def costs(
    told: Sequence[str], batches: int
) -> tuple[tuple[float, ...], tuple[int, ...], tuple[int, ...]]:
    """Return seconds of every batch, bytes and rounds of every party, from what parties said.

    Raises:
        StateError: not one time for every batch.
    """
    found = [np.array(TIMER.findall(text), np.float64) for text in told]
    if any(len(timers) != batches for timers in found):
        raise StateError(f"private inference: MP-SPDZ timed other than {batches} batches; {SETUP}")
    seconds, megabytes, rounds = np.stack(found, -1).swapaxes(0, 1)
    return (
        tuple(seconds.max(1).tolist()),
        tuple(round(each * 1e6) for each in megabytes.sum(0)),
        tuple(round(each) for each in rounds.sum(0)),
    )
