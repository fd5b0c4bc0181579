"""A "CIFAR" pickle reaches no constructor, whichever names and steps it is made of.

Every file is read by a process of its own: at worst it dies, and not the test.
"""

import json
import signal
import struct
import subprocess
import sys

import numpy as np
import pytest

from tests.data.python2 import python2
from vergence.errors import DataError
from vergence.models import efficientnet_lite0, pretrained

READER = """
import json, os, sys
from pathlib import Path
from vergence.data.images.cifar_files import Labels, pickled
from vergence.errors import DataError

ends = {}
for name in sys.argv[1:]:
    there, here = os.pipe()
    child = os.fork()
    if not child:
        try:
            own, pixels = pickled(Path(name), Labels(0, 1, "labels"), "copy it anew")
            said = f"read {pixels.shape} and {own.tolist()}"
        except DataError as fault:
            said = f"refused: {fault}"
        os.write(here, said.encode())
        os._exit(0)
    os.close(here)
    with os.fdopen(there) as file:
        said = file.read()
    ends[name] = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said]
print(json.dumps(ends))
"""


def name(module: str, attribute: str) -> bytes:
    return f"c{module}\n{attribute}\n".encode()


def text(said: str) -> bytes:
    return b"X" + struct.pack("<I", len(said)) + said.encode()


def held(said: bytes) -> bytes:
    return b"T" + struct.pack("<I", len(said)) + said


def number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def labels(steps: bytes, data: bytes = b"K\x01") -> bytes:
    """A pickle of a dict with these steps for its labels."""
    return b"\x80\x02}(U\x04data" + data + b"U\x06labels" + steps + b"u."


def pointers(count: int) -> bytes:
    """numpy.ndarray((count,), "O", bytes): objects at addresses of one's choice."""
    return (
        name("numpy", "ndarray")
        + b"("
        + b"("
        + number(count)
        + b"t"
        + text("O")
        + held(b"A" * 8 * count)
        + b"tR"
    )


def array(kind: str, order: bytes, state: bytes, shape: bytes, raw: bytes) -> bytes:
    """An array as Python 2 pickles it, but for what is changed."""
    empty = name("numpy.core.multiarray", "_reconstruct") + name("numpy", "ndarray")
    made = empty + b"K\x00\x85" + held(b"b") + b"\x87R(K\x01" + shape
    made += name("numpy", "dtype") + held(kind.encode()) + b"K\x00K\x01\x87R"
    made += b"(K\x03" + held(order) + state + b"tb"
    return made + b"\x89" + held(raw) + b"tb"


PLAIN = b"NNN" + number(-1) + number(-1) + b"K\x00"
FLAGS = b"NNN" + number(8) + number(1) + b"K\x00"
"""Eight bytes wide, and no flag that says: these are objects."""

NASTY = {
    "two arrays of object pointers": (
        labels(b"](" + pointers(1) + pointers(1) + b"e"),
        "not callable",
    ),
    "an array of object pointers": (labels(pointers(2)), "not callable"),
    "objects whose type says that they are none": (
        labels(b"](" + 2 * array("O", b"|", FLAGS, b"(K\x01t", b"A" * 8) + b"e"),
        "not u1 or i8",
    ),
    "a type of bytes with flags": (
        labels(array("u1", b"|", b"NNN" + number(-1) + number(-1) + b"K?", b"(K\x08t", b"A" * 8)),
        "fields or flags",
    ),
    "a type of bytes with fields": (
        labels(
            array(
                "u1",
                b"|",
                b"(X\x01\x00\x00\x00OtN}" + number(8) + number(1) + b"K\x00",
                b"(K\x01t",
                b"A" * 8,
            )
        ),
        "fields or flags",
    ),
    "a shape of more than its bytes": (
        labels(array("u1", b"|", PLAIN, b"(" + number(2**30) + b"t", b"A" * 8)),
        "reshape",
    ),
    "whole numbers of a bytes' type": (
        labels(array("u1", b"<", PLAIN, b"(K\x08t", b"A" * 8)),
        "order of bytes",
    ),
    "a memo of 30 million places": (
        labels(b"]r" + struct.pack("<I", 30_000_000)),
        "kept as number 30000000",
    ),
    "text of 2^31 bytes": (labels(b"T" + struct.pack("<i", 2**31 - 1)), "expected 2147483647"),
    "tuples in a million tuples": (
        labels(b"}(" + b")" + b"\x85" * 1_000_000 + b"K\x01u"),
        "41 tuples",
    ),
    "a call of another name": (labels(name("os", "getpid") + b")R"), "names os.getpid"),
    "an instance": (labels(b"(ios\ngetpid\n"), "its step INST"),
    "an object": (labels(b"(" + name("numpy", "dtype") + held(b"O") + b"o"), "its step OBJ"),
    "a new object": (labels(name("numpy", "ndarray") + b"K\x02\x85\x81"), "its step NEWOBJ"),
    "an extension": (labels(b"\x82\x01"), "its step EXT1"),
    "a persistent id": (labels(b"Pone\n"), "its step PERSID"),
    "a long number": (labels(b"\x8b" + struct.pack("<i", 9) + b"\x01" * 9), "its step LONG4"),
    "attributes of a name": (
        labels(
            name("numpy.core.multiarray", "_reconstruct")
            + b"}("
            + text("__doc__")
            + text("x")
            + b"ub"
        ),
        "no attribute",
    ),
    "attributes of a name's slots": (
        labels(
            name("numpy.core.multiarray", "_reconstruct")
            + b"N}("
            + text("__defaults__")
            + b"(K\x01tu\x86b"
        ),
        "no attribute",
    ),
    "attributes of a type": (
        labels(name("numpy", "dtype") + held(b"u1") + b"K\x00K\x01\x87R}b"),
        "cannot read",
    ),
}


@pytest.fixture(scope="module")
def ends(tmp_path_factory):
    """What reading each of the files ended with: an exit code, and what was said."""
    folder = tmp_path_factory.mktemp("pickles")
    good = {b"labels": [3], b"data": np.full((1, 3072), 7, np.uint8)}
    files = {
        **{case: made for case, (made, _) in NASTY.items()},
        "published": python2(good).replace(b"}(", b"}q\x01(", 1),
    }
    paths = {case: folder / f"data_batch_{i}" for i, case in enumerate(files)}
    for case, path in paths.items():
        path.write_bytes(files[case])
    done = subprocess.run(
        [sys.executable, "-c", READER, *map(str, paths.values())], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return {case: found[str(path)] for case, path in paths.items()}


@pytest.mark.parametrize("case", NASTY)
def test_a_pickle_of_other_things_than_images_is_refused(ends, case):
    code, said = ends[case]
    assert code == 0, f"{signal.Signals(-code).name if code < 0 else code}: {said}"
    assert said.startswith("refused: cannot read "), said
    assert NASTY[case][1] in said, said
    assert said.endswith("copy it anew; copy it anew")
    assert said.isprintable()


def test_a_pickle_as_published_is_read(ends):
    assert ends["published"] == [0, "read (1, 3072) and [3]"]


def test_packaged_weights_are_opened_only_if_they_are_the_published_ones(tmp_path, monkeypatch):
    raw = efficientnet_lite0.WEIGHTS.read_bytes()
    other = tmp_path / "efficientnet_lite0.safetensors"
    other.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    pretrained.load()
    monkeypatch.setattr(efficientnet_lite0, "WEIGHTS", other)
    with pytest.raises(DataError, match=r"SHA-256 .* instead of .*: install vergence anew"):
        pretrained.load()
