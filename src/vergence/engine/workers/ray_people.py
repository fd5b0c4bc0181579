"""People's data in Ray's object store, where a machine fetches only the people it works for.

Used by `engine.workers.ray_transfer`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import NamedTuple, cast
from weakref import WeakValueDictionary

import ray
from torch import Tensor

from vergence.core.data import Samples, SharedRows, Splits
from vergence.core.federation import Federation, Population
from vergence.engine.workers.ray_transfer import Reference
from vergence.system.memory import available_bytes
from vergence.system.processes import cpu_count

BLOCK = 1 << 20
"""Bytes of people's data, in client order, that are stored and fetched together."""
AT_HAND = 0.25
"""Part of a machine's free memory that all its workers fill with people's data."""
UNKNOWN_ROOM = 1 << 30
"""Bytes for a worker's people where the system does not say how much memory is free."""


def fetched(federation: Federation) -> Federation:
    """Return a federation whose people are fetched from Ray's object store.

    People who are made on demand are made by the machine that needs them.
    """
    if isinstance(federation.people, Population):
        return federation
    return replace(federation, people=FetchedPeople(federation.people))


class StoredPart(NamedTuple):
    """One part of a person's split.

    Attributes:
        own: the columns, and the banks whose rows nobody else has.
        shared: name -> number of the stored rows of a bank that people share, and its column `by`.
    """

    own: Samples
    shared: Mapping[str, tuple[int, str]]


class FetchedPeople(Mapping[str, Splits]):
    """People whose data lie in Ray's object store, and are fetched when they are asked for.

    Data are stored in blocks of whole people; rows that several people share are stored once. If
    the store is full, Ray moves what nobody uses to disk. A worker copies the blocks of its people
    into its own memory; those that were not used for longest give way to others.

    Args:
        people: client id -> splits, in client order.
    """

    def __init__(self, people: Mapping[str, Splits]) -> None:
        self.block_of: dict[str, int] = {}
        self.blocks: list[tuple[Reference, int]] = []
        self.rows: dict[int, Reference] = {}
        self._begin()
        users: Counter[int] = Counter()
        for splits in people.values():
            users.update(
                {id(b.rows) for part in vars(splits).values() for b in part.banks.values()}
            )
        block: dict[str, list[StoredPart]] = {}
        size = 0
        for client, splits in people.items():
            parts: list[Samples] = [*vars(splits).values()]
            block[client] = [self._stored(part, users) for part in parts]
            self.block_of[client] = len(self.blocks)
            size += sum(part.bytes() for part in parts if part.columns)
            if size >= BLOCK or len(self.block_of) == len(people):
                self.blocks.append((ray.put(block), size))
                block, size = {}, 0

    def _stored(self, part: Samples, users: Mapping[int, int]) -> StoredPart:
        """Return a part as it is stored, after storing rows that `users` of people share."""
        shared = {n: b for n, b in part.banks.items() if users[id(b.rows)] > 1}
        for bank in shared.values():
            if id(bank.rows) not in self.rows:
                self.rows[id(bank.rows)] = ray.put(bank.rows)
        own = {n: b for n, b in part.banks.items() if n not in shared}
        places = {n: (id(b.rows), b.by) for n, b in shared.items()}
        return StoredPart(replace(part, banks=own), places)

    def _begin(self) -> None:
        """Have nobody at hand."""
        self.at_hand: dict[int, dict[str, Splits]] = {}
        self.used = 0
        self.room = available_bytes() * AT_HAND / cpu_count() or UNKNOWN_ROOM
        # That people share rows, and do not have equal ones, is seen by the tensor itself.
        self.used_rows: WeakValueDictionary[int, Tensor] = WeakValueDictionary()

    def __getstate__(self) -> dict[str, object]:
        return {"block_of": self.block_of, "blocks": self.blocks, "rows": self.rows}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        self._begin()

    def __getitem__(self, client: str) -> Splits:
        number = self.block_of[client]
        # Put last: the first block is the one that was not used for longest.
        block = self.at_hand.pop(number, None)
        if block is None:
            block = self._fetched(number)
            self.used += self.blocks[number][1]
        self.at_hand[number] = block
        while self.used > self.room and len(self.at_hand) > 1:
            oldest = next(iter(self.at_hand))
            self.used -= self.blocks[oldest][1]
            del self.at_hand[oldest]
        return block[client]

    def _fetched(self, number: int) -> dict[str, Splits]:
        """Fetch a block; return its people."""
        block: object = ray.get(self.blocks[number][0])
        stored = cast(dict[str, list[StoredPart]], deepcopy(block))
        return {c: Splits(*(self._part(part) for part in parts)) for c, parts in stored.items()}

    def _part(self, part: StoredPart) -> Samples:
        """Return a part of a person's split, with the rows that people share."""
        shared = {n: SharedRows(self._rows(at), by) for n, (at, by) in part.shared.items()}
        return replace(part.own, banks={**part.own.banks, **shared})

    def _rows(self, number: int) -> Tensor:
        """Return stored rows; whoever uses them has the same tensor."""
        rows = self.used_rows.get(number)
        if rows is None:
            rows = self.used_rows[number] = ray.get(self.rows[number])
        return rows

    def __len__(self) -> int:
        return len(self.block_of)

    def __iter__(self) -> Iterator[str]:
        return iter(self.block_of)

    def __contains__(self, client: object) -> bool:
        return client in self.block_of
