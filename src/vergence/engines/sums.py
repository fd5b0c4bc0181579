"""Sums that nobody sees the terms of: replies as rows of words, and who agrees on which sum.

At a client's edge a reply becomes a row of whole numbers (`privacy/form.py`), a tree like any
other: crews add rows up without knowing. Where no client is elsewhere the rows are simply added;
else a protocol adds them (`sum_talks.py`). Both give the same bits, in whatever order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from vergence.core.conversation import Request
from vergence.core.method import Exposed, Method
from vergence.core.params import Layout, Params
from vergence.core.state import digest, pack
from vergence.core.wire import Aggregate, Message, Sealed, SealedTree, Sum
from vergence.engines.job import Receipt
from vergence.engines.plan import Plan
from vergence.engines.veil import forecast
from vergence.errors import ConfigError
from vergence.privacy.form import Form, Ranges
from vergence.privacy.keyed import Secret
from vergence.privacy.pairwise_messages import Pairwise
from vergence.privacy.policy import Privacy, Secrecy
from vergence.privacy.ring import BITS, Packing, Words, withheld
from vergence.privacy.shared_messages import Shared
from vergence.privacy.threshold_gate import MOST_BITS
from vergence.privacy.user_level import UserLevel

WORDS = "words"
"""The tree that a reply becomes."""
FINE = 16
"""Bits after the point that entries of 32 bits keep at least."""
SERVER = "server"
"""Who deals the tables of a threshold where there are only two aggregators: in simulations."""


@dataclass(frozen=True)
class Sums:
    """How a run's replies are summed; `people` are all who may ever be in a sum.

    With a `level` every reply is bounded, and its client adds a share of the noise to its row.
    """

    policy: Secrecy
    people: int
    level: UserLevel | None = None

    def __post_init__(self) -> None:
        if self.level is not None and self.policy.entry_bits < BITS:
            raise ConfigError(
                "privacy.aggregation: entry_bits = 32 leaves no room for the noise of "
                "privacy.user; leave it at 64"
            )
        if self.level is not None and Packing(self.level.reach, self.people).step > self.level.step:
            raise ConfigError(
                f"privacy.user: {self.people} people and noise {self.level.noise:g} leave too few "
                f"of 64 bits for a grid of {self.level.bits}; take a smaller privacy.user.bits"
            )

    def form(self, method: Method, verb: str, *sent: Mapping[str, Params]) -> Form | None:
        """Return how replies to a verb become words; None where single replies are shown.

        `sent` are trees whose layouts both ends know; later ones win.

        Raises:
            ConfigError: the layout of a reply is not known beforehand.
        """
        exposed = method.exposure[verb]
        if exposed.reveal == "each":
            return None
        if self.level is not None:  # everybody counts once, and metrics have no noise
            exposed = replace(exposed, weight="number", metrics=())
        known = {name: tree for trees in sent for name, tree in trees.items()}
        like = {name: known[name] for name in exposed.trees if name in known}
        if missing := [name for name in exposed.trees if name not in known]:
            raise ConfigError(
                f"{type(method).__name__} sends '{missing[0]}', of which nobody knows beforehand "
                "how many numbers it holds; leave out privacy.aggregation"
            )
        form = Form(exposed, like, self._ranges(method, exposed))
        self._check_halves(method, form)
        return form

    def _check_halves(self, method: Method, form: Form) -> None:
        if not form.halved:
            return
        if form.counted and form.trees:
            raise ConfigError(
                f"privacy.aggregation: entry_bits = 32 has no room for the weights that "
                f"{type(method).__name__} has for every entry; leave it at 64"
            )
        coarse = [packing for packing in form.trees.values() if packing.fraction < FINE]
        if coarse:
            raise ConfigError(
                f"privacy.aggregation: entry_bits = 32 with {self.people} people, range "
                f"{self.policy.range:g} and weight {form.ranges.weight:g} adds up in steps of "
                f"{coarse[0].step:.2g}, and 2^-{FINE} is the coarsest; lower range or weight"
            )

    def asked(
        self, method: Method, request: Request, messages: Mapping[str, Message], server: Any
    ) -> Form | None:
        """Return how replies to a request become words; None where single replies are shown.

        Raises:
            ConfigError: people are sent different messages.
        """
        if request.reveal == "each":
            return None
        sent = list({id(message): message for message in messages.values()}.values())
        if len(sent) > 1:
            raise ConfigError(
                f"privacy.aggregation: {type(method).__name__} sends people different messages for "
                f"'{request.verb}', and a sum is of replies to the same one"
            )
        trees = sent[0].trees if sent else {}
        return self.form(method, request.verb, method.offer(server, ""), request.like, trees)

    def _ranges(self, method: Method, exposed: Exposed) -> Ranges:
        """Return the largest numbers; masks count 0 or 1 where a method weighs people equally."""
        if self.level is not None:
            return Ranges(self.people, self.level.reach)
        alike = getattr(method, "weights", "equal") == "equal"
        weight = 1.0 if exposed.weight == "mask" and alike else self.policy.weight
        total, bits = self.policy.range * weight, self.policy.entry_bits
        return Ranges(self.people, total, weight, self.policy.metric, bits)

    def given(self, form: Form, sealed: Sealed, secret: Callable[[], Secret]) -> Sealed:
        """Return what a client gives to a sum: a row of words, with its share of the noise.

        The same reply gets the same noise from a `secret` of the client's, and no other does.

        Raises:
            RangeFault: a number is too large for a word.
        """
        words = form.row(sealed)
        if self.level is not None:
            own = secret().child(sealed.round, digest(words.tobytes()))
            for name, packing in form.trees.items():
                part = words[form.slices[name]]
                noise = self.level.share(len(part), own.child(name)).view(np.uint64)
                part += noise * np.uint64(round(self.level.step / packing.step))
        return carrying(words, sealed.round)

    def terms(
        self, form: Form, message: Message, run: str, attempt: int, asked: int
    ) -> Pairwise | Shared:
        """Return what all ends of an attempt at a sum over `asked` people agree on."""
        request, about = request_of(form, message), about_of(form, message)
        if self.policy.name == "pairwise":
            threshold = max(2 * asked // 3 + 1, self.policy.min_contributors)
            return self.under_pads(run, request, attempt, threshold, form.words, about)
        return self.on_shares(run, request, attempt, form.words, about, gate_of(form))

    def on_shares(
        self, run: str, request: str, attempt: int, words: int, about: bytes, gate: tuple[int, int]
    ) -> Shared:
        """Return what all ends of an attempt on shares agree on; `gate` as of `gate_of`."""
        least, names = self.policy.min_contributors, self.policy.aggregators
        (gated, bits), dealer = gate, SERVER if len(names) == 2 else names[-1]
        return Shared(run, request, attempt, words, least, about, names, gated,
                      least if gated else 0, bits, dealer)  # fmt: skip

    def under_pads(
        self, run: str, request: str, attempt: int, threshold: int, words: int, about: bytes
    ) -> Pairwise:
        """Return what all ends of an attempt under pads agree on; `about` as of `about_of`."""
        least = self.policy.min_contributors
        return Pairwise(run, request, attempt, words, least, about, threshold)

    def learned(self, form: Form, whole: Sum) -> Aggregate:
        """Return what the server learns of a sum of rows; of too few people, nothing."""
        words, count = np.zeros(form.words, np.uint64), 0
        if whole.count >= self.policy.min_contributors:
            words, count = row_of(whole.totals[WORDS]), whole.count
        if form.counted:
            words = words.copy()
            for name, packing in form.trees.items():
                part = words[form.slices[name]]
                part[:] = withheld(part, packing, self.policy.min_contributors)
        return form.aggregate(words, count)

    def counted(self, receipts: Mapping[str, Receipt]) -> dict[str, Receipt]:
        """Return receipts as they are where enough people gave; else nobody's reply counts."""
        ok = [client for client, receipt in receipts.items() if receipt.status == "ok"]
        if len(ok) >= self.policy.min_contributors:
            return dict(receipts)
        why = too_few(len(ok), self.policy)
        return {client: left_out(receipt, why) if client in ok else receipt
                for client, receipt in receipts.items()}  # fmt: skip


def too_few(people: int, policy: Secrecy) -> str:
    """Return the status of clients whose sum is not opened."""
    return f"lost: a sum of {people} is not opened, {policy.min_contributors} are needed"


def request_of(form: Form, message: Message) -> str:
    """Return what a sum is called: the same question in the same round is the same sum.

    Not by the stamp of a job, nor by facts that change no reply: a server could give two to one
    question, and learn the difference of two sums.
    """
    numbers = [str(message.facts.get(name)) for name in form.exposed.numbered]
    return ".".join([str(message.round), message.verb, *numbers])


def about_of(form: Form, message: Message) -> bytes:
    """Return a digest of what was asked and how replies to it become words.

    People are in one sum only if all of them were sent the same: a server that sends a model that
    learns nothing to all but one would learn the update of that one.

    Source: Pasquini et al., "Eluding secure aggregation in federated learning via model
    inconsistency", CCS 2022.
    """
    return hashlib.sha256(form.digest + pack(message)).digest()


def gate_of(form: Form) -> tuple[int, int]:
    """Return how many words hold numbers of contributors that may be too few, in how many bits."""
    if not (form.counted and form.entries):
        return 0, 0
    return form.entries, next(iter(form.trees.values())).count_bits


def left_out(receipt: Receipt, why: str) -> Receipt:
    """Return the receipt of a client whose reply is in no sum: its state stays as it was."""
    return replace(receipt, status=why, up={}, filed=None)


def carrying(words: Words, round: int = 0) -> Sealed:
    """Return words as what crews carry and add up: 64-bit whole numbers, which wrap around."""
    layout = Layout((WORDS,), ((len(words),),))
    tree = Params(torch.from_numpy(words.view(np.int64)), layout)
    return Sealed(round, {WORDS: SealedTree(tree, 1.0)}, {})


def row_of(tree: Params) -> Words:
    """Undo `carrying`."""
    return tree.flat.numpy().view(np.uint64)


def hushed(receipt: Receipt, form: Form) -> Receipt:
    """Return a receipt without what a sum hides: metrics, weights, examples, steps, masks."""
    up = {WORDS: 8 * form.words} if receipt.status == "ok" and form.words else {}
    return replace(receipt, up=up, weight={}, examples=0.0, steps=0, told={}, share=None)


def masked(method: Method, privacy: Privacy) -> bool:
    """Tell whether people share different entries, and how many share one is added up, too."""
    return privacy.user is None and any(
        e.trees and e.weight != "number" for e in method.exposure.values()
    )


def server_deals(method: Method, privacy: Privacy) -> bool:
    """Tell whether the server makes the tables that close entries which few people share.

    One that lies could then have them opened.
    """
    return masked(method, privacy) and len(privacy.aggregators) == 2


def sums_for(plan: Plan, method: Method, people: int) -> Sums | None:
    """Return how the replies of so many people are summed; None: as they are.

    Raises:
        ConfigError: they cannot be.
    """
    policy = plan.privacy.aggregation
    if policy is None:
        return None
    cohort = plan.presence.cohort
    most = cohort if isinstance(cohort, int) else round(cohort * people)
    if min(most, people) < policy.min_contributors:
        raise ConfigError(
            f"privacy.aggregation: {min(most, people)} people are asked at once, and a sum is of "
            f"at least {policy.min_contributors}; ask more"
        )
    if (user := plan.privacy.user) is not None:
        return Sums(policy, people, forecast(user, plan, method, people).level)
    if masked(method, plan.privacy) and people >= 1 << MOST_BITS:
        raise ConfigError(
            f"privacy.aggregation: {type(method).__name__} shares entries that differ, whose "
            f"counts stay hidden for up to {(1 << MOST_BITS) - 1} people; the federation has "
            f"{people}"
        )
    return Sums(policy, people)
