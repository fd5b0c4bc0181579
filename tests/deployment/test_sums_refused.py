"""Secure sums with clients elsewhere: what is refused, and is its client's silence."""

from dataclasses import replace

import pytest

from tests.conformance.test_methods import build
from tests.deployment.test_sums_elsewhere import here
from tests.engine.circle import Circle
from tests.engine.toys import table
from vergence.core.messages import Message
from vergence.core.serialization import pack, unpack
from vergence.core.tags import tag
from vergence.deployment.protocol import ClientRequest
from vergence.deployment.remote_clients import ClientLost
from vergence.engine.secure_sum_attempts import SumAnswer
from vergence.errors import ConfigError, StateError
from vergence.privacy.secure_aggregation.session import Invitation

SAID = {"attempt": 9, "threshold": 4, "cipher": "aes-256-ctr"}


def home_with_a_row(tmp_path):
    circle = Circle(build("fedavg"), tmp_path)
    circle.run_rounds(rounds=1)
    client, request, _ = next(x for x in circle.asked if isinstance(x[1].sum_message, Invitation))
    return circle, circle.home(client), request


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"stamp": "5.1"}, "has nothing to give to the sum of '5.1'"),
        ({"message": Message("say", {}, {"attempt": 1})}, "no message of a secure sum"),
        ({"message": Message("say", {}, {**SAID, "threshold": 2})}, "a sum of 2 people is"),
        ({"message": Message("say", {}, {**SAID, "cipher": "rot13"})}, "cipher: pads by 'rot13'"),
        ({"message": Message("say", {}, {"attempt": 9, "threshold": 4})}, "cipher: pads by 'None'"),
        ({"message": Message("say", {}, {"attempt": True, "threshold": 4})}, "no message of"),
        (
            {"message": Message("say", {}, SAID)},
            "round: this is of another",
        ),
        ({"sum_message": Invitation("no bytes")}, "no message of a secure sum"),
        ({"sum_message": None}, "asks for nothing that can be done"),
        ({"kind": "turn"}, "asks for nothing that can be done"),
    ],
)
def test_a_home_refuses_other_messages(change, why, tmp_path):
    _, home, request = home_with_a_row(tmp_path)
    with pytest.raises(StateError, match=why):
        home.answer(pack(replace(request, **change)))


def test_messages_out_of_order_are_refused_and_change_nothing(tmp_path):
    circle = Circle(build("fedavg"), tmp_path)
    honest, refused = circle.ask, []

    def early(client, request):
        what = unpack(request, ClientRequest)
        if what.sum_message is not None and not isinstance(what.sum_message, Invitation):
            for _, other, _ in list(circle.asked):
                if (
                    other.sum_message is not None
                    and other.client == client
                    and (
                        type(other.sum_message) is not type(what.sum_message)
                        or other.stamp != what.stamp
                    )
                    and not isinstance(other.sum_message, Invitation)
                ):
                    try:
                        circle.home(client).answer(pack(replace(other, progress=0.5)))
                    except StateError as error:
                        refused.append(str(error).partition(":")[0])
        return honest(client, request)

    circle.ask = early
    assert (
        circle.run_rounds(rounds=2).fingerprint
        == here(circle, tmp_path / "here", rounds=2).fingerprint
    )
    assert {"order", "round"} & set(refused)


def spoiled(kind, change):
    """Return how a line changes what its second client says in the second round."""

    def wrap(circle):
        honest = circle.ask

        def ask(client, request):
            answer = honest(client, request)
            what = unpack(request, ClientRequest)
            if (
                what.sum_message is None
                or client != circle.names[1]
                or not what.stamp.startswith("1.")
            ):
                return answer
            head = int.from_bytes(answer[:4], "little") + 4
            message = unpack(answer[head:], *SumAnswer.__args__)
            if tag(type(message)) != kind:
                return answer
            return answer[:head] + pack(change(message))

        circle.ask = ask

    return wrap


@pytest.mark.parametrize(
    ("kind", "change", "status"),
    [
        ("Advert", lambda m: replace(m, pad_key=b"x" * 32), "quarantined: signature: "),
        ("Advert", lambda m: replace(m, pad_key="text"), "lost: left the sum"),
        ("Shares", lambda m: replace(m, boxes={}), "quarantined: signature: "),
        ("Masked", lambda m: replace(m, words=m.words[:-8]), "quarantined: signature: "),
        ("Masked", lambda m: replace(m, sender="p00"), "quarantined: signature: "),
        ("Masked", lambda m: replace(m, terms=b""), "quarantined: round: "),
    ],
)
def test_a_changed_answer_is_its_clients_silence(kind, change, status, tmp_path):
    circle = Circle(build("scaffold"), tmp_path, people=4)
    spoiled(kind, change)(circle)
    got = circle.run_rounds(rounds=2)
    away = {1: circle.names[1:2]}
    assert got.fingerprint == here(circle, tmp_path / "here", away, rounds=2).fingerprint
    rows = [
        r
        for r in table(tmp_path / "server", "turns.csv")
        if (r["client"], r["round"]) == (circle.names[1], "2")
    ]
    assert all(row["status"].startswith(status) for row in rows), rows


def test_a_server_and_a_client_without_keys_are_refused(tmp_path, monkeypatch):
    circle = Circle(build("fedavg"), tmp_path)
    monkeypatch.setattr(circle, "identity", lambda *_: None)
    with pytest.raises(ConfigError, match="need keys that all of them know"):
        circle.run_rounds()
    with pytest.raises(StateError, match="has no keys to take part"):
        circle.home("p00")


def test_lost_is_silence(tmp_path):
    """A client that never answers in a sum is lost in every round, and the run ends."""
    circle = Circle(build("fedavg"), tmp_path)
    honest = circle.ask

    def deaf(client, request):
        if client == circle.names[0] and unpack(request, ClientRequest).sum_message is not None:
            raise ClientLost("no answer in 600 s")
        return honest(client, request)

    circle.ask = deaf
    got = circle.run_rounds().fingerprint
    away = dict.fromkeys(range(3), circle.names[:1])
    assert got == here(circle, tmp_path / "here", away).fingerprint
