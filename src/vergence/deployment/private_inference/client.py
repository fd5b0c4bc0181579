"""Client of a private prediction: splits images into shares for the parties, adds their answers.

Used by `cli.runs` and `deployment.private_inference.sharing`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vergence.core.files import csv_of, saving, write_whole
from vergence.core.options import T
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

AFTERWORDS = 1.0
"""Seconds to wait for other parties' error messages after one party has failed."""


@dataclass(frozen=True)
class PrivateAnswer:
    """Answers to a client's question, and their cost.

    Attributes:
        values: the network's outputs, `[images, outputs]`.
        seconds: time from connecting to the last share of the answers.
        sent: number of bytes sent to all parties.
        received: number of bytes received from all parties.
    """

    values: NDArray[np.float64]
    seconds: float
    sent: int
    received: int


def make_shares(values: Words, parties: int) -> list[Words]:
    """Split 64-bit integers into one share per party; the shares add up to the integers.

    All shares except the first are uniformly random.
    """
    # The randomness is the system's: whoever could guess a generator's seed would read the images
    # from a single party's share.
    others = [
        np.frombuffer(stream(new_seed(), values.nbytes), np.uint64).reshape(values.shape)
        for _ in range(parties - 1)
    ]
    return [difference(values, others), *others]  # type: ignore[list-item]


async def gather_or_fail(talks: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Wait for coroutines, one for each party; return their results in order.

    Raises:
        StateError: a coroutine failed; the message holds its error, and the errors of others that
            failed within the next second.
    """
    tasks = [asyncio.ensure_future(talk) for talk in talks]
    _, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    if rest:
        _, rest = await asyncio.wait(tasks, timeout=AFTERWORDS)
    for task in rest:
        task.cancel()
    errors = [task.exception() for task in tasks if not task.cancelled() and task.done()]
    if reasons := [str(error) for error in errors if isinstance(error, StateError)]:
        raise StateError("private prediction: " + "; ".join(dict.fromkeys(reasons)))
    return [task.result() for task in tasks]


async def ask(
    folder: PrivateFolder, x: NDArray, side_inputs: NDArray, patience: float = PATIENCE
) -> PrivateAnswer:
    """Have the parties compute the network's outputs for images, and return the outputs.

    Args:
        folder: the folder of a client.
        x: images as the network takes them, `[n, ...]`.
        side_inputs: inputs of a later stage of the network, such as head poses, `[n, numbers]`.
        patience: seconds to wait for each message.

    Raises:
        ConfigError: inputs have another shape than the network's, or are too large.
        StateError: a party cannot be reached, refuses, or sends a message other than the one
            expected.
    """
    network, names = folder.agreement.network, list(folder.agreement.parties)
    if x.shape[1:] != tuple(network.image) or side_inputs.shape != (len(x), network.side_inputs):
        raise ConfigError(
            f"private prediction: images {list(network.image)} and {network.side_inputs} numbers "
            f"beside each; got {list(x.shape[1:])} and {list(side_inputs.shape)}"
        )
    rows = np.concatenate([x.reshape(len(x), -1), side_inputs], 1)
    if not np.all(np.abs(rows) < LARGEST):
        raise ConfigError(f"private prediction: inputs must be smaller than {LARGEST:g}")
    begun = time.perf_counter()
    dealt = make_shares(encode(rows), len(names))
    greeted = await gather_or_fail([dial(folder, name, patience) for name in names])
    lines, greetings = [line for line, _ in greeted], [greeting for _, greeting in greeted]
    try:

        async def unused(line: Line, greeting: Greeting) -> int:
            await line.send_record(folder.introduction(greeting))
            image = parsed(UnusedMaterial, await line.receive(WORDS), line.who).next
            # The largest number of all parties counts: one malicious party could otherwise end all
            # questions, or make the client skip material without bound.
            if image > folder.agreement.images:
                raise StateError(f"{line.who} says that more material was used than was dealt")
            return image

        start = max(await gather_or_fail([unused(*each) for each in greeted]))
        digest, size = folder.agreement.digest, 8 * len(x) * network.answers
        terms = Terms(digest, new_nonce(), folder.name, start, len(x))

        async def question(line: Line, number: int) -> Words:
            await line.send_record(folder.hello(greetings[number], "client", terms))
            await line.send(DATA, dealt[number].tobytes())
            return np.frombuffer(await line.receive(DATA, exact=size), np.uint64)

        shares = await gather_or_fail([question(line, i) for i, line in enumerate(lines)])
    finally:
        await asyncio.gather(*(line.close() for line in lines))
    words = combined(shares).reshape(len(x), network.answers)
    costs = sum(line.sent for line in lines), sum(line.received for line in lines)
    return PrivateAnswer(decode(words), time.perf_counter() - begun, *costs)  # type: ignore[arg-type]


def predict(folder: Path, file: Path, out: Path, patience: float = PATIENCE) -> PrivateAnswer:
    """Predict the gaze in the eye images of an npz file; no party learns the images or the gaze.

    Args:
        folder: a client's folder, made by `vergence privacy share`.
        file: file with columns `image` (uint8) and `pose` (radians).
        out: CSV file to write, with columns sample, pitch_rad and yaw_rad.
        patience: seconds to wait for each message.

    Raises:
        ConfigError: images have another shape than the network's.
        DataError: the file cannot be read, or lacks a column.
        StateError: as in `ask`; also if an answer is no angle, because a party sent wrong numbers.
    """
    place = PrivateFolder(folder)
    # Read before the images: a run directory in place of a client's folder is refused first.
    network = place.agreement.network
    samples = read_samples(file)
    needed = {"image", "pose"} if network.side_inputs else {"image"}
    if missing := needed - set(samples.columns):
        raise DataError(f"{file} has no column {', '.join(sorted(missing))}")
    columns = {"pose": torch.zeros(len(samples), 0), **samples.columns}
    x, (side_inputs,) = GazeAngle(LeNet()).inputs(columns)
    if not network.side_inputs:
        side_inputs = side_inputs[:, :0]
    answers = [
        asyncio.run(ask(place, x[rows].numpy(), side_inputs[rows].numpy(), patience))
        for rows in torch.arange(len(x)).split(MOST_IMAGES)
    ]
    answer = PrivateAnswer(
        np.concatenate([each.values for each in answers]),
        *(sum(getattr(each, name) for each in answers) for name in ("seconds", "sent", "received")),
    )
    # Shares carry no proof, so that a malicious party can shift the answer. A random share gives a
    # huge number, which is caught here; a small shift is not.
    if not np.all(np.abs(answer.values) <= math.pi):
        raise StateError(
            "the answer is no angle: a party sent something wrong, and nothing is told"
        )
    rows = ([i, *(f"{angle:.6f}" for angle in angles)] for i, angles in enumerate(answer.values))
    with saving(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(out, csv_of([("sample", "pitch_rad", "yaw_rad"), *rows]).encode())
    return answer
