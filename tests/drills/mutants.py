"""Bytes and files that went wrong, from real ones: for `test_fuzz.py` and `drills.py`."""

from __future__ import annotations

import codecs
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from vergence.deployment.protocol import framed, unframed
from vergence.errors import VergenceError
from vergence.wire.codecs import PARTS

NASTY: list[Any] = [
    None,
    True,
    -1,
    0,
    2**31,
    2**63,
    10**18,
    10**400,
    1e308,
    -1e308,
    float("nan"),
    float("inf"),
    "",
    "..",
    "../../away",
    "/etc/passwd",
    "\0",
    "\ud800",
    'a\nb,c"',
    "x" * 5000,
    "float8_e4m3fn",
    "load",
    [],
    {},
    [[]],
    [2**40],
    [-1, -5],
    [0, 2**62],
    {"params": "s", "layout": 0},
    {"record": "Path"},
    {"record": "Errand", "fields": {}},
    [[["w"], [[10**12]]]],
    {"mask": "s", "layout": 0},
]


def bytewise(data: bytes, draw: random.Random) -> bytes:
    """Flip, cut, repeat, blank, insert or swap bytes."""
    if not data:
        return draw.randbytes(draw.randrange(64))
    new, at = bytearray(data), draw.randrange(len(data))
    length = min(draw.choice((1, 2, 8, 64, len(data))), len(data) - at)
    part = bytes(new[at : at + length])
    match draw.randrange(7):
        case 0:
            for _ in range(draw.choice((1, 3, 20))):
                new[draw.randrange(len(new))] ^= 1 << draw.randrange(8)
        case 1:
            del new[at : at + length]
        case 2:
            new[at:at] = part * draw.choice((1, 2, 50))
        case 3:
            new[at : at + length] = bytes(length)
        case 4:
            new[at:at] = draw.randbytes(length)
        case 5:
            new[at : at + length] = b"\xff" * length
        case _:
            new[:8] = draw.choice((0, 1, 255, 2**16, 2**31, 2**63)).to_bytes(8, "little")
    return bytes(new)


def nested(value: Any, draw: random.Random) -> Any:
    """Change one node of what JSON holds: another value, gone, twice, or deep in lists."""
    paths = list(_paths(value))
    if not paths or draw.random() < 0.02:
        return draw.choice(NASTY)
    *path, last = draw.choice(paths)
    whole = json.loads(json.dumps(value))
    spot = whole
    for key in path:
        spot = spot[key]
    match draw.randrange(8):
        case 0:
            del spot[last]
        case 1 if isinstance(spot, dict):
            spot[draw.choice(("", "..", "model", "x" * 300, "\ud800"))] = spot[last]
        case 1:
            spot += [spot[last]] * draw.choice((1, 100))
        case 2:
            other = whole
            for key in draw.choice(paths):
                other = other[key]
            spot[last] = other if draw.random() < 0.5 else json.loads(json.dumps(other))
        case 3:
            spot[last] = f"DEEP{draw.choice((10, 500, 20_000))}"
        case _:
            spot[last] = draw.choice(NASTY)
    return whole


def _paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if not isinstance(value, dict | list):
        return
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*at, key)
        yield from _paths(item, (*at, key))


def text(value: Any) -> bytes:
    """Return JSON, also of what cannot be built: lists in lists in lists."""
    try:
        said = json.dumps(value)
    except (ValueError, RecursionError):  # it holds itself, or a number that is too long
        said = '{"a": [' * 3000
    for depth in (10, 500, 20_000):
        said = said.replace(f'"DEEP{depth}"', "[" * depth + "]" * depth)
    return said.encode()


def tensors(data: bytes, draw: random.Random) -> bytes:
    """Change one node in the header of safetensors bytes: of the table, or of what it carries."""
    size = int.from_bytes(data[:8], "little")
    about = json.loads(data[8 : 8 + size])
    if draw.random() < 0.7:
        carried = json.loads(about["__metadata__"]["vergence"])
        about["__metadata__"]["vergence"] = text(nested(carried, draw)).decode()
        head = text(about)
    else:
        head = text(nested(about, draw))
    return len(head).to_bytes(8, "little") + head + data[8 + size :]


def answer(data: bytes, draw: random.Random) -> bytes:
    """Change an answer: its bytes, its note, or the reply in it."""
    if draw.random() < 0.3:
        return bytewise(data, draw)
    note, body = unframed(data)
    if body and draw.random() < 0.03:
        return framed(note, grown(body, draw))
    if not body or draw.random() < 0.4:
        head = text(nested(note, draw))
        return len(head).to_bytes(4, "little") + head + body
    return framed(note, tensors(body, draw) if draw.random() < 0.8 else bytewise(body, draw))


def grown(data: bytes, draw: random.Random) -> bytes:
    """Make a reply large: many entries, many arrays, or many trees that are one array."""
    size = int.from_bytes(data[:8], "little")
    head = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["vergence"])
    n, kind = draw.choice((1000, 60_000, 400_000)), draw.choice(("float", "Mask", "Params"))
    name, count = next(iter(head["trees"]), "model"), draw.choice((1, 1, 1, 1000))
    tree = {
        "kind": kind,
        "level": draw.choice((0.0, 1.0)),
        "dtype": "float32",
        "layout": [["w"], [[n]]],
    }
    head["trees"] = {name: tree} | {f"{name}{i}": tree for i in range(count)}
    arrays = {f"{name}.values": torch.zeros(n)}
    arrays |= {f"{name}{i}.{draw.choice(PARTS)}": torch.zeros(0) for i in range(count)}
    return save(arrays, {"vergence": json.dumps(head)})


def state(data: bytes, draw: random.Random) -> bytes:
    """Change a request, or a file that holds a state."""
    return bytewise(data, draw) if draw.random() < 0.3 else tensors(data, draw)


def sheet(data: bytes, draw: random.Random) -> bytes:
    """Change a file of JSON."""
    if draw.random() < 0.4:
        return bytewise(data, draw)
    return text(nested(json.loads(data), draw))


def toml(data: bytes, draw: random.Random) -> bytes:
    """Change a file of settings: its bytes, or the value in one of its lines."""
    lines = data.decode().splitlines()
    if draw.random() < 0.4:
        return bytewise(data, draw)
    at = draw.randrange(len(lines))
    name, equals, _ = lines[at].partition("=")
    value = draw.choice(
        (
            "-1",
            "0",
            "1e400",
            "nan",
            '""',
            '"../../away"',
            "[]",
            "{}",
            "[[1]]",
            "9" * 5000,
            "true",
            "[" * 20_000,
            "{ a = " * 2000,
            '"\\u0000"',
            "1979-05-27",
            '"os"',
            '"store"',
            "10000000000",
        )
    )
    lines[at] = draw.choice((f"{name}{equals} {value}", f"[{name}]", lines[at] * 2, ""))
    return "\n".join(lines).encode()


CODE = ("compile", "exec", "import")
FORBIDDEN = (
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "subprocess.Popen",
    "pickle.find_class",
    "ctypes.dlopen",
    "socket.connect",
)
"""What reading bytes must never do, by the names of Python's audit events."""
_watching: list[str] | None = None
_forbidden: tuple[str, ...] = ()
for encoding in ("utf-8-sig", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"):
    codecs.lookup(encoding)  # Python loads these when JSON begins with such bytes


def _heard(event: str, args: tuple[Any, ...]) -> None:
    if _watching is not None and event in _forbidden:
        _watching.append(f"{event} {str(args)[:80]}")


sys.addaudithook(_heard)


@contextmanager
def watched(forbidden: tuple[str, ...]) -> Iterator[list[str]]:
    """Collect what is executed or imported meanwhile."""
    global _watching, _forbidden
    _watching = found = []
    _forbidden = forbidden
    try:
        yield found
    finally:
        _watching = None


def peak_kb(forget: bool = False) -> int:
    """Return the most memory this process has had since it was told to forget what was before."""
    if forget:
        Path("/proc/self/clear_refs").write_text("5")
    with Path("/proc/self/status").open() as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))


@dataclass
class Tried:
    """How many inputs were tried, what became of them, and the worst of it."""

    forbidden: tuple[str, ...] = FORBIDDEN + CODE
    count: int = 0
    refused: int = 0
    worst_s: float = 0.0
    worst_kb: int = 0
    crashes: list[str] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)

    def one(self, data: bytes, take: Callable[[bytes], bool]) -> None:
        """Try one input; `take` tells whether it was accepted, or raises a `VergenceError`."""
        self.count += 1
        before = peak_kb(forget=True)
        began, found = time.thread_time(), list[str]()
        try:
            with watched(self.forbidden) as found:
                self.refused += not take(data)
        except VergenceError as error:
            self.refused += 1
            if len(str(error).splitlines()) > 1:
                self.crashes.append(f"more than a line: {str(error)[:200]!r}")
        except Exception as error:
            self.crashes.append(f"{type(error).__name__}: {str(error)[:200]} <- {data[:3000]!r}")
        self.worst_s = max(self.worst_s, time.thread_time() - began)
        self.worst_kb = max(self.worst_kb, peak_kb() - before)
        self.ran += found
