"""What a server may vary: every field has an answer, and a lie about it is refused.

The first tests walk over the records by reflection, the others drive each field that is agreed on,
or that a client knows itself, through a server that lies to one end.
"""

import ast
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import pytest

from tests.adversary import server_fields
from tests.adversary.lies import circle, method, opened, question, turn, turns
from tests.adversary.server_fields import FIELDS, NOTE, SAY
from tests.engine.toys import table
from tests.privacy.sums import clients, pairwise, people, random_words
from vergence.core.local_training import LocalTraining
from vergence.core.messages import Message
from vergence.core.serialization import pack, quick_digest, unpack
from vergence.deployment.main_server import SessionRequest
from vergence.deployment.protocol import ClientRequest, framed, unframed
from vergence.engine.secure_sum_attempts import SumAnswer, SumRequest
from vergence.errors import StateError
from vergence.privacy.config import SecureAggregationConfig
from vergence.privacy.secure_aggregation.additive_messages import AdditiveParams, Openings
from vergence.privacy.secure_aggregation.pairwise_messages import (
    Advert,
    Agreements,
    PairwiseParams,
    RandomNumbers,
    RelayedShares,
    Roster,
    Survivors,
)
from vergence.privacy.secure_aggregation.session import Invitation, SessionParams

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "vergence"


def records(*roots):
    """All records that these are made of, by their annotations."""
    found, left = set(), list(roots)
    while left:
        kind = left.pop()
        left += typing.get_args(kind)
        if not is_dataclass(kind) or kind in found:
            continue
        found.add(kind)
        left += typing.get_type_hints(kind).values()
    return found


def test_every_field_of_every_record_has_an_answer():
    walked = records(ClientRequest, SessionRequest, PairwiseParams, AdditiveParams)
    assert walked | {SessionParams} == {kind for kind in FIELDS if not isinstance(kind, str)}
    for kind in walked | {SessionParams}:
        inherited = (
            {f.name for f in fields(SessionParams)}
            if kind in (PairwiseParams, AdditiveParams)
            else set()
        )
        assert set(FIELDS[kind]) == {f.name for f in fields(kind)} - inherited, kind.__name__
    assert {f.kind for _, _, f in server_fields.rows()} == set(server_fields.CLASSES)
    assert all(len(f.why) > 10 for _, _, f in server_fields.rows())


def test_every_word_of_a_request_has_an_answer():
    """Words of notes and facts are no fields of records: they are found where they are read."""

    def read(files, holder):
        found = set()
        for file in files:
            for node in ast.walk(ast.parse(file.read_text())):
                got = None
                if isinstance(node, ast.Subscript):
                    got = node.value, node.slice
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    got = (
                        (node.func.value, node.args[0])
                        if (node.func.attr == "get" and node.args)
                        else None
                    )
                if got and isinstance(got[0], ast.Name) and isinstance(got[1], ast.Constant):
                    found |= {got[1].value} if got[0].id == holder else set()
        return found

    room = SOURCE / "deployment"
    ends = [
        room / f"{name}.py"
        for name in ("joined_node", "client_app", "main_server_node", "aggregator_node")
    ]
    assert read(ends, "note") | {"nonce"} == set(FIELDS[NOTE])
    sums = [room / "secure_sum_client.py", room / "secure_sum_aggregator.py"]
    assert read(sums, "facts") == set(FIELDS[SAY])


# Protocol messages: whatever is changed on its way to one end, some end says so.

SUMS = {
    "pads": ("fedavg", SecureAggregationConfig(min_contributors=3)),
    "ring": ("fedavg", SecureAggregationConfig(min_contributors=3, colluders=1)),
    "shares": (
        "fedcpf",
        SecureAggregationConfig("additive", 3, aggregators=("one", "two", "three")),
    ),
}
UNDER_PADS = (Advert, Roster, RelayedShares, Survivors, Agreements)
ON_RING = ("promise", "numbers", "sharers")
"""Fields that are empty, or in no message, where everybody has pads with everybody."""
SUM_MESSAGES = (*server_fields._MESSAGES, *typing.get_args(SumRequest))
"""What is said in a sum, of whatever module; an invitation opens those under pads and on shares."""
QUICK = (*ON_RING, "adverts", "names", "boxes", "signatures", "bits", "opening", "looked")
"""What is lied about in the quick tests; the rest is in the slow ones."""
MESSAGES = [
    pytest.param(
        way,
        kind,
        name,
        id=f"{way}-{kind.__name__}.{name}",
        marks=() if name in QUICK else pytest.mark.slow,
    )
    for kind in SUM_MESSAGES
    for name, field in FIELDS[kind].items()
    if field.kind in ("agreed", "own")
    for way in SUMS
    if kind is Invitation
    or (way == "ring" and (name in ON_RING or kind is RandomNumbers))
    or (way == "pads" and kind in UNDER_PADS and name not in ON_RING)
    or (way == "shares" and kind not in (*UNDER_PADS, RandomNumbers))
]


def other(value):
    """Another value of the same type."""
    if isinstance(value, bytes):
        return bytes([value[0] ^ 1]) + value[1:] if value else b"x"
    if isinstance(value, str):
        return "shown" if value == "tables" else "tables" if value == "shown" else "p03"
    if isinstance(value, Mapping):
        name = next(iter(value))
        return {**value, name: other(value[name])}
    return value[1:]


def changed(message, kind, name):
    """The message with this field of the first such record in it changed; None: there is none."""
    if type(message) is kind:
        was = getattr(message, name)
        return replace(message, **{name: other(was)}) if was not in ((), {}) else None
    for field in fields(message) if is_dataclass(message) else ():
        value = getattr(message, field.name)
        if not isinstance(value, tuple):
            continue
        for place, inner in enumerate(value):
            if is_dataclass(inner) and (lie := changed(inner, kind, name)) is not None:
                items = (*value[:place], lie, *value[place + 1 :])
                return replace(message, **{field.name: items})
    return None


@pytest.mark.parametrize(("way", "kind", "name"), MESSAGES)
def test_a_lie_in_a_message_of_a_sum_is_refused(way, kind, name, tmp_path):
    made = circle(method(SUMS[way][0], LocalTraining(optimizer="sgd")), tmp_path, 5, SUMS[way][1])
    honest, lied, refused = made.ask, [], []

    def ask(client, request):
        what, told = unpack(request, ClientRequest), request
        if what.sum_message is not None and not lied:
            lie = changed(what.sum_message, kind, name)
            if lie is not None:
                lied.append(client)
                told = pack(replace(what, sum_message=lie))
        try:
            note, body = unframed(honest(client, told))
        except Exception as error:
            refused.append((client, str(error)))
            raise
        return framed({**note, "to": quick_digest(request)}, body)  # it knows what it sent

    made.ask = ask
    made.run_rounds(rounds=1)
    assert lied, "no such message came by"
    statuses = {row["status"] for row in table(tmp_path / "server", "turns.csv")}
    out = any(status.startswith(("quarantined: ", "lost: ")) for status in statuses)
    # Whoever signed something else than the others is not asked for the last step.
    silent = way != "shares" and sum(
        type(e.sum_message).__name__ == "Agreements" for _, e, _ in made.asked
    ) < len(made.names)
    assert refused or out or silent, (
        f"{kind.__name__}.{name} was changed on its way, and nobody minded"
    )


# Requests, and what a sum's terms are made of.


def made_for(tmp_path, name):
    """A circle after two rounds of four, what one client was asked last, and would be next."""
    made = circle(method(name, LocalTraining(optimizer="sgd")), tmp_path, 5, rounds=4)
    made.run_rounds(rounds=2)
    made.plan = replace(made.plan, rounds=4)
    before = replace(turns(made, 1)["p01"], progress=0.25, drop=())
    model = next(e for _, e, _ in made.asked if e.kind == "evaluate").message.trees
    message = replace(before.message, round=2, trees=model)
    file = before.file and "seed0.client.p01.1.1.safetensors"
    return made, before, replace(before, message=message, stamp="2.1", file=file, progress=0.5)


NEXT = {
    "client": ({"client": "p02"}, "is not for 'p01'"),
    "file": ({"file": None}, "state: the server says"),
    "progress": ({"progress": 0.25}, "plan: round 2 of 4 is at progress 0.5"),
    "points": ({"points": ("P1",)}, "plan: after 2 rounds nothing is measured"),
    "attachments": ({"attachments": ("model",)}, "trees attached to this request are not"),
    "stamp": ({"stamp": "1.7"}, "stamp: '1.7' is of another part of the run than 'train' in round"),
    "then": ({"then": (Message("train", round=2),)}, "plan: turns of several rounds, or whose rep"),
}
"""Lies about the next turn: what is changed, and what the client says."""


@pytest.mark.parametrize("name", NEXT)
def test_a_lie_about_the_next_turn_is_refused(name, tmp_path):
    made, _, fresh = made_for(tmp_path, "scaffold")
    change, why = NEXT[name]
    with pytest.raises(StateError, match=why):
        turn(made, "p01", replace(fresh, **change))


def shifted(message):
    trees = {name: tree.like(tree.flat + 1) for name, tree in message.trees.items()}
    return replace(message, trees=trees)


AGAIN = {
    "message": lambda e: replace(e, message=replace(shifted(e.message), facts={"x": 1})),
    "verb": lambda e: replace(e, message=replace(e.message, verb="dance")),
    "trees": lambda e: replace(e, message=shifted(e.message)),
    "facts": lambda e: replace(e, message=replace(e.message, facts={"x": 1})),
}
"""Lies about a question that one person is asked otherwise than all the others."""


@pytest.mark.parametrize("name", AGAIN)
def test_a_question_asked_otherwise_of_one_is_in_no_sum(name, tmp_path):
    made, before, _ = made_for(tmp_path, "fedavg")
    lie = replace(AGAIN[name](before), stamp="1.7")
    with pytest.raises(StateError, match=r"spent: |asks 'p01' for nothing that can be done"):
        turn(made, "p01", lie)


def test_every_field_that_is_agreed_or_own_is_lied_about():
    """All but those of a note, about which `tests/drills` lies. A test that is lost is missed."""
    lied = {(param.values[1], param.values[2]) for param in MESSAGES}
    for kind in (ClientRequest, Message):
        lied |= {(kind, name) for name in (*NEXT, *AGAIN) if name in FIELDS[kind]}
    for kind in (SessionParams, AdditiveParams, PairwiseParams):
        lied |= {(kind, name) for name in LIES | RING_LIES if name in FIELDS[kind]}
    lied |= {(SAY, name) for name in FACTS}
    assert lied == {
        (kind, name)
        for kind, of in FIELDS.items()
        for name, field in of.items()
        if field.kind in ("agreed", "own") and kind != NOTE
    }
    assert not {*NEXT, *AGAIN} - {*FIELDS[ClientRequest], *FIELDS[Message]}


@pytest.mark.parametrize("name", ["scaffold", "fedavg"])
def test_the_requests_that_they_are_made_of_are_good(name, tmp_path):
    made, before, fresh = made_for(tmp_path, name)
    stamps = {c: e.stamp for c, e in turns(made, 1).items()}
    opened(made, before.message, stamps)
    if before.file is None:  # no state of it has gone: it may be asked again, too
        assert turn(made, "p01", replace(before, stamp="1.7"))["status"] == "ok"
        opened(made, before.message, {**stamps, "p01": "1.7"})
    assert turn(made, "p01", fresh)["status"] == "ok"


LIES = {
    "run": "another",
    "request": "0.tune",
    "words": 7,
    "form": b"another",
    "attempt": 8,
    "threshold": 4,
    "cipher": "chacha20",
    "aggregators": ("two", "one", "three"),
    "gated": 3,
    "count_bits": 4,
    "dealer": "two",
}
RING_LIES = {"colluders": 1, "dropouts": 0.2}
TERMS = sorted({n for kind in (SessionParams, AdditiveParams) for n in FIELDS[kind]})
FACTS = {"attempt": 8, "request": "0.tune", "about": "00", "threshold": 4, "cipher": "chacha20"}


class AtShares:
    """A circle on shares whose clients have taken a turn, and a server that asks what it likes."""

    def __init__(self, folder):
        self.made = circle(
            method("fedcpf", LocalTraining(optimizer="sgd")), folder, 5, SUMS["shares"][1]
        )
        message = question(self.made, 0)
        turn(self.made, "p00", ClientRequest("turn", "p00", message, "0.1"))
        form = self.made.home("p00").runner.layout(message, {})
        assert self.made.sums is not None
        self.terms = self.made.sums.terms(form, message, "run", 7, 5)
        self.facts = {
            "attempt": 7,
            "threshold": self.terms.threshold,
            "cipher": self.terms.cipher,
            "about": self.terms.form.hex(),
            "request": self.terms.request,
        }

    def say(self, who, said, **facts):
        told = Message("say", {}, {**self.facts, **facts}, 0)
        request = pack(ClientRequest("say", who, told, "0.1", sum_message=said))
        made = self.made
        end = made.aggregator(who) if who in self.terms.aggregators else made.home(who)
        return unpack(unframed(end.answer(request))[1], *typing.get_args(SumAnswer))


@pytest.mark.parametrize("name", TERMS)
def test_every_end_makes_its_own_terms(name, tmp_path):
    """Whatever a server believes of a sum: on other terms it gets no answer from anybody."""
    assert set(LIES) == set(TERMS)
    at = AtShares(tmp_path)
    lied = replace(at.terms, **{name: LIES[name]})
    with pytest.raises(StateError, match="round: "):
        at.say("one", Invitation(lied.digest))
    with pytest.raises(StateError, match="round: "):
        at.say("p00", Openings(lied.digest, ()))


@pytest.mark.parametrize("name", RING_LIES)
def test_every_client_makes_its_own_terms_of_a_ring(name):
    assert set(RING_LIES) == set(FIELDS[PairwiseParams])
    terms = pairwise(5, colluders=2)
    client = clients(terms, {p: random_words(3) for p in people(5)})["p00"]
    with pytest.raises(StateError, match="round: "):
        client.answer(Invitation(replace(terms, **{name: RING_LIES[name]}).digest))


@pytest.mark.parametrize("name", sorted(FIELDS[SAY]))
def test_facts_of_a_sum_are_the_same_for_all_or_there_is_none(name, tmp_path):
    """Told consistently otherwise, aggregators begin an attempt that no client takes part in."""
    assert set(FACTS) == set(FIELDS[SAY])
    at = AtShares(tmp_path)
    lie = {name: FACTS[name]}
    lied = replace(at.terms, **({"form": bytes(1)} if name == "about" else lie))
    invited = Invitation(lied.digest)

    def attempt():
        openings = tuple(at.say(a, invited, **lie) for a in at.terms.aggregators)
        at.say("p00", Openings(at.terms.digest, openings))

    with pytest.raises(StateError, match=r"round: |cipher: |is no sum of this run"):
        attempt()
