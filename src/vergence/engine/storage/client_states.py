"""Clients' states on disk: one file for each client that took part, none for the others.

Used in `deployment`, `engine` and `experiment`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from vergence import profiling
from vergence.core import files as disk
from vergence.core.files import part_of, saving
from vergence.core.masks import Mask
from vergence.core.options import T
from vergence.core.serialization import (
    CPU,
    Packed,
    digest,
    pack,
    quick_digest,
    unpack,
    unpack_file,
)
from vergence.engine.records import ClientState, LabState
from vergence.engine.storage.checkpoint_validation import MEND, alike, fits
from vergence.engine.storage.state_journal import StateRef
from vergence.errors import StateError


class Unwritten(NamedTuple):
    """A client's state that is not in its file yet: the file's name, its bytes, and `share`."""

    file: str
    chunks: Sequence[memoryview]
    share: float | None


def file_of(seed: int, client: str, stamp: str) -> str:
    """Return the name of the file for a client's state after a turn in the batch `stamp`."""
    return f"seed{seed}.client.{client}.{stamp}.safetensors"


@dataclass(frozen=True)
class ClientStateStore:
    """The folder with one seed's client states, which workers read and write.

    Attributes:
        folder: the folder.
        seed: seed of the run.
        records: dataclasses of which states may be made.
        lasting: whether a written file must survive a power cut, as on the server of a deployment.
        device: where states are read to.
    """

    folder: Path
    seed: int
    records: Sequence[type]
    lasting: bool = False
    device: torch.device = CPU

    def read(self, file: str, fresh: object = None) -> ClientState:
        """Read the state in a file.

        Args:
            file: name of the file.
            fresh: state of a client that never took part; None: layouts are not compared.

        Raises:
            StateError: the file is damaged, holds something other than a client's state, or holds
                the state of a network other than that of `fresh`.
        """
        path = self.folder / file
        try:
            with profiling.phase("checkpoints"):
                state = unpack_file(path, ClientState, *self.records, device=self.device)
        except StateError as error:
            where = "" if str(path) in str(error) else f"{path}: "
            raise StateError(f"{where}{error}; {MEND}") from None
        return self.genuine(state, path, fresh)

    def genuine(self, value: object, where: object, fresh: object) -> ClientState:
        """Return a value read from a file, after checking that it is a client's state.

        Args:
            value: the value.
            where: its file, for the message of an error.
            fresh: state whose layouts the value must have; None: layouts are not compared.

        Raises:
            StateError: the value is no client's state of this run.
        """
        # Whoever can write to the folder can write any value of the records that are named.
        if (
            isinstance(value, ClientState)
            and fits(value, ClientState)
            and self._of_this_run(value.state, fresh)
        ):
            return value
        raise StateError(f"{where} holds no client's state of this run; {MEND}")

    def _of_this_run(self, state: object, fresh: object) -> bool:
        """Return whether a state has the types of this run's states, and the layouts of `fresh`."""
        if LabState not in self.records:
            return fits(state, self.records[-1]) and alike(state, fresh)
        person = self.records[self.records.index(LabState) - 1]
        return (
            fits(state, LabState)
            and isinstance(state, LabState)
            and all(fits(own, person) and alike(own, fresh) for own in state.people.values())
        )

    def write(
        self, client: str, stamp: str, packed: Packed, share: float | None, spare: str | None = None
    ) -> StateRef:
        """Write a client's new state to a new file, whose name contains the batch's stamp.

        Args:
            client: the client.
            stamp: name of the batch.
            packed: the state.
            share: fraction of the parameters that are personal; None: the method has no mask.
            spare: an unneeded file, which may be overwritten; None: there is none.
        """
        return self._to_file(file_of(self.seed, client, stamp), packed.chunks(), share, spare)

    def _to_file(
        self, file: str, chunks: Sequence[memoryview], share: float | None, spare: str | None
    ) -> StateRef:
        """Write a state to a file of this name, in place of a spare file if there is one."""
        with saving(self.folder.parent), profiling.phase("checkpoints"):
            # The pages of a spare file are in memory already: 2 ms instead of up to 30 for 15 MB.
            if spare is not None:
                with suppress(FileNotFoundError):
                    (self.folder / spare).replace(part_of(self.folder / file))
            disk.write_whole(self.folder / file, *chunks, lasting=self.lasting)
        return StateRef(file, quick_digest(*chunks), share)

    def placed(self, state: T) -> T:
        """Return a state where this run's states lie."""
        return state

    def settle(self, filed: dict[str, StateRef]) -> None:
        """Write states to their files that are not there yet, and complete their references."""

    def unwritten(self, *filed: dict[str, StateRef]) -> list[Unwritten]:
        """Return the states that are not in their files yet; complete the other references."""
        return []

    def write_later(self, state: Unwritten) -> StateRef:
        """Write one of the states that `unwritten` returned, in any thread."""
        return self._to_file(*state, None)

    def forget(self, file: str) -> None:
        """Free the memory of a state that no turn will read again."""

    def at_home(self) -> ClientStateStore:
        """Return a store that reads the files into main memory."""
        return self


@dataclass(frozen=True)
class ResidentStateStore(ClientStateStore):
    """States that stay in memory, on a GPU or here, until a checkpoint needs their files.

    If they are larger than `room`, those that were not read for longest go to their files, whose
    pages the system keeps in main memory as long as it can.

    Attributes:
        room: bytes of memory there.
        waiting: file -> state and fraction of personal parameters; the state that was not used for
            longest comes first.
        used: their bytes there, under `waiting`; counted as they come and go, not over all people.
        lock: one thread at a time may change what is here.
        written: file -> complete reference, of states that are in their files, too.
        spares: unneeded files, which may be overwritten.
    """

    room: float = math.inf
    waiting: dict[str, tuple[Packed, float | None]] = field(default_factory=dict)
    used: Counter[str] = field(default_factory=Counter)
    written: dict[str, StateRef] = field(default_factory=dict)
    spares: list[str] = field(default_factory=list)
    lock: AbstractContextManager[object] = field(default_factory=RLock, compare=False)

    def read(self, file: str, fresh: object = None) -> ClientState:
        """Return a state from memory, or read it from its file."""
        with self.lock:
            if file not in self.waiting:
                return super().read(file, fresh)
            self.waiting[file] = self.waiting.pop(file)
            state = self.waiting[file][0].state
        assert isinstance(state, ClientState)
        return state

    def write(
        self, client: str, stamp: str, packed: Packed, share: float | None, spare: str | None = None
    ) -> StateRef:
        """Keep a state under its file's name; the reference has no digest before it is settled."""
        file = file_of(self.seed, client, stamp)
        with self.lock:
            if spare is not None:
                self.forget(spare)
                if (self.folder / spare).exists():
                    self.spares.append(spare)
            self._free(file)
            self.waiting[file] = packed, share
            self.used["waiting"] += _bytes_there(self.waiting[file])
            while len(self.waiting) > 1 and self.used["waiting"] > self.room:
                oldest = next(iter(self.waiting))
                self._settled(StateRef(oldest, "", None))
                self._free(oldest)
        return StateRef(file, "", share)

    def _settled(self, entry: StateRef) -> StateRef:
        """Return a complete reference, after writing the file if it is not there yet."""
        if not entry.xxh3 and entry.file not in self.written:
            self.write_later(self._unwritten(entry.file))
        return self.written.get(entry.file, entry)

    def _unwritten(self, file: str) -> Unwritten:
        """Return what is needed to write a state; that on a GPU comes home."""
        packed, share = self.waiting[file]
        return Unwritten(file, packed.chunks(), share)

    def _free(self, file: str) -> None:
        if file in self.waiting:
            self.used["waiting"] -= _bytes_there(self.waiting.pop(file))

    def placed(self, state: T) -> T:
        """Return a copy of a state on the GPU; in main memory, the state itself."""
        if self.device == CPU:
            return state
        return unpack(pack(state), ClientState, *self.records, device=self.device)

    def settle(self, filed: dict[str, StateRef]) -> None:
        """Write states to their files that are not there yet, and complete their references."""
        with self.lock:
            filed.update({client: self._settled(entry) for client, entry in filed.items()})

    def unwritten(self, *filed: dict[str, StateRef]) -> list[Unwritten]:
        """Return the states that are not in their files yet; complete the other references."""
        with self.lock:
            for entries in filed:
                entries.update({c: self.written.get(e.file, e) for c, e in entries.items()})
            files = dict.fromkeys(e.file for some in filed for e in some.values() if not e.xxh3)
            return [self._unwritten(file) for file in files]

    def write_later(self, state: Unwritten) -> StateRef:
        """Write one of the states that `unwritten` returned, in any thread."""
        with self.lock:
            # Another thread needed its memory, and wrote it.
            if state.file in self.written:
                return self.written[state.file]
            spare = self.spares.pop() if self.spares else None
            entry = self._to_file(*state, spare)
            # A later turn may have replaced it.
            if state.file in self.waiting:
                self.written[state.file] = entry
            return entry

    def forget(self, file: str) -> None:
        """Free the memory of a state that no turn will read again."""
        with self.lock:
            self._free(file)
            self.written.pop(file, None)

    def at_home(self) -> ClientStateStore:
        """Return a store that reads the files into main memory."""
        for spare in self.spares:
            (self.folder / spare).unlink(missing_ok=True)
        return ClientStateStore(self.folder, self.seed, self.records, self.lasting)


def _bytes_there(waiting: tuple[Packed, float | None]) -> int:
    """Return the bytes of a state in memory, where a mask has a byte for each entry."""
    arrays = [x.bits if isinstance(x, Mask) else x for x in waiting[0].arrays.values()]
    return sum(len(x) if isinstance(x, bytes) else x.nbytes for x in arrays)


NOBODY_IN_LABS: Mapping[str, str] = MappingProxyType({})
"""Mapping from people to labs in a run without labs: it is empty."""


class ClientStateIndex(Mapping[str, Any]):
    """Maps clients that took part to their states; a state is read when it is asked for.

    A turn writes its new state to a new file. The index decides which file holds a client's state:
    the new file once the reply has counted, or the checkpoint's file after a restart.

    Attributes:
        store: folder of the states.
        lab_of: person -> lab; with labs, the keys of the index are the people in them.
        filed: client -> reference to the file of its state.
        changed: client -> reference to the file, for states that changed since the last checkpoint.
        best: client -> reference, as they were at the best evaluation; empty before the first.
        passed: files of replaced states that the last checkpoint still names.
        spares: unneeded files, which may be overwritten.
    """

    def __init__(self, store: ClientStateStore, homes: Mapping[str, str] = NOBODY_IN_LABS) -> None:
        self.store, self.lab_of = store, homes
        self.filed: dict[str, StateRef] = {}
        self.changed: dict[str, StateRef] = {}
        self.best: dict[str, StateRef] = {}
        self.passed: list[str] = []
        self.spares: list[str] = []

    def __getitem__(self, client: str) -> Any:
        home = self.lab_of.get(client, client)
        state = self.store.read(self.filed[home].file).state
        return state.people[client] if home != client and isinstance(state, LabState) else state

    def __iter__(self) -> Iterator[str]:
        if not self.lab_of:
            return iter(self.filed)
        return (person for lab in self.filed for person in self[lab].people)

    def __len__(self) -> int:
        return len(self.filed) if not self.lab_of else sum(1 for _ in self)

    def __contains__(self, client: object) -> bool:
        return client in self.filed if not self.lab_of else any(client == other for other in self)

    def file(self, client: str) -> str | None:
        """Return the file with a client's state, or that of its lab; None: it never took part."""
        entry = self.filed.get(self.lab_of.get(client, client))
        return entry.file if entry else None

    def commit(self, client: str, entry: StateRef) -> None:
        """Record a new file as a client's state, in place of the client's previous file."""
        before = self.filed.get(client)
        # A file that a checkpoint names must stay until the next one: the run may be killed now.
        if before is not None and before != self.best.get(client):
            (self.spares if client in self.changed else self.passed).append(before.file)
            self.store.forget(before.file)
        self.filed[client] = self.changed[client] = entry

    def spare(self) -> str | None:
        """Return a file that may be overwritten; None if there is none."""
        return self.spares.pop() if self.spares else None

    def restore(self, filed: Mapping[str, StateRef]) -> None:
        """Set every client's state to the file that a checkpoint names."""
        self.filed = dict(filed)

    def mark_best(self) -> None:
        """Record that the present files are those of the best evaluation.

        Files of the best evaluation before are replaced ones from now on.
        """
        earlier, self.best = self.best, dict(self.filed)
        replaced = [e.file for c, e in earlier.items() if e != self.best.get(c)]
        self.passed += replaced
        for file in replaced:
            self.store.forget(file)

    def settle(self) -> None:
        """Let the files of all states be complete, as a checkpoint needs them."""
        for entries in (self.filed, self.changed, self.best):
            self.store.settle(entries)

    def take_changes(self) -> StateChanges:
        """Return what a checkpoint writes of the states; later changes belong to the next one."""
        unwritten = self.store.unwritten(self.filed, self.changed, self.best)
        taken = StateChanges(self, dict(self.filed), self.changed, self.passed, unwritten)
        self.changed, self.passed = {}, []
        return taken

    def pin(self) -> None:
        """Record that a new checkpoint names the present files; replaced files become spare."""
        self.spares += self.passed
        self.passed.clear()
        self.changed.clear()

    def clear(self) -> None:
        """Delete the spare files."""
        for file in self.spares:
            (self.store.folder / file).unlink(missing_ok=True)
        self.spares.clear()

    def sha256(self) -> dict[str, str]:
        """Return client -> SHA-256 of the client's state file."""
        self.settle()
        with profiling.phase("checkpoints"):
            return {
                client: digest((self.store.folder / entry.file).read_bytes())
                for client, entry in sorted(self.filed.items())
            }

    def shares(self) -> list[float]:
        """Return the fraction of personal parameters for each client that has a mask."""
        return [entry.share for entry in self.filed.values() if entry.share is not None]


@dataclass(frozen=True)
class StateChanges:
    """Clients' states at the beginning of a checkpoint, which is written while the run goes on.

    Attributes:
        index: the index of the states.
        filed: client -> reference to the file of its state.
        changed: client -> reference, for states that changed since the checkpoint before.
        replaced: files of replaced states that the checkpoint before still names.
        unwritten: states that are not in their files yet.
    """

    index: ClientStateIndex
    filed: dict[str, StateRef]
    changed: dict[str, StateRef]
    replaced: list[str]
    unwritten: Sequence[Unwritten]

    def write(self) -> None:
        """Write states to their files that are not there yet, and complete their references."""
        complete = {state.file: self.index.store.write_later(state) for state in self.unwritten}
        for entries in (self.filed, self.changed):
            entries.update({c: complete.get(e.file, e) for c, e in entries.items()})

    def release(self) -> None:
        """Let replaced files be overwritten, once the new checkpoint is complete."""
        self.index.spares += self.replaced
