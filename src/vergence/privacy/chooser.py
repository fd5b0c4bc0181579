"""Chooses clients' masks in a run: whose noise it is, and what was spent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from vergence.core.mask import Mask
from vergence.core.params import Params
from vergence.core.site import Site
from vergence.core.state import digest
from vergence.core.stream import Stream
from vergence.privacy.book import FOLDER, Book, Entry, secret_in
from vergence.privacy.mask_budget import MaskBudget, groups, whole


class Chooser:
    """Chooses the masks of a run's clients.

    Secret and books lie in the folder of states; neither goes with a checkpoint. A choice that is
    made again, with the same scores, is the same; one between other scores has other noise, and
    spends again.
    """

    def __init__(self, policy: MaskBudget, each: float, state: Path, seed: int) -> None:
        self.policy, self.each, self.seed = policy, each, seed
        self.folder = state / FOLDER
        self.secret = secret_in(self.folder).child("mask", seed)

    def at(self, site: Site) -> Site:
        """Return a client's place with choices under its budget."""
        return replace(site, choose=partial(self._choose, site.id, site.rng))

    def _choose(
        self, client: str, turn: Stream, score: Params, k: int | Mapping[str, int], among: Mask
    ) -> Mask:
        room, by = whole(k), groups(score.layout, self.policy.of)
        open = by.open(room, among)
        best = by.best(score, by.share(room, open), open)
        words = repr((turn.key, room, self.policy.of, self.each)).encode()
        mark = digest(words, *(part.packed().numpy().tobytes() for part in (best, open)))
        entry = Entry(mark, mark, self.each, 1.0, best.count)
        if not best.count or not self._affords(client, entry):
            return Mask.none(score.layout)
        bits = by.drawn(best, room, open, self.each, self.secret.child(client, mark).draws())
        return Mask(bits, score.layout)

    def _affords(self, client: str, entry: Entry) -> bool:
        """Write a choice into the client's book; tell whether its budget allows it."""
        book = Book(self.folder / book_of(self.seed, client))
        if entry.mark in book:
            return True
        if spent([*book.entries, entry], self.policy) > self.policy.epsilon * (1 + 1e-9):
            return False
        book.enter(entry)
        return True


def spent(entries: Sequence[Entry], policy: MaskBudget) -> float:
    """Return epsilon of the choices in a book."""
    return policy.amounts((entry.noise, entry.steps) for entry in entries)


def book_of(seed: int, client: str) -> str:
    """Return the name of a client's book; `noise` is epsilon of each of a line's `steps` draws."""
    return f"seed{seed}.mask.{client}.csv"
