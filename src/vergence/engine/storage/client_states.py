"""Client states on disk: one file per client that took part, nothing for all the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vergence import profiling
from vergence.core import files as disk
from vergence.core.files import part_of, saving
from vergence.core.serialization import Packed, digest, quick_digest, unpack_file
from vergence.engine.records import ClientState, LabState
from vergence.engine.storage.checkpoint_validation import MEND, alike, fits
from vergence.engine.storage.state_journal import StateRef
from vergence.errors import StateError


def file_of(seed: int, client: str, stamp: str) -> str:
    """Name of the file that a client's turn leaves its state in."""
    return f"seed{seed}.client.{client}.{stamp}.safetensors"


@dataclass(frozen=True)
class ClientStateStore:
    """The folder of one seed's client states. Workers write here; nobody else holds a state.

    What is written to a `lasting` one outlasts a blackout: somebody elsewhere counts on it.
    """

    folder: Path
    seed: int
    records: Sequence[type]
    lasting: bool = False

    def read(self, file: str, fresh: Any = None) -> ClientState:
        """Content of a file.

        Raises:
            StateError: it is damaged, or holds something else than a client's state, or one of
                another network than a `fresh` state's.
        """
        path = self.folder / file
        try:
            with profiling.phase("checkpoints"):
                kept = unpack_file(path, ClientState, *self.records)
        except StateError as error:
            where = "" if str(path) in str(error) else f"{path}: "
            raise StateError(f"{where}{error}; {MEND}") from None
        return self.genuine(kept, path, fresh)

    def genuine(self, kept: Any, where: object, fresh: Any) -> ClientState:
        """Value that was read, if it is a client's state with the layouts of a `fresh` one.

        Raises:
            StateError: it is not.
        """
        if not (fits(kept, ClientState) and self._of_this_run(kept.state, fresh)):
            raise StateError(f"{where} holds no client's state of this run; {MEND}")
        return kept

    def _of_this_run(self, state: Any, fresh: Any) -> bool:
        """True if a state is what clients of this run keep: a method's, or a lab of them."""
        if LabState not in self.records:
            return fits(state, self.records[-1]) and alike(state, fresh)
        person = self.records[self.records.index(LabState) - 1]
        return fits(state, LabState) and all(
            fits(own, person) and alike(own, fresh) for own in state.people.values()
        )

    def write(
        self, client: str, stamp: str, packed: Packed, share: float | None, spare: str | None = None
    ) -> StateRef:
        """Write a client's new state beside its old one, under the stamp of this request.

        A spare file, of which nobody needs the content, is written over: its pages are in memory
        already (2 ms instead of up to 30 for 15 MB).
        """
        chunks = packed.chunks()
        file = f"seed{self.seed}.client.{client}.{stamp}.safetensors"
        with saving(self.folder.parent), profiling.phase("checkpoints"):
            if spare is not None:
                with suppress(FileNotFoundError):
                    (self.folder / spare).replace(part_of(self.folder / file))
            disk.write_whole(self.folder / file, *chunks, lasting=self.lasting)
        return StateRef(file, quick_digest(*chunks), share)


NO_LABS: Mapping[str, str] = {}
"""Everybody is a client."""


class ClientStateIndex(Mapping[str, Any]):
    """Clients that took part, and where each state lies; a state is read when it is asked for.

    Where `homes` says in which lab somebody is, the people inside are the keys.

    A turn leaves its new state beside the old one. Here is decided which of them is the client's:
    the new one once its reply counted, the checkpoint's after a restart.
    """

    def __init__(self, store: ClientStateStore, homes: Mapping[str, str] = NO_LABS) -> None:
        self.store, self.homes = store, homes
        self.filed: dict[str, StateRef] = {}
        self.changed: dict[str, StateRef] = {}
        self.passed: list[str] = []
        self.spares: list[str] = []

    def __getitem__(self, client: str) -> Any:
        home = self.homes.get(client, client)
        state = self.store.read(self.filed[home].file).state
        return state if home == client else state.people[client]

    def __iter__(self) -> Iterator[str]:
        if not self.homes:
            return iter(self.filed)
        return (person for lab in self.filed for person in self[lab].people)

    def __len__(self) -> int:
        return len(self.filed) if not self.homes else sum(1 for _ in self)

    def __contains__(self, client: object) -> bool:
        return client in self.filed if not self.homes else any(client == each for each in self)

    def file(self, client: str) -> str | None:
        """Return the file of a client's state, or of a person's lab; None: never took part."""
        entry = self.filed.get(self.homes.get(client, client))
        return entry.file if entry else None

    def commit(self, client: str, entry: StateRef) -> None:
        """Make a state the client's own; the one before goes, later if a checkpoint names it."""
        before = self.filed.get(client)
        if before is not None and client in self.changed:
            self.spares.append(before.file)
        elif before is not None:
            self.passed.append(before.file)
        self.filed[client] = self.changed[client] = entry

    def spare(self) -> str | None:
        """Return a file to write over, if there is one."""
        return self.spares.pop() if self.spares else None

    def restore(self, filed: Mapping[str, StateRef]) -> None:
        """Go back to the states that a checkpoint names."""
        self.filed = dict(filed)

    def pin(self) -> None:
        """Take note that a checkpoint names the present states; what it passed over is spare."""
        self.spares += self.passed
        self.passed.clear()
        self.changed.clear()

    def clear(self) -> None:
        """Remove the spare files."""
        for file in self.spares:
            (self.store.folder / file).unlink(missing_ok=True)
        self.spares.clear()

    def sha256(self) -> dict[str, str]:
        """Return the SHA-256 of every state, by client."""
        with profiling.phase("checkpoints"):
            return {
                client: digest((self.store.folder / entry.file).read_bytes())
                for client, entry in sorted(self.filed.items())
            }

    def shares(self) -> list[float]:
        """Return the personal share of every client that keeps one."""
        return [entry.share for entry in self.filed.values() if entry.share is not None]
