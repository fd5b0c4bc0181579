"""Secrets of a sum are bound to people, direction, attempt and question: what unbinding gains.

Each test is a server, or a client on its side, that would profit if one of these were left out.
"""

import hashlib
import hmac
from dataclasses import replace

import numpy as np
import pytest

from tests.privacy.sums import (
    clients,
    ends,
    on_shares,
    pairwise,
    people,
    plain_sum,
    random_words,
    shared,
    under_pads,
)
from vergence.privacy.secure_aggregation.masking import SEED, add_pads, derived, new_key
from vergence.privacy.secure_aggregation.packing import received
from vergence.privacy.secure_aggregation.pairwise import commitment, pair_seed
from vergence.privacy.secure_aggregation.pairwise_messages import (
    Advert,
    Agreements,
    Masked,
    RelayedShares,
    Roster,
    Survivors,
)
from vergence.privacy.secure_aggregation.session import (
    ROW,
    Invitation,
    Refused,
    UsedContributions,
)

AES = "aes-256-ctr"


def test_people_who_were_shown_two_keys_of_one_client_unmask_nothing():
    """p05 is the server's and signs two sets of keys; half of the others are shown either."""
    terms, names = pairwise(6, threshold=5), people(6)
    given = {name: random_words(3) for name in names}
    ends = clients(terms, given)
    other = clients(terms, given)["p05"]
    adverts = [ends[name].answer(Invitation(terms.digest)) for name in names]
    twice = [*adverts[:-1], other.answer(Invitation(terms.digest))]
    views = {name: adverts if i < 3 else twice for i, name in enumerate(names[:-1])}
    shares = {n: ends[n].answer(Roster(terms.digest, tuple(views[n]))) for n in names[:-1]}
    two = {
        id(adverts): ends["p05"].answer(Roster(terms.digest, tuple(adverts))),
        id(twice): other.answer(Roster(terms.digest, tuple(twice))),
    }
    for name in names[:-1]:
        boxes = {n: shares[n].boxes[name] for n in names[:-1] if n != name}
        boxes["p05"] = two[id(views[name])].boxes[name]
        ends[name].answer(RelayedShares(terms.digest, boxes))
    told = Survivors(terms.digest, tuple(names[:-1]))
    agreed = {name: ends[name].answer(told).signature for name in names[:-1]}
    for name in names[:-1]:
        with pytest.raises(Refused, match="was shown others than I was"):
            ends[name].answer(Agreements(terms.digest, agreed))


def test_a_clients_own_box_does_not_come_back_as_anothers():
    """One key for both directions would close two secrets under one nonce."""
    given = {name: random_words(3) for name in people(4)}
    talk = under_pads(pairwise(4, threshold=3), given).until(1)
    answers = talk.answers()
    talk.send(answers)
    delivery = talk.asked["p00"]
    reflected = {**delivery.boxes, "p01": answers["p00"].boxes["p01"]}
    with pytest.raises(Refused, match="the box of 'p01' does not open"):
        talk.ends["p00"].answer(replace(delivery, boxes=reflected))
    talk.ends["p00"].answer(delivery)


def test_the_seed_of_a_pair_is_of_these_two_and_this_attempt():
    """A pad that comes a second time is no pad: the difference of two rows lies open."""
    one, two = new_key(), new_key()
    publics = [key.public_key().public_bytes_raw() for key in (one, two)]
    anna, otto = (
        Advert(b"", name, b"", key) for name, key in zip(("anna", "otto"), publics, strict=True)
    )
    terms, later = bytes(32), bytes(31) + b"1"
    seed = pair_seed(one, otto, "anna", terms)
    assert seed == pair_seed(two, anna, "otto", terms)
    others = {
        pair_seed(one, otto, "anna", later),
        pair_seed(one, replace(otto, sender="mia"), "anna", terms),
        pair_seed(one, otto, "mia", terms),
        seed,
    }
    assert len(others) == 4


def test_words_stay_hidden_from_who_knows_all_pads_of_pairs():
    """A server that says of a late client that it vanished is given its key by the others."""
    given = {name: random_words(500) for name in people(4)}
    talk = under_pads(pairwise(4, 500), given).until(3)
    for message in (m for m in talk.seen if isinstance(m, Masked)):
        me, end = message.sender, talk.ends[message.sender]
        seeds = {
            name: pair_seed(end.pad_key, advert, me, end.terms.digest)
            for name, advert in end.adverts.items()
            if name != me
        }
        words = received(message.words).copy()
        added = [seed for name, seed in seeds.items() if me < name]
        add_pads(words, AES, [seed for name, seed in seeds.items() if name < me], added)
        assert not np.any(words == given[me])
        add_pads(words, AES, minus=[derived(end.seed, end.terms.digest, "own seed of a pad")])
        np.testing.assert_array_equal(words, given[me])  # nothing else was in the way


def test_a_derived_secret_depends_on_secret_attempt_and_purpose():
    """RFC 5869 by hand, from HMAC alone."""
    secret, salt = bytes(range(32)), b"attempt"
    inner = hmac.digest(salt, secret, hashlib.sha256)
    wanted = hmac.digest(inner, b"vergence own pad\x01", hashlib.sha256)
    assert derived(secret, salt, "own pad") == wanted
    assert len(wanted) == SEED
    different = {
        derived(secret, b"other", "own pad"),
        derived(secret, salt, "part"),
        derived(bytes(32), salt, "own pad"),
        wanted,
    }
    assert len(different) == 4
    assert commitment(secret, salt) not in different


def test_a_sum_of_the_same_people_for_another_question_is_not_opened():
    """The difference of two questions' answers is of each person, and the sums add up over them."""
    given = {name: random_words(3) for name in people(4)}
    spent = {name: UsedContributions() for name in given}
    under_pads(pairwise(4, threshold=3), given, spent=spent).rest()
    terms = pairwise(4, threshold=3, attempt=1, form=b"asked otherwise")
    with pytest.raises(Refused, match="spent: another row"):
        under_pads(terms, given, spent=spent).rest()
    for book in spent.values():  # a client that lost the record of its row, and of its sum has one
        del book.opened[ROW.format(terms.contribution)]
    with pytest.raises(Refused, match="spent: a sum of"):
        under_pads(terms, given, spent=spent).rest()


@pytest.mark.parametrize("who", ["agg0", "agg1"])
def test_lookups_of_another_attempt_open_nothing(who):
    """Shares of two attempts' tables, taken together, are a coin per entry: half would open."""
    given = {name: random_words(3) for name in people(4)}
    terms = shared(3, gated=2, threshold=3, count_bits=3)
    now = on_shares(terms, given).until(6)
    old = on_shares(replace(terms, attempt=1), given).until(6)
    told = now.asked[who]
    mine = [one for one in told.looked if one.sender == who]
    others = [one for one in old.asked[who].looked if one.sender != who]
    with pytest.raises(Refused):
        now.ends[who].answer(replace(told, looked=(*mine, *others)))
    # Signed anew, as one who is in league with the coordinator would, with this attempt's talk.
    forged = [replace(one, before=mine[0].before, shown=mine[0].shown) for one in others]
    forged = [replace(one, signature=ends(one.sender)[0](one.signed)) for one in forged]
    with pytest.raises(Refused, match="looked up for another attempt"):
        now.ends[who].answer(replace(told, looked=(*mine, *forged)))
    total = now.rest()
    np.testing.assert_array_equal(total.words[2:], plain_sum(given, given)[2:])
