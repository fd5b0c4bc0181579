"""Clients elsewhere: a crew that sends every call as bytes, and the home that answers them.

How bytes travel is a `Line`'s business. A home works from its disk alone, so that every errand may
be answered by a new process. Its state is staged: an errand names the file that counts, a turn
writes a new one beside it, and the next errand tells which of them counted. The same errand again
gets the stored answer.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from vergence.core.mask import Mask
from vergence.core.site import Federation, Samples, Splits
from vergence.core.state import digest, pack, unpack
from vergence.core.wire import Message, Sum, decode, encode, travelled
from vergence.engines.desk import Desk, heaviest, masks
from vergence.engines.job import Call, Job, Receipt, Result
from vergence.engines.journal import Filed
from vergence.engines.session import Session
from vergence.engines.shelf import Kept, Registry, Shelf
from vergence.engines.store import saving, write_whole
from vergence.engines.turn import Done, Order, Worker
from vergence.errors import StateError
from vergence.privacy.guards import fault

HEAD = 4
"""Bytes that give the length of an answer's note."""


class Lost(Exception):
    """No answer came: a line for the tables says why."""


class Line(Protocol):
    """Carries an errand to a client and brings the answer back; several threads use it at once."""

    def ask(self, client: str, errand: bytes) -> bytes:
        """Return the answer.

        Raises:
            Lost: there is none.
        """
        ...


@dataclass(frozen=True)
class Errand:
    """What a client is asked: a call, and what it needs to know of its job.

    Attributes:
        kind: `turn`, `evaluate`, or `digest` (of the state that counts).
        file: the state that counts; None: the client starts anew.
        known: trees whose mask the server has, as that state's `told` holds it.
        drop: states that nobody needs any more.
    """

    kind: str
    client: str
    message: Message
    stamp: str = ""
    file: str | None = None
    progress: float = 0.0
    points: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Elsewhere:
    """Stands for a state that lies with its client."""

    filed: Filed | None


def framed(note: Mapping[str, Any], body: bytes = b"") -> bytes:
    """Return a note and the bytes behind it."""
    head = json.dumps(note, separators=(",", ":")).encode()
    return len(head).to_bytes(HEAD, "little") + head + body


def unframed(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Undo `framed`.

    Raises:
        ValueError: this is none.
    """
    end = HEAD + int.from_bytes(data[:HEAD], "little")
    if len(data) < end:
        raise ValueError("it ends too early")
    note = json.loads(data[HEAD:end])
    if not isinstance(note, dict):
        raise ValueError("its note is no table")
    return note, data[end:]


class Home:
    """A client's end: its own data, its states on its own disk."""

    def __init__(self, desk: Desk, client: str, folder: Path) -> None:
        self.desk, self.client, self.folder = desk, client, folder

    def answer(self, data: bytes) -> bytes:
        """Carry out an errand, or return the stored answer to the same turn.

        Raises:
            StateError: it is no errand, or another client's.
        """
        errand = unpack(data, Errand)
        if not isinstance(errand, Errand) or errand.client != self.client:
            raise StateError(f"this errand is not for '{self.client}'")
        stored, key = self.folder / "answer", digest(data).encode()
        if stored.exists() and (kept := stored.read_bytes()).startswith(key):
            return kept[len(key) :]
        for file in errand.drop:
            self._own(file).unlink(missing_ok=True)
        answer = self._carry_out(errand)
        if errand.kind == "turn":
            with saving(self.folder):
                write_whole(stored, key, answer)
        return answer

    def _own(self, file: str) -> Path:
        shelf = self.desk.shelf
        if not file.startswith(f"seed{shelf.seed}.client.{self.client}.") or "/" in file:
            raise StateError(f"'{file}' is no state of '{self.client}'")
        return shelf.folder / file

    def _carry_out(self, errand: Errand) -> bytes:
        if errand.file is not None:
            self._own(errand.file)
        if errand.kind == "digest":
            assert errand.file is not None
            return framed({"sha": digest(self._own(errand.file).read_bytes())})
        call = Call(self.client, errand.message, errand.file)
        kind = "evaluate" if errand.kind == "evaluate" else "turn"
        job = Job(kind, [call], [1], "each", errand.stamp, errand.progress, errand.points)
        if kind == "evaluate":
            return framed(vars(self.desk.carry_out(job, 0, Sum()).receipts[0]))
        before = self.desk.kept(call)
        order = Order("turn", self.client, errand.message, before.state, errand.progress,
                      errand.points, owed=before.owed)  # fmt: skip
        receipt, sealed = self.desk.settle(call, job, before, self.desk.worker.do(order))
        known = {name: mask for name, mask in before.told.items() if name in errand.known}
        return framed(vars(receipt), b"" if sealed is None else encode(sealed, known))


class Remote:
    """Carries out jobs by clients elsewhere: sends errands, guards every answer, adds up."""

    def __init__(self, desk: Desk, line: Line) -> None:
        self.line, self.lock = line, threading.Lock()
        self.desk = Switchboard(desk, self)
        self.told: dict[str, dict[str, Mapping[str, Mask]]] = {}
        self.spares: list[str] = []

    def run(self, job: Job) -> Iterator[tuple[int, Result]]:
        """Carry out the groups of a job at the same time; yield them in their order."""
        if not job.calls:
            return
        parts = [[call] for call in job.calls] if job.kind != "serve" or job.alone else [
            job.group(number) for number in range(len(job.groups))
        ]  # fmt: skip
        with ThreadPoolExecutor(len(parts)) as pool:
            wait = [pool.submit(self._part, job, part) for part in parts]
            at = 0
            for number, length in enumerate(job.groups):
                result, left = Result([], Sum()), length
                while left:
                    receipts, replies, became = wait[at].result()
                    result.receipts += receipts
                    for client, sealed in replies.items():
                        if job.reveal == "each":
                            result.replies[client] = sealed
                        else:
                            result.sum.add(sealed)
                    if became is not None:
                        result.sum.add(became)
                    left -= len(parts[at])
                    at += 1
                yield number, result

    def _part(self, job: Job, calls: Sequence[Call]) -> Any:
        """Return receipts, replies that count, and what became of a server's copy."""
        if job.kind == "serve":
            receipts, became = Session(self.desk, job, calls).hold(job.held)
            return receipts, {}, became
        call = calls[0]
        kind = "evaluate" if job.kind == "evaluate" else "turn"
        receipt, sealed = self.ask(kind, call, job)
        counts = {} if sealed is None else {call.client: sealed}
        return [receipt], counts, None

    def ask(self, kind: str, call: Call, job: Job, like: Mapping[str, Any] | None = None) -> Any:
        """Send one errand; return a receipt, and the reply if it counts."""
        client, known = call.client, self._known(call)
        errand = Errand(kind, client, call.message, job.stamp, call.file, job.progress,
                        tuple(job.points), tuple(known), self._dropped(client))  # fmt: skip
        try:
            data = self.line.ask(client, pack(errand))
        except Lost as lost:
            return Receipt(client, f"lost: {lost}" if str(lost) else "lost"), None
        try:
            note, body = unframed(data)
            receipt = checked(note, errand, self.desk.shelf.seed)
            if kind == "evaluate" or receipt.status != "ok":
                return receipt, None
            sealed = decode(body, known)
        except Exception as error:  # whatever bytes from elsewhere may cause
            return Receipt(client, f"quarantined: malformed: {type(error).__name__}: {error}"), None
        exposed = self.desk.worker.method.exposure[call.message.verb]
        offered = {**(like if like is not None else job.held), **call.message.trees}
        reason = fault(sealed, call.message.round, offered, exposed)
        up = {name: travelled(tree, known.get(name)) for name, tree in sealed.trees.items()}
        weights = {name: heaviest(tree) for name, tree in sealed.trees.items()}
        if reason is not None:
            return Receipt(client, f"quarantined: {reason}", up, weights), None
        if receipt.filed is not None:
            self.told.setdefault(client, {})[receipt.filed.file] = {**known, **masks(sealed)}
        return replace(receipt, up=up, weight=weights, told=dict(sealed.metrics)), sealed

    def _known(self, call: Call) -> Mapping[str, Mask]:
        """Return the masks of the state that counts; those of states passed over are forgotten."""
        mine = self.told.get(call.client, {})
        if call.file is None or call.file not in mine:
            return {}
        return mine[call.file]

    def _dropped(self, client: str) -> tuple[str, ...]:
        with self.lock:
            mine = tuple(f for f in self.spares if f.split(".")[2] == client)
            self.spares[:] = [f for f in self.spares if f not in mine]
        for file in mine:
            self.told.get(client, {}).pop(file, None)
        return mine

    def digest(self, client: str, filed: Filed) -> str:
        """Return the SHA-256 of the state that counts, as its client says.

        Raises:
            StateError: it does not answer.
        """
        errand = Errand("digest", client, Message("digest"), file=filed.file)
        try:
            return str(unframed(self.line.ask(client, pack(errand)))[0]["sha"])
        except (Lost, ValueError, KeyError) as error:
            raise StateError(f"'{client}' did not say what its state is ({error})") from None

    def close(self) -> None:
        """Nothing to stop: errands under way count for nothing."""


class Roll(Registry):
    """Who took part, where the states lie with the clients themselves."""

    def __init__(self, shelf: Shelf, remote: Remote) -> None:
        super().__init__(shelf)
        self.remote = remote
        self.spares = remote.spares

    def __getitem__(self, client: str) -> Any:
        raise StateError(f"the state of '{client}' lies with the client, not here")

    def spare(self) -> None:
        """Nothing is written over here; what is spare is dropped where it lies."""

    def clear(self) -> None:
        """Leave spare files to the next errand."""

    def sha256(self) -> dict[str, str]:
        """Return the SHA-256 of every state, as its client says."""
        return {c: self.remote.digest(c, entry) for c, entry in sorted(self.filed.items())}


def hired(line: Line) -> Callable[[Desk], tuple[Remote, Roll]]:
    """Return how a run finds its clients at the ends of a line."""

    def hire(desk: Desk) -> tuple[Remote, Roll]:
        remote = Remote(desk, line)
        return remote, Roll(desk.shelf, remote)

    return hire


def absent(name: str, counts: Mapping[str, int]) -> Federation:
    """Return people whose data lie elsewhere: client id to the number of training samples."""
    none = Samples({"absent": torch.empty(0, 0)})
    people = {
        client: Splits(Samples({"absent": torch.empty(count, 0)}), none, none)
        for client, count in counts.items()
    }
    return Federation(name, people)


class Switchboard(Desk):
    """A desk whose turns are taken elsewhere, for sessions; the server's own steps are its own."""

    def __init__(self, desk: Desk, remote: Remote) -> None:
        super().__init__(Locked(desk.worker), desk.shelf)  # type: ignore[arg-type]
        self.remote = remote

    def kept(self, call: Call) -> Kept:
        """Return a pointer to the client's state."""
        filed = None if call.file is None else Filed(call.file, "", None)
        return Kept(Elsewhere(filed), self.remote._known(call))

    def take(self, order: Order, job: Job, like: Mapping[str, Any], number: int) -> Done:
        """Let the client take its turn; each has a stamp of its own."""
        pointer = order.state.filed
        call = Call(order.client, order.message, pointer.file if pointer else None)
        step = replace(job, kind="turn", stamp=f"{job.stamp}.{number}")
        receipt, sealed = self.remote.ask("turn", call, step, like)
        state = Elsewhere(receipt.filed or pointer)
        return Done(order.client, sealed, state, receipt.examples, receipt.steps,
                    fault=receipt.status.removeprefix("quarantined: "))  # fmt: skip

    def filed(self, call: Call, stamp: str, kept: Kept) -> tuple[Filed | None, str | None]:
        """Return where the client left its state."""
        return kept.state.filed, None


@dataclass
class Locked:
    """A worker that several sessions ask in turn: its network is one."""

    worker: Worker
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.worker, name)

    def answer(self, ask: Any, progress: float) -> Any:
        """Answer one at a time."""
        with self.lock:
            return self.worker.answer(ask, progress)


def checked(note: Mapping[str, Any], errand: Errand, seed: int) -> Receipt:
    """Return the receipt that a note stands for, without what a client has no say in.

    Raises:
        ValueError: a field is not what it must be.
    """
    if note.get("client") != errand.client:
        raise ValueError("it names another client")
    status = str(note["status"])
    if status != "ok" and not status.startswith("quarantined: "):
        raise ValueError("its status is unknown")
    examples, steps = float(note["examples"]), int(note["steps"])
    if not (math.isfinite(examples) and examples >= 0 and steps >= 0):
        raise ValueError("its counts are no numbers")
    measured = {str(p): {str(n): float(v) for n, v in found.items()}
                for p, found in note["measured"].items() if p in ("P0", "P1", "P2")}  # fmt: skip
    filed = None
    if note["filed"] is not None:
        file, xxh3, share = note["filed"]
        if file != f"seed{seed}.client.{errand.client}.{errand.stamp}.safetensors":
            raise ValueError("its state lies under another name")
        share = None if share is None else min(max(float(share), 0.0), 1.0)
        filed = Filed(file, str(xxh3)[:64], share)
    share = filed.share if filed else None
    return Receipt(errand.client, status[:200], examples=examples, steps=steps, measured=measured,
                   filed=filed, share=share)  # fmt: skip
