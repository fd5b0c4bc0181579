"""What goes to an actor and comes back: how its worker is made, the clients' states, the results.

All of it is pickled by Ray, within one cluster and between ends that trust each other.
"""

from __future__ import annotations

import importlib.util
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.abc import InspectLoader
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vergence.core.codec import Compression
from vergence.core.fitting import Precision
from vergence.core.method import Method
from vergence.core.pruning import Gradual
from vergence.core.site import Federation
from vergence.core.state import Packed, quick_digest, unpack
from vergence.core.stream import Stream
from vergence.core.task import Task
from vergence.core.wire import Sealed, Sum
from vergence.engines.desk import owned
from vergence.engines.errand import file_of
from vergence.engines.job import Receipt, Result
from vergence.engines.journal import Filed
from vergence.engines.shelf import Kept, Shelf
from vergence.engines.source import code_digest
from vergence.engines.turn import Worker
from vergence.errors import StateError
from vergence.privacy.policy import Privacy

FILED = "vergence_file_"
"""Begins the names of modules that are a user's own files, which other machines do not have."""

Array = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True)
class Recipe:
    """What a worker is made of: its resident network is made where it works."""

    method: Method
    task: Task
    trained_on: Federation
    people: Federation
    stream: Stream
    precision: Precision
    stacks: bool
    wire: Compression
    pruning: Gradual
    privacy: Privacy
    all_here: bool

    @classmethod
    def of(cls, worker: Worker) -> Recipe:
        """Return what this worker is made of."""
        return cls(worker.method, worker.task, worker.trained_on, worker.people, worker.stream,
                   worker.solver.precision, worker.stacked is not None, worker.wire,
                   worker.pruning, worker.privacy, worker.all_here)  # fmt: skip

    def worker(self) -> Worker:
        """Make one like it."""
        return Worker(
            self.method, self.task, self.trained_on, self.people, self.stream, self.precision,
            self.stacks, wire=self.wire, pruning=self.pruning, privacy=self.privacy,
            all_here=self.all_here,
        )  # fmt: skip


@dataclass(frozen=True)
class Satchel(Shelf):
    """A shelf that travels: the states that came with a group, and those it leaves."""

    came: Mapping[str, Array] = field(default_factory=dict)
    left: dict[str, Array] = field(default_factory=dict)

    def read(self, file: str, fresh: Any = None) -> Kept:
        """Return what came under a file's name.

        Raises:
            StateError: it is damaged, or no state of this run's clients.
        """
        kept = unpack(self.came[file].tobytes(), Kept, *self.records)
        return self.genuine(kept, file, fresh)

    def write(
        self, client: str, stamp: str, packed: Packed, share: float | None, spare: str | None = None
    ) -> Filed:
        """Keep a new state until the group is done."""
        chunks, file = packed.chunks(), file_of(self.seed, client, stamp)
        self.left[file] = np.frombuffer(b"".join(chunks), np.uint8)
        return Filed(file, quick_digest(*chunks), share)


@dataclass(frozen=True)
class Arrived:
    """A state's bytes, for the shelf to write."""

    data: Array

    def chunks(self) -> list[memoryview]:
        """Return them."""
        return [self.data.data]


@dataclass(frozen=True)
class Parcel:
    """What comes of a group, with the bytes of its clients' new states."""

    receipts: list[Receipt]
    totals: Mapping[str, Any]
    weights: Mapping[str, Any]
    count: int
    replies: Mapping[str, Sealed]
    states: Mapping[str, Array]

    @classmethod
    def of(cls, found: Result, states: Mapping[str, Array]) -> Parcel:
        """Pack what came of a group."""
        whole = found.sum
        return cls(found.receipts, whole.totals, whole.weights, whole.count, found.replies, states)

    def result(self) -> Result:
        """Return it as a crew tells of it; what a method may keep is memory of its own."""
        whole = Sum()
        whole.totals, whole.weights = dict(self.totals), dict(self.weights)
        whole.count = self.count
        replies = {client: owned(sealed) for client, sealed in self.replies.items()}
        return Result(self.receipts, whole, replies)


class Sent(InspectLoader):
    """Loads a module from text that was sent."""

    def __init__(self, text: str) -> None:
        self.text = text

    def get_source(self, fullname: str) -> str:
        """Return the text."""
        return self.text


def kind() -> dict[str, str]:
    """Return what bits depend on, beside the experiment."""
    processor = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    return {"vergence": code_digest(), "torch": torch.__version__, "processor": processor}


def files_of(worker: Worker) -> dict[str, str]:
    """Return the text of the user's own files that a worker's parts are from, by module name."""
    parts = (worker.method, worker.task, worker.task.network)
    names = {kind.__module__ for part in parts for kind in type(part).__mro__}
    files = {name: sys.modules[name].__file__ for name in names if name.startswith(FILED)}
    return {name: Path(file).read_text() for name, file in files.items() if file}


def load(files: Mapping[str, str]) -> None:
    """Load modules from their text, under the names they have where they were sent from."""
    for name, text in files.items():
        spec = importlib.util.spec_from_loader(name, Sent(text))
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


def bytes_of(path: Path) -> Array:
    """Return the bytes of a state's file.

    Raises:
        StateError: it cannot be read.
    """
    try:
        return np.fromfile(path, np.uint8)
    except OSError as error:
        raise StateError(f"{path} cannot be read ({error.strerror})") from None


def as_array(tensor: Tensor) -> tuple[Any, str | None]:
    """Return a tensor as an array, and its type where numpy has none."""
    tensor = tensor.detach().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy(), "bfloat16"
    return tensor.numpy(), None


def as_tensor(given: tuple[Any, str | None]) -> Tensor:
    """Undo `as_array`: a view, to be read only."""
    tensor = torch.from_numpy(given[0])
    return tensor if given[1] is None else tensor.view(getattr(torch, given[1]))
