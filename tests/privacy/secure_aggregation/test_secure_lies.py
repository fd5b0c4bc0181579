"""Sums under pairs' pads: what is refused, of clients and of a server that lies."""

from dataclasses import replace

import numpy as np
import pytest

from tests.privacy.sums import (
    STEPS,
    clients,
    ends,
    pairwise,
    people,
    plain_sum,
    random_words,
    register,
    under_pads,
)
from vergence.errors import ConfigError
from vergence.privacy.secure_aggregation import pairwise as secure_aggregation
from vergence.privacy.secure_aggregation.pairwise_messages import (
    Agreements,
    RelayedShares,
    Roster,
    Survivors,
    Unmask,
)
from vergence.privacy.secure_aggregation.session import (
    Aborted,
    Invitation,
    Refused,
    UsedContributions,
)


def started(n: int = 4, **more) -> tuple:
    given = {name: random_words(3) for name in people(n)}
    return given, under_pads(pairwise(n, **more), given)


@pytest.mark.parametrize("step", range(5), ids=STEPS)
def test_the_server_refuses_what_is_doubled_replayed_forged_or_out_of_order(step):
    given, talk = started()
    server = secure_aggregation.PairwiseServer(pairwise(4), register(given))
    asked = server.open()
    for _ in range(step):
        for name, message in asked.items():
            server.receive(talk.ends[name].answer(message))
        asked = server.close()
    answers = {name: talk.ends[name].answer(message) for name, message in asked.items()}
    first = answers["p00"]
    for bad, why in [
        (Invitation(first.terms), "order: Invitation came"),
        (replace(first, terms=bytes(32)), "round: "),
        (replace(first, signature=bytes(64)), "signature: this is not from 'p00'"),
        (replace(first, signature=answers["p01"].signature), "signature: "),
        (replace(first, sender="p01"), "signature: this is not from 'p01'"),
        (replace(first, sender="stranger"), "order: 'stranger' is not due"),
    ]:
        with pytest.raises(Refused, match=why):
            server.receive(bad)
    other = under_pads(pairwise(4, attempt=1), given).until(step)
    with pytest.raises(Refused, match="round: "):
        server.receive(other.answers()["p00"])
    server.receive(first)
    with pytest.raises(Refused, match="order: 'p00' answered before"):
        server.receive(first)
    for name in ("p01", "p02", "p03"):
        server.receive(answers[name])
    server.close()
    with pytest.raises(Refused, match="order: "):
        server.receive(first)


def test_the_conversation_leaves_out_who_is_refused_and_says_why():
    given = {name: random_words(3) for name in people(5)}
    server = secure_aggregation.PairwiseServer(pairwise(5, threshold=4), register(given))
    talk = under_pads(pairwise(5, threshold=4), given)
    talk.talk = secure_aggregation.converse(server)
    talk.asked = next(talk.talk)
    talk.until(2)
    answers = talk.answers()
    answers["p03"] = replace(answers["p03"], words=bytes(24))
    talk.send(answers)
    total = talk.rest()
    assert total.names == ("p00", "p01", "p02", "p04")
    np.testing.assert_array_equal(total.words, plain_sum(given, total.names))
    assert server.refused == {"p03": "signature: this is not from 'p03', or was changed on the way"}


@pytest.mark.parametrize("junk", [None, b"", 7, "x", (), {}])
def test_junk_drops_its_sender_only(junk):
    given = {name: random_words(3) for name in people(5)}
    talk = under_pads(pairwise(5, threshold=4), given).until(2)
    talk.send({**talk.answers(), "p00": junk})
    assert talk.rest().names == ("p01", "p02", "p03", "p04")


def signed(name: str, message):
    return replace(message, signature=ends(name)[0](message.signed))


def test_the_server_refuses_what_has_another_size():
    given, talk = started(4, threshold=3)
    server = secure_aggregation.PairwiseServer(pairwise(4, threshold=3), register(given))
    asked = server.open()
    advert = talk.ends["p00"].answer(asked["p00"])
    for key in (bytes(32), b"short"):  # zero gives every other end the same secret
        with pytest.raises(Refused, match="size: 'p00' sent no usable key"):
            server.receive(signed("p00", replace(advert, pad_key=key)))
    server.receive(advert)
    for name in ("p01", "p02", "p03"):
        server.receive(talk.ends[name].answer(asked[name]))
    asked = server.close()
    shares = {name: talk.ends[name].answer(m) for name, m in asked.items()}
    boxes = {k: v for k, v in shares["p00"].boxes.items() if k != "p01"}
    with pytest.raises(Refused, match="size: 'p00' closed boxes"):
        server.receive(signed("p00", replace(shares["p00"], boxes=boxes)))
    for message in shares.values():
        server.receive(message)
    asked = server.close()
    masked = {name: talk.ends[name].answer(m) for name, m in asked.items()}
    with pytest.raises(Refused, match="size: 'p00' sent 16 bytes"):
        server.receive(signed("p00", replace(masked["p00"], words=bytes(16))))
    for name in ("p00", "p01", "p02"):
        server.receive(masked[name])
    asked = server.close()
    for name, message in asked.items():
        server.receive(talk.ends[name].answer(message))
    asked = server.close()
    unmask = talk.ends["p00"].answer(asked["p00"])
    with pytest.raises(Refused, match="lists: "):
        server.receive(signed("p00", replace(unmask, keys={})))
    with pytest.raises(Refused, match="lists: "):
        server.receive(signed("p00", replace(unmask, keys={**unmask.keys, "p01": bytes(33)})))
    with pytest.raises(Refused, match="size: "):
        server.receive(signed("p00", replace(unmask, keys={"p03": bytes(32)})))


@pytest.mark.parametrize("which", ["seeds", "keys"])
def test_a_wrong_share_ends_the_attempt_and_spoils_no_sum(which):
    _given, talk = started(4, threshold=3)
    talk.until(2)
    talk.send(talk.answers(["p03"]))
    talk.until(4)
    answers = talk.answers()
    shares = dict(getattr(answers["p00"], which))
    name = next(iter(shares))
    shares[name] = bytes(33)
    answers["p00"] = signed("p00", replace(answers["p00"], **{which: shares}))
    with pytest.raises(Aborted, match=f"shares: those of '{name}' do not"):
        talk.send(answers)


def test_a_client_answers_each_step_once_and_in_order():
    _, talk = started()
    client, sent = talk.ends["p00"], []
    for _ in range(5):
        message = talk.asked["p00"]
        sent.append(message)
        with pytest.raises(Refused, match="round: "):
            client.answer(replace(message, terms=bytes(32)))
        talk.send(talk.answers())
        for old in sent:
            with pytest.raises(Refused, match="order: "):
                client.answer(old)


def test_messages_of_another_attempt_are_refused():
    given, talk = started()
    other = under_pads(pairwise(4, attempt=1), given)
    for _ in range(5):
        with pytest.raises(Refused, match="round: "):
            talk.ends["p00"].answer(other.asked["p00"])
        talk.send(talk.answers())
        other.send(other.answers())


def rosters(talk) -> Roster:
    return talk.until(1).asked["p00"]


def test_a_client_refuses_a_roster_that_is_not_right():
    given, talk = started(5, threshold=4)
    roster = rosters(talk)
    client, (mine, second, *others) = talk.ends["p00"], roster.adverts
    own = secure_aggregation.PairwiseClient(
        "p01", pairwise(5, threshold=4), given["p01"], ends("mallory")[0], {}, UsedContributions()
    )
    forged = own.answer(Invitation(roster.terms))  # the server's own keys, under p01's name
    old = under_pads(pairwise(5, threshold=4, attempt=1), given).until(1).asked["p00"].adverts[1]
    doubled = signed("p01", replace(second, pad_key=mine.pad_key))
    many = {name: random_words(3) for name in people(6)}
    crowd = under_pads(pairwise(6, threshold=4), many).until(0).answers()
    for adverts, why in [
        ((mine, forged, *others), "signature: this is not from 'p01'"),
        ((mine, replace(second, pad_key=forged.pad_key), *others), "signature: "),
        ((mine, replace(second, sender="stranger"), *others), "signature: nobody knows"),
        ((mine, old, *others), "round: the keys of 'p01' are of another attempt"),
        ((mine, doubled, *others), "lists: a key is there twice"),
        ((mine, second, second, *others), "lists: somebody is there twice"),
        ((second, *others), "lists: my own keys are not there"),
        ((mine, second, others[0]), "too few: 3 have keys, and 4 are needed"),
        (tuple(crowd.values()), "threshold: 4 of 6 is not more than two thirds"),
    ]:
        with pytest.raises((Refused, Aborted), match=why):
            client.answer(Roster(roster.terms, adverts))
    client.answer(roster)  # and still answers what is right


def test_a_client_refuses_boxes_that_are_not_right():
    _, talk = started(5, threshold=4)
    delivery = talk.until(2).asked["p00"]
    client, boxes = talk.ends["p00"], delivery.boxes
    swapped = {**boxes, "p01": boxes["p02"], "p02": boxes["p01"]}
    for bad, why in [
        (swapped, "signature: the box of 'p0[12]' does not open"),
        ({**boxes, "p01": boxes["p01"][:-1] + bytes([boxes["p01"][-1] ^ 1])}, "does not open"),
        ({**boxes, "p00": b""}, "lists: "),
        ({**boxes, "stranger": b""}, "lists: "),
        ({k: boxes[k] for k in ("p01", "p02")}, "too few: 3 have shared"),
    ]:
        with pytest.raises((Refused, Aborted), match=why):
            client.answer(replace(delivery, boxes=bad))
    client.answer(delivery)


def test_a_client_refuses_lists_that_are_not_right():
    _, talk = started(5, threshold=4)
    told = talk.until(3).asked["p00"]
    client = talk.ends["p00"]
    for names, why in [
        (told.names[1:], "lists: my own words"),
        (told.names[:3], "too few: 3 are left, and 4 are needed"),
        ((*told.names, "stranger"), "lists: "),
        ((*told.names, "p01"), "lists: "),
    ]:
        with pytest.raises((Refused, Aborted), match=why):
            client.answer(Survivors(told.terms, names))
    client.answer(told)


def test_a_client_unmasks_nothing_without_enough_agreements():
    _, talk = started(5, threshold=4)
    told = talk.until(4).asked["p00"]
    client, given = talk.ends["p00"], told.signatures
    for signatures, why in [
        ({k: given[k] for k in list(given)[:3]}, "too few: 3 agreed"),
        ({**given, "p01": given["p02"]}, "lists: 'p01' was shown others"),
        ({**given, "stranger": given["p01"]}, "lists: somebody agreed whose words"),
    ]:
        with pytest.raises((Refused, Aborted), match=why):
            client.answer(Agreements(told.terms, signatures))
    client.answer(told)


def test_a_server_that_shows_different_lists_gets_no_secrets():
    """It tells half of them that p05 vanished, to get both secrets of p05: nobody unmasks."""
    given, talk = started(6, threshold=5)
    told = talk.until(3).asked["p00"]
    without = Survivors(told.terms, told.names[:-1])
    lists = {name: without if i % 2 else told for i, name in enumerate(people(5))}
    lists["p05"] = told
    agreed = {name: talk.ends[name].answer(lists[name]).signature for name in given}
    for name, shown_ in lists.items():
        for signatures in (agreed, {k: v for k, v in agreed.items() if lists[k] == shown_}):
            some = {k: v for k, v in signatures.items() if k in shown_.names}
            with pytest.raises((Refused, Aborted), match=r"lists: 'p0.' was shown|too few: "):
                talk.ends[name].answer(Agreements(told.terms, some))


@pytest.mark.parametrize("stage", ["keys", "sharers"])
def test_a_server_that_shows_different_people_earlier_gets_no_secrets(stage):
    """Half of them see one person less, among keys or among senders of shares."""
    _, talk = started(6, threshold=5)
    talk.until(1 if stage == "keys" else 2)
    asked = dict(talk.asked)
    for name in ("p00", "p01", "p02"):
        if stage == "keys":
            asked[name] = replace(asked[name], adverts=asked[name].adverts[:-1])
        else:
            boxes = {k: v for k, v in asked[name].boxes.items() if k != "p05"}
            asked[name] = replace(asked[name], boxes=boxes)
    told = {name: talk.ends[name].answer(message) for name, message in asked.items()}
    names = people(5)
    if stage == "keys":
        for to in names:
            boxes = {n: m.boxes[to] for n, m in told.items() if n in names and to != n}
            delivery = RelayedShares(talk.ends[to].terms.digest, boxes)
            talk.ends[to].answer(delivery)
    survivors = Survivors(talk.ends["p00"].terms.digest, tuple(names))
    agreed = {name: talk.ends[name].answer(survivors).signature for name in names}
    for name in names:
        with pytest.raises(Refused, match="was shown others than I was"):
            talk.ends[name].answer(Agreements(survivors.terms, agreed))


def test_nobody_gives_both_secrets_of_anybody():
    given = {name: random_words(3) for name in people(7)}
    talk = under_pads(pairwise(7, threshold=5), given)
    talk.rest(lambda step: {2: ["p01"], 4: ["p02"]}.get(step, ()))
    answers = [m for m in talk.seen if isinstance(m, Unmask)]
    assert len(answers) == 5
    for answer in answers:
        assert set(answer.keys) == {"p01"}
        assert set(answer.seeds) == set(people(7)) - {"p01"}
    assert all(
        client.shares == {} for name, client in talk.ends.items() if name not in ("p01", "p02")
    )


def test_a_contribution_is_opened_once_whatever_attempt():
    """Sums of the same words over different people differ by one person's words."""
    given = {name: random_words(3) for name in people(4)}
    spent = {name: UsedContributions() for name in given}
    under_pads(pairwise(4, threshold=3), given, spent=spent).rest()
    again = under_pads(pairwise(4, threshold=3, attempt=1), given, spent=spent)
    with pytest.raises(Refused, match=r"spent: a sum of 'run 0\.1' was opened before"):
        again.rest(lambda step: ["p03"] if step == 2 else ())
    under_pads(pairwise(4, threshold=3, request="1.1"), given, spent=spent).rest()


def test_an_attempt_that_opened_nothing_may_be_repeated_with_fresh_secrets():
    given = {name: random_words(3) for name in people(4)}
    spent = {name: UsedContributions() for name in given}
    first = under_pads(pairwise(4, threshold=3), given, spent=spent).until(3)
    with pytest.raises(Aborted):
        first.send(first.answers(["p00", "p01"]))
    second = under_pads(pairwise(4, threshold=3, attempt=1), given, spent=spent)
    total = second.rest()
    np.testing.assert_array_equal(total.words, plain_sum(given, total.names))
    for name in given:
        assert first.ends[name]._publics() != second.ends[name]._publics()


@pytest.mark.parametrize(
    "change",
    [
        {"run": "other"},
        {"request": "0.2"},
        {"attempt": 1},
        {"words": 4},
        {"threshold": 4},
        {"form": b"x"},
    ],
)
def test_terms_differ_in_everything(change):
    assert replace(pairwise(4), **change).digest != pairwise(4).digest


def test_a_sum_over_two_is_refused():
    with pytest.raises(ConfigError, match="at least 3 people"):
        pairwise(4, threshold=2)
    with pytest.raises(ConfigError, match="2 words to add, agreed are 3"):
        clients(pairwise(3), {name: np.zeros(2, np.uint64) for name in people(3)})
