"""A server holds one attempt twice, and shows everybody lookups of both.

Both were genuinely signed, and shares of two tables add up to a coin per entry: entries that one
person alone shares were opened, with three honest aggregators.
"""

import secrets
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from tests.adversary.lies import circle, method, turns
from vergence.core.local_training import LocalTraining
from vergence.core.messages import Message
from vergence.core.serialization import pack, unpack
from vergence.deployment.protocol import ClientRequest, unframed
from vergence.engine.secure_sum_attempts import SumAnswer
from vergence.errors import StateError
from vergence.privacy.config import SecureAggregationConfig
from vergence.privacy.secure_aggregation.additive import Aggregator
from vergence.privacy.secure_aggregation.additive_messages import (
    AggregatorParts,
    HeldByAll,
    Lookups,
    Openings,
    Relayed,
)
from vergence.privacy.secure_aggregation.session import Invitation, Refused, UsedContributions


class Lying:
    """A server after an honest run of FedCPF, that holds the last sum once more."""

    def __init__(self, folder):
        policy = SecureAggregationConfig(
            "additive", min_contributors=3, aggregators=("one", "two", "three")
        )
        made = circle(
            method("fedcpf", LocalTraining(optimizer="sgd"), rate=0.3),
            folder,
            6,
            policy,
            inputs=200,
        )
        made.run_rounds(rounds=3)
        self.made, asked = made, turns(made, 2)
        self.question = next(iter(asked.values())).message
        self.stamps = {c: e.stamp for c, e in asked.items()}
        form = made.home(made.names[0]).runner.layout(self.question, {})
        self.terms = made.sums.terms(form, self.question, "run", secrets.randbits(62), 6)

    def say(self, who, said, ends=None):
        """What an end answers: one of `ends` where they are given, else as it was deployed."""
        if ends is not None and who in ends:
            return ends[who].answer(said)
        terms = self.terms
        facts = {
            "attempt": terms.attempt,
            "request": terms.request,
            "about": terms.form.hex(),
            "threshold": getattr(terms, "threshold", 3),
            "cipher": terms.cipher,
        }
        stamp = self.stamps.get(who, "2.1")
        request = ClientRequest("say", who, Message("say", {}, facts, 2), stamp, sum_message=said)
        end = self.made.aggregator(who) if who in terms.aggregators else self.made.home(who)
        return unpack(unframed(end.answer(pack(request)))[1], *get_args(SumAnswer))

    def looked(self, ends=None):
        """One attempt, honestly, up to what the parties looked up."""
        terms, d = self.terms, self.terms.digest
        openings = tuple(self.say(a, Invitation(d), ends) for a in terms.aggregators)
        parts = [
            {p.to: p for p in self.say(n, Openings(d, openings)).parts} for n in self.made.names
        ]
        helds = tuple(
            self.say(a, AggregatorParts(d, tuple(p[a] for p in parts)), ends)
            for a in terms.aggregators
        )
        told = HeldByAll(d, helds, openings)
        got = {a: self.say(a, told, ends) for a in terms.aggregators}
        dealt = Relayed(d, (got[terms.dealer],))
        shown = {p: self.say(p, dealt, ends) for p in terms.parties}
        return {
            p: self.say(p, Relayed(d, tuple(b for n, b in shown.items() if n != p)), ends)
            for p in terms.parties
        }

    def aggregators(self):
        """Honest aggregators that have forgotten which attempts they began."""
        identity = {name: self.made.identity(name) for name in self.terms.aggregators}
        return {
            name: Aggregator(name, self.terms, own.sign, own.register, UsedContributions())
            for name, own in identity.items()
        }


def test_an_aggregator_takes_an_attempt_once(tmp_path):
    lying = Lying(tmp_path)
    lying.looked()
    with pytest.raises(StateError, match=r"order: attempt .* began before"):
        lying.looked()


def test_that_outlasts_a_restart(tmp_path):
    lying = Lying(tmp_path)
    lying.looked()
    lying.made.adding.clear()
    with pytest.raises(StateError, match=r"order: attempt .* began before"):
        lying.looked()


def test_lookups_of_two_talks_are_refused_even_by_who_forgot_the_first(tmp_path):
    """The second line of defence: every signature covers what was said before it."""
    lying = Lying(tmp_path)
    one, two = lying.aggregators(), lying.aggregators()
    first, second = lying.looked(one), lying.looked(two)
    party, other = lying.terms.parties
    mixed = Lookups(lying.terms.digest, (first[party], second[other]))
    for ends in (one, two):
        for name in lying.terms.aggregators:
            with pytest.raises(Refused, match="lists: "):
                lying.say(name, mixed, ends)


def test_a_party_looks_for_its_own_lookups(tmp_path):
    """The third: it said what it said, whatever else is genuinely signed by it."""
    lying = Lying(tmp_path)
    ends = lying.aggregators()
    looked = lying.looked(ends)
    party = lying.terms.parties[0]
    bits = np.frombuffer(looked[party].bits, np.uint8) ^ 1
    forged = replace(looked[party], bits=bits.tobytes())
    sign = lying.made.identity(party).sign
    looked[party] = replace(forged, signature=sign(forged.signed))  # its key, not its word
    with pytest.raises(Refused, match="this is not what I looked up"):
        lying.say(party, Lookups(lying.terms.digest, tuple(looked.values())), ends)


@pytest.mark.parametrize("field", ["names", "opening"])
def test_aggregators_agree_on_nothing_but_what_was_held(field, tmp_path):
    """`Held` of another key, or of other people, is another talk's."""
    lying = Lying(tmp_path)
    ends, d = lying.aggregators(), lying.terms.digest
    openings = tuple(lying.say(a, Invitation(d), ends) for a in lying.terms.aggregators)
    parts = [{p.to: p for p in lying.say(n, Openings(d, openings)).parts} for n in lying.made.names]
    helds = [
        lying.say(a, AggregatorParts(d, tuple(p[a] for p in parts)), ends)
        for a in lying.terms.aggregators
    ]
    assert hasattr(helds[0], field), "what an aggregator holds is not tied to its key"
    value = getattr(helds[1], field)
    lie = replace(helds[1], **{field: value[:-1]})
    helds[1] = replace(lie, signature=lying.made.identity("two").sign(lie.signed))
    with pytest.raises(Refused, match="lists: "):
        lying.say("two" if field == "names" else "one", HeldByAll(d, tuple(helds), openings), ends)
