"""Manifests and states that anybody may have written: each value at its last allowed one."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
import torch

from vergence.core.masks import Mask
from vergence.core.params import Params
from vergence.engine.storage.checkpoint_validation import MOST, alike, fits, wrong

SHA = "0123456789abcdef" * 4
FILES = {
    "server": ["seed0.server.3.safetensors", SHA],
    "clients": ["seed0.clients.0.csv", 20, SHA],
    "agenda": ["seed0.agenda.3.safetensors", SHA],
}
LAST = {
    "round": 3,
    "files": FILES,
    "tables": {"rounds.csv": 10},
    "digests": {"rounds.csv": SHA},
    "rows": {"rounds.csv": ["seed0.rows.rounds.csv", SHA]},
    "unmeasured": True,
}
MANIFEST = {
    "stamp": {"code": "abc"},
    "done": {"0": {"fingerprint": SHA, "files": FILES, "last": LAST}},
    "seed": 1,
    "round": 3,
    "files": FILES,
    "tables": {"rounds.csv": 10, "turns.csv": 0},
    "digests": {"rounds.csv": SHA, "turns.csv": SHA},
    "solving": ["sequential", 1, "fp32", "cpu", "why"],
    "stopped": {"0": [2, "reason"]},
    "later": {"1": LAST},
}
GONE = object()


def changed(path, value):
    """Return the manifest with another value at a path, or without it."""
    manifest = json.loads(json.dumps(MANIFEST))
    *outer, last = path.split("/")
    place = manifest
    for key in outer:
        place = place[int(key) if isinstance(place, list) else key]
    if value is GONE:
        del place[last]
    else:
        place[int(last) if isinstance(place, list) else last] = value
    return manifest


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("round", 0),
        ("round", MOST - 1),
        ("seed", -1),
        ("tables/rounds.csv", MOST - 1),
        ("solving", None),
        ("solving/1", MOST),
        ("solving/3", "cuda"),
        ("digests", GONE),
        ("stopped", GONE),
        ("stopped/0/0", 0),
        ("stopped/0/0", MOST - 1),
        ("later", GONE),
        ("done/0/last", GONE),
        ("done/-9", {"fingerprint": SHA, "files": FILES}),
        ("files/agenda", GONE),
        ("files/clients/1", 0),
        ("files/clients/1", MOST - 1),
        ("files/server/0", "seed-7.server.final.safetensors"),
        ("later/1/round", 0),
        ("later/1/round", MOST - 1),
        ("later/1/tables/rounds.csv", MOST - 1),
        ("later/1/tables", GONE),
        ("later/1/digests", GONE),
        ("later/1/rows", GONE),
        ("later/1/unmeasured", GONE),
    ],
)
def test_what_a_manifest_may_say(path, value):
    assert wrong(changed(path, value), ["rounds.csv"], ["turns.csv"]) == ""


@pytest.mark.parametrize(
    ("path", "value", "key"),
    [
        *((key, GONE, key) for key in ("stamp", "done", "seed", "round", "files", "tables")),
        ("solving", GONE, "solving"),
        ("stamp/code", "a\x1b", "stamp"),
        ("stamp/code", 3, "stamp"),
        ("round", -1, "round"),
        ("round", MOST, "round"),
        ("tables/rounds.csv", -1, "tables"),
        ("tables/rounds.csv", MOST, "tables"),
        ("tables/rounds.csv", GONE, "tables"),
        ("tables/other.csv", 1, "tables"),
        ("solving/1", 0, "solving"),
        ("solving/1", MOST + 1, "solving"),
        ("solving/0", "both", "solving"),
        ("stopped/0/0", -1, "stopped"),
        ("stopped/0/0", MOST, "stopped"),
        ("stopped/0/1", "a\n", "stopped"),
        ("stopped/0", [1], "stopped"),
        ("digests/turns.csv", GONE, "digests"),
        ("digests/turns.csv", SHA[1:], "digests"),
        ("digests/turns.csv", 1, "digests"),
        ("done/x", {"fingerprint": SHA, "files": FILES}, "done"),
        ("done/0/fingerprint", SHA + "0", "done"),
        ("done/0/fingerprint", 7, "done"),
        ("done/0/files", GONE, "done"),
        ("done/0/files/server", GONE, "done"),
        ("done/0/last/round", MOST, "done"),
        ("done/0/last", 4, "done"),
        ("later/1", 4, "later"),
        ("later/1/round", -1, "later"),
        ("later/1/round", MOST, "later"),
        ("later/1/round", "3", "later"),
        ("later/1/files", GONE, "later"),
        ("later/1/files/clients", GONE, "later"),
        ("later/1/tables/rounds.csv", -1, "later"),
        ("later/1/tables/rounds.csv", MOST, "later"),
        ("later/1/tables/rounds.csv", "1", "later"),
        ("later/1/digests/rounds.csv", 1, "later"),
        ("later/1/rows/rounds.csv/0", "seed0.other.csv", "later"),
        ("later/1/rows/rounds.csv/1", SHA[1:], "later"),
        ("later/1/unmeasured", "yes", "later"),
        ("files", {}, "files"),
        ("files/server", GONE, "files"),
        ("files/clients", GONE, "files"),
        ("files/server/0", "../seed0.server.3.safetensors", "files"),
        ("files/server/0", "seed0.clients.0.csv", "files"),
        ("files/server/1", SHA[1:], "files"),
        ("files/server", ["seed0.server.3.safetensors", 3, SHA], "files"),
        ("files/clients", ["seed0.clients.0.csv", SHA], "files"),
        ("files/clients/0", "seed0.server.3.safetensors", "files"),
        ("files/clients/1", -1, "files"),
        ("files/clients/1", MOST, "files"),
        ("files/clients/2", SHA + "0", "files"),
        ("files/agenda/0", "seed0/agenda.safetensors", "files"),
    ],
)
def test_what_a_manifest_must_not_say_is_named_by_its_key(path, value, key):
    assert wrong(changed(path, value), ["rounds.csv"], ["turns.csv"]) == key


def test_a_number_in_place_of_files_is_refused():
    for value in (3, "files", [["server", "clients"]]):
        manifest = changed("done/0/files", value)
        assert wrong(manifest, ["rounds.csv"], ["turns.csv"]) == "done"


@dataclass(frozen=True)
class Record:
    """A record with a field of a simple type."""

    name: str
    counts: Sequence[int] = ()


@pytest.mark.parametrize(
    ("value", "hint", "fit"),
    [
        (1, Annotated[int, "one"], True),
        ("1", Annotated[int, "one"], False),
        ("a", Literal["a", "b"], True),
        ("c", Literal["a", "b"], False),
        (None, int | None, True),
        ("x", int | None, False),
        (1, float, True),
        (1.5, float, True),
        (1.5, int, False),
        (object(), Any, True),
        (Record("a", (1, 2)), Record, True),
        (Record("a", [1, "2"]), Record, False),
        (Record(3), Record, False),
        ("a", Record, False),
        ([1, 2], Sequence[int], True),
        ((1, "2"), Sequence[int], False),
        ("12", Sequence[str], False),
        ([], tuple[int, str], False),
        ([1, "a"], tuple[int, str], True),
        ([1, "a", 2], tuple[int, str], False),
        (["a", 1], tuple[int, str], False),
        ([1, 2, 3], tuple[int, ...], True),
        ([1, 2, "3"], tuple[int, ...], False),
        (["a", 1], Sequence, True),
        ("a", str, True),
        (b"a", str, False),
        ({"a": 1}, Mapping[str, int], True),
        ({"a": "1"}, Mapping[str, int], False),
        ({1: 1}, Mapping[str, int], False),
        ({1: 1}, Mapping, True),
        ([("a", 1)], Mapping[str, int], False),
    ],
)
def test_values_fit_the_types_of_hints(value, hint, fit):
    assert bool(fits(value, hint)) is fit


ONE, TWO = (Params.named(a=torch.zeros(n)) for n in (1, 2))


@dataclass(frozen=True)
class State:
    """A state with an array and something else."""

    model: object
    count: int = 0


@pytest.mark.parametrize(
    ("state", "fresh", "same"),
    [
        (ONE, ONE, True),
        (ONE, TWO, False),
        (Mask.full(ONE.layout), ONE, True),
        (Mask.full(TWO.layout), Mask.full(ONE.layout), False),
        (None, ONE, True),
        (ONE, None, True),
        (State(ONE, 1), State(ONE, 2), True),
        (State(ONE), State(TWO), False),
        (State(State(TWO)), State(State(ONE)), False),
        (Record("a"), State(ONE), True),
    ],
)
def test_layouts_of_a_state_are_those_of_a_fresh_one(state, fresh, same):
    assert alike(state, fresh) is same
