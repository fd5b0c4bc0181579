"""A client of a private prediction: shares images among the parties, and adds up their answers."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from vergence.core.files import csv_of, saving, write_whole
from vergence.data.own_samples import read_samples
from vergence.deployment.private_inference.agreement import (
    MOST_IMAGES,
    Greeting,
    PrivateFolder,
    Terms,
    UnusedMaterial,
    new_nonce,
    parsed,
)
from vergence.deployment.private_inference.connection import DATA, WORDS, Line, dial
from vergence.deployment.private_inference.party import PATIENCE
from vergence.errors import ConfigError, DataError, StateError
from vergence.models.lenet import LeNet
from vergence.privacy.inference.ring import Words, combined, decode, difference, encode
from vergence.privacy.inference.shared_network import LARGEST
from vergence.privacy.secure_aggregation.masking import new_seed, stream
from vergence.tasks.gaze_angle import GazeAngle

T = TypeVar("T")
AFTERWORDS = 1.0
"""Seconds for the other parties' reasons after one has failed."""


@dataclass(frozen=True)
class PrivateAnswer:
    """Answers and their cost.

    Attributes:
        values: `[n, answers]`.
        seconds: from connecting to the last share of the answers.
        sent: bytes to all parties.
        received: bytes from all parties.
    """

    values: NDArray[np.float64]
    seconds: float
    sent: int
    received: int


def shared(values: Words, parties: int) -> list[Words]:
    """Shares of words: all but the first are uniform, from the system's randomness."""
    others = [
        np.frombuffer(stream(new_seed(), values.nbytes), np.uint64).reshape(values.shape)
        for _ in range(parties - 1)
    ]
    return [difference(values, others), *others]  # type: ignore[list-item]


async def all_of(talks: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Results of talks with all parties.

    Raises:
        StateError: one fails; the others may say why for a second more, and all of it is told.
    """
    tasks = [asyncio.ensure_future(talk) for talk in talks]
    _, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    if rest:
        _, rest = await asyncio.wait(tasks, timeout=AFTERWORDS)
    for task in rest:
        task.cancel()
    errors = [task.exception() for task in tasks if not task.cancelled() and task.done()]
    if told := [str(error) for error in errors if isinstance(error, StateError)]:
        raise StateError("private prediction: " + "; ".join(dict.fromkeys(told)))
    return [task.result() for task in tasks]


async def ask(
    folder: PrivateFolder, x: NDArray, beside: NDArray, patience: float = PATIENCE
) -> PrivateAnswer:
    """Ask the parties about images.

    Args:
        folder: of a client.
        x: images as the network takes them `[n, ...]`.
        beside: what stands beside them `[n, beside]`.
        patience: seconds to wait for what is due.

    Raises:
        ConfigError: inputs of another shape, or too large.
        StateError: a party cannot be reached, refuses, or sends something else than is due.
    """
    network, names = folder.agreement.network, list(folder.agreement.parties)
    if x.shape[1:] != tuple(network.image) or beside.shape != (len(x), network.beside):
        raise ConfigError(
            f"private prediction: images {list(network.image)} and {network.beside} numbers beside "
            f"each; got {list(x.shape[1:])} and {list(beside.shape)}"
        )
    rows = np.concatenate([x.reshape(len(x), -1), beside], 1)
    if not np.all(np.abs(rows) < LARGEST):
        raise ConfigError(f"private prediction: inputs must be smaller than {LARGEST:g}")
    begun = time.perf_counter()
    dealt = shared(encode(rows), len(names))
    greeted = await all_of([dial(folder, name, patience) for name in names])
    lines, greetings = [line for line, _ in greeted], [greeting for _, greeting in greeted]
    try:

        async def unused(line: Line, greeting: Greeting) -> int:
            await line.tell_record(folder.introduction(greeting))
            found = parsed(UnusedMaterial, await line.take(WORDS), line.who).next
            if found > folder.agreement.images:
                raise StateError(f"{line.who} says that more material was used than was dealt")
            return found

        start = max(await all_of([unused(*each) for each in greeted]))
        digest, size = folder.agreement.digest, 8 * len(x) * network.answers
        terms = Terms(digest, new_nonce(), folder.name, start, len(x))

        async def question(line: Line, number: int) -> Words:
            await line.tell_record(folder.hello(greetings[number], "client", terms))
            await line.tell(DATA, dealt[number].tobytes())
            return np.frombuffer(await line.take(DATA, exact=size), np.uint64)

        shares = await all_of([question(line, i) for i, line in enumerate(lines)])
    finally:
        await asyncio.gather(*(line.close() for line in lines))
    words = combined(shares).reshape(len(x), network.answers)
    costs = sum(line.sent for line in lines), sum(line.received for line in lines)
    return PrivateAnswer(decode(words), time.perf_counter() - begun, *costs)  # type: ignore[arg-type]


def predict(folder: Path, file: Path, out: Path, patience: float = PATIENCE) -> PrivateAnswer:
    """Write the gaze of the eye images of an npz file, of which no party learns anything.

    Args:
        folder: a client's, of `vergence privacy share`.
        file: columns `image` (uint8) and `pose` (radians).
        out: a CSV: sample, pitch_rad, yaw_rad.
        patience: seconds to wait for what is due.

    Raises:
        ConfigError: images of another shape.
        DataError: the file is unusable.
        StateError: see `ask`; or the answer is no angle, so that a party sent something wrong.
    """
    place = PrivateFolder(folder)
    network = place.agreement.network  # a run in its place is told before its file is looked at
    samples = read_samples(file)
    needed = {"image", "pose"} if network.beside else {"image"}
    if missing := needed - set(samples.columns):
        raise DataError(f"{file} has no column {', '.join(sorted(missing))}")
    columns = {"pose": torch.zeros(len(samples), 0), **samples.columns}
    x, (beside,) = GazeAngle(LeNet()).inputs(columns)
    if not network.beside:
        beside = beside[:, :0]
    answers = [
        asyncio.run(ask(place, x[rows].numpy(), beside[rows].numpy(), patience))
        for rows in torch.arange(len(x)).split(MOST_IMAGES)
    ]
    found = PrivateAnswer(
        np.concatenate([each.values for each in answers]),
        *(sum(getattr(each, name) for each in answers) for name in ("seconds", "sent", "received")),
    )
    if not np.all(np.abs(found.values) <= math.pi):
        raise StateError(
            "the answer is no angle: a party sent something wrong, and nothing is told"
        )
    rows = [["sample", "pitch_rad", "yaw_rad"]]
    rows += [[i, *(f"{angle:.6f}" for angle in angles)] for i, angles in enumerate(found.values)]
    with saving(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(out, csv_of(rows).encode())
    return found
