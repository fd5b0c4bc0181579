"""Private selection of clients' masks in a run: keyed noise, and a log of choices and spending.

A choice is identified by facts that the server knows: the client's turn (its work in one round),
the number of entries, and the candidates. It is not identified by the scores: if noise or cost
depended on scores, a server that asks twice could tell whether the scores are the same. So a client
chooses once in a turn. If it is asked again, with any model, it answers with the same mask.

Used by `engine.protections.private_masks`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from vergence.core.client import ClientContext
from vergence.core.files import write_whole
from vergence.core.masks import Mask
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.serialization import digest, pack, unpack_file
from vergence.core.tags import literal_text
from vergence.privacy.dp.mask_budget import MaskBudget, groups, whole
from vergence.privacy.release_log import FOLDER, Release, ReleaseLog, secret_in


class PrivateMaskSelector:
    """Chooses the masks of a run's clients under their privacy budgets.

    The secret key, the logs and the masks are files in the folder of states. No checkpoint contains
    them.

    Args:
        policy: budget of each client.
        each: epsilon of one draw.
        state: the folder of states.
        seed: seed of the run.
    """

    def __init__(self, policy: MaskBudget, each: float, state: Path, seed: int) -> None:
        self.policy, self.each, self.seed = policy, each, seed
        self.folder = state / FOLDER
        self.secret = secret_in(self.folder).child("mask", seed)

    def at(self, site: ClientContext) -> ClientContext:
        """Return a copy of a client's context whose `choose` draws masks at random.

        The draws spend the client's privacy budget; without budget the mask is empty.
        """
        return replace(site, choose=partial(self._choose, site.id, site.rng))

    def _choose(
        self,
        client: str,
        turn: RandomStream,
        score: Params,
        k: int | Mapping[str, int],
        among: Mask,
    ) -> Mask:
        room, by = whole(k), groups(score.layout, self.policy.of)
        candidates = by.candidates(room, among)
        count = by.share(room, candidates)
        asked = (client, turn.key, room, self.policy, self.each, score.layout)
        words = literal_text(asked).encode()
        mark = digest(words, candidates.packed().numpy().tobytes())
        path = self.folder / f"seed{self.seed}.mask.{client}.{mark}"
        entry = Release(mark, mark, self.each, 1.0, count)
        book = ReleaseLog(self.folder / book_of(self.seed, client), own_mark=False)
        if entry.mark not in book:
            after = spent([*book.entries, entry], self.policy)
            if not (count and after <= self.policy.epsilon * (1 + 1e-9)):
                return Mask.none(score.layout)
            # A file without a line in the log: the process died before it paid; nobody saw it.
            if not path.exists():
                draws = self.secret.child(client, mark).draws()
                bits = by.draw_entries(
                    by.best(score, count, candidates), room, candidates, self.each, draws
                )
                write_whole(path, pack(Mask(bits, score.layout)), lasting=True, secret=True)
            book.enter(entry)
        mask: Mask = unpack_file(path)
        return mask


def spent(entries: Sequence[Release], policy: MaskBudget) -> float:
    """Return epsilon of all choices in a release log, at the policy's delta."""
    return policy.epsilon_of((entry.noise, entry.steps) for entry in entries)


def book_of(seed: int, client: str) -> str:
    """Return the file name of a client's log of mask choices.

    In each line `steps` is the number of draws, and `noise` the epsilon of one draw.
    """
    return f"seed{seed}.mask.{client}.csv"
