"""Data sent to a Ray actor and back: parts to build its executor, clients' states, results.

Used by `engine.workers.ray_actors`.
"""

# Ray pickles all of it, within one cluster whose machines trust each other. Nothing from a client
# of a deployment comes this way (docs/explanation/decisions/no-pickle.md).

from __future__ import annotations

import importlib.util
import platform
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.abc import InspectLoader
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vergence.core.aggregation import Sum
from vergence.core.messages import SealedReply
from vergence.core.method import Method
from vergence.core.naming import FROM_FILE
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.serialization import Packed, digest, quick_digest, unpack
from vergence.core.task import Task
from vergence.engine.client_executor import CPU, ClientExecutor, Computation, LocalData
from vergence.engine.client_runner import owned
from vergence.engine.code_digest import code_digest
from vergence.engine.records import ClientResult, ClientState, GroupResult
from vergence.engine.storage.client_states import ClientStateStore, file_of
from vergence.engine.storage.state_journal import StateRef
from vergence.errors import PartialRun, StateError
from vergence.privacy.hooks import ClientHooks

Array = NDArray[np.uint8]
Reference = Any
"""Reference to an object or an actor of Ray, which may not be installed."""
SENT_ALONG = 100_000
"""Bytes up to which a client's new state goes to the driver with the results."""


@dataclass(frozen=True)
class WorkerSpec:
    """Parts from which a Ray actor builds its executor, which runs clients' turns."""

    method: Method
    task: Task
    data: LocalData
    stream: RandomStream
    how: Computation
    hooks: tuple[ClientHooks, ...]

    @classmethod
    def of(cls, worker: ClientExecutor) -> WorkerSpec:
        """Take the parts of an executor, for actors that compute on CPUs.

        People's data are put into Ray's object store.
        """
        # Imported here, as it needs Ray.
        from vergence.engine.workers.ray_people import fetched

        how, data = replace(worker.how, device=CPU), worker.data
        trained_on = fetched(data.trained_on)
        # Apart from data centres and labs they are the same people, whose data are stored once.
        same = data.people is data.trained_on
        people = trained_on if same else fetched(data.people)
        data = replace(data, trained_on=trained_on, people=people)
        return cls(worker.method, worker.task, data, worker.stream, how, worker.hooks)

    def worker(self) -> ClientExecutor:
        """Build the executor, with a network of its own."""
        return ClientExecutor(self.method, self.task, self.data, self.stream, self.how, self.hooks)


@dataclass(frozen=True)
class PayloadStateStore(ClientStateStore):
    """Keeps clients' states in memory, as a Ray actor may have no access to the run's folder.

    Attributes:
        old_states: file name -> bytes of a state before the group's tasks.
        new_states: file name -> bytes of a state after them.
    """

    old_states: Mapping[str, Array] = field(default_factory=dict)
    new_states: dict[str, Array] = field(default_factory=dict)

    def read(self, file: str, fresh: object = None) -> ClientState:
        """Read a client's state that was sent with the group, by its file name.

        Raises:
            StateError: the state is damaged, or is not that of a client of this run.
        """
        state = unpack(self.old_states[file].tobytes(), ClientState, *self.records)
        return self.genuine(state, file, fresh)

    def write(
        self, client: str, stamp: str, packed: Packed, share: float | None, spare: str | None = None
    ) -> StateRef:
        """Keep a client's new state in memory until the group is done; return its reference."""
        chunks, file = packed.chunks(), file_of(self.seed, client, stamp)
        self.new_states[file] = np.frombuffer(b"".join(chunks), np.uint8)
        return StateRef(file, quick_digest(*chunks), share)


class LostStates(PartialRun):
    """Clients' states that the last checkpoint lacks are gone, with the machine that had them."""


@dataclass(frozen=True)
class RemoteState:
    """A client's new state on the machine of the actor that computed it; a small one is here.

    It stands for the `Packed` state where a store keeps or writes it.

    Attributes:
        data: the bytes, or the reference to them in Ray's object store.
        xxh3: digest of the bytes that the actor computed.
        client: name of the client.
        records: dataclasses of which the state may be made.
    """

    data: Array | Reference
    xxh3: str
    client: str
    records: Sequence[type]

    @property
    def arrays(self) -> dict[str, Array]:
        """The bytes that are here; empty if they are on another machine."""
        return {"state": self.data} if isinstance(self.data, np.ndarray) else {}

    def chunks(self) -> list[memoryview]:
        """Fetch the bytes; return them as a list with one item.

        Raises:
            StateError: they are not the bytes that the actor stored.
            LostStates: they are gone.
        """
        data = fetched_states({"": self.data})[""].data
        if quick_digest(data) != self.xxh3:
            raise StateError(
                f"the state of '{self.client}' was damaged on its way here; `vergence resume` goes "
                "on from the last checkpoint"
            )
        return [data]

    @property
    def state(self) -> ClientState:
        """The state itself."""
        return unpack(self.chunks()[0].tobytes(), ClientState, *self.records)


def fetched_states(states: Mapping[str, Array | Reference]) -> dict[str, Array]:
    """Return states' bytes by file name, after fetching those that Ray has references to.

    Raises:
        LostStates: a state is gone, as the machine that had it died.
    """
    far = {file: ref for file, ref in states.items() if not isinstance(ref, np.ndarray)}
    if not far:
        return dict(states)
    import ray
    from ray.exceptions import ObjectLostError

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            return {**states, **dict(zip(far, ray.get([*far.values()]), strict=True))}
    except ObjectLostError:
        raise LostStates(
            "a machine of the Ray cluster died, and with it clients' states that the last "
            "checkpoint lacks"
        ) from None


@dataclass(frozen=True)
class TaskPayload:
    """Result of a group of tasks, with the bytes of the new client states, as an actor sends it."""

    results: list[ClientResult]
    totals: Mapping[str, Params]
    weights: Mapping[str, float | Params]
    count: int
    replies: Mapping[str, SealedReply]
    states: Mapping[str, Array | Reference]

    @classmethod
    def of(cls, group: GroupResult, states: Mapping[str, Array]) -> TaskPayload:
        """Make the payload of a group's result; large states stay here, and references go."""
        import ray

        whole = group.sum
        # A small state costs less on its way than a reference to it.
        kept = {f: ray.put(s) if s.nbytes > SENT_ALONG else s for f, s in states.items()}
        return cls(group.results, whole.totals, whole.weights, whole.count, group.replies, kept)

    def result(self) -> GroupResult:
        """Return the group's result, with copies of single replies."""
        # A method may keep single replies, and Ray's memory is freed: they are copied.
        whole = Sum()
        whole.totals, whole.weights = dict(self.totals), dict(self.weights)
        whole.count = self.count
        replies = {client: owned(sealed) for client, sealed in self.replies.items()}
        return GroupResult(self.results, whole, replies)


class SentTask(InspectLoader):
    """Loads a Python module from source text that the driver (the run's main process) sent."""

    def __init__(self, text: str) -> None:
        self.text = text

    def get_source(self, fullname: str) -> str:
        """Return the source text."""
        return self.text


def kind(worker: ClientExecutor | None = None) -> dict[str, str]:
    """Return versions and hardware on which the exact bits of results depend.

    The keys are "vergence", "torch", "processor", and the modules of the user's classes.
    """
    processor = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    facts = {"vergence": code_digest(), "torch": torch.__version__, "processor": processor}
    for name in modules_of(worker) if worker else ():
        module = sys.modules.get(name)
        loader: Any = getattr(module, "__loader__", None)
        elsewhere = name.startswith((FROM_FILE, "vergence.")) or name in sys.stdlib_module_names
        if not elsewhere and hasattr(loader, "get_data"):
            facts[f"module {name}"] = digest(loader.get_data(str(getattr(module, "__file__", ""))))
    return facts


def modules_of(worker: ClientExecutor) -> set[str]:
    """Return the modules that define the classes of an executor's method, task and network."""
    parts = (worker.method, worker.task, worker.task.network)
    return {kind.__module__ for part in parts for kind in type(part).__mro__}


def files_of(worker: ClientExecutor) -> dict[str, str]:
    """Return module name -> source text of the user's own files with an executor's classes."""
    texts = {}
    # The loader has the text that ran, whatever the file holds now.
    for name in (name for name in modules_of(worker) if name.startswith(FROM_FILE)):
        loader: Any = sys.modules[name].__loader__
        texts[name] = loader.get_source(name)
    return texts


def load(files: Mapping[str, str]) -> None:
    """Import modules from their source text, under the names that they have on the driver."""
    # The user allowed the driver to run them, and the machines of a cluster trust each other.
    for name, text in files.items():
        spec = importlib.util.spec_from_loader(name, SentTask(text))
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


def bytes_of(path: Path) -> Array:
    """Return the bytes of a state's file.

    Raises:
        StateError: the file cannot be read.
    """
    try:
        return np.fromfile(path, np.uint8)
    except OSError as error:
        raise StateError(f"{path} cannot be read ({error.strerror})") from None


def as_array(tensor: Tensor) -> tuple[NDArray[np.generic], str | None]:
    """Return a tensor as a numpy array; and "bfloat16" if numpy lacks the type, else None."""
    tensor = tensor.detach().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy(), "bfloat16"
    return tensor.numpy(), None


def as_tensor(packed: tuple[NDArray[np.generic], str | None]) -> Tensor:
    """Undo `as_array`; the result is a view, which must not be changed."""
    tensor = torch.from_numpy(packed[0])
    return tensor if packed[1] is None else tensor.view(getattr(torch, packed[1]))
