"""A party of a private prediction: holds shares of a network, and computes on shares of images."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import prod
from pathlib import Path

import numpy as np

from vergence.console import note
from vergence.core.naming import plural
from vergence.data.io.checks import read_npz
from vergence.deployment.diagnostics import listening, parted
from vergence.deployment.folders import NODE, running
from vergence.deployment.private_inference.agreement import (
    MATERIAL,
    SEED,
    WEIGHTS,
    Greeting,
    Hello,
    MaterialLedger,
    PrivateFolder,
    Terms,
    UnusedMaterial,
    new_nonce,
    parsed,
)
from vergence.deployment.private_inference.connection import (
    DATA,
    HANDSHAKE,
    WORDS,
    Line,
    dial,
    server_context,
)
from vergence.deployment.private_inference.party_seed import PartySeed, closed
from vergence.errors import StateError, VergenceError, printable
from vergence.privacy.inference.correlations import Holder
from vergence.privacy.inference.ring import Words, combined
from vergence.privacy.inference.shared_network import Opened, Opening, PartyShares, forward, held

PATIENCE = 60.0
"""Seconds that a party or a client waits for what is due."""
SECRETS = (SEED, WEIGHTS, NODE, "server.key")
"""Files of a party's folder that nobody else may read."""
MOST_CONNECTIONS = 64
"""Open at once of those who are known, and as many of others. They are counted apart, so that
nobody sees in how many strangers are let in how many questions are being answered."""


class Party:
    """One computing party.

    Args:
        folder: what the owner dealt it.
        patience: seconds that it waits for what is due.

    Raises:
        StateError: a file is missing, damaged, or can be read by others.
    """

    def __init__(self, folder: Path, patience: float = PATIENCE) -> None:
        self.folder, self.patience = PrivateFolder(folder), patience
        self.agreement, self.name = self.folder.agreement, self.folder.name
        self.order = list(self.agreement.parties)
        if self.name not in self.order or not (folder / SEED).is_file():
            raise StateError(f"{folder} is not a party's folder; give DIR/parties/NAME")
        self.ledger = MaterialLedger(folder)
        self.weights = self._weights(folder / WEIGHTS)
        self.seed = PartySeed(folder / SEED)
        for name in SECRETS:
            closed(folder / name)
        self.busy = asyncio.Lock()
        self.strangers: list[Line] = []
        self.known: list[Line] = []
        self.sent = self.rounds = 0
        self.waiting: dict[str, tuple[Terms, Line]] = {}
        self.arrived = asyncio.Condition()

    def _weights(self, path: Path) -> dict[str, Words]:
        wanted = self.agreement.network.weights
        found = read_npz(path, {}, "the shares that the owner dealt", optional=None)
        if {k: (a.dtype.str, a.shape) for k, a in found.items()} != {
            k: ("<u8", tuple(shape)) for k, shape in wanted.items()
        }:
            raise StateError(f"{path} holds shares of another network")
        return found

    async def serve(self, ready: asyncio.Event | None = None) -> None:
        """Answer for ever.

        Raises:
            StateError: the address cannot be listened on.
        """
        address = self.folder.addresses.parties[self.name]
        host, port = listening(address), parted(address)[1]
        left = (
            self.agreement.images - self.ledger.next
        )  # before a socket is open: it may be damaged
        try:
            server = await asyncio.start_server(
                self.entered,
                host,
                port,
                ssl=server_context(self.folder),
                ssl_handshake_timeout=HANDSHAKE,
            )
        except OSError as error:
            raise StateError(f"cannot listen on {host}:{port}: {error.strerror}") from None
        note(f"party '{self.name}' listens on {host}:{port}, with material for {left} images")
        if ready is not None:
            ready.set()
        try:
            async with server:
                await server.serve_forever()
        finally:
            for _, line in self.waiting.values():
                await line.close()

    async def entered(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Let somebody in who may, and tell others why not.

        One stranger too many puts out the one that came first: those who say nothing keep nobody
        from being let in.
        """
        host = (writer.get_extra_info("peername") or ("somebody",))[0]
        line = Line(reader, writer, str(host))
        self.strangers.append(line)
        if len(self.strangers) > MOST_CONNECTIONS:
            self.strangers.pop(0).writer.transport.abort()
        kept = False
        try:
            hello, terms = await self.introduced(line)
            if hello.role == "party":
                kept = await self.stood_by(hello.name, terms, line)
            else:
                await self.asked(terms, line)
        except VergenceError as error:
            note(f"refused: {printable(str(error))}")
            await line.fail(str(error))
        finally:
            for there in (self.strangers, self.known):
                if line in there:
                    there.remove(line)
            if not kept:
                await line.close()

    async def introduced(self, line: Line) -> tuple[Hello, Terms]:
        """Greet somebody, and hear who it is and what is asked.

        Only a known client is told which material is unused: from day to day that says when, and
        about how many images, a party is asked.

        Raises:
            StateError: unknown, or about another dealing.
        """
        greeting = Greeting(self.name, self.agreement.digest, new_nonce())
        await line.tell_record(greeting)
        hello = await self.believed(line, greeting)
        if hello.terms is None and hello.role == "client":
            await line.tell_record(UnusedMaterial(self.ledger.next))
            hello = await self.believed(line, greeting)
        if hello.terms is None:
            raise StateError(f"{line.who} says nothing of what it asks")
        if hello.terms.agreement != self.agreement.digest:
            raise StateError(f"{line.who} asks about another network or dealing")
        if hello.role == "client" and hello.terms.client != hello.name:
            raise StateError(f"{line.who} asks in the name of another")
        return hello, hello.terms

    async def believed(self, line: Line, greeting: Greeting) -> Hello:
        """Hear an answer to a greeting from somebody who is known.

        Raises:
            StateError: it is nobody who may ask, or too many are there.
        """
        hello = parsed(Hello, await line.take(WORDS), line.who)
        if not self.folder.believes(greeting, hello):
            raise StateError(
                f"no {hello.role} of this name and key may ask here: '{printable(hello.name)}'"
            )
        line.who, line.patience = f"{hello.role} '{hello.name}'", self.patience
        if line in self.strangers:
            self.strangers.remove(line)
            if len(self.known) >= MOST_CONNECTIONS:
                raise StateError(f"{MOST_CONNECTIONS} connections are open: ask again")
            self.known.append(line)
        return hello

    async def stood_by(self, name: str, terms: Terms, line: Line) -> bool:
        """Keep another party's connection for its session, one of each party."""
        async with self.arrived:
            if name in self.waiting:
                await self.waiting.pop(name)[1].close()
            self.waiting[name] = terms, line
            self.arrived.notify_all()
        return True

    async def asked(self, terms: Terms, line: Line) -> None:
        """Answer a client's question.

        Raises:
            StateError: it cannot be answered; its material may be used up all the same.
        """
        if self.busy.locked():
            raise StateError("another question is being answered: ask again")
        async with self.busy:
            self.ledger.check(terms, self.agreement.images)
            network = self.agreement.network
            pixels = prod(network.image)
            size = 8 * terms.images * (pixels + network.beside)
            rows = _words(await line.take(DATA, exact=size)).reshape(terms.images, -1)
            x = rows[:, :pixels].reshape(-1, *network.image)
            begun = time.perf_counter()
            work = asyncio.ensure_future(self.together(terms, x, rows[:, pixels:]))
            left = asyncio.ensure_future(line.reader.read(1))  # a client has nothing more to say
            await asyncio.wait({work, left}, return_when=asyncio.FIRST_COMPLETED)
            left.cancel()
            if not work.done():
                work.cancel()
                await asyncio.wait({work})  # before another question begins
                raise StateError(f"{line.who} left, or spoke too much")
            await line.tell(DATA, work.result().tobytes())
            told = f"{terms.images} images from {terms.start} for '{terms.client}'"
            seconds = time.perf_counter() - begun
            cost = f"{self.sent:,} bytes in {plural(self.rounds, 'round')} to the others"
            note(f"answered: {told}, {seconds:.2f} s, {cost}")

    async def together(self, terms: Terms, x: Words, beside: Words) -> Words:
        """Meet the other parties and compute with them; tell them if that fails here.

        Raises:
            StateError: it fails, here or there.
        """
        lines: dict[str, Line] = {}
        try:
            await self.meet(terms, lines)
            return await self.computed(terms, lines, x, beside)
        except VergenceError as error:
            for each in lines.values():
                await each.fail(str(error))
            raise
        finally:
            self.sent = sum(each.sent for each in lines.values())
            await asyncio.gather(*(each.close() for each in lines.values()))

    async def meet(self, terms: Terms, lines: dict[str, Line]) -> None:
        """Connect with all other parties about one question: the lower in order dials.

        Raises:
            StateError: one does not come, or comes about another question.
        """
        own = self.order.index(self.name)
        for party in self.order[own + 1 :]:
            lines[party], greeting = await dial(self.folder, party, self.patience)
            await lines[party].tell_record(self.folder.hello(greeting, "party", terms))
        for party in self.order[:own]:
            lines[party] = await self.expected(party, terms)
        ready = [self.ready(line) for line in lines.values()]  # all are there before one number is
        await asyncio.gather(*ready)

    async def ready(self, line: Line) -> None:
        """Tell another party that this one is there, and hear the same."""
        await line.tell(WORDS, b"")
        await line.take(WORDS, exact=0)

    async def expected(self, party: str, terms: Terms) -> Line:
        """Connection of another party about this question.

        Raises:
            StateError: it does not come in time, or comes with other terms.
        """

        def there() -> bool:
            return party in self.waiting and self.waiting[party][0].session == terms.session

        async with self.arrived:
            try:
                await asyncio.wait_for(self.arrived.wait_for(there), self.patience)
            except TimeoutError:
                raise StateError(
                    f"party '{party}' did not come in {self.patience:g} s: is it running, and was "
                    "it asked, too?"
                ) from None
            found, line = self.waiting.pop(party)
        if found != terms:
            await line.close()
            raise StateError(f"party '{party}' was asked something else in this session")
        return line

    async def computed(
        self, terms: Terms, lines: Mapping[str, Line], x: Words, beside: Words
    ) -> Words:
        """This party's share of the answers.

        Raises:
            StateError: material was used or is damaged, or a party sent what was not due.
        """
        first = self.name == self.order[0]
        self.ledger.spend(terms, self.agreement.images)
        seeds = self.seed.take(terms.start, terms.images)
        holders = [self.holder(terms.start + i, seed, first) for i, seed in enumerate(seeds)]
        records = await asyncio.to_thread(held, self.agreement.network, holders)
        mine = PartyShares(first, self.weights, records)
        talk = forward(self.agreement.network, mine, x, beside)
        opened, step = None, 0
        while True:
            told, share = await asyncio.to_thread(_next, talk, opened)
            if share is not None:
                self.rounds = step
                return share
            step += 1
            opened = await exchanged(told, list(lines.values()), step)

    def holder(self, unit: int, seed: bytes, first: bool) -> Holder:
        """Material of one image, which is deleted.

        Raises:
            StateError: it is missing.
        """
        if not first:
            return Holder(seed, unit, None)
        path = self.folder.path / MATERIAL / f"{unit:06d}.bin"
        try:
            found = path.read_bytes()
            path.unlink()
        except OSError as error:
            raise StateError(f"{path}: {error.strerror}; ask the model's owner") from None
        return Holder(seed, unit, found)


def _next(talk: Opening[Words], opened: Opened | None) -> tuple[Opened, Words | None]:
    try:
        return talk.send(opened), None  # type: ignore[arg-type]
    except StopIteration as end:
        return (), end.value


async def exchanged(mine: Opened, lines: Sequence[Line], step: int) -> Opened:
    """Arrays as they open, when every party has sent its share of them.

    Raises:
        StateError: a party sent something of another step or size, or nothing in time.
    """
    payload = b"".join(array.tobytes() for array in mine)
    await asyncio.gather(*(line.tell(DATA, payload, step) for line in lines))
    others = await asyncio.gather(*(line.take(DATA, step, len(payload)) for line in lines))
    found, at = [], 0
    for array in mine:
        cut = [np.frombuffer(o, array.dtype, array.size, at).reshape(array.shape) for o in others]
        found.append(combined([array, *cut]))
        at += array.nbytes
    return tuple(found)


def _words(data: bytes) -> Words:
    return np.frombuffer(data, np.uint64)


def serve(folder: Path, patience: float = PATIENCE) -> None:
    """Serve one party until somebody ends it.

    Raises:
        StateError: the folder is unusable, or served already.
    """

    async def main() -> None:
        await Party(folder, patience).serve()

    with running(folder), suppress(KeyboardInterrupt):
        asyncio.run(main())
