"""MATLAB files: a type or a number of elements that is none never reaches SciPy's reader.

SciPy makes a pointer of a type beyond its table, and reads on where a matrix ends early. Every file
is read by a process of its own: at worst it dies, and not the test.
"""

import io
import json
import random
import signal
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from scipy.io import loadmat, savemat

from vergence.data.io.checks import read_mat
from vergence.data.io.matlab_tags import check_tags

READER = """
import json, os, sys
from pathlib import Path
from vergence.data.io.checks import read_mat
from vergence.errors import DataError

ends = {}
for name in sys.argv[1:]:
    there, here = os.pipe()
    child = os.fork()
    if not child:
        try:
            said = f"read {read_mat(Path(name), 'data', 'copy it anew').shape}"
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
FIRST = 136
"""Where the flags of the first matrix are, behind its tag and that of the file."""


def made(value, *, packed: bool = False) -> bytes:
    file = io.BytesIO()
    savemat(file, {"data": value}, do_compression=packed)
    return file.getvalue()


def at(raw: bytes, place: int, body: bytes) -> bytes:
    return raw[:place] + body + raw[place + len(body) :]


NUMBERS = made(np.arange(6.0).reshape(2, 3))
KIND = FIRST + 16 + 16 + 8
"""The type of its numbers: behind flags, size and the name, which stands in its tag."""
CELLS = made(np.array(["x", "y"], object))
NASTY = {
    "a type beyond the table": (at(NUMBERS, KIND, b"\x82"), "others than it should"),
    "a type far beyond it": (at(NUMBERS, KIND, b"\xff\xff\x00\x00"), "others than it should"),
    "a type of no numbers": (at(NUMBERS, KIND, b"\x0e"), "others than it should"),
    "no numbers at all": (
        at(NUMBERS[:KIND], FIRST - 4, (KIND - FIRST).to_bytes(4, "little")),
        "has 0 elements",
    ),
    "numbers said to be complex": (at(NUMBERS, FIRST + 9, b"\x08"), "instead of 2"),
    "a class that is none": (at(NUMBERS, FIRST + 8, b"\x63"), "class 99"),
    "cells that are not there": (at(CELLS, FIRST + 16 + 8, b"\x09"), "elements instead of"),
    "an element longer than the file": (at(NUMBERS, KIND + 4, b"\xff\xff\xff\x7f"), "bytes lies"),
    "truncated": (NUMBERS[:-9], "bytes lies"),
}


def read_apart(folder, files, limit=""):
    """Read each file in a process of its own: an exit code, and what was said, by case."""
    paths = {case: folder / f"{i}.mat" for i, case in enumerate(files)}
    for case, path in paths.items():
        path.write_bytes(files[case])
    done = subprocess.run(
        [sys.executable, "-c", limit + READER, *map(str, paths.values())],
        capture_output=True,
        text=True,
        timeout=60 * len(files),
    )
    assert done.returncode == 0, done.stderr[-500:]
    found = json.loads(done.stdout)
    return {case: found[str(path)] for case, path in paths.items()}


@pytest.fixture(scope="module")
def ends(tmp_path_factory):
    """What reading each of the files ended with."""
    files = {**{case: raw for case, (raw, _) in NASTY.items()}, "as it was": NUMBERS}
    return read_apart(tmp_path_factory.mktemp("matlab"), files)


@pytest.mark.parametrize("case", NASTY)
def test_a_file_whose_elements_are_others_is_refused(ends, case):
    code, said = ends[case]
    assert code == 0, f"{signal.Signals(-code).name if code < 0 else code}: {said}"
    assert said.startswith("refused: cannot read "), said
    assert NASTY[case][1] in said, said
    assert said.isprintable()


def test_a_file_as_it_was_is_read(ends):
    assert ends["as it was"] == [0, "read (2, 3)"]


VALUES = {
    "numbers": np.arange(24, dtype=np.int16).reshape(2, 3, 4),
    "one": 3.5,
    "complex": np.array([[1 + 2j, 3]]),
    "yes and no": np.array([[True, False]]),
    "none": np.empty((0, 3)),
    "text": "some text of more than four letters",
    "no text": "",
    "cells": np.array([np.arange(3), "x", np.array([], object)], object),
    "a struct": {"left": {"image": np.zeros((2, 3, 4), np.uint8)}, "right": "x"},
    "structs": np.array([(1, "a"), (2, "b")], [("n", object), ("s", object)]),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("case", VALUES)
def test_whatever_scipy_writes_is_read(tmp_path, case, packed):
    path = tmp_path / "a.mat"
    path.write_bytes(made(VALUES[case], packed=packed))
    found, true = read_mat(path, "data", "x"), loadmat(path)["data"]
    assert found.dtype == true.dtype
    assert repr(found) == repr(true)


def packed(*elements: tuple[int, int, bytes]) -> bytes:
    """A file whose one compressed element holds tags (type, size) and so many bytes behind each."""
    body = b"".join(struct.pack("<II", kind, size) + rest for kind, size, rest in elements)
    data = zlib.compress(body, 9)
    return NUMBERS[:128] + struct.pack("<II", 15, len(data)) + data


def cells(count: int) -> bytes:
    """What a matrix of so many empty cells holds."""
    head = struct.pack("<IIII", 6, 8, 1, 0) + struct.pack("<IIii", 5, 8, count, 1)
    return head + struct.pack("<II", 1, 0) + struct.pack("<II", 14, 0) * count


NOUGHT = bytes(2**26)
BOMBS = {
    "noughts behind a small matrix": (
        lambda: packed((14, 0, NOUGHT)),
        "a matrix of 0 bytes was packed with more or fewer",
    ),
    "noughts in a matrix": (lambda: packed((14, 2**26, NOUGHT)), "does not begin with its flags"),
    "a matrix that is too large": (
        lambda: packed((14, 2**28, NOUGHT)),
        "would unpack to 268,435,456",
    ),
    "noughts and no matrix": (
        lambda: packed((0, 0, NOUGHT)),
        "something else where a matrix should be",
    ),
    "many large matrices": (
        lambda: packed((14, 2**25, NOUGHT[: 2**25])) + packed((14, 2**26, NOUGHT))[128:],
        "does not begin with its flags",
    ),
    "millions of cells": (
        lambda: packed((14, len(cells(2**21)), cells(2**21))),
        "more than 1,048,576 elements",
    ),
}
"""Of 33 to 300 kB: before, they took gigabytes and minutes.

They are packed when they are needed: every process that collects tests would pack them for seconds.
"""


LIMIT = """
import resource, vergence.data.io.checks
pages = int(open("/proc/self/statm").read().split()[0])
most = pages * resource.getpagesize() + 300_000_000
resource.setrlimit(resource.RLIMIT_AS, (most, most))
"""
"""Each file is read in a process that may have 300 MB beside what its libraries have."""


@pytest.fixture(scope="module")
def ends_of_bombs(tmp_path_factory):
    files = {case: pack() for case, (pack, _) in BOMBS.items()}
    assert all(len(raw) < 350_000 for raw in files.values())
    return read_apart(tmp_path_factory.mktemp("bombs"), files, LIMIT)


@pytest.mark.parametrize("case", BOMBS)
def test_a_small_file_takes_little(ends_of_bombs, case):
    code, said = ends_of_bombs[case]
    assert code == 0
    assert said.startswith("refused: cannot read "), said
    assert BOMBS[case][1] in said


def test_what_a_file_unpacks_to_is_counted_over_all_of_it():
    one = made(np.zeros(2**22), packed=True)  # 32 MB
    check_tags(one)
    with pytest.raises(ValueError, match="would unpack to 33,554,480 bytes more, where"):
        check_tags(one + one[128:] * 5)


MANY = """
import sys
from pathlib import Path
from vergence.data.io.checks import read_mat
from vergence.errors import DataError

ends = {"read": 0, "refused": 0}
for path in sorted(Path(sys.argv[1]).iterdir()):
    try:
        read_mat(path, "data", "x")
        ends["read"] += 1
    except DataError:
        ends["refused"] += 1
print(ends["read"], ends["refused"])
"""


@pytest.mark.slow
def test_two_thousand_damaged_files_are_read_or_refused(tmp_path):
    draw = random.Random(3)
    whole = made(VALUES["a struct"]), made(VALUES["cells"]), made(VALUES["numbers"], packed=True)
    for number in range(2000):
        raw = bytearray(whole[number % len(whole)])
        for _ in range(draw.choice([1, 1, 2, 4])):
            raw[draw.randrange(124, len(raw))] = draw.choice([0, 255, draw.randrange(256)])
        (tmp_path / f"{number:04d}.mat").write_bytes(raw)
    told = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", MANY, str(tmp_path)], capture_output=True, text=True
    )
    assert told.returncode == 0, told.stderr[-500:]
    read, refused = map(int, told.stdout.split())
    assert read + refused == 2000
    assert min(read, refused) > 100
