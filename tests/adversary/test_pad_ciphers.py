"""Ciphers of pads: a server that names another one, keys that serve twice, counters that come back.

Where two pads are equal, the difference of two rows of words lies open.
"""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from tests.adversary.lies import circle, method, question, turn
from tests.privacy.sums import pairwise, people, plain_sum, random_words, shared, under_pads
from vergence.core.local_training import LocalTraining
from vergence.core.messages import Message
from vergence.core.serialization import pack
from vergence.deployment.protocol import ClientRequest
from vergence.errors import ConfigError, StateError
from vergence.privacy.config import SecureAggregationConfig
from vergence.privacy.secure_aggregation import masking
from vergence.privacy.secure_aggregation.masking import PAD_CIPHERS, add_pads, new_key, new_seed
from vergence.privacy.secure_aggregation.session import Invitation, Refused

AES, CHACHA20 = PAD_CIPHERS
POLICIES = {
    "pads": SecureAggregationConfig(),
    "pads, chacha20": SecureAggregationConfig(cipher=CHACHA20),
    "shares": SecureAggregationConfig("additive"),
}


def pad(seed: bytes, cipher, words: int) -> np.ndarray:
    drawn = np.zeros(words, np.uint64)
    add_pads(drawn, cipher, [seed])
    return drawn


@pytest.mark.parametrize("kind", POLICIES)
@pytest.mark.parametrize("lie", ["rot13", None, "other", "no\nline", 256])
def test_a_server_that_names_another_cipher_gets_no_answer(kind, lie, tmp_path):
    """It is refused by name, though all else is right: a weaker cipher would open every row."""
    policy = POLICIES[kind]
    lie = next(c for c in PAD_CIPHERS if c != policy.cipher) if lie == "other" else lie
    made = circle(method("fedavg", LocalTraining(optimizer="sgd")), tmp_path, 5, policy)
    message, who = question(made, 0), "p00"
    turn(made, who, ClientRequest("turn", who, message, "0.1"))
    form = made.home(who).runner.layout(message, {})
    assert made.sums is not None
    terms = made.sums.terms(form, message, "run", 7, 5)
    facts = {"attempt": 7, "threshold": terms.threshold, "request": terms.request}
    facts |= {"about": terms.form.hex(), "cipher": terms.cipher}
    for end in (who, *(policy.aggregators if kind == "shares" else ())):

        def say(cipher, end=end):
            told = Message("say", {}, {**facts, "cipher": cipher}, 0)
            request = ClientRequest("say", end, told, "0.1", sum_message=Invitation(terms.digest))
            at = made.home(end) if end == who else made.aggregator(end)
            return at.answer(pack(request))

        with pytest.raises(StateError, match=r"cipher: pads by '.*' are proposed, and this end"):
            say(lie)
        if end != who or kind != "shares":  # clients on shares are told keys first
            assert say(terms.cipher)


@pytest.mark.parametrize("make", [pairwise, shared])
def test_terms_name_the_cipher(make):
    """Ends that draw pads by two ciphers have other terms, and take no message of each other."""
    one, other = (make(4, cipher=cipher) for cipher in PAD_CIPHERS)
    assert one.digest != other.digest
    with pytest.raises(ConfigError, match="cipher: 'rot13' is none that pads are drawn with here"):
        make(4, cipher="rot13")


def test_a_client_of_another_cipher_is_left_out():
    given = {name: random_words(5) for name in people(5)}
    talk = under_pads(pairwise(5, 5, threshold=4), given)
    end = talk.ends["p01"]
    end.terms = replace(end.terms, cipher=CHACHA20)
    with pytest.raises(Refused, match="on other terms"):
        end.answer(talk.asked["p01"])
    total = talk.rest(lambda _: ["p01"])
    np.testing.assert_array_equal(total.words, plain_sum(given, sorted(set(given) - {"p01"})))


@pytest.mark.parametrize("cipher", PAD_CIPHERS)
def test_the_sum_is_exact_by_every_cipher_also_where_people_vanish(cipher):
    width = masking.CHUNK + 3
    given = {name: random_words(width) for name in people(4)}
    terms = pairwise(4, width, threshold=3, cipher=cipher)
    total = under_pads(terms, given).rest(lambda step: ["p02"] if step == 2 else ())
    np.testing.assert_array_equal(total.words, plain_sum(given, ["p00", "p01", "p03"]))


def test_no_key_serves_two_ciphers_two_people_or_two_attempts(monkeypatch):
    """Also if clients had the same secrets in all attempts, as a bad source of numbers gives them.

    In an attempt each key is there twice: at both of a pair, or at a client and the server.
    """
    used: list[Counter] = []
    make = {name: getattr(masking.algorithms, name) for name in ("AES", "ChaCha20")}

    class Seen:
        @staticmethod
        def AES(key):
            used[-1][key] += 1
            return make["AES"](key)

        @staticmethod
        def ChaCha20(key, nonce):
            used[-1][key] += 1
            return make["ChaCha20"](key, nonce)

    monkeypatch.setattr(masking, "algorithms", Seen)
    given = {name: random_words(3) for name in people(4)}
    secret = {name: (new_key(), new_seed()) for name in given}
    attempts = [(0, AES), (1, AES), (0, CHACHA20)]
    for attempt, cipher in attempts:
        used.append(Counter())
        talk = under_pads(pairwise(4, threshold=3, attempt=attempt, cipher=cipher), given)
        for name, end in talk.ends.items():
            end.pad_key, end.seed = secret[name]
        talk.rest()
    for keys in used:
        assert len(keys) == 4 * 3 // 2 + 4
        assert set(keys.values()) == {2}
    assert len(set().union(*used)) == len(attempts) * 10


def test_a_seed_has_another_key_for_every_cipher_and_is_none_itself():
    """Versions before took the seed as the key of ChaCha20."""
    seed = new_seed()
    keys = {masking.pad_key(seed, cipher) for cipher in PAD_CIPHERS}
    assert len(keys | {seed}) == 3


@pytest.mark.parametrize("cipher", PAD_CIPHERS)
def test_the_counter_of_a_pad_never_comes_back(cipher):
    """Two chunks of one key stream that were equal would show the difference of their words."""
    drawn = pad(new_seed(), cipher, 4 * masking.CHUNK)
    blocks = drawn.reshape(-1, 2)
    assert len(np.unique(blocks, axis=0)) == len(blocks)


@pytest.mark.parametrize("cipher", PAD_CIPHERS)
def test_pads_of_two_people_share_nothing(cipher):
    one, other = (pad(new_seed(), cipher, 1000) for _ in range(2))
    assert not set(one.tolist()) & set(other.tolist())


def test_a_pad_is_no_longer_than_its_key_allows():
    """2^32 - 2 blocks of 16 bytes: beyond, the counter of 32 bits would come back to 0."""
    most = 2 * ((1 << 32) - 2)
    assert pairwise(4, most).words == most
    with pytest.raises(ConfigError, match="is longer than the 4,294,967,294 blocks"):
        pairwise(4, most + 1)
    huge = np.broadcast_to(np.uint64(0), (most + 1,))  # takes no memory
    with pytest.raises(ConfigError, match="is longer than"):
        add_pads(huge, AES, [new_seed()])
