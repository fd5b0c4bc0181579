"""A server that lies slips in clients of its own, whose words it knows, when somebody joins late.

It then subtracts their words from a secure sum, and has the words of an honest client.
"""

import shutil

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa

from tests.drills.deployment import TABLE as EYES
from vergence.deployment import folder_setup, launcher
from vergence.deployment.folder_setup import add, admit, make_key
from vergence.deployment.folders import ClientSide, settings
from vergence.deployment.keys import (
    PARTIES,
    make_node_key,
    party_identity,
    refuse_false_key,
    signer,
)
from vergence.errors import ConfigError, StateError
from vergence.experiment.schema import check
from vergence.privacy.secure_aggregation.pairwise import PairwiseClient, PairwiseServer, converse
from vergence.privacy.secure_aggregation.pairwise_messages import PairwiseParams
from vergence.privacy.secure_aggregation.session import Refused, UsedContributions

HONEST = ("p00", "p01", "p02")
TABLE = {
    "task": {"name": "toy"},
    "model": {"name": "linear", "inputs": 4},
    "federation": {"name": "toy", "people": 4},
    "local": {"optimizer": "sgd", "epochs": 1, "batch": 4, "lr": 0.01},
    "method": {"name": "fedavg"},
    "run": {"rounds": 5},
    "privacy": {"aggregation": {"name": "pairwise", "clients": 4}},
}
TERMS = PairwiseParams("run", "1.train", 0, 3, 3)
WORDS = np.array([3, 1, 4], np.uint64)


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A federation of three, the key that p03 made itself, and its folder."""
    monkeypatch.setattr(launcher, "check_flower", lambda: None)
    folder_setup.init(check(TABLE), HONEST, "127.0.0.1:9", tmp_path / "out")
    make_key(tmp_path / "own" / "p03")
    out = tmp_path / "out"
    assert add(out / "server", "p03", out / "clients" / "p03", own(tmp_path)) == 0
    shutil.copy(tmp_path / "own" / "p03" / "node", out / "clients" / "p03" / "node")
    return tmp_path


def own(made):
    """Return the folder of the public key that p03 made."""
    return made / "own" / "p03" / "public"


def home(made, name):
    return made / "out" / "clients" / name


def key_of_the_server(made, name):
    """Return the file of a public key, under somebody's name, of which the server has the rest."""
    (made / "server's").mkdir(exist_ok=True)
    public = made / "server's" / f"{name}.pub"
    make_node_key(made / "server's" / f"{name}.key", public)
    return public


def opened(made, victim, others):
    """Return a victim's words as the server has them, from a sum with others that it plays."""
    ends = {}
    for name in (victim, *others):
        private = made / "server's" / f"{name}.key"
        private = home(made, victim) / "node" if name == victim else private
        # The server's clients believe whatever it needs; the victim believes its own folder.
        register = party_identity(home(made, victim), {"run": 0, "label": 0, "seed": 0}).register
        if name != victim:
            register = dict.fromkeys((victim, *others), lambda *_: True)
        sign = signer(private)
        ends[name] = PairwiseClient(
            name,
            TERMS,
            WORDS if name == victim else np.zeros(3, np.uint64),
            lambda data, sign=sign: sign(data).encode(),
            register,
            UsedContributions(),
        )
    talk = converse(PairwiseServer(TERMS, dict.fromkeys(ends, lambda *_: True)))
    asked = next(talk)
    while True:
        try:
            asked = talk.send({name: ends[name].answer(m) for name, m in asked.items()})
        except StopIteration as end:
            return end.value.words


def test_clients_of_the_server_open_the_words_of_who_believes_their_keys(made):
    """The attack is a real one: in the folder of p00 lie two keys of the server's."""
    sybils = ("s1", "s2")
    keys = [key_of_the_server(made, name) for name in sybils]
    with pytest.raises(Refused, match="nobody knows 's1'"):
        opened(made, "p00", sybils)
    for key in keys:
        shutil.copy(key, home(made, "p00") / "keys" / key.name)
    assert np.array_equal(opened(made, "p00", sybils), WORDS)


def test_a_key_that_others_do_not_know_is_not_admitted(made):
    """The operator of p03 says the digest; the server gave p00 a key of its own as that of p03."""
    said = admit(home(made, "p03"), None, "")
    false = key_of_the_server(made, "p03")
    with pytest.raises(StateError, match="wrong key"):
        admit(home(made, "p00"), false, said)
    with pytest.raises(StateError, match="wrong key"):
        admit(home(made, "p00"), key_of_the_server(made, "s1"), said)
    assert {path.stem for path in (home(made, "p00") / "keys").iterdir()} == {*HONEST}
    assert admit(home(made, "p00"), own(made) / "p03.pub", said) == said
    assert (home(made, "p00") / "keys" / "p03.pub").read_bytes() == (
        own(made) / "p03.pub"
    ).read_bytes()


def test_a_new_client_among_made_up_ones_is_warned(made):
    """The server names keys of its own as those of p00 to p02, and would have p03 alone."""
    said = admit(home(made, "p00"), own(made) / "p03.pub", "")
    for name in HONEST:
        shutil.copy(key_of_the_server(made, name), home(made, "p03") / "keys" / f"{name}.pub")
    assert np.array_equal(opened(made, "p03", HONEST[:2]), WORDS)
    with pytest.raises(StateError, match="wrong key"):
        admit(home(made, "p03"), None, said)
    with pytest.raises(StateError, match="deploy admit"):
        launcher.join(home(made, "p03"), None)
    assert settings(home(made, "p03"), ClientSide).unconfirmed


def test_one_false_key_for_everybody_is_noticed_by_its_owner(made):
    """The server gives all, p03 too, its own key as that of p03: all digests are equal."""
    false = key_of_the_server(made, "p03")
    shutil.copy(false, home(made, "p03") / "keys" / "p03.pub")
    said = admit(home(made, "p00"), false, "")
    with pytest.raises(
        StateError, match=r"the key of 'p03' in .* is not the one that was made here"
    ):
        admit(home(made, "p03"), None, said)
    assert settings(home(made, "p03"), ClientSide).unconfirmed


@pytest.mark.parametrize("node", ["p00", "north"])
def test_one_false_key_from_the_start_is_noticed_where_its_owner_joins(node, tmp_path, monkeypatch):
    """The server's machine, which makes all folders, gives everybody its own key as that of one."""
    monkeypatch.setattr(launcher, "check_flower", lambda: None)
    sums = {"name": "additive", "aggregators": ["north", "south"]}
    table = {**TABLE, "privacy": {"aggregation": {**sums, "clients": 4}}}
    public = tmp_path / "public"
    for name in (*HONEST, "north", "south"):
        make_key(tmp_path / "own" / name)
        shutil.copytree(tmp_path / "own" / name / "public", public, dirs_exist_ok=True)
    honest, false = tmp_path / "honest", tmp_path / "false"
    folder_setup.init(check(table), HONEST, "127.0.0.1:9", honest, keys=public)
    shutil.copy(key_of_the_server(tmp_path, node), public)
    folder_setup.init(check(table), HONEST, "127.0.0.1:9", false, keys=public)
    for out in (honest, false):
        home = out / ("clients" if node in HONEST else "aggregators") / node
        shutil.copy(tmp_path / "own" / node / "node", home)
    launcher.check_can_join(honest / home.relative_to(false), settings(home, ClientSide))
    with pytest.raises(StateError, match=rf"the key of '{node}' in .* is not the one that"):
        launcher.join(home, None)


def test_a_genuine_key_does_not_hide_a_false_one_in_the_other_folder(made):
    """Sums would take the aggregators' entry, and every check would look at the clients'."""
    false = key_of_the_server(made, "p03")
    for name in HONEST:
        shutil.copy(own(made) / "p03.pub", home(made, name) / "keys" / "p03.pub")
    for name in (*HONEST, "p03"):
        (home(made, name) / PARTIES).mkdir(exist_ok=True)
        shutil.copy(false, home(made, name) / PARTIES / "p03.pub")
    for name in (*HONEST, "p03"):
        with pytest.raises(StateError, match="'p03' has two keys in"):
            admit(home(made, name), None, "")
    with pytest.raises(StateError, match="'p03' has two keys in"):
        party_identity(home(made, "p00"), {"run": "1", "label": "fedavg", "seed": 0})


@pytest.mark.parametrize("kind", [rsa, ed25519])
def test_a_key_of_another_kind_is_no_genuine_one(made, kind):
    options = (65537, 2048) if kind is rsa else ()
    make = rsa.generate_private_key if kind is rsa else ed25519.Ed25519PrivateKey.generate
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    key = make(*options).public_key().public_bytes(serialization.Encoding.PEM, form)
    (home(made, "p00") / "keys" / "p00.pub").write_bytes(key)
    with pytest.raises(StateError, match=r"the key of 'p00' in .* is not the one that was made"):
        refuse_false_key(home(made, "p00"), settings(home(made, "p00"), ClientSide))


def test_an_honest_addition_is_believed_by_all(made):
    said = {admit(home(made, name), own(made) / "p03.pub", "") for name in HONEST}
    assert said == {admit(home(made, "p03"), None, "")}
    assert not (home(made, "p00") / "keys" / "p03.pub").exists()
    (digest,) = said
    for name in HONEST:
        admit(home(made, name), own(made) / "p03.pub", digest)
    admit(home(made, "p03"), None, digest)
    assert not settings(home(made, "p03"), ClientSide).unconfirmed


def test_a_key_is_not_replaced(made):
    """Else a server could answer in the place of p01, with words that it knows."""
    false = key_of_the_server(made, "p01")
    with pytest.raises(StateError, match="'p01' already"):
        admit(home(made, "p00"), false, "")
    (false.parent / "..p01.pub").write_bytes(false.read_bytes())
    with pytest.raises(ConfigError, match="letters, digits"):
        admit(home(made, "p00"), false.parent / "..p01.pub", "")


def test_another_run_has_another_digest(made):
    """A digest that was said for one federation does not admit the same keys to another."""
    said = admit(home(made, "p03"), None, "")
    file = home(made, "p00") / "deploy.toml"
    run = settings(home(made, "p00"), ClientSide).run
    file.write_text(file.read_text().replace(run, "0" * 16))
    with pytest.raises(StateError, match="wrong key"):
        admit(home(made, "p00"), own(made) / "p03.pub", said)


@pytest.mark.parametrize(
    ("change", "keys", "why"),
    [
        ({}, False, "a client makes its own key"),
        ({"privacy": {"aggregation": "secure"}}, True, "privacy.aggregation.clients"),
        ({"privacy": {"aggregation": {"clients": 3}}}, True, "privacy.aggregation.clients"),
        ({"privacy": {"user": {"clip": 0.5, "noise": 4.0}}}, True, "the noise of privacy.user"),
        ({"privacy": {}, "presence": {"rhythm": True}}, True, "presence names the rounds"),
        ({"privacy": {}, "presence": {"cohort": 2}}, True, "presence.cohort is a number"),
        ({"privacy": {}, "method": {"name": "smashed_average"}}, True, "asks all clients before"),
    ],
)
def test_where_nobody_can_be_added(change, keys, why, tmp_path, monkeypatch):
    monkeypatch.setattr(launcher, "check_flower", lambda: None)
    table = {**TABLE, **change}
    if "method" in change:
        table |= {name: EYES[name] for name in ("task", "model", "federation", "local")}
    folder_setup.init(check(table), HONEST, "127.0.0.1:9", tmp_path / "out")
    make_key(tmp_path / "own" / "p03")
    before = sorted((tmp_path / "out").rglob("*"))
    with pytest.raises(ConfigError, match=why):
        add(tmp_path / "out" / "server", "p03", tmp_path / "p03", own(tmp_path) if keys else None)
    assert sorted((tmp_path / "out").rglob("*")) == before
    assert not (tmp_path / "p03").exists()
