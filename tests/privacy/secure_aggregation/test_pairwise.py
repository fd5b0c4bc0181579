"""Sums under pairs' pads: exact, with dropouts; what is refused; what the server sees."""

import ast
import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy.stats import chisquare

import vergence.privacy
from tests.privacy.sums import (
    STEPS,
    bytes_in,
    ends,
    on_shares,
    pairwise,
    people,
    plain_sum,
    random_words,
    shared,
    under_pads,
)
from vergence.errors import ConfigError
from vergence.privacy.secure_aggregation import masking as pads
from vergence.privacy.secure_aggregation.packing import received
from vergence.privacy.secure_aggregation.session import Aborted

FEW = 1e-6
AES, CHACHA20 = pads.PAD_CIPHERS


def trials(many: int, seed: int) -> dict[str, int]:
    """Hold sums of random people of whom some vanish before random steps; count what came out."""
    rng = np.random.default_rng(seed)
    came = {"sum": 0, "aborted": 0}
    for _ in range(many):
        n = int(rng.integers(3, 7))
        threshold = int(rng.integers(2 * n // 3 + 1, n + 1))
        names, width = people(n), int(rng.integers(1, 40))
        given = {name: random_words(width) for name in names}
        gone = {name: int(rng.integers(0, 5)) for name in names if rng.random() < 0.15}
        there = [[p for p in names if gone.get(p, 5) > step] for step in range(5)]
        enough = all(len(some) >= max(threshold, 3) for some in there[:3])
        enough = enough and all(len(some) >= threshold for some in there[3:])
        talk = under_pads(pairwise(n, width, threshold), given)
        try:
            total = talk.rest(lambda step, gone=gone: [p for p, at in gone.items() if at == step])
        except Aborted as why:
            came["aborted"] += not enough and str(why).startswith("too few: ")
            continue
        assert enough
        assert total.names == tuple(there[2])
        np.testing.assert_array_equal(total.words, plain_sum(given, there[2]))
        came["sum"] += 1
    assert came["sum"] + came["aborted"] == many
    return came


@pytest.mark.slow
def test_the_sum_is_exact_whoever_vanishes_and_when():
    came = trials(120, seed=1)
    assert came["sum"] > 40
    assert came["aborted"] > 20


@pytest.mark.slow
def test_five_hundred_trials():
    came = trials(500, seed=2)
    assert came["sum"] > 250
    assert came["aborted"] > 80


@pytest.mark.parametrize("step", range(5), ids=STEPS)
@pytest.mark.parametrize("many", [0, 1, 2, 3])
def test_up_to_k_may_vanish_before_each_step(step, many):
    """Seven people, threshold 5: two may vanish, three may not."""
    names = people(7)
    given = {name: random_words(3) for name in names}
    talk, gone = under_pads(pairwise(7, threshold=5), given), names[1 : 1 + many]
    if many == 3:
        with pytest.raises(Aborted, match=f"too few: 4 answered with {STEPS[step]}, and 5 are"):
            talk.rest(lambda now: gone if now == step else ())
        return
    total = talk.rest(lambda now: gone if now == step else ())
    left = [name for name in names if step > 2 or name not in gone]
    assert total.names == tuple(left)
    np.testing.assert_array_equal(total.words, plain_sum(given, left))


def test_pads_longer_than_a_chunk_cancel():
    width = 2 * pads.CHUNK + 5
    given = {name: random_words(width) for name in people(4)}
    total = under_pads(pairwise(4, width), given).rest(lambda step: ["p02"] if step == 2 else ())
    np.testing.assert_array_equal(total.words, plain_sum(given, ["p00", "p01", "p03"]))


def uniform(data: bytes) -> float:
    """Return the p value of the bytes' chi-square: small where they are not uniform."""
    return chisquare(np.bincount(np.frombuffer(data, np.uint8), minlength=256)).pvalue


def test_the_server_sees_no_update():
    """Masked bytes are uniform for two very different inputs, also once own seeds are known; no
    word of anybody is in the transcript."""
    width = 20_000
    for fill in (0, 2**40 + 5):
        given = {name: np.full(width, fill, np.uint64) for name in people(4)}
        talk = under_pads(pairwise(4, width), given).until(3)
        masked = [m for m in talk.seen if type(m).__name__ == "Masked"]
        assert len(masked) == 4
        for message in masked:
            assert uniform(message.words) > FEW
            client = talk.ends[message.sender]
            words = received(message.words).copy()
            own = pads.derived(client.seed, client.terms.digest, "own seed of a pad")
            pads.add_pads(words, AES, minus=[own])  # the server learns this seed in the end
            assert uniform(words.tobytes()) > FEW
    given = {name: random_words(500) for name in people(4)}
    talk = under_pads(pairwise(4, 500), given)
    assert talk.rest().words.size == 500
    view = b"".join(bytes_in(message) for message in talk.seen)
    assert len(view) > 4 * 8 * 500
    for words in given.values():
        assert not any(words[i : i + 1].tobytes() in view for i in range(500))


def test_two_transcripts_of_the_same_words_share_nothing():
    given = {name: np.arange(50, dtype=np.uint64) for name in people(3)}
    views = []
    for _ in range(2):
        talk = under_pads(pairwise(3, 50), given)
        talk.rest()
        masked = [received(m.words) for m in talk.seen if type(m).__name__ == "Masked"]
        views.append(np.concatenate(masked))
    assert not np.any(views[0] == views[1])


def searched(words: np.ndarray, expand, space: int, limit: int) -> int | None:
    """Attack: try all small seeds; the right one leaves words that are all small numbers."""
    for seed in range(space):
        rest = (words - expand(seed, len(words))).view(np.int64)
        if np.abs(rest).max() < limit:
            return seed
    return None


def twister(seed: int, n: int) -> np.ndarray:
    """How a mask is expanded from 32 bits by a widely used library, cut here to 10 bits."""
    return np.random.RandomState(seed).randint(0, 2**63, n, dtype=np.uint64)


def test_a_mask_from_a_small_seed_is_caught():
    """The same attack finds a Mersenne Twister's mask, and the update, and nothing in ours."""
    update = np.arange(8, dtype=np.uint64)
    weak = update + twister(789, 8)
    found = searched(weak, twister, 2**10, 2**20)
    assert found == 789
    np.testing.assert_array_equal(weak - twister(found, 8), update)
    strong = update.copy()
    pads.add_pads(strong, AES, [pads.new_seed()])
    assert searched(strong, twister, 2**10, 2**20) is None

    def short(seed: int, n: int) -> np.ndarray:
        words = np.zeros(n, np.uint64)
        pads.add_pads(words, AES, [seed.to_bytes(32)])
        return words

    assert searched(update + short(77, 8), short, 2**8, 2**20) == 77  # so it would be found
    assert searched(strong, short, 2**8, 2**20) is None


@pytest.mark.parametrize("seed", [b"", bytes(4), bytes(31), bytes(33), 7, "x" * 32, bytearray(32)])
def test_a_pad_needs_32_bytes(seed):
    with pytest.raises(ConfigError, match="seed of 32 bytes"):
        pads.add_pads(np.zeros(1, np.uint64), AES, [seed])


def test_every_bit_of_a_seed_changes_the_pad():
    """A fold to 32 bits would give the same pad for seeds that fold alike."""
    seen = set()
    for bit in range(256):
        words = np.zeros(1, np.uint64)
        pads.add_pads(words, AES, [(1 << bit).to_bytes(32)])
        seen.add(int(words[0]))
    assert len(seen) == 256


def test_the_pad_is_chacha20(monkeypatch):
    """RFC 8439 appendix A.1, test vector 1: key, nonce and counter 0."""
    block = bytes.fromhex(
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
    assert bytes(pads.stream(bytes(32), 64)) == block
    monkeypatch.setattr(pads, "pad_key", lambda *_: bytes(32))
    words = np.zeros(8, np.uint64)
    pads.add_pads(words, CHACHA20, [bytes(32)])
    assert words.astype("<u8").tobytes() == block


def test_the_pad_is_aes_in_counter_mode(monkeypatch):
    """Block 2 of the key 0, and those after it by plain counter mode, over the end of a chunk.

    McGrew and Viega, "The Galois/Counter Mode of operation", test case 14.
    """
    monkeypatch.setattr(pads, "pad_key", lambda *_: bytes(32))
    words = np.zeros(2 * pads.CHUNK + 6, np.uint64)
    pads.add_pads(words, AES, [bytes(32)])
    counter = modes.CTR((2).to_bytes(16))
    whole = Cipher(algorithms.AES(bytes(32)), counter).encryptor().update(bytes(8 * len(words)))
    assert whole[:16] == bytes.fromhex("cea7403d4d606b6e074ec5d3baf39d18")
    assert words.astype("<u8").tobytes() == whole


SECRET_CODE = (
    "masking",
    "packing",
    "shamir",
    "session",
    "pairwise_messages",
    "pairwise",
    "additive_messages",
    "additive",
    "threshold",
    "relay",
)


@pytest.mark.parametrize("module", SECRET_CODE)
def test_no_module_of_the_protocol_names_another_source_of_randomness(module):
    """Nothing imports random, torch or the run's keyed streams, or reads numpy's generators."""
    path = Path(vergence.privacy.__path__[0]) / "secure_aggregation" / f"{module}.py"
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert not {a.name.split(".")[0] for a in node.names} & {"random", "torch"}
        if isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] not in {"random", "torch"}
            assert "randomness" not in (node.module or "")
        if isinstance(node, ast.Attribute):
            assert node.attr not in {"random", "default_rng", "RandomState", "Generator"}


def test_no_other_source_of_randomness_is_touched(monkeypatch):
    """Both protocols run with every other generator broken, and leave their states alone."""

    def broken(*_, **__):
        raise AssertionError("a secret came from a generator that can be predicted")

    given = {name: random_words(9) for name in people(4)}
    before = random.getstate(), torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    with monkeypatch.context() as patch:
        for name in ("random", "randint", "randbytes", "getrandbits", "randrange"):
            patch.setattr(random, name, broken)
        for name in ("rand", "randn", "randint", "randperm", "normal"):
            patch.setattr(torch, name, broken)
        for name in ("rand", "randint", "random", "bytes", "default_rng", "RandomState"):
            patch.setattr(np.random, name, broken)
        under_pads(pairwise(4, 9), given).rest()
        on_shares(shared(9, 3, gated=4, threshold=3, count_bits=3), given).rest()
    after = random.getstate(), torch.get_rng_state(), np.random.get_state()[1]  # noqa: NPY002
    assert before[0] == after[0]
    assert torch.equal(before[1], after[1])
    np.testing.assert_array_equal(before[2], after[2])


def test_every_secret_is_32_bytes_of_the_systems_randomness(monkeypatch):
    """Per client: two keys and an own seed, and the coefficients of two polynomials."""
    asked, real = [], os.urandom

    def counted(size: int) -> bytes:
        asked.append(size)
        return real(size)

    monkeypatch.setattr(os, "urandom", counted)
    n, threshold = 4, 3
    given = {name: np.zeros(1, np.uint64) for name in people(n)}
    for name in given:
        ends(name)
    asked.clear()
    under_pads(pairwise(n, 1, threshold), given).rest()
    seeds = [size for size in asked if size == 32]
    usable = 2 * n  # the server tries whether keys can be used, with keys of its own
    assert len(seeds) == 3 * n + usable
    assert all(size >= 32 for size in asked)
