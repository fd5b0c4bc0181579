"""Private prediction over TLS: honest answers, and everything that a stranger, a client or a party
can send instead of what is due."""

import asyncio
import json
import math
import os
import shutil
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from benchmarks.mpc.processes import free_ports
from tests.privacy.inference.plain_cnn import IMAGE, plain_cnn
from vergence.deployment import keys
from vergence.deployment.private_inference import agreement, client, connection, party, sharing
from vergence.deployment.private_inference.agreement import (
    AHEAD,
    Hello,
    MaterialLedger,
    PrivateFolder,
    Terms,
    new_nonce,
    write_addresses,
)
from vergence.deployment.private_inference.client import ask, predict
from vergence.deployment.private_inference.connection import DATA, HEADER, WORDS, dial
from vergence.deployment.private_inference.party import SECRETS, PredictionParty
from vergence.deployment.private_inference.party_seed import PartySeed
from vergence.errors import ConfigError, DataError, StateError
from vergence.models.small_cnn import SmallCnnNet
from vergence.privacy.inference import correlations
from vergence.privacy.inference.correlations import WORD, SeededDraws
from vergence.privacy.inference.ring import encode

NAMES = ("a", "b", "c")
PATIENCE = 20.0


@pytest.fixture(scope="module")
def network():
    return plain_cnn()


@pytest.fixture(scope="module")
def dealt(network, tmp_path_factory):
    """Folders of three parties and two clients, with material for 20 images."""
    out = tmp_path_factory.mktemp("private") / "dealt"
    addresses = dict.fromkeys(NAMES, "127.0.0.1:1")
    sharing.share_network(network, IMAGE, addresses, ["anna", "ben"], out, 20)
    return out


@pytest.fixture
def place(dealt, tmp_path):
    """A copy of the folders, at free ports."""
    copied = tmp_path / "dealt"
    shutil.copytree(dealt, copied)
    moved(copied)
    return copied


def moved(place):
    ports = free_ports(len(NAMES))
    addresses = {name: f"127.0.0.1:{port}" for name, port in zip(NAMES, ports, strict=True)}
    for folder in [*(place / "parties").iterdir(), *(place / "clients").iterdir()]:
        write_addresses(folder, folder.name, addresses)


@pytest.fixture(scope="module")
def eyes():
    dice = np.random.default_rng(1)
    return dice.uniform(-2, 2, (2, *IMAGE)), dice.uniform(-0.5, 0.5, (2, 2))


@asynccontextmanager
async def serving(*parties):
    """Serve parties in this process."""
    tasks = []
    for each in parties:
        ready = asyncio.Event()
        tasks.append(asyncio.ensure_future(each.serve(ready)))
        waiting = asyncio.ensure_future(ready.wait())
        await asyncio.wait({waiting, tasks[-1]}, return_when=asyncio.FIRST_COMPLETED)
        if not ready.is_set():
            await tasks[-1]
    try:
        yield parties
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def three(place, **others):
    """The parties, some of another kind."""
    return [others.get(n, PredictionParty)(place / "parties" / n, PATIENCE) for n in NAMES]


def anna(place):
    return PrivateFolder(place / "clients" / "anna")


def answered(place, eyes, **others):
    """What anna is told, by parties some of which are of another kind."""

    async def main():
        async with serving(*three(place, **others)):
            return await ask(anna(place), *eyes, PATIENCE)

    return asyncio.run(main())


def refused(place, eyes, said, **others):
    begun = time.monotonic()
    with pytest.raises(StateError, match=said):
        answered(place, eyes, **others)
    assert time.monotonic() - begun < PATIENCE + 5


def wanted(network, eyes):
    with torch.no_grad():
        return network(*(torch.from_numpy(a).float() for a in eyes)).numpy()


def test_three_parties_answer_as_the_network(place, network, eyes):
    found = answered(place, eyes)
    assert np.abs(found.values - wanted(network, eyes)).max() < 2e-5
    for name in NAMES:
        assert MaterialLedger(place / "parties" / name).next == 2
    assert len(list((place / "parties" / "a" / "material").iterdir())) == 18


class Watched(PredictionParty):
    """Keeps every byte that comes in."""

    seen: dict[str, list[bytes]]

    async def handle_connection(self, reader, writer):
        kept = reader.readexactly
        self.seen = getattr(self, "seen", {})

        async def readexactly(count):
            data = await kept(count)
            self.seen.setdefault(self.name, []).append(data)
            return data

        reader.readexactly = readexactly
        await super().handle_connection(reader, writer)


def test_no_party_receives_an_image(place, network, eyes):
    """What comes in at party c, looked at as numbers: nothing is like the image, the answer or a
    weight; what comes in at all three adds up to the image."""
    parties = three(place, a=Watched, b=Watched, c=Watched)

    async def main():
        async with serving(*parties):
            return await ask(anna(place), *eyes, PATIENCE)

    found = asyncio.run(main())
    rows = np.concatenate([eyes[0].reshape(2, -1), eyes[1]], 1)
    shares = []
    for each in parties:
        blocks = [b for b in each.seen[each.name] if len(b) == 8 * rows.size]
        shares.append(np.frombuffer(blocks[0], np.uint64))
        for block in (b for b in each.seen[each.name] if len(b) >= 64 and not len(b) % 8):
            numbers = np.frombuffer(block, np.int64) * 2.0**-20
            assert np.abs(numbers).min() > 0
            short = np.resize(numbers, rows.size)
            assert abs(np.corrcoef(short, rows.ravel())[0, 1]) < 6 / np.sqrt(rows.size)
    whole = sum(shares).view(np.int64).reshape(rows.shape) * 2.0**-20
    assert np.abs(whole - rows).max() < 2.0**-20
    assert np.abs(found.values - wanted(network, eyes)).max() < 2e-5


def test_folders_that_are_stolen_later_open_no_image_that_was_asked(place, eyes):
    """Party c kept what it received, and later gets the folders of all others: the seeds as they
    were before the question take the masks off the images; what is left of them does not."""
    seeds = {n: place / "parties" / n / "seed" for n in "ab"}
    before = {name: file.read_bytes()[-32:] for name, file in seeds.items()}
    parties = three(place, c=Watched)

    async def main():
        async with serving(*parties):
            await ask(anna(place), *eyes, PATIENCE)

    asyncio.run(main())
    kept = [np.frombuffer(block, np.uint64) for block in parties[2].seen["c"] if not len(block) % 8]
    own = next(block for block in kept if block.size == 2 * (20 * 22 + 2)).reshape(2, -1)[:, :440]
    opened = [block for block in kept if block.size == 2 * 440][:2]

    def guessed(stolen):
        found = own + sum(block.reshape(2, -1) for block in opened)
        for seed in stolen:
            for unit in range(2):
                found[unit] += SeededDraws(seed, unit).draw((440,), WORD)
                seed = correlations.next_seed(seed)
        return found.view(np.int64) * 2.0**-20

    images = eyes[0].reshape(2, -1)
    assert np.abs(guessed(before.values()) - images).max() < 2.0**-20
    after = guessed(file.read_bytes()[-32:] for file in seeds.values())
    assert abs(np.corrcoef(after.ravel(), images.ravel())[0, 1]) < 0.2


def test_a_seed_that_is_gone_is_not_taken_again(place):
    """Even where the ledger was put back."""
    seed = PartySeed(place / "parties" / "b" / "seed")
    first = seed.take(3, 2)
    assert first == [*dict.fromkeys(first)]
    with pytest.raises(StateError, match="the seed of image 4 is gone"):
        seed.take(4, 1)
    assert seed.read()[0] == 5
    (place / "parties" / "b" / "seed").write_bytes(b"short")
    with pytest.raises(StateError, match="is damaged"):
        seed.take(5, 1)


# --- clients


def test_a_client_whose_key_is_taken_away_may_not_ask(place, eyes):
    (place / "parties" / "b" / "clients" / "anna.pub").unlink()
    refused(place, eyes, "party 'b': no client of this name and key may ask here: 'anna'")
    assert {MaterialLedger(place / "parties" / name).next for name in NAMES} == {0}


def test_ben_cannot_ask_as_anna(place, eyes):
    """With his own key under her name, and with her name in the terms under his own."""
    folder = place / "clients" / "anna"
    shutil.copy(place / "clients" / "ben" / "node", folder / "node")
    refused(place, eyes, "no client of this name and key may ask here: 'anna'")

    class Ben(PrivateFolder):
        def hello(self, greeting, role, terms):
            return super().hello(greeting, role, terms and replace(terms, client="anna"))

    async def main():
        async with serving(*three(place)):
            await ask(Ben(place / "clients" / "ben"), *eyes, PATIENCE)

    with pytest.raises(StateError, match="client 'ben' asks in the name of another"):
        asyncio.run(main())


def test_a_recorded_hello_opens_nothing_again(place):
    """Every greeting has a new number under the signature."""

    async def main():
        async with serving(*three(place)):
            folder = anna(place)
            line, greeting = await dial(folder, "a", PATIENCE)
            terms = Terms(folder.agreement.digest, new_nonce(), "anna", 0, 1)
            hello = folder.hello(greeting, "client", terms)
            await line.close()
            line, _ = await dial(folder, "a", PATIENCE)
            await line.send_record(hello)
            await line.receive(DATA, exact=8)

    with pytest.raises(StateError, match="no client of this name and key may ask here"):
        asyncio.run(main())


class StartsAt(PrivateFolder):
    """A client that names the material itself."""

    start = 0

    def hello(self, greeting, role, terms):
        return super().hello(greeting, role, terms and replace(terms, start=self.start))


def test_material_is_never_used_twice(place, eyes):
    """Not when a client asks for it again, not after a restart of a party, not when nobody knows
    what was used; see `test_material_used_twice_shows_the_difference_of_two_images` for why."""
    answered(place, eyes)

    async def main():
        async with serving(*three(place)):
            await ask(StartsAt(place / "clients" / "anna"), *eyes, PATIENCE)

    with pytest.raises(StateError, match="material of image 0 was used: it is never used twice"):
        asyncio.run(main())
    (place / "parties" / "c" / "used.json").unlink()
    refused(place, eyes, "none may be used twice: ask the model's owner")


def test_material_is_spent_before_it_is_used(place, eyes):
    """A question that fails after the first opened number has used it up."""

    class Dies(PredictionParty):
        async def compute_share(self, terms, lines, x, side_inputs):
            self.ledger.spend(terms, self.agreement.images)
            raise StateError("power cut")

    refused(place, eyes, "power cut", c=Dies)
    assert {MaterialLedger(place / "parties" / name).next for name in NAMES} == {2}


def test_when_the_material_is_used_up(place, eyes):
    for name in NAMES:
        (place / "parties" / name / "used.json").write_text('{"next": 19}')
    refused(place, eyes, "material is left for 1 image of 20, and 2 were asked")


def test_a_question_of_another_size_is_refused_before_it_is_read(place):
    async def main(size, kind=DATA):
        async with serving(*three(place)):
            folder = anna(place)
            line, greeting = await dial(folder, "a", PATIENCE)
            await line.send_record(
                folder.hello(
                    greeting, "client", Terms(folder.agreement.digest, new_nonce(), "anna", 0, 1)
                )
            )
            line.writer.write(HEADER.pack(kind, 0, size) + b"x" * 100)
            await line.receive(DATA, exact=16)

    due = 8 * (20 * 22 + 2)
    for size in (due - 8, due + 1, 1 << 62):
        with pytest.raises(StateError, match=rf"sent {size:,} bytes, and {due} were due"):
            asyncio.run(main(size))
    with pytest.raises(StateError, match="sent frame z of step 0, and d of step 0 was due"):
        asyncio.run(main(due, b"z"))


@pytest.mark.parametrize(
    ("images", "said"),
    [(0, "no Hello: terms.images"), (65, "no Hello: terms.images"), ("x", "no Hello")],
)
def test_a_hello_of_another_form_is_refused(place, images, said):
    async def main():
        async with serving(*three(place)):
            folder = anna(place)
            line, greeting = await dial(folder, "b", PATIENCE)
            terms = Terms(folder.agreement.digest, new_nonce(), "anna", 0, images)
            await line.send_record(folder.hello(greeting, "client", terms))
            await line.receive(DATA, exact=16)

    with pytest.raises(StateError, match=said):
        asyncio.run(main())


def test_what_a_client_asks_wrongly_is_told_before_anybody_is_called(place):
    with pytest.raises(ConfigError, match=r"images \[1, 20, 22\] and 2 numbers beside each; got"):
        asyncio.run(ask(anna(place), np.zeros((1, 1, 20, 21)), np.zeros((1, 2))))
    with pytest.raises(ConfigError, match="inputs must be smaller than 4"):
        asyncio.run(ask(anna(place), np.full((1, *IMAGE), np.nan), np.zeros((1, 2))))


def test_a_client_that_leaves_does_not_keep_the_parties(place, network, eyes):
    """It asked one party alone, which waits for the others, and is free as soon as it hangs up."""

    async def main():
        parties = [PredictionParty(place / "parties" / n, 60.0) for n in NAMES]
        async with serving(*parties):
            folder = anna(place)
            line, greeting = await dial(folder, "b", PATIENCE)
            terms = Terms(folder.agreement.digest, new_nonce(), "anna", 0, 1)
            await line.send_record(folder.hello(greeting, "client", terms))
            await line.send(DATA, bytes(8 * (20 * 22 + 2)))
            while not parties[1].busy.locked():
                await asyncio.sleep(0.01)
            with pytest.raises(StateError, match="party 'b': another question is being answered"):
                await ask(PrivateFolder(place / "clients" / "ben"), *eyes, PATIENCE)
            await line.close()
            while parties[1].busy.locked():
                await asyncio.sleep(0.01)
            return await ask(folder, *eyes, 60.0)

    found = asyncio.run(asyncio.wait_for(main(), 40))
    assert np.abs(found.values - wanted(network, eyes)).max() < 2e-5


# --- strangers


class Overheard(PrivateFolder):
    """A stranger, who has a client's folder but no key that a party knows; it hears all words."""

    @property
    def name(self):
        return "anna"

    async def all_words(self):
        """Everything that each party says to it, but for the number to be signed."""
        heard = []
        for name in NAMES:
            line, greeting = await dial(self, name, PATIENCE)
            heard.append(replace(greeting, nonce=""))
            await line.send_record(self.introduction(greeting))
            with pytest.raises(StateError) as refused:
                heard.append(await line.receive(WORDS))
            heard.append(str(refused.value))
            await line.close()
        return heard


def test_strangers_do_not_learn_how_much_a_party_is_asked(place, eyes):
    """Whoever may not ask hears the same words before and after a question, and no number.

    A client without terms does hear it: that is what it asks for.
    """
    shutil.copytree(place / "clients" / "ben", place / "clients" / "stranger")
    stranger = Overheard(place / "clients" / "stranger")

    async def main():
        async with serving(*three(place)):
            before = await stranger.all_words()
            await ask(anna(place), *eyes, PATIENCE)
            after = await stranger.all_words()
            line, greeting = await dial(anna(place), "a", PATIENCE)
            await line.send_record(anna(place).introduction(greeting))
            known = await line.receive(WORDS)
            await line.close()
            return before, after, known

    before, after, known = asyncio.run(main())
    assert before == after
    assert json.loads(known) == {"next": 2}
    refusals = [words for words in after if isinstance(words, str)]
    assert all("no client of this name and key may ask here" in words for words in refusals)
    assert len(refusals) == len(NAMES)


def test_a_ledger_that_is_gone_is_no_strangers_business(place):
    """A greeting does not look at it, so that its path is told to nobody who may not ask."""
    (place / "parties" / "a" / "used.json").unlink()
    shutil.copytree(place / "clients" / "ben", place / "clients" / "stranger")

    async def main():
        late = PredictionParty(place / "parties" / "a", PATIENCE)
        late.ledger = MaterialLedger(place / "parties" / "b")
        async with serving(late, *three(place)[1:]):  # it was there when the party began
            late.ledger = MaterialLedger(place / "parties" / "a")
            return await Overheard(place / "clients" / "stranger").all_words()

    assert not [words for words in asyncio.run(main()) if "used.json" in str(words)]


def test_a_party_that_comes_without_terms_is_refused(place):
    class Silent(PrivateFolder):
        def introduction(self, greeting):
            text = Hello.signed_text(greeting, "party", self.name, None)
            return Hello("party", self.name, None, self.sign(text))

    async def main():
        async with serving(*three(place)[2:]):
            folder = Silent(place / "parties" / "a")
            line, greeting = await dial(folder, "c", PATIENCE)
            await line.send_record(folder.introduction(greeting))
            await line.receive(WORDS)

    with pytest.raises(StateError, match="party 'a' says nothing of what it asks"):
        asyncio.run(main())


def words_to(place, name, record):
    """What a party answers whoever sends it records, made from its greeting."""

    async def main():
        async with serving(*three(place)):
            line, greeting = await dial(anna(place), name, PATIENCE)
            for each in record(greeting):
                await line.send_record(each)
            try:
                return [json.loads(await line.receive(WORDS)), await line.receive(WORDS)]
            finally:
                await line.close()

    return asyncio.run(main())


def test_an_introduction_is_good_for_its_own_connection_alone(place):
    """Not for a later one, not for another party's, and not under ben's own key."""
    folder, ben = anna(place), PrivateFolder(place / "clients" / "ben")
    kept = []

    def recorded(greeting):
        kept.append(folder.introduction(greeting))
        return [kept[0], kept[0]]

    with pytest.raises(StateError, match="client 'anna' says nothing of what it asks"):
        words_to(place, "a", recorded)  # who introduces itself twice is asked no third time
    for name in "ab":
        with pytest.raises(StateError, match="no client of this name and key may ask here: 'anna'"):
            words_to(place, name, lambda _: kept)
    signed = lambda greeting: [replace(ben.introduction(greeting), name="anna")]  # noqa: E731
    with pytest.raises(StateError, match="no client of this name and key may ask here: 'anna'"):
        words_to(place, "a", signed)
    as_party = lambda greeting: [replace(folder.introduction(greeting), role="party")]  # noqa: E731
    with pytest.raises(StateError, match="no party of this name and key may ask here: 'anna'"):
        words_to(place, "a", as_party)
    assert {MaterialLedger(place / "parties" / name).next for name in NAMES} == {0}


@pytest.mark.parametrize(
    "change",
    [
        {"terms": {}},
        {"terms": []},
        {"terms": "null"},
        {"role": "owner"},
        {"role": None},
        {"name": "\ud800"},
        {"name": "a" * 201},
        {"name": ["anna"]},
        {"name": ""},
        {"signature": ""},
        {"signature": "\u00e9"},
        {"signature": "A" * 201},
        {"next": 0},
        None,
    ],
    ids=str,
)
def test_introductions_that_are_none_tell_nothing(place, network, eyes, change):
    """Whatever a field holds, the sender is told no number, and others are answered after it."""

    def broken(greeting):
        if change is None:
            return [b""]
        hello = anna(place).introduction(greeting)
        return [json.dumps(vars(hello) | change).encode()]

    async def main():
        async with serving(*three(place)):
            line, greeting = await dial(anna(place), "a", PATIENCE)
            await line.send(WORDS, broken(greeting)[0])
            with pytest.raises(StateError, match=r"no Hello|no client of this name and key"):
                await line.receive(WORDS)
            await line.close()
            return await ask(anna(place), *eyes, PATIENCE)

    assert np.abs(asyncio.run(main()).values - wanted(network, eyes)).max() < 2e-5


class Tells(PredictionParty):
    """A party that answers introductions with words of its own."""

    words = b""

    async def greet(self, line):
        greeting = agreement.Greeting(self.name, self.agreement.digest, new_nonce())
        await line.send_record(greeting)
        await self.read_hello(line, greeting)
        await line.send(WORDS, self.words)
        hello = await self.read_hello(line, greeting)
        return hello, hello.terms


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (b"", "party 'c': no UnusedMaterial"),
        (b"null", "party 'c': no UnusedMaterial"),
        (b"{}", "party 'c': no UnusedMaterial: next"),
        (b'{"next": -1}', "party 'c': no UnusedMaterial: next"),
        (b'{"next": 0.5}', "party 'c': no UnusedMaterial: next"),
        (b'{"next": [0]}', "party 'c': no UnusedMaterial: next"),
        (b'{"next": 0, "start": 0}', "party 'c': no UnusedMaterial: start"),
        (b'{"next": 21}', "party 'c' says that more material was used than was dealt"),
        (b'{"next": 1%s}' % (b"0" * 4000), "party 'c' says that more material was used than"),
        (b'{"next": 1%s}' % (b"0" * 4090), "party 'c' sent 4,1.. bytes, and at most 4096 were"),
        (b'{"next": 20}', "image 20 of 20 was asked for and 0 is next here: a party calls more"),
    ],
    ids=lambda given: given[:24] if isinstance(given, bytes) else "",
)
def test_a_party_that_lies_about_what_is_unused_costs_no_material(place, eyes, words, said):
    """It can keep a question from being answered, as it can by silence; nothing is spent by it, and
    nobody is sent to the owner for new folders."""
    refused(place, eyes, said, c=type("Lies", (Tells,), {"words": words}))
    assert {MaterialLedger(place / "parties" / name).next for name in "ab"} == {0}


def test_strangers_are_shown_the_door(place, eyes, monkeypatch):
    """One that says nothing is put out in time, and at once where somebody else comes."""
    monkeypatch.setattr(connection, "HANDSHAKE", 1.0)
    monkeypatch.setattr(party, "MOST_CONNECTIONS", 2)
    monkeypatch.setattr(connection.Line.__init__, "__defaults__", (1.0,))

    async def main():
        parties = three(place)
        async with serving(*parties):
            folder = anna(place)
            lines = [(await dial(folder, "a", PATIENCE))[0] for _ in range(2)]
            found = await ask(folder, *eyes, PATIENCE)
            with pytest.raises(StateError, match="party 'a' hung up"):
                await lines[0].receive(DATA, exact=1)
            with pytest.raises(StateError, match=r"127.0.0.1 did not answer in 1 s"):
                await lines[1].receive(DATA, exact=1)
            while parties[0].unknown_peers or parties[0].known_peers:
                await asyncio.sleep(0.01)
            return found

    asyncio.run(asyncio.wait_for(main(), 30))


def test_strangers_cannot_count_who_is_being_answered(place, monkeypatch):
    """As many of them are let in while anna asks as while nobody does."""
    monkeypatch.setattr(party, "MOST_CONNECTIONS", 3)
    folder = anna(place)

    async def let_in():
        lines = [(await dial(folder, "a", PATIENCE))[0] for _ in range(5)]
        await asyncio.sleep(0.1)
        still = sum(not line.reader.at_eof() for line in lines)
        for line in lines:
            await line.close()
        return still

    async def main():
        parties = three(place)
        async with serving(*parties):
            before = await let_in()
            line, greeting = await dial(folder, "a", PATIENCE)
            terms = Terms(folder.agreement.digest, new_nonce(), "anna", 0, 1)
            await line.send_record(folder.hello(greeting, "client", terms))
            while not parties[0].busy.locked():
                await asyncio.sleep(0.01)
            during = await let_in()
            await line.close()
            return before, during

    assert asyncio.run(main()) == (3, 3)


def test_a_known_client_cannot_hold_more_than_its_share(place, monkeypatch):
    monkeypatch.setattr(party, "MOST_CONNECTIONS", 1)
    folder = anna(place)

    async def main():
        async with serving(*three(place)):
            lines = []
            for _ in range(2):
                line, greeting = await dial(folder, "a", PATIENCE)
                await line.send_record(folder.introduction(greeting))
                lines.append(line)
                await line.receive(WORDS)

    with pytest.raises(StateError, match="party 'a': 1 connections are open: ask again"):
        asyncio.run(main())


def test_another_server_at_a_party_s_address_is_noticed(place, eyes):
    """Party b at the address of a: its certificate is of another authority."""
    folder = place / "clients" / "anna"
    addresses = dict(PrivateFolder(folder).addresses.parties)
    write_addresses(folder, "anna", addresses | {"a": addresses["b"]})
    refused(place, eyes, f"who answers at {addresses['b']} is not party 'a': another key")


def test_a_certificate_whose_time_is_over_is_called_so(network, eyes, tmp_path, monkeypatch):
    monkeypatch.setattr(keys, "DAYS", -0.5)
    place, addresses = tmp_path / "dealt", dict.fromkeys(NAMES, "127.0.0.1:1")
    sharing.share_network(network, IMAGE, addresses, ["anna"], place, 1)
    moved(place)
    refused(place, eyes, "the certificate of party 'a' has expired: ask the model's owner")


def test_a_party_that_is_not_there(place, eyes):
    async def main():
        async with serving(*three(place)[:2]):
            await ask(anna(place), *eyes, PATIENCE)

    with pytest.raises(StateError, match=r"party 'c' does not answer at 127.0.0.1:"):
        asyncio.run(main())


def test_folders_of_two_dealings_do_not_go_together(place, eyes):
    """Even with the same keys: a client that has another agreement asks nobody."""
    file = place / "clients" / "anna" / "agreement.json"
    table = json.loads(file.read_text())
    file.write_text(json.dumps(table | {"images": 21}))
    refused(place, eyes, "party 'a' serves another network or dealing")
    file.write_text(json.dumps(table | {"parties": {n: ["0", "0"] for n in NAMES}}))
    with pytest.raises(StateError, match="certificate or key of 'a' is another one"):
        asyncio.run(ask(anna(place), *eyes))


def test_a_party_refuses_terms_of_another_dealing(place, eyes):
    class Careless(PrivateFolder):
        def hello(self, greeting, role, terms):
            return super().hello(greeting, role, terms and replace(terms, agreement="0" * 64))

    async def main():
        async with serving(*three(place)):
            await ask(Careless(place / "clients" / "anna"), *eyes, PATIENCE)

    with pytest.raises(StateError, match="client 'anna' asks about another network or dealing"):
        asyncio.run(main())


# --- parties


class Sends(PredictionParty):
    """A party that sends other frames than are due."""

    frames: tuple[bytes, ...] = ()

    async def compute_share(self, terms, lines, x, side_inputs):
        self.ledger.spend(terms, self.agreement.images)
        for line in lines.values():
            line.writer.write(b"".join(self.frames))
        await asyncio.sleep(0.3)
        raise StateError("enough")


FIRST = 2 * 20 * 22 * 8


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (HEADER.pack(DATA, 1, FIRST - 8), f"'b' sent {FIRST - 8:,} bytes, and {FIRST} were due"),
        (HEADER.pack(DATA, 1, 1 << 60), rf"'b' sent {1 << 60:,} bytes, and {FIRST} were due"),
        (HEADER.pack(DATA, 2, FIRST), "'b' sent frame d of step 2, and d of step 1 was due"),
        (HEADER.pack(WORDS, 1, FIRST), "'b' sent frame w of step 1, and d of step 1 was due"),
        (HEADER.pack(b"f", 0, 6) + b"no\x1b[2J", r"party 'b': no\\x1b\[2J"),
        (b"", "enough"),
    ],
    ids=("short", "long", "step", "kind", "terminal", "none"),
)
def test_frames_that_are_not_due_end_the_question(place, eyes, frame, said):
    refused(place, eyes, said, b=type("Lies", (Sends,), {"frames": (frame,)}))
    assert MaterialLedger(place / "parties" / "a").next == 2


def test_a_step_that_is_sent_again_is_refused(place, eyes):
    """The first step twice: the second time, the second one was due."""
    frame = HEADER.pack(DATA, 1, FIRST) + bytes(FIRST)
    lies = type("Repeats", (Sends,), {"frames": (frame, frame)})
    refused(place, eyes, "'b' sent frame d of step 1, and d of step 2 was due", b=lies)


def test_a_party_that_falls_silent_is_named(place, eyes, monkeypatch):
    monkeypatch.setattr(f"{__name__}.PATIENCE", 2.0)

    class Silent(PredictionParty):
        async def compute_share(self, terms, lines, x, side_inputs):
            await asyncio.sleep(6)

    refused(place, eyes, f"party 'b' did not answer in {PATIENCE:g} s", b=Silent)


def test_a_party_that_was_asked_something_else_is_noticed(place, eyes):
    """A party that names other material to one it meets would have that one open it out of turn."""

    class Elsewhere(PredictionParty):
        async def connect_parties(self, terms, lines):
            await super().connect_parties(replace(terms, start=terms.start + 4), lines)

    refused(place, eyes, "party 'a' was asked something else in this session", a=Elsewhere)
    assert MaterialLedger(place / "parties" / "b").next == 0


def test_nothing_is_opened_before_all_have_come(place, eyes):
    """A party that two others wait for costs no material."""

    class Away(PredictionParty):
        async def connect_parties(self, terms, lines):
            raise StateError("away")

    refused(place, eyes, "away", c=Away)
    assert {MaterialLedger(place / "parties" / name).next for name in "ab"} == {0}


def test_a_party_cannot_have_all_material_skipped(place, eyes):
    """It calls far more used than is; the honest ones do not follow, and lose nothing."""

    class Greedy(PredictionParty):
        async def greet(self, line):
            self.ledger = type("Ahead", (), {"next": AHEAD + 1, "check": lambda *_: None})()
            return await super().greet(line)

    for name in NAMES:
        file = place / "parties" / name / "agreement.json"
        file.write_text(file.read_text().replace('"images": 20', '"images": 2000'))
    file = place / "clients" / "anna" / "agreement.json"
    file.write_text(file.read_text().replace('"images": 20', '"images": 2000'))
    refused(place, eyes, f"a party that calls more than {AHEAD} images used", c=Greedy)
    assert {MaterialLedger(place / "parties" / name).next for name in "ab"} == {0}


class Shifts(PredictionParty):
    """A party that adds an angle of its choice to its share of the answer."""

    async def compute_share(self, terms, lines, x, side_inputs):
        return await super().compute_share(terms, lines, x, side_inputs) + encode(np.array(0.3))


def test_a_party_can_shift_an_answer_by_what_it_likes(place, network, eyes):
    """As docs/how-to/private_inference.md says: shares carry no proof, and nobody notices."""

    async def main():
        async with serving(*three(place, c=Shifts)):
            return await ask(anna(place), *eyes, PATIENCE)

    assert np.abs(asyncio.run(main()).values - 0.3 - wanted(network, eyes)).max() < 2e-5


@pytest.mark.parametrize("start", [-1, 0.5, "0", True, 10**6, 10**3000])
def test_a_question_about_impossible_material_is_refused_in_a_short_line(place, start):
    """Digits of a client's number would otherwise fill the line that the party prints."""

    async def main():
        async with serving(*three(place)):
            line, greeting = await dial(anna(place), "b", PATIENCE)
            terms = Terms(anna(place).agreement.digest, new_nonce(), "anna", start, 1)
            await line.send_record(anna(place).hello(greeting, "client", terms))
            await line.receive(DATA, exact=16)

    with pytest.raises(StateError, match=r"no Hello: terms\.start|no client of this") as refused:
        asyncio.run(main())
    assert len(str(refused.value)) < 200


def test_a_stranger_cannot_stand_in_for_a_party(place):
    """A client's key does not sign for a party, and a party's not for a client."""

    async def main(role, folder):
        async with serving(*three(place)):
            line, greeting = await dial(folder, "c", PATIENCE)
            terms = Terms(folder.agreement.digest, new_nonce(), folder.name, 0, 1)
            await line.send_record(folder.hello(greeting, role, terms))
            await line.receive(DATA, exact=1)

    with pytest.raises(StateError, match="no party of this name and key may ask here: 'anna'"):
        asyncio.run(main("party", anna(place)))
    with pytest.raises(StateError, match="no client of this name and key may ask here: 'a'"):
        asyncio.run(main("client", PrivateFolder(place / "parties" / "a")))


def test_a_name_never_leads_out_of_the_folder_of_keys(place):
    """The key of a name is looked for among the files that are there."""
    folder = anna(place)
    greeting = agreement.Greeting("a", "", "")
    terms = Terms("", "", "anna", 0, 1)
    text = Hello.signed_text(greeting, "party", "../clients/anna", terms)
    hello = Hello("party", "../clients/anna", terms, folder.sign(text))
    party_folder = PrivateFolder(place / "parties" / "a")
    assert not party_folder.is_genuine(greeting, hello)
    signed = folder.hello(greeting, "client", terms)
    assert party_folder.is_genuine(greeting, signed)


def test_an_answer_that_is_no_angle_is_not_told(place, tmp_path):
    """A lying party spoils answers; the client notices where what comes out cannot be."""

    class Spoils(PredictionParty):
        async def compute_share(self, terms, lines, x, side_inputs):
            share = await super().compute_share(terms, lines, x, side_inputs)
            return share + np.uint64(1 << 23)

    np.savez(tmp_path / "eyes.npz", **pictures(2))

    async def main():
        async with serving(*three(place, b=Spoils)):
            await asyncio.to_thread(
                predict, place / "clients" / "anna", tmp_path / "eyes.npz", tmp_path / "x.csv"
            )

    with pytest.raises(StateError, match="no angle: a party sent something wrong"):
        asyncio.run(main())
    assert not (tmp_path / "x.csv").exists()


# --- folders and commands


def pictures(count, image=IMAGE):
    dice = np.random.default_rng(4)
    return {
        "image": dice.integers(0, 256, (count, *image), dtype=np.uint8),
        "pose": dice.uniform(-0.3, 0.3, (count, 2)).astype(np.float32),
    }


def test_folders_that_cannot_be_used(place, tmp_path):
    with pytest.raises(StateError, match=r"clients.anna is not a party's folder"):
        PredictionParty(place / "clients" / "anna")
    with pytest.raises(StateError, match=r"no agreement.json"):
        PredictionParty(tmp_path)
    for name in SECRETS:
        secret = place / "parties" / "b" / name
        secret.chmod(0o644)
        with pytest.raises(StateError, match=f"{name} can be read by others"):
            PredictionParty(place / "parties" / "b")
        secret.chmod(0o600)
    shutil.copy(place / "parties" / "a" / "agreement.json", tmp_path / "agreement.json")
    np.savez(place / "parties" / "c" / "weights.npz", x=np.zeros(3))
    with pytest.raises(StateError, match="shares of another network"):
        PredictionParty(place / "parties" / "c")
    toml = place / "parties" / "a" / "parties.toml"
    toml.write_text(toml.read_text().replace("a = ", "z = "))
    with pytest.raises(ConfigError, match="parties are a, b, c, in this order; got z, b, c"):
        PredictionParty(place / "parties" / "a")


def test_arguments_of_the_owner(tmp_path):
    def shared(**change):
        given = {"parties": {"a": "x:1", "b": "y:2"}, "clients": ["anna"], "images": 1}
        sharing.check_arguments(**given | {"out": tmp_path / "new"} | change)

    shared()
    with pytest.raises(ConfigError, match="2 to 5 parties; got 1"):
        shared(parties={"a": "x:1"})
    with pytest.raises(ConfigError, match="name those who may ask"):
        shared(clients=[])
    with pytest.raises(DataError, match="is there twice"):
        shared(clients=["a"])
    with pytest.raises(ConfigError, match="an address is HOST:PORT"):
        shared(parties={"a": "x", "b": "y:2"})
    with pytest.raises(ConfigError, match="--images from 1 to 100000; got 0"):
        shared(images=0)
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "file").touch()
    with pytest.raises(StateError, match="is not empty"):
        shared()


def test_a_network_that_does_more_than_its_layers_say_is_refused(tmp_path):
    """This one rectifies after its convolutions, which no layer says."""
    rectified = SmallCnnNet(IMAGE, 2, (2, 3), 8, pad=False, side_inputs=2).eval()
    with pytest.raises(ConfigError, match="on shares this network is off by"):
        sharing.share_network(rectified, IMAGE, dict.fromkeys("ab", "x:1"), ["c"], tmp_path, 1)
    assert not list(tmp_path.iterdir())


def test_a_file_without_images(place, tmp_path):
    np.savez(tmp_path / "eyes.npz", pose=np.zeros((1, 2), np.float32))
    with pytest.raises(DataError, match="has no column image"):
        predict(place / "clients" / "anna", tmp_path / "eyes.npz", tmp_path / "x.csv")


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3])
def test_three_processes_with_tls_from_the_command_line(count, tmp_path):
    """A run's model, parties as processes of their own: the same angles as by the run itself."""
    from vergence.model_tools.onnx_export import opened, params_and_probe
    from vergence.training.pruning import bind_parameters

    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}

    def vergence(*words):
        return [sys.executable, "-m", "vergence", *map(str, words)]

    def run(*words):
        subprocess.run(vergence(*words), cwd=tmp_path, env=environment, check=True)

    (tmp_path / "eyes.toml").write_text(
        'task = { name = "gaze_angle" }\nmodel = { name = "lenet", channels = [4, 8] }\n'
        'federation = { name = "eye_synthetic", people = 3, samples = 60 }\n'
        'method = { name = "fedavg" }\n'
        "local = { epochs = 1, batch = 20 }\nrun = { rounds = 1, seeds = [0] }\n"
    )
    run("run", "eyes.toml", "--out", "run")
    ports = zip(NAMES[:count], free_ports(count), strict=True)
    addresses = ",".join(f"{name}=127.0.0.1:{port}" for name, port in ports)
    options = ("--parties", addresses, "--clients", "anna", "--images", 8, "--out", "dealt")
    run("privacy", "share", "run", *options)
    np.savez(tmp_path / "eyes.npz", **pictures(3, (1, 36, 60)))
    processes = [
        subprocess.Popen(
            vergence("privacy", "party", f"dealt/parties/{name}"),
            cwd=tmp_path,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in NAMES[:count]
    ]
    try:
        for each in processes:
            assert "material for 8 images" in each.stderr.readline()
        for attempt in range(2):
            run("predict", "dealt/clients/anna", "eyes.npz", "--private", "--out", f"{attempt}.csv")
    finally:
        for each in processes:
            each.terminate()
            each.wait(20)
            each.stderr.close()
    trained, _ = opened(tmp_path / "run", None, None)
    model = bind_parameters(trained.task.module(), params_and_probe(trained, None)[0])
    batch = {name: torch.from_numpy(a) for name, a in pictures(3, (1, 36, 60)).items()}
    with torch.no_grad():
        plain = trained.task.forward(model, batch).numpy()
    for attempt in range(2):
        told = np.loadtxt(tmp_path / f"{attempt}.csv", delimiter=",", skiprows=1)
        assert np.abs(told[:, 1:] - plain).max() < 2e-5
        assert np.all(np.abs(told[:, 1:]) < math.pi)
    assert all(one < two for one, two in pairwise([0, *told[:, 0] + 1]))
    assert client.PATIENCE == party.PATIENCE


def test_a_run_in_place_of_a_client_s_folder_is_named_before_the_file_is_read(tmp_path):
    (tmp_path / "wearer.mp4").write_bytes(b"a video")
    with pytest.raises(StateError, match=r"no folder of a private prediction.*DIR/clients/NAME"):
        predict(tmp_path, tmp_path / "wearer.mp4", tmp_path / "out.csv")
