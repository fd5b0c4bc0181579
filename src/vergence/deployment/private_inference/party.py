"""Party of a private prediction: has shares of a network, and computes on shares of images.

Used by `cli.privacy` and `deployment.private_inference.client`.
"""

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
from vergence.deployment.diagnostics import host_and_port, listen_address
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
from vergence.deployment.private_inference.party_seed import PartySeed, check_secret_file
from vergence.errors import StateError, VergenceError, printable
from vergence.privacy.inference.correlations import Holder
from vergence.privacy.inference.ring import Words, combined
from vergence.privacy.inference.shared_network import (
    Opened,
    Opening,
    PartyShares,
    forward,
    party_records,
)

PATIENCE = 60.0
"""Default of the seconds that a party or a client waits for each message."""
SECRETS = (SEED, WEIGHTS, NODE, "server.key")
"""Files of a party's folder that other users must not be able to read."""
MOST_CONNECTIONS = 64
"""Largest number of open connections to known peers; as many again may be open to unknown peers.

The two kinds are counted separately. Otherwise an outsider could see from the number of accepted
connections how many questions are being answered.
"""


class PredictionParty:
    """One party of a private prediction: it computes on its shares of network and images.

    Args:
        folder: the party's folder, made by `vergence privacy share`.
        patience: seconds that the party waits for each message.

    Raises:
        StateError: a file is missing or damaged, or other users can read a secret file.
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
            check_secret_file(folder / name)
        self.busy = asyncio.Lock()
        self.unknown_peers: list[Line] = []
        self.known_peers: list[Line] = []
        self.sent = self.rounds = 0
        self.waiting: dict[str, tuple[Terms, Line]] = {}
        self.arrived = asyncio.Condition()

    def _weights(self, path: Path) -> dict[str, Words]:
        wanted = self.agreement.network.weights
        shares = read_npz(path, {}, "the shares that the owner dealt", optional=None)
        if {k: (a.dtype.str, a.shape) for k, a in shares.items()} != {
            k: ("<u8", tuple(shape)) for k, shape in wanted.items()
        }:
            raise StateError(f"{path} holds shares of another network")
        return shares

    async def serve(self, ready: asyncio.Event | None = None) -> None:
        """Answer clients' questions until the process ends; set `ready` when connections work.

        Raises:
            StateError: the party cannot listen on its address.
        """
        address = self.folder.addresses.parties[self.name]
        host, port = listen_address(address), host_and_port(address)[1]
        # Before a socket is open: it may be damaged.
        left = self.agreement.images - self.ledger.next
        try:
            server = await asyncio.start_server(
                self.handle_connection,
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

    async def handle_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Handle a connection of another party or of a client; refuse anybody else."""
        host = (writer.get_extra_info("peername") or ("somebody",))[0]
        line = Line(reader, writer, str(host))
        self.unknown_peers.append(line)
        # The oldest unknown connection makes room for the newest: idle connections of an outsider
        # cannot keep anybody from being let in.
        if len(self.unknown_peers) > MOST_CONNECTIONS:
            self.unknown_peers.pop(0).writer.transport.abort()
        # Another party's connection is used by the question's own task, which closes it.
        is_used = False
        try:
            hello, terms = await self.greet(line)
            if hello.role == "party":
                is_used = await self.hold_connection(hello.name, terms, line)
            else:
                await self.answer_question(terms, line)
        except VergenceError as error:
            note(f"refused: {printable(str(error))}")
            await line.fail(str(error))
        finally:
            for peers in (self.unknown_peers, self.known_peers):
                if line in peers:
                    peers.remove(line)
            if not is_used:
                await line.close()

    async def greet(self, line: Line) -> tuple[Hello, Terms]:
        """Greet a peer; return its verified answer (hello), and the terms of its question.

        Raises:
            StateError: the peer is unknown, or has the folder of another agreement.
        """
        greeting = Greeting(self.name, self.agreement.digest, new_nonce())
        await line.send_record(greeting)
        hello = await self.read_hello(line, greeting)
        # Only a verified client is told which material is unused: watched from day to day, it
        # shows when, and about how many images, this party is asked.
        if hello.terms is None and hello.role == "client":
            await line.send_record(UnusedMaterial(self.ledger.next))
            hello = await self.read_hello(line, greeting)
        if hello.terms is None:
            raise StateError(f"{line.who} says nothing of what it asks")
        if hello.terms.agreement != self.agreement.digest:
            raise StateError(f"{line.who} asks about another network or dealing")
        # The name is in the signed terms and in logs: a client must not spend in another's name.
        if hello.role == "client" and hello.terms.client != hello.name:
            raise StateError(f"{line.who} asks in the name of another")
        return hello, hello.terms

    async def read_hello(self, line: Line, greeting: Greeting) -> Hello:
        """Read an answer to a greeting, and verify its signature.

        Raises:
            StateError: no known key signed it, or too many known peers are connected.
        """
        hello = parsed(Hello, await line.receive(WORDS), line.who)
        if not self.folder.is_genuine(greeting, hello):
            raise StateError(
                f"no {hello.role} of this name and key may ask here: '{printable(hello.name)}'"
            )
        line.who, line.patience = f"{hello.role} '{hello.name}'", self.patience
        if line in self.unknown_peers:
            self.unknown_peers.remove(line)
            if len(self.known_peers) >= MOST_CONNECTIONS:
                raise StateError(f"{MOST_CONNECTIONS} connections are open: ask again")
            self.known_peers.append(line)
        return hello

    async def hold_connection(self, name: str, terms: Terms, line: Line) -> bool:
        """Keep another party's connection until a question needs it; close an older one.

        Return True: the connection stays open.
        """
        async with self.arrived:
            if name in self.waiting:
                await self.waiting.pop(name)[1].close()
            self.waiting[name] = terms, line
            self.arrived.notify_all()
        return True

    async def answer_question(self, terms: Terms, line: Line) -> None:
        """Answer a client's question: receive shares of images, and send shares of the outputs.

        Raises:
            StateError: the question cannot be answered. Its correlations (random numbers, used
                once) may already be used up.
        """
        if self.busy.locked():
            raise StateError("another question is being answered: ask again")
        async with self.busy:
            self.ledger.check(terms, self.agreement.images)
            network = self.agreement.network
            pixels = prod(network.image)
            size = 8 * terms.images * (pixels + network.side_inputs)
            data = await line.receive(DATA, exact=size)
            rows = np.frombuffer(data, np.uint64).reshape(terms.images, -1)
            x = rows[:, :pixels].reshape(-1, *network.image)
            begun = time.perf_counter()
            work = asyncio.ensure_future(self.compute_with_others(terms, x, rows[:, pixels:]))
            # A client sends nothing more: any byte, or the end of the connection, ends the
            # question, so that a client that left does not occupy the party.
            hangup = asyncio.ensure_future(line.reader.read(1))
            await asyncio.wait({work, hangup}, return_when=asyncio.FIRST_COMPLETED)
            hangup.cancel()
            if not work.done():
                work.cancel()
                await asyncio.wait({work})  # before another question begins
                raise StateError(f"{line.who} left, or spoke too much")
            await line.send(DATA, work.result().tobytes())
            question = f"{terms.images} images from {terms.start} for '{terms.client}'"
            seconds = time.perf_counter() - begun
            cost = f"{self.sent:,} bytes in {plural(self.rounds, 'round')} to the others"
            note(f"answered: {question}, {seconds:.2f} s, {cost}")

    async def compute_with_others(self, terms: Terms, x: Words, side_inputs: Words) -> Words:
        """Connect to the other parties, and return this party's share of the outputs.

        If this party fails, it reports the error to the others.

        Raises:
            StateError: the computation failed, here or at another party.
        """
        lines: dict[str, Line] = {}
        try:
            await self.connect_parties(terms, lines)
            return await self.compute_share(terms, lines, x, side_inputs)
        except VergenceError as error:
            for each in lines.values():
                await each.fail(str(error))
            raise
        finally:
            self.sent = sum(each.sent for each in lines.values())
            await asyncio.gather(*(each.close() for each in lines.values()))

    async def connect_parties(self, terms: Terms, lines: dict[str, Line]) -> None:
        """Connect to all other parties for a question, and add the connections to `lines`.

        Of two parties, the first in the agreement's order opens the connection.

        Raises:
            StateError: a party does not connect, or connects for another question.
        """
        own = self.order.index(self.name)
        for party in self.order[own + 1 :]:
            lines[party], greeting = await dial(self.folder, party, self.patience)
            await lines[party].send_record(self.folder.hello(greeting, "party", terms))
        for party in self.order[:own]:
            lines[party] = await self.wait_for_party(party, terms)
        # All parties are connected before the first number is sent: a question that fails earlier
        # uses up no material.
        await asyncio.gather(*(self.exchange_ready(line) for line in lines.values()))

    async def exchange_ready(self, line: Line) -> None:
        """Tell another party that this one is ready, and wait until the other is ready, too."""
        await line.send(WORDS, b"")
        await line.receive(WORDS, exact=0)

    async def wait_for_party(self, party: str, terms: Terms) -> Line:
        """Wait until another party has connected for this question; return the connection.

        Raises:
            StateError: the party does not connect in time, or has other terms of the question.
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
            terms_of_party, line = self.waiting.pop(party)
        # A malicious client can ask two parties about different material. Numbers that they
        # opened together would not be hidden by the masks that were dealt for them.
        if terms_of_party != terms:
            await line.close()
            raise StateError(f"party '{party}' was asked something else in this session")
        return line

    async def compute_share(
        self, terms: Terms, lines: Mapping[str, Line], x: Words, side_inputs: Words
    ) -> Words:
        """Compute this party's share of the network's outputs.

        Raises:
            StateError: the correlations (random numbers, used once) were used before or are
                damaged, or a party sent a wrong message.
        """
        # Spent first, on the disk: a process that is killed in between must not use it again.
        first = self.name == self.order[0]
        self.ledger.spend(terms, self.agreement.images)
        seeds = self.seed.take(terms.start, terms.images)
        holders = [self.take_material(terms.start + i, seed, first) for i, seed in enumerate(seeds)]
        records = await asyncio.to_thread(party_records, self.agreement.network, holders)
        mine = PartyShares(first, self.weights, records)
        talk = forward(self.agreement.network, mine, x, side_inputs)
        opened, step = None, 0
        while True:
            to_open, share = await asyncio.to_thread(_next, talk, opened)
            if share is not None:
                self.rounds = step
                return share
            step += 1
            opened = await exchange_shares(to_open, list(lines.values()), step)

    def take_material(self, unit: int, seed: bytes, first: bool) -> Holder:
        """Return the correlations (random numbers) of image number `unit`.

        The first party reads them from a file, and deletes the file. The other parties compute
        theirs from `seed`.

        Raises:
            StateError: the file is missing.
        """
        if not first:
            return Holder(seed, unit, None)
        path = self.folder.path / MATERIAL / f"{unit:06d}.bin"
        try:
            material = path.read_bytes()
            path.unlink()
        except OSError as error:
            raise StateError(f"{path}: {error.strerror}; ask the model's owner") from None
        return Holder(seed, unit, material)


def _next(talk: Opening[Words], opened: Opened | None) -> tuple[Opened, Words | None]:
    try:
        return talk.send(opened), None  # type: ignore[arg-type]
    except StopIteration as end:
        return (), end.value


async def exchange_shares(mine: Opened, lines: Sequence[Line], step: int) -> Opened:
    """Exchange shares of arrays with all other parties; return the sums of the shares.

    Raises:
        StateError: a party sent a share of another step or size, or sent no share in time.
    """
    payload = b"".join(array.tobytes() for array in mine)
    await asyncio.gather(*(line.send(DATA, payload, step) for line in lines))
    others = await asyncio.gather(*(line.receive(DATA, step, len(payload)) for line in lines))
    arrays, at = [], 0
    for array in mine:
        cut = [np.frombuffer(o, array.dtype, array.size, at).reshape(array.shape) for o in others]
        arrays.append(combined([array, *cut]))
        at += array.nbytes
    return tuple(arrays)


def serve(folder: Path, patience: float = PATIENCE) -> None:
    """Run the party of a folder until the process ends.

    Raises:
        StateError: the folder cannot be used, or another process runs it.
    """
    with running(folder), suppress(KeyboardInterrupt):
        asyncio.run(PredictionParty(folder, patience).serve())
