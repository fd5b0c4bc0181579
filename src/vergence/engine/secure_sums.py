"""Secure sums of replies, which are encoded as whole numbers; the server sees no single term.

A client encodes its reply as a vector of words, that is, integers modulo 2^64 (`reply_layout.py`).
In a simulation workers add these vectors directly; in a deployment a protocol adds them
(`secure_sum_attempts.py`). Both give the same bits, in any order of addition.

Used in `deployment`, `engine` and `reports`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from vergence.core.aggregation import Aggregate, Sum
from vergence.core.messages import Message, SealedReply, SealedTree
from vergence.core.method import Exposure, Method
from vergence.core.params import Layout, Params
from vergence.core.serialization import digest, pack, printable
from vergence.core.tags import tagged
from vergence.engine.plan import Plan
from vergence.engine.protections.user_level import forecast
from vergence.engine.records import ClientResult
from vergence.errors import ConfigError, StateError
from vergence.privacy.config import Privacy, SecureAggregationConfig
from vergence.privacy.dp.user_level import UserLevel
from vergence.privacy.keyed_noise import NoiseKey
from vergence.privacy.secure_aggregation.additive_messages import AdditiveParams
from vergence.privacy.secure_aggregation.packing import BITS, Packing, Words, withheld
from vergence.privacy.secure_aggregation.pairwise import colluders
from vergence.privacy.secure_aggregation.pairwise_messages import PairwiseParams
from vergence.privacy.secure_aggregation.reply_layout import ReplyLayout, ValueLimits
from vergence.privacy.secure_aggregation.threshold import MOST_BITS

WORDS = "words"
"""Name of the only tree in an encoded reply."""
# With fewer bits after the point, 32-bit entries would add up in steps that are too coarse.
FINE = 16
SERVER = "server"
"""Name of the server as a party of a protocol.

With two aggregators the server gives them the tables that hide entries with too few contributors.
Only simulations do this.
"""


@dataclass(frozen=True)
class SecureSum:
    """Secure sums of a run's replies: how replies are encoded, added and decoded.

    Attributes:
        policy: settings of `privacy.aggregation`.
        people: largest number of clients in any sum.
        level: bound of every reply, and the part of the noise that each client adds; None: no
            noise.
        most: largest number of people behind one reply: those of a lab, else 1.
    """

    policy: SecureAggregationConfig
    people: int
    level: UserLevel | None = None
    most: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "policy", self.policy.among(self.people))
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

    def form(self, method: Method, verb: str, like: Mapping[str, Params]) -> ReplyLayout | None:
        """Return how replies to a kind of request are encoded; None: the server sees each reply.

        Args:
            method: the method.
            verb: the kind of request, such as `train`.
            like: trees with the layouts of the trees in replies.

        Raises:
            ConfigError: the layout of a reply is not known beforehand.
        """
        exposed = method.exposure[verb]
        if exposed.reveal == "each":
            return None
        # Under user-level privacy everybody counts once, and metrics have no noise: both stay out.
        if self.level is not None:
            exposed = replace(exposed, weight="number", metrics=())
        like = {name: like[name] for name in exposed.trees if name in like}
        if missing := [name for name in exposed.trees if name not in like]:
            raise ConfigError(
                f"{type(method).__name__} sends '{missing[0]}', of which nobody knows beforehand "
                "how many numbers it holds; leave out privacy.aggregation"
            )
        form = ReplyLayout(exposed, like, self._ranges(method, exposed))
        self._check_halves(method, form)
        return form

    def _check_halves(self, method: Method, form: ReplyLayout) -> None:
        """Refuse 32-bit entries (two in a 64-bit word) if they are too coarse, or have weights."""
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

    def form_for(
        self,
        method: Method,
        verb: str,
        messages: Mapping[str, Message],
        like: Mapping[str, Params],
    ) -> ReplyLayout | None:
        """Return how replies to these messages are encoded; None: the server sees each reply.

        Raises:
            ConfigError: people get different messages.
        """
        # Equal messages are one object (`ClientExchange._messages`).
        if len({id(message) for message in messages.values()}) > 1:
            raise ConfigError(
                f"privacy.aggregation: {type(method).__name__} sends people different messages for "
                f"'{verb}', and a sum is of replies to the same one"
            )
        return self.form(method, verb, like)

    def _ranges(self, method: Method, exposed: Exposure) -> ValueLimits:
        """Return bounds on the numbers in a reply to the declared kind of request."""
        if self.level is not None:
            return ValueLimits(self.people, self.level.reach, self.most)
        # A mask counts 0 or 1 where people weigh the same, and as many as share it for a lab.
        alike = getattr(method, "weights", "equal") == "equal"
        counts = exposed.weight == "mask" and alike
        weight = float(self.most) if counts else self.policy.weight
        total, bits = self.policy.range * weight, self.policy.entry_bits
        return ValueLimits(self.people, total, weight, self.policy.metric, bits)

    def encode(
        self, form: ReplyLayout, sealed: SealedReply, secret: Callable[[], NoiseKey]
    ) -> PackedReply:
        """Return a client's contribution to a sum: a vector of words, with its part of the noise.

        A word is a 64-bit integer.

        Args:
            form: how the reply is encoded.
            sealed: the reply.
            secret: returns the secret key of the client's noise; called only if noise is added.

        Raises:
            RangeFault: a number is too large for a word.
        """
        words = form.row(sealed)
        # The noise is named by round and reply. The same reply sent twice gets the same noise, so
        # that repeating a round tells nothing new; another reply must not get it, or the difference
        # of two sums would show both without noise.
        if self.level is not None:
            own = secret().child(sealed.round, digest(words.tobytes()))
            for name, packing in form.trees.items():
                part = words[form.slices[name]]
                noise = self.level.share(len(part), own.child(name)).view(np.uint64)
                part += noise * np.uint64(round(self.level.step / packing.step))
        return PackedReply.of(words, sealed.round)

    def terms(
        self, form: ReplyLayout, message: Message, run: str, attempt: int, asked: int
    ) -> PairwiseParams | AdditiveParams:
        """Return the protocol parameters that the server proposes for an attempt at a sum.

        The replies to `message` are summed. `asked` is the number of people that were asked;
        `attempt` is the number of the attempt.
        """
        threshold = self.policy.threshold
        # With threshold t of n clients, a server that lies learns both secrets of one of them only
        # with the help of 2t - n others: here of more than a third of those asked.
        if self.policy.name == "pairwise":
            threshold = max(2 * asked // 3 + 1, threshold)
        return self.terms_of(
            SumQuestion.of(form, message), run, attempt, threshold, self.policy.cipher
        )

    def terms_of(
        self, question: SumQuestion, run: str, attempt: int, threshold: int, cipher: object
    ) -> PairwiseParams | AdditiveParams:
        """Return the protocol parameters of an attempt to sum the replies to a request.

        Every party calls this to check what the server proposes.

        Raises:
            StateError: the proposed threshold is below this party's own bound, or the proposed
                cipher of pads is not this party's.
        """
        # A server that lies could propose a weaker cipher, or a threshold of 1, which would open
        # one person's reply.
        if cipher != self.policy.cipher:
            raise StateError(
                f"cipher: pads by '{printable(cipher)}' are proposed, and this end draws them by "
                f"'{self.policy.cipher}' alone (privacy.aggregation.cipher)"
            )
        if threshold < self.policy.threshold:
            raise StateError(
                f"threshold: a sum of {threshold} people is proposed, and this end opens none of "
                f"fewer than {self.policy.threshold} (privacy.aggregation.min_contributors)"
            )
        asked = (run, question.request, attempt, question.words, threshold, question.about)
        asked = (*asked, self.policy.cipher)
        if self.policy.name == "pairwise":
            return PairwiseParams(*asked, self.policy.colluders, self.policy.dropouts)
        names = self.policy.aggregators
        dealer = SERVER if len(names) == 2 else names[-1]
        return AdditiveParams(*asked, names, question.gated, question.count_bits, dealer)

    def total(self, form: ReplyLayout, whole: Sum) -> Aggregate:
        """Return what the server learns from a sum of encoded replies.

        It learns nothing from a sum of too few people, and no entry to which too few people
        contributed.
        """
        words, count = np.zeros(form.words, np.uint64), 0
        if whole.count >= self.policy.threshold:
            words, count = unpack_words(whole.totals[WORDS]), whole.count
        # Entries that too few people share would show one person's values: they are closed.
        if form.counted:
            words = words.copy()
            for name, packing in form.trees.items():
                part = words[form.slices[name]]
                part[:] = withheld(part, packing, self.policy.threshold)
        return form.aggregate(words, count)

    def final_results(self, results: Mapping[str, ClientResult]) -> dict[str, ClientResult]:
        """Return the results unchanged if enough people replied; else with no reply counted."""
        ok = [client for client, result in results.items() if result.status == "ok"]
        if len(ok) >= self.policy.threshold:
            return dict(results)
        why = too_few(len(ok), self.policy)
        return {
            client: left_out(result, why) if client in ok else result
            for client, result in results.items()
        }


def too_few(people: int, policy: SecureAggregationConfig) -> str:
    """Return the status of clients whose sum is not opened, as too few people are in it."""
    return f"lost: a sum of {people} is not opened, {policy.threshold} are needed"


@tagged("Question")
@dataclass(frozen=True)
class SumQuestion:
    """A request whose replies are summed securely.

    Attributes:
        request: name of the sum: round, kind of request, and the numbers that tell apart several
            such requests of one round.
        about: digest of the request and of how replies to it are encoded (`about_of`).
        words: number of 64-bit words in a reply.
        gated: number of words that are opened only if enough people contributed to them.
        count_bits: number of bits in which contributors to a word are counted.
    """

    request: str
    about: bytes
    words: int
    gated: int
    count_bits: int

    @classmethod
    def of(cls, form: ReplyLayout, message: Message) -> SumQuestion:
        """Make the record for a message whose replies are encoded in this way."""
        gated, bits = gate_of(form)
        return cls(request_of(form, message), about_of(form, message), form.words, gated, bits)


def request_of(form: ReplyLayout, message: Message) -> str:
    """Return the name of a secure sum: the same request in a round always has the same name.

    Raises:
        StateError: a number in the message that tells apart requests of a round is not a whole
            number.
    """
    # The name has no stamp of a batch, and no facts that change no reply: a server could give two
    # names to one question, and learn from the difference of two sums.
    numbers = [message.facts.get(name) for name in form.exposed.numbered]
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise StateError(f"'{message.verb}' is numbered by {numbers}, which are no whole numbers")
    return ".".join([str(message.round), message.verb, *map(str, numbers)])


def about_of(form: ReplyLayout, message: Message) -> bytes:
    """Return a digest of a message and of how replies to it are encoded.

    People are in one sum only if all of them were sent the same message. Otherwise a server could
    send all but one person a model that learns nothing, and would learn the update of that person.

    Source: Pasquini et al., "Eluding secure aggregation in federated learning via model
    inconsistency", CCS 2022.
    """
    return hashlib.sha256(form.digest + pack(message)).digest()


def gate_of(form: ReplyLayout) -> tuple[int, int]:
    """Return how many words are opened only with enough contributors, and the bits of a count.

    Both are 0 if replies have no counts per entry.
    """
    if not (form.counted and form.entries):
        return 0, 0
    return form.entries, next(iter(form.trees.values())).count_bits


def left_out(result: ClientResult, why: str) -> ClientResult:
    """Return the result of a client whose reply is in no sum; its state stays as it was."""
    return replace(result, status=why, up={}, filed=None)


class PackedReply(SealedReply):
    """A reply encoded as 64-bit integers (words), which are added modulo 2^64."""

    # A subclass with the words as its only tree: workers carry it and add it up as any reply.

    @classmethod
    def of(cls, words: Words, round: int = 0) -> PackedReply:
        """Make a reply from these words."""
        layout = Layout((WORDS,), ((len(words),),))
        tree = Params(torch.from_numpy(words.view(np.int64)), layout)
        return cls(round, {WORDS: SealedTree(tree, 1.0)}, {})

    @property
    def words(self) -> Words:
        """The words of the encoded reply."""
        return unpack_words(self.trees[WORDS].total)


def unpack_words(tree: Params) -> Words:
    """Return the words in the tree of an encoded reply, or of a sum of such replies."""
    return tree.flat.numpy().view(np.uint64)


def redact(result: ClientResult, form: ReplyLayout) -> ClientResult:
    """Return a client's result without what a secure sum hides, such as metrics and weights."""
    up = {WORDS: 8 * form.words} if result.status == "ok" and form.words else {}
    return replace(result, up=up, weight={}, examples=0.0, steps=0, metrics={}, share=None)


def masked(method: Method, privacy: Privacy) -> bool:
    """Return whether clients send different entries, so that counts per entry are summed too."""
    return not privacy.bounded and any(
        e.trees and e.weight != "number" for e in method.exposure.values()
    )


def server_deals(method: Method, privacy: Privacy) -> bool:
    """Return whether the server deals the tables that hide entries with too few contributors."""
    # A dealer that lies could have such entries opened. With three aggregators one of them deals.
    return masked(method, privacy) and len(privacy.aggregators) == 2


def steered(method: Method) -> tuple[str, ...]:
    """Return the trees with which a lying server could make a sum show one person's update.

    The server may send each person another value of them before the sum (split learning).
    """
    # In split learning these are gradients. A server that sends zeros to all but one person gets
    # that person's update as the sum, so reports must say what is assumed.
    exposed = method.exposure.values()
    if not any(e.trees and e.reveal != "each" for e in exposed):
        return ()
    return tuple(
        dict.fromkeys(name for e in exposed if e.reveal == "each" for name in e.down or ())
    )


def smallest(plan: Plan) -> SecureSum | None:
    """Return secure sums for as few people as a plan allows, to find the size of replies.

    None: the plan has no secure sums.
    """
    if plan.privacy.aggregation is None:
        return None
    policy, user = plan.privacy.aggregation.among(0), plan.privacy.user
    level = None if user is None else user.level(most=plan.silos.most)
    return SecureSum(policy, 2 * policy.threshold, level, plan.silos.most)


def sums_for(plan: Plan, method: Method, people: int) -> SecureSum | None:
    """Return the secure sums for replies of `people` clients; None: the server sees plain sums.

    Raises:
        ConfigError: the plan or the method does not allow secure sums over this number of clients.
    """
    policy = plan.secrecy(people)
    if policy is None:
        return None
    if (asked := plan.asked(people)) < policy.threshold:
        raise ConfigError(
            f"privacy.aggregation: {asked} people are asked at once, and a sum is of at least "
            f"{policy.threshold}; ask more"
        )
    if policy.colluders is not None:
        few = colluders(asked, policy.threshold)
        if policy.colluders >= few:
            raise ConfigError(
                f"privacy.aggregation: colluders = {policy.colluders}, and {few} of the {asked} "
                f"people asked suffice a server that lies; take at most {few - 1}, or a larger "
                "min_contributors"
            )
    if (user := plan.privacy.user) is not None:
        level = forecast(user, plan, method, people).level
        return SecureSum(policy, people, level, plan.silos.most)
    if masked(method, plan.privacy) and people >= 1 << MOST_BITS:
        raise ConfigError(
            f"privacy.aggregation: {type(method).__name__} shares entries that differ, whose "
            f"counts stay hidden for up to {(1 << MOST_BITS) - 1} people; the federation has "
            f"{people}"
        )
    return SecureSum(policy, max(people, policy.clients or 0), most=plan.silos.most)
