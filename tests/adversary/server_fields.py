"""Classification of every field that a server, a main server or an aggregator sends.

A client that takes part in a secure sum believes none of them. A field is in one of four classes:

* `agreed`: part of what all ends of a sum sign or digest; if one of them is told otherwise, no sum
  is opened that it is in.
* `own`: the client computes it itself, or knows it from its own files, and refuses another value.
* `limited`: the client's own book says how often it is answered.
* `harmless`: it changes no reply, or no more than silence would; the reason says why.

A test walks over the records and fails where a field is missing here; another lets a server lie
about each field of the first two classes and looks for the refusal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple, get_args

from vergence.core.messages import Message
from vergence.core.tags import tag
from vergence.deployment.main_server import SessionRequest
from vergence.deployment.protocol import ClientRequest
from vergence.engine.secure_sum_attempts import SumRequest
from vergence.privacy.secure_aggregation import additive_messages as shares
from vergence.privacy.secure_aggregation.pairwise_messages import Advert, PairwiseParams
from vergence.privacy.secure_aggregation.session import SessionParams

Class = Literal["agreed", "own", "limited", "harmless"]
CLASSES: tuple[Class, ...] = get_args(Class)


class ServerField(NamedTuple):
    """A field's class, and why it is in it."""

    kind: Class
    why: str


def _of(kind: Class, /, **why: str) -> dict[str, ServerField]:
    return {name: ServerField(kind, text) for name, text in why.items()}


TERMS = "every end makes its own terms, and takes no message on others"
SIGNED = "signed by its sender with a key that is known from out of band"
NOTE, SAY = "request", "facts of a sum's message"
"""What is no record: the note of a deployment's request, and a message's facts in a sum."""

_MESSAGES: Mapping[type, Mapping[str, ServerField]] = {
    Advert: _of(
        "agreed",
        terms=TERMS,
        sender=SIGNED,
        box_key=SIGNED,
        pad_key=SIGNED,
        signature="checked by who is shown it, and everybody signs whose keys it was shown",
        promise="signed by its sender, and checked against the number that is revealed",
        books="signed by its sender, and compared with what was remembered of it",
    ),
    shares.Opening: _of(
        "agreed",
        terms=TERMS,
        sender=SIGNED,
        key=SIGNED,
        signature="checked; clients and aggregators want all aggregators' keys",
    ),
    shares.SharePart: _of(
        "agreed",
        terms=TERMS,
        sender=SIGNED,
        to=SIGNED,
        box="signed, and opens only with the keys of this attempt",
        signature="checked; who sent a part that is not right is left out",
        books="signed by its sender, and compared with what was remembered of it",
    ),
    shares.HeldParts: _of(
        "agreed",
        terms=TERMS,
        sender=SIGNED,
        names=SIGNED,
        opening="signed; each compares it with the key that it was shown",
        signature="checked; who is in follows from all of them",
    ),
    shares.ShownCounts: _of(
        "agreed",
        terms=TERMS,
        sender=SIGNED,
        step=SIGNED,
        boxes=SIGNED,
        signature="checked, and part of what is signed from then on",
    ),
    shares.LookedUp: _of(
        "agreed",
        terms=TERMS,
        sender=SIGNED,
        bits=SIGNED,
        before="signed; each compares it with what it was shown itself",
        shown="signed; the same for all parties",
        signature="checked; a party looks for its own lookups",
    ),
}
"""What other ends said, as the server carries it."""

_TOLD: Mapping[str, dict[str, ServerField]] = {
    "Invitation": {},
    "Roster": _of("agreed", adverts="who is shown other keys signs something else (`Agreed`)"),
    "Delivery": _of(
        "agreed",
        boxes="who shared is signed, and a box opens only with the pair's keys of this attempt",
        sharers="signed with the keys; a neighbour who shared must have sent a box",
    ),
    "Numbers": _of(
        "agreed",
        numbers="each client committed to its own before the roster was fixed; the order of the "
        "ring that follows is signed with the keys",
    ),
    "Survivors": _of(
        "agreed",
        names="more than two thirds sign the same names before any of them "
        "helps to open the sum; one sum of a contribution is opened",
    ),
    "Agreements": _of("agreed", signatures="checked one by one against what this end was shown"),
    "Openings": _of(
        "agreed",
        openings="all aggregators' keys, each signed, of an attempt that an aggregator begins once",
    ),
    "Parts": _of("agreed", parts="who is missing at one aggregator is in no sum"),
    "Helds": _of(
        "agreed",
        helds="what an aggregator said itself must be there as it said it",
        openings="must be the keys that all parts were closed for",
    ),
    "Relayed": _of(
        "agreed",
        boxes="opened only with the keys of this attempt, and from then on part of what is signed",
    ),
    "Lookups": _of("agreed", looked="of all parties, of one talk, and this end's own as it was"),
}

FIELDS: Mapping[type | str, Mapping[str, ServerField]] = {
    ClientRequest: {
        **_of(
            "own",
            client="a client answers to its own name alone",
            file="the client keeps a ledger: the state that counted last, or the one that its "
            "last turn left and it was not told of yet; which of the two, the server says",
            progress="follows from the message's round and the client's plan",
            points="the client's plan says what is measured, and when",
            stamp="begins with the message's round, or with setup or finish where the method asks "
            "its verb there; names files of this client alone",
            then="a turn whose reply a sum hides comes alone: of others a client takes several",
        ),
        **_of(
            "agreed",
            message="digested: people are in one sum only if all of them were sent the same",
            attachments="trees that the other server brings are put into the message, and digested "
            "with it",
        ),
        **_of(
            "harmless",
            kind="another kind is another question, with checks of its own",
            known="spares bytes of masks that the server has; nothing of a sum is encoded so",
            drop="names states of this client alone that neither count nor are being made: it "
            "may lose what it learned, as by silence, and tells nothing",
            sum_message="a message of a sum, whose own fields are listed here",
        ),
    },
    Message: {
        **_of(
            "agreed",
            verb="digested, and the name of the sum",
            trees="digested; a client trains on the model that it was measured with",
            facts="digested; numbers among them are part of the sum's name",
        ),
        **_of(
            "limited",
            round="digested, and within the client's plan; its books have one question of a "
            "name, one row and one measurement of each",
        ),
    },
    **_MESSAGES,
    **{kind: {**_of("agreed", terms=TERMS), **_TOLD[tag(kind)]} for kind in get_args(SumRequest)},
    PairwiseParams: {**_of("own", colluders="from the experiment", dropouts="from the experiment")},
    shares.AdditiveParams: {
        **_of(
            "own",
            aggregators="from the experiment",
            gated="from the method's exposure and the network",
            count_bits="from the number of keys that an end has",
            dealer="from the experiment",
        ),
    },
    SessionParams: {
        **_of(
            "own",
            run="of the folder that was handed out",
            request="from the round, the verb and the number of the message",
            words="from the network",
            form="digest of the message that this client was sent",
            threshold="signed; each end refuses one below its own bound",
            cipher="from the experiment, and signed",
        ),
        **_of("agreed", attempt="signed; an aggregator begins an attempt once"),
    },
    SAY: {
        **_of(
            "agreed",
            attempt="stands in the terms, which are signed",
            request="an aggregator's terms are no client's if it is told another",
            about="likewise: a digest, to which clients agree",
        ),
        **_of(
            "own",
            threshold="stands in the terms, and is refused below an end's own bound",
            cipher="stands in the terms, and is refused where it is not the experiment's",
        ),
    },
    SessionRequest: _of(
        "harmless",
        session="names a session of the main server",
        clients="whom it serves; who is not served stays silent",
        files="each client looks whether its own counts",
        stamp="as of a request, in which clients check it",
        round="as of a message",
        progress="of the main server's own steps; clients compute theirs",
        seconds="how long it waits",
        templates="its own model: what it teaches is what a server's model teaches",
    ),
    NOTE: {
        **_of(
            "own",
            run="of the folder that was handed out",
            label="a method of the client's own experiment file",
            seed="of the client's own experiment file",
        ),
        **_of(
            "harmless",
            kind="another kind is another request, with checks of its own",
            nonce="makes two requests differ; an answer is signed together with its request",
            attachment="a length, which must fit the bytes that came",
            text="shown to the operator, cut and without control characters",
        ),
    },
}
"""Record, or the name of what is none, to its fields."""


def rows() -> Iterator[tuple[str, str, ServerField]]:
    """All fields: record, field, and its class."""
    for record, fields in FIELDS.items():
        for name, field in fields.items():
            yield record if isinstance(record, str) else record.__name__, name, field


def table() -> str:
    """All fields as a Markdown table, in the order of the classes."""
    found = [
        f"| {record} | `{name}` | {field.kind} | {field.why} |"
        for kind in CLASSES
        for record, name, field in rows()
        if field.kind == kind
    ]
    return "\n".join(["| what is sent | field | class | why |", "|---|---|---|---|", *found])
