"""Matrix with one client's update in each row: the input of robust rules and attacks on updates.

Used in `engine` and `privacy`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from vergence.core.messages import Reply, SealedReply, seal, weighted_entries
from vergence.core.params import Params
from vergence.errors import ConfigError

BLOCK = 1 << 16
"""Number of entries processed at a time, so that statistics over all clients need little memory."""


@dataclass(frozen=True)
class UpdateMatrix:
    """Updates of a round, one row per client.

    A reply holds weight * update; the rows are the updates alone. An attacker may claim any weight,
    so a robust rule counts every client once. The weight only says whether a client contributes to
    an entry.

    Attributes:
        clients: names of the clients, sorted, so that nothing depends on the order of arrival.
        values: updates, float `[clients, entries]`, with all trees one after the other; 0 for
            entries to which a client does not contribute.
        present: whether a client contributes to an entry, bool `[clients, entries]`; None if all
            clients contribute to all entries.
    """

    clients: tuple[str, ...]
    values: NDArray[np.floating]
    present: NDArray[np.bool_] | None = None

    @classmethod
    def of(cls, replies: Mapping[str, SealedReply]) -> UpdateMatrix:
        """Return the updates of these replies; a reply that contributes to no entry has no row.

        Raises:
            ConfigError: two replies hold different trees.
        """
        rows, masks, clients = list[NDArray[np.floating]](), list[NDArray[np.bool_]](), list[str]()
        # Sorted: the order of arrival, which an attacker can influence, decides no tie.
        for client in sorted(replies):
            values, mask = _row(replies[client])
            if rows and len(values) != len(rows[0]):
                raise ConfigError(
                    f"the reply of '{client}' has {len(values)} entries, that of '{clients[0]}' "
                    f"{len(rows[0])}: robust rules compare replies of one shape"
                )
            if mask.any():
                rows.append(values)
                masks.append(mask)
                clients.append(client)
        width = len(rows[0]) if rows else 0
        table = np.stack(rows) if rows else np.zeros((0, width), np.float32)
        return cls(
            tuple(clients), table, None if all(mask.all() for mask in masks) else np.stack(masks)
        )

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def entries(self) -> int:
        """Number of entries of a reply."""
        return self.values.shape[1]

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Number of clients that contribute to each entry."""
        if self.present is None:
            return np.full(self.entries, len(self))
        return self.present.sum(axis=0)

    @property
    def same_support(self) -> bool:
        """True if all clients contribute to the same entries, so that rows are comparable."""
        return self.present is None or bool(np.all((self.counts == 0) | (self.counts == len(self))))

    def only(self, rows: NDArray[np.intp]) -> UpdateMatrix:
        """Return a matrix of the rows with these indices."""
        present = None if self.present is None else self.present[rows]
        return UpdateMatrix(tuple(self.clients[i] for i in rows), self.values[rows], present)

    def mean(self) -> NDArray[np.floating]:
        """Return the mean of every entry over its contributors, and 0 where there is none."""
        total = self.values.sum(axis=0, dtype=np.float64)
        return (total / np.maximum(self.counts, 1)).astype(self.values.dtype)

    def norms(self) -> NDArray[np.float64]:
        """Return the L2 norm of every row."""
        return np.sqrt(np.einsum("ij,ij->i", self.values, self.values, dtype=np.float64))

    def blocks(self) -> Iterator[slice]:
        """Yield slices that cover all entries, each small enough for the processor's cache."""
        for start in range(0, self.entries, BLOCK):
            yield slice(start, min(start + BLOCK, self.entries))


def _row(sealed: SealedReply) -> tuple[NDArray[np.floating], NDArray[np.bool_]]:
    values, masks = list[NDArray[np.floating]](), list[NDArray[np.bool_]]()
    for name in sorted(sealed.trees):
        tree = sealed.trees[name]
        mask = weighted_entries(tree.weight, tree.total.layout)
        flat = tree.total.flat.float() if tree.total.flat.element_size() < 4 else tree.total.flat
        if isinstance(tree.weight, Params):
            weight = np.where(mask.bits.numpy(), tree.weight.flat.numpy(), 1)
            values.append((flat.numpy() / weight).astype(flat.numpy().dtype))
        else:
            scale = tree.weight if isinstance(tree.weight, float) and tree.weight else 1.0
            values.append(flat.numpy() if scale == 1 else (flat / scale).numpy())
        masks.append(mask.bits.numpy())
    return np.concatenate(values), np.concatenate(masks)


def split(row: NDArray[np.number], like: Mapping[str, Params]) -> dict[str, Params]:
    """Split a row `[entries]` into trees with the names, shapes and types of `like`.

    The row has the trees one after the other, in the order of their names.
    """
    trees, start = dict[str, Params](), 0
    for name in sorted(like):
        params = like[name]
        part = np.ascontiguousarray(row[start : start + params.layout.n])
        trees[name] = params.like(torch.from_numpy(part).to(params.flat.dtype))
        start += params.layout.n
    return trees


def rewritten(sealed: SealedReply, row: NDArray[np.floating]) -> SealedReply:
    """Return a reply with the update `row` and the weights and metrics of the reply `sealed`.

    Entries of weight 0 become 0 in the reply. Simulated attacks on updates (`privacy.poisoning`)
    replace malicious clients' replies by it.

    Args:
        sealed: the reply to imitate.
        row: the new update `[entries]`, with all trees one after the other.

    Raises:
        ConfigError: the reply's values went through a lossy codec.
    """
    if any(tree.coded is not None for tree in sealed.trees.values()):
        raise ConfigError(
            "an update that a lossy codec has packed cannot be replaced; poison without wire.codec"
        )
    updates = split(row, {name: tree.total for name, tree in sealed.trees.items()})
    weights = {name: tree.weight for name, tree in sealed.trees.items()}
    return seal(Reply(updates, weights, sealed.metrics), sealed.round)
