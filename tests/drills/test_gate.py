"""Who may pass the gate: requests as a server hands them on, without a network."""

import asyncio
import base64
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from vergence.deployment.transport import admission as gates
from vergence.deployment.transport.admission import REASON, AdmissionMiddleware, Refusals

PUBLIC = b"-----BEGIN PUBLIC KEY-----\nanna\n-----END PUBLIC KEY-----\n"


class App:
    """What is behind the gate: answers with a status."""

    def __init__(self):
        self.status, self.served = 200, 0

    async def __call__(self, scope, receive, send):
        self.served += 1
        await send({"type": "http.response.start", "status": self.status, "headers": []})


@pytest.fixture
def gate(tmp_path):
    keys = tmp_path / "keys"
    keys.mkdir()
    (keys / "anna.pub").write_bytes(PUBLIC)
    told = []
    made = AdmissionMiddleware(App(), "key of serve", Refusals(told.append), keys)
    made.told = told
    return made


def ask(gate, path="/v1/fleet/pull-messages", host="10.0.0.7", kind="http", **headers):
    """Return the status, and why."""
    named = {"content_length": "3", **headers}
    found = []

    async def send(message):
        found.append(message)

    shown = [
        (name.strip("_").replace("_", "-").encode(), value.encode())
        for name, value in named.items()
        if value is not None
    ]
    scope = {"type": kind, "path": path, "headers": shown, "client": (host, 1)}
    asyncio.run(gate(scope, None, send))
    return found[0]["status"], dict(found[0]["headers"]).get(REASON.encode(), b"").decode()


def signed(r=1, s=1, at=timedelta(0), key=PUBLIC):
    return {
        "flwr_public_key": base64.b64encode(key).decode(),
        "flwr_signature": base64.b64encode(encode_dss_signature(r, s)).decode(),
        "flwr_timestamp": (datetime.now(UTC) + at).isoformat(),
    }


def test_a_known_key_passes_once_per_signature(gate):
    first = signed()
    assert ask(gate, **first) == (200, "")
    assert ask(gate, **first) == (401, "a request of 'anna' that came before: a replay")
    assert ask(gate, **signed(2)) == (200, "")
    assert gate.app.served == 2


def test_the_other_signature_that_anybody_can_make_of_one_is_a_replay(gate):
    """(r, n - s) is as genuine as (r, s)."""
    first = signed(r=7, s=5)
    assert ask(gate, **first) == (200, "")
    other = {**first, "flwr_signature": signed(r=7, s=11)["flwr_signature"]}
    assert ask(gate, **other) == (401, "a request of 'anna' that came before: a replay")


@pytest.mark.parametrize(
    "header", ["flwr_public_key", "flwr_timestamp", "flwr_signature", "content_length"]
)
def test_no_header_that_counts_comes_twice(gate, header):
    """Else the gate would read one of them, and Flower the other."""
    named = {"content_length": "3", **signed()}
    twice = {**named, f"_{header}": named[header]}
    assert ask(gate, **twice) == (401, "a request with the same header twice")


def test_a_signature_that_flower_finds_forged_counts_for_nothing(gate):
    """Who knows a public key cannot use up another's signatures."""
    gate.app.status = 401
    assert ask(gate, **signed()) == (401, "")
    assert gate.told == ["refused 10.0.0.7: its signature is not genuine"]
    gate.app.status = 200
    assert ask(gate, **signed()) == (200, "")


def test_signatures_are_forgotten_when_their_time_is_over(gate, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(gates.time, "monotonic", lambda: now[0])
    assert ask(gate, **signed())[0] == 200
    now[0] += 2 * gates.WINDOW + 1
    assert ask(gate, **signed(2))[0] == 200
    assert list(gate.seen) == [(PUBLIC, 2)]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (dict, "a request without a node's signature"),
        (lambda: {**signed(), "flwr_timestamp": "noon"}, "a request without a node's signature"),
        (lambda: {**signed(), "flwr_timestamp": "2026-01-01T00:00:00"}, "a node's signature"),
        (lambda: {**signed(), "flwr_public_key": "?"}, "a request without a node's signature"),
        (lambda: {**signed(), "flwr_signature": "MAYC"}, "a request without a node's signature"),
        (lambda: signed(key=b"mallory"), "its key is not this server's"),
        (lambda: signed(at=timedelta(seconds=-301)), "'anna' has a clock that is more"),
        (lambda: signed(at=timedelta(seconds=400)), "'anna' has a clock that is more"),
        (lambda: {**signed(), "content_length": None}, "does not say how long it is"),
        (lambda: {**signed(), "transfer_encoding": "chunked"}, "does not say how long it is"),
        (lambda: {**signed(), "content_length": "-1"}, "more than 16 MiB"),
        (lambda: {**signed(), "content_length": str((16 << 20) + 1)}, "more than 16 MiB"),
    ],
)
def test_what_is_not_let_in(gate, given, says):
    status, reason = ask(gate, **given())
    assert status == 401
    assert says in reason
    assert gate.told == [f"refused 10.0.0.7: {reason}"]
    assert not gate.app.served


def test_a_key_is_let_in_no_more_as_soon_as_it_is_revoked(gate):
    assert ask(gate, **signed())[0] == 200
    gone = gate.keys.parent / "revoked"
    gone.mkdir()
    (gate.keys / "anna.pub").replace(gone / "anna.pub")
    assert ask(gate, **signed(2)) == (401, "the key of 'anna' was revoked")


def test_commands_and_apps_are_for_this_machine(gate):
    start, acquire = "/v1/control/start-run", "/v1/runtime/acquire-task"
    outside = "commands are taken from the server's own machine alone"
    assert ask(gate, start, x_vergence_key="key of serve") == (401, outside)
    assert ask(gate, acquire) == (401, outside)
    assert ask(gate, acquire, "127.0.0.1") == (200, "")
    assert ask(gate, start, "127.0.0.1", x_vergence_key="key of serve") == (200, "")
    inside = "commands are taken from `vergence deploy serve` alone"
    assert ask(gate, start, "127.0.0.1", x_vergence_key="other") == (401, inside)
    assert ask(gate, "/docs", "127.0.0.1") == (401, inside)


def test_nothing_but_http_is_served(gate):
    assert ask(gate, kind="websocket", **signed()) == (401, "no such thing is served")


def test_without_keys_nodes_need_none():
    assert ask(AdmissionMiddleware(App(), "k", Refusals(lambda _: None))) == (200, "")


def test_reasons_are_told_ever_more_rarely():
    told = []
    refusals = Refusals(told.append)
    for _ in range(150):
        refusals.add("10.0.0.7", "no TLS")
    refusals.add("10.0.0.8", "no TLS")
    first, other = "refused 10.0.0.7: no TLS", "refused 10.0.0.8: no TLS"
    assert told == [first, f"{first}, 10 times", f"{first}, 100 times", other]


def test_hosts_beyond_count_are_told_of_as_one(monkeypatch):
    told = []
    monkeypatch.setattr(gates, "TOLD", 3)
    refusals = Refusals(told.append)
    for number in range(103):
        refusals.add(f"10.0.0.{number}", "no TLS")
    refusals.add("10.0.0.0", "no TLS")
    assert told[:3] == [f"refused 10.0.0.{number}: no TLS" for number in range(3)]
    others = "refused others: no TLS"
    assert told[3:] == [others, f"{others}, 10 times", f"{others}, 100 times"]
    assert len(refusals.counts) == 4
