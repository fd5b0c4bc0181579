"""A network on shares: right answers, and what all parties but one see of an image."""

import copy
import os
from itertools import combinations

import numpy as np
import pytest
import torch

from tests.privacy.inference.plain_cnn import IMAGE, plain_cnn
from vergence.errors import ConfigError, StateError
from vergence.privacy.inference import correlations
from vergence.privacy.inference.correlations import Dealer, Holder, comparison_mask, truncation_mask
from vergence.privacy.inference.network import Layer, NetworkParts, parts
from vergence.privacy.inference.ring import (
    FRACTION,
    combined,
    decode,
    difference,
    encode,
    planes,
    unpack,
)
from vergence.privacy.inference.shared_network import (
    PartyShares,
    deal,
    encoded,
    forward,
    negative,
    party_records,
    public_part,
    relu,
    together,
    truncate,
)


@pytest.fixture(scope="module")
def small():
    """A network, what all know of it, and its parameters."""
    network = plain_cnn()
    made = parts(network, torch.zeros(1, *IMAGE))
    public = public_part(made, IMAGE, 2)
    return network, public, encoded(public, made.arrays)


def split(words, parties):
    others = [
        np.frombuffer(os.urandom(words.nbytes), words.dtype).reshape(words.shape)
        for _ in range(parties - 1)
    ]
    return [difference(words, others), *others]


def computing(small, parties, x, beside, unit=0, seeds=None):
    """Every party's part of a question about images, each with its own correlations."""
    _, public, weights = small
    seeds = seeds or [os.urandom(32) for _ in range(parties)]
    of_weights = {name: split(words, parties) for name, words in weights.items()}
    units = range(unit, unit + len(x))
    files = [deal(public, weights, seeds, each) for each in units]
    x, beside = split(encode(x), parties), split(encode(beside), parties)
    for i in range(parties):
        holders = [Holder(seeds[i], u, None if i else f) for u, f in zip(units, files, strict=True)]
        mine = {name: each[i] for name, each in of_weights.items()}
        yield forward(
            public, PartyShares(i == 0, mine, party_records(public, holders)), x[i], beside[i]
        )


@pytest.mark.parametrize("parties", [2, 3, 5])
def test_answers_are_the_network_s(small, parties):
    dice = np.random.default_rng(parties)
    x, beside = dice.uniform(-2, 2, (3, *IMAGE)), dice.uniform(-1, 1, (3, 2))
    found = decode(combined(together(list(computing(small, parties, x, beside)))))
    network = copy.deepcopy(small[0]).double()
    with torch.no_grad():
        wanted = network(torch.from_numpy(x), torch.from_numpy(beside)).numpy()
    assert np.abs(found - wanted).max() < 2e-5


def alone(record, parties, x, compute, count):
    """Shares of what parties compute from x with records of one image."""
    seeds = [os.urandom(32) for _ in range(parties)]
    dealer = Dealer(seeds, 0)
    record(dealer, count)
    of_x, talks = split(x, parties), []
    for i, seed in enumerate(seeds):
        holder = Holder(seed, 0, None if i else dealer.corrections())
        mine = PartyShares(i == 0, {}, ())
        talks.append(compute(mine, of_x[i], record(holder, count)))
    return combined(together(talks))


EDGES = [0, 1, -1, 2**FRACTION, -(2**FRACTION), 2**42 - 1, -(2**42), 2**61, -(2**61)]


@pytest.mark.parametrize("parties", [2, 3])
def test_comparisons_are_exact(parties):
    """Signs and larger parts of numbers at the edges, of either sign and any size below 2^62."""
    dice = np.random.default_rng(0)
    many = dice.integers(-(2**62), 2**62, 2000) >> dice.integers(0, 62, 2000)
    whole = np.concatenate([np.array(EDGES), many]).astype(np.int64)
    x = whole.view(np.uint64)[None]
    signs = alone(comparison_mask, parties, x, negative, x.size)
    assert np.array_equal(unpack(signs, x.size)[0], whole < 0)
    larger = alone(comparison_mask, parties, x, relu, x.size)
    assert np.array_equal(larger.view(np.int64)[0], np.maximum(whole, 0))


def test_truncations_are_off_by_one_step_at_most_and_never_wrap():
    """20,000 numbers up to 2^62, of which one without the top bits would fail a third."""
    dice = np.random.default_rng(1)
    whole = np.concatenate([EDGES, dice.integers(-(2**62), 2**62, 20_000)]).astype(np.int64)
    x = whole.view(np.uint64)[None]
    found = alone(lambda s, n: truncation_mask(s, (n,)), 3, x, truncate, x.size)
    step = found.view(np.int64)[0] - (whole >> FRACTION)
    assert set(step.tolist()) <= {0, 1}


def test_bits_by_place():
    words = np.array([[5, 2**63]], np.uint64)
    assert [int(unpack(planes(words)[0, i], 2)[0]) for i in range(3)] == [1, 0, 1]
    assert unpack(planes(words)[0, 63], 2).tolist() == [0, 1]


def watched(talks):
    """Run parties; return what each of them sent, step by step."""
    sent, opened = [], None
    while True:
        try:
            step = [talk.send(opened) for talk in talks]
        except StopIteration:
            return sent
        sent.append(step)
        opened = tuple(combined(each) for each in zip(*step, strict=True))


def guessed(sent, seeds, colluding):
    """The image as colluding parties compute it from all that was sent and their own seeds: of the
    first opened numbers, image less mask, they add their shares of the mask, and hope for none of
    the others."""
    seen = combined([step[0] for step in sent[0]])
    masks = [
        correlations.SeededDraws(seeds[i], 0).draw((1, *IMAGE), correlations.WORD)
        for i in colluding
    ]
    return decode(seen + combined(masks))[0]


def likeness(guess, image):
    return abs(np.corrcoef(guess.ravel(), image.ravel())[0, 1])


@pytest.mark.parametrize("parties", [2, 3])
def test_all_parties_but_one_cannot_guess_an_image(small, parties):
    """The same guess by all parties gives the image to the last digit, so the guess is a good one;
    without one of them it is as far from the image as chance (440 pixels: below 0.25)."""
    x = np.random.default_rng(5).uniform(-2, 2, (1, *IMAGE))
    seeds = [os.urandom(32) for _ in range(parties)]
    sent = watched(list(computing(small, parties, x, np.zeros((1, 2)), seeds=seeds)))
    whole = guessed(sent, seeds, range(parties))
    assert np.abs(whole - x[0]).max() < 2.0**-FRACTION
    for colluding in combinations(range(parties), parties - 1):
        assert likeness(guessed(sent, seeds, colluding), x) < 0.25


def test_without_masks_the_same_parties_read_the_image(small, monkeypatch):
    """The protection taken out: the honest party's draws are zeros, as in a dealer without dice."""
    x = np.random.default_rng(5).uniform(-2, 2, (1, *IMAGE))
    seeds = [b"h" * 32, *(os.urandom(32) for _ in range(2))]
    draw = correlations.SeededDraws.draw
    honest = correlations.derived(seeds[0], bytes(8), "private prediction")
    made = correlations.SeededDraws.__init__

    def remember(self, seed, unit):
        made(self, seed, unit)
        self.silent = correlations.derived(seed, unit.to_bytes(8), "private prediction") == honest

    monkeypatch.setattr(correlations.SeededDraws, "__init__", remember)
    monkeypatch.setattr(
        correlations.SeededDraws, "draw", lambda s, n, k: draw(s, n, k) * k.type(not s.silent)
    )
    sent = watched(list(computing(small, 3, x, np.zeros((1, 2)), seeds=seeds)))
    assert np.abs(guessed(sent, seeds, (1, 2)) - x[0]).max() < 2.0**-FRACTION


def test_everything_that_is_opened_is_uniform(small):
    """Every bit of every opened word and byte is set in half of 60 questions about one image: the
    counts' deviations, as multiples of what chance gives, have mean square 1."""
    x, questions = np.full((1, *IMAGE), 1.5), 60
    counts = None
    for _ in range(questions):
        sent = watched(list(computing(small, 2, x, np.zeros((1, 2)))))
        opened = [combined(each) for step in sent for each in zip(*step, strict=True)]
        bits = np.concatenate([np.unpackbits(a.view(np.uint8).ravel()) for a in opened])
        counts = bits.astype(int) if counts is None else counts + bits
    squares = (counts - questions / 2) ** 2 / (questions / 4)
    assert len(squares) > 100_000
    assert squares.mean() == pytest.approx(1, abs=0.02)
    assert squares.max() < 36


def test_material_used_twice_shows_the_difference_of_two_images(small):
    """Why no party uses it twice: anybody who saw both openings has the difference, exactly."""
    dice = np.random.default_rng(9)
    one, two = dice.uniform(-2, 2, (2, 1, *IMAGE))
    seeds, beside = [os.urandom(32), os.urandom(32)], np.zeros((1, 2))
    first, again, other = (
        watched(list(computing(small, 2, x, beside, unit, seeds)))
        for x, unit in ((one, 0), (two, 0), (two, 1))
    )
    seen = [combined([step[0] for step in sent[0]]) for sent in (first, again, other)]
    assert np.abs(decode(seen[0] - seen[1]) - (one - two)).max() < 2.0 ** (1 - FRACTION)
    assert likeness(decode(seen[0] - seen[2]), one - two) < 0.25


def test_a_party_that_lies_is_not_noticed_and_spoils_the_answer(small):
    """The security model is semi-honest, and docs say so: a number off by 1 is another answer."""

    def lying(talk):
        (first,) = talk.send(None)
        opened = yield (first + np.uint64(1 << FRACTION),)
        while True:
            try:
                opened = yield talk.send(opened)
            except StopIteration as end:
                return end.value

    x, beside = np.ones((1, *IMAGE)), np.zeros((1, 2))
    honest = decode(combined(together(list(computing(small, 2, x, beside)))))
    one, two = computing(small, 2, x, beside)
    found = decode(combined(together([one, lying(two)])))
    assert not np.allclose(found, honest, atol=1e-3)


def test_damaged_material_is_refused(small):
    _, public, weights = small
    seeds = [os.urandom(32), os.urandom(32)]
    whole = deal(public, weights, seeds, 0)
    for file in (whole[:-1] + bytes([whole[-1] ^ 1]), whole[:-8], b""):
        with pytest.raises(StateError, match="material of image 0 is damaged"):
            party_records(public, [Holder(seeds[0], 0, file)])


def test_material_of_another_network_is_refused(small):
    _, public, weights = small
    seeds = [os.urandom(32), os.urandom(32)]
    whole = parts(small[0], torch.zeros(1, *IMAGE))
    shorter = public_part(NetworkParts(whole.layers[:-1], whole.arrays, {}), IMAGE, 2)
    for dealt_for, used_for, said in ((public, shorter, "long"), (shorter, public, "short")):
        file = deal(dealt_for, weights, seeds, 0)
        with pytest.raises(StateError, match=f"too {said}: it was dealt for another"):
            party_records(used_for, [Holder(seeds[0], 0, file)])


def test_networks_that_cannot_be_computed(small):
    _, public, _ = small
    made = parts(small[0], torch.zeros(1, *IMAGE))
    pruned = NetworkParts(made.layers, made.arrays, {"fc1": np.zeros((6, 1), np.int32)})
    with pytest.raises(ConfigError, match="whole linear layers; got a pruned layer"):
        public_part(pruned, IMAGE, 2)
    with pytest.raises(ConfigError, match="got product"):
        public_part(NetworkParts((Layer("by", "product"),), {}, {}), IMAGE, 0)
    with pytest.raises(ConfigError, match="layer 'conv1' takes 1 inputs and gets 2"):
        public_part(made, (2, *IMAGE[1:]), 2)
    large = {**made.arrays, "fc2.weight": made.arrays["fc2.weight"] * 1e6}
    with pytest.raises(ConfigError, match=r"layer 'fc2' can reach .* stay below 4.1943e"):
        encoded(public, large)
    with pytest.raises(ConfigError, match=r"smaller than 4.1943e.*got nan"):
        encode(np.array([np.nan]))


def test_the_largest_weights_that_are_accepted_do_not_wrap(small):
    """fc2's are doubled as long as they are accepted; the worst inputs then give torch's answer."""
    network, public, _ = small
    arrays = dict(parts(network, torch.zeros(1, *IMAGE)).arrays)
    scale = 1
    while True:
        larger = {**arrays, "fc2.weight": arrays["fc2.weight"] * np.float32(2 * scale)}
        try:
            weights = encoded(public, larger)
        except ConfigError:
            break
        scale, kept = 2 * scale, weights
    assert scale > 1000
    changed = copy.deepcopy(network).double()
    with torch.no_grad():
        changed.get_submodule("fc2").weight.mul_(scale)
        x, beside = np.full((1, *IMAGE), 3.99), np.full((1, 2), -3.99)
        wanted = changed(torch.from_numpy(x), torch.from_numpy(beside)).numpy()
    talks = list(computing((None, public, kept), 2, x, beside))
    assert np.abs(decode(combined(together(talks))) - wanted).max() < scale * 2e-5
