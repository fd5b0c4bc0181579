"""CIFAR's files: what a pickle may hold, and limits on both sides."""

import pickle

import numpy as np
import pytest

from tests.refusals import refuses
from vergence.data.images import cifar_files
from vergence.data.images.cifar_files import Labels, part_of

OWN = Labels(1, 2, "fine_labels")
PLAIN = (3, "|", None, None, None, -1, -1, 0)


def kind(code="u1", state=PLAIN):
    made = cifar_files._Kinds()(code, 0, 1)
    made.__setstate__(state)
    return made


def test_kinds_of_numbers_and_their_orders():
    assert kind().order == "|"
    assert kind(b"i8", (3, b"<", *PLAIN[2:])).order == "<"
    assert kind("i8", (3, ">", *PLAIN[2:])).order == ">"


@pytest.mark.parametrize(
    ("code", "align", "copy", "named"),
    [
        ("f4", 0, 1, "f4"),
        ("u1", 1, 1, "u1"),
        ("u1", 0, 0, "u1"),
        (7, 0, 1, "''"),
        ("x" * 25, 0, 1, f"'{'x' * 20}',"),
    ],
)
def test_other_kinds_are_refused(code, align, copy, named):
    with pytest.raises(pickle.UnpicklingError, match=named):
        cifar_files._Kinds()(code, align, copy)


@pytest.mark.parametrize(
    "state",
    [
        (4, *PLAIN[1:]),
        [*PLAIN],
        (*PLAIN[:5], -1, -1, 1),
        (*PLAIN[:5], 0, -1, 0),
        (3, "<", *PLAIN[2:]),
        (3, "y" * 25, *PLAIN[2:]),
    ],
)
def test_other_states_of_kinds_are_refused(state):
    with pytest.raises(pickle.UnpicklingError) as caught:
        kind("u1", state)
    assert "y" * 21 not in str(caught.value)
    assert ("y" * 20 in str(caught.value)) == (state[1] == "y" * 25)


def array(*state):
    made = cifar_files._Array()
    made.__setstate__(state)
    return made.values


def test_arrays_have_the_bytes_of_their_shape():
    assert array(1, (2, 3), kind(), False, bytes(range(6))).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert array(1, (2, 3), kind(), 1, bytes(range(6))).tolist() == [[0, 2, 4], [1, 3, 5]]
    raw = np.arange(2, dtype=">i8").tobytes()
    assert array(1, (2,), kind("i8", (3, ">", *PLAIN[2:])), 0, raw).tolist() == [0, 1]
    assert array(1, (0, 5), kind(), False, b"").shape == (0, 5)
    for wrong in (
        (2, (2,), kind(), False, b"ab"),
        (1, [2], kind(), False, b"ab"),
        (1, (-1,), kind(), False, b"ab"),
        (1, (2.0,), kind(), False, b"ab"),
        (1, (True, 2), kind(), False, b"ab"),
        (1, (2,), "u1", False, b"ab"),
        (1, (2,), cifar_files._Kinds()("u1", 0, 1), False, b"ab"),
        (1, (2,), kind(), None, b"ab"),
        (1, (2,), kind(), False, "ab"),
    ):
        with pytest.raises(pickle.UnpicklingError, match="shape, a type of numbers and bytes"):
            array(*wrong)
    with pytest.raises(ValueError, match="reshape"):
        array(1, (3,), kind(), False, b"ab")


def test_only_numpys_own_way_makes_an_array():
    make = cifar_files._Arrays()
    for code in ("b", b"b"):
        assert type(make(cifar_files.NDARRAY, (0,), code)) is cifar_files._Array
    for wrong in (
        (None, (0,), "b"),
        (cifar_files.NDARRAY, (1,), "b"),
        (cifar_files.NDARRAY, (0,), "c"),
    ):
        with pytest.raises(pickle.UnpicklingError, match="not made as numpy makes one"):
            make(*wrong)


def test_numbers_of_tuples_and_of_what_is_kept():
    for tuples, fine in ((40, True), (41, False)):
        raw = b"]" + b")a" * tuples + b"."
        if fine:
            assert cifar_files._unpickled(raw) == [()] * 40
        else:
            with pytest.raises(pickle.UnpicklingError, match="it has 41 tuples"):
                cifar_files._unpickled(raw)
    assert cifar_files._unpickled(b"]q\x01.") == []
    with pytest.raises(pickle.UnpicklingError, match="step 1 is kept as number 2"):
        cifar_files._unpickled(b"]q\x02.")
    with pytest.raises(pickle.UnpicklingError, match="its step LONG1 is none"):
        cifar_files._unpickled(b"\x8a\x01\x05.")
    with pytest.raises(pickle.UnpicklingError, match=r"it names os\.system, which"):
        cifar_files._unpickled(b"cos\nsystem\n.")
    long = b"c" + b"m" * 90 + b"\nx\n."
    with pytest.raises(pickle.UnpicklingError, match=f"it names {'m' * 80}, which"):
        cifar_files._unpickled(long)


def records(labels):
    raw = np.zeros((len(labels), 3074), np.uint8)
    raw[:, 0], raw[:, 1] = 9, labels
    raw[:, 2:] = np.arange(3072) % 256
    return raw.tobytes()


def test_binary_records_and_the_first_wrong_label(tmp_path):
    one, two = tmp_path / "a.bin", tmp_path / "b.bin"
    one.write_bytes(records([0, 4]))
    two.write_bytes(records([3]))
    part = part_of([one, two], OWN, 5, "here")
    assert part.labels.tolist() == [0, 4, 3]
    assert part.labels.dtype == np.int64
    images = part.images()
    assert images.shape == (3, 3, 32, 32)
    assert images[2].flatten().tolist() == (np.arange(3072) % 256).tolist()
    two.write_bytes(records([1, 7, 6]))
    with refuses("data", "b.bin: labels must be 0 to 4, got 7: here"):
        part_of([one, two], OWN, 5, "here")
    two.write_bytes(records([1])[:-1])
    with refuses("data", "b.bin holds 3,073 bytes", "whole records of 3,074"):
        part_of([two], OWN, 5, "here")
    two.write_bytes(b"")
    with refuses("data", "b.bin holds 0 bytes"):
        part_of([two], OWN, 5, "here")
