"""Forged checkpoints under the right digests: one line, or a run that ends; nothing outside goes.

`python -m tests.drills.drills forged` tries 10,000.
"""

import json
import random

import pytest

from tests.drills.forged import METHODS, WATCHED, Forged
from tests.drills.mutants import Tried
from tests.engine.toys import mostly_slow
from vergence.engine.storage.run_directory import read_manifest, sealed_manifest
from vergence.errors import StateError


@pytest.fixture(scope="module", params=mostly_slow(METHODS, "fedcpf"))
def forged(request, tmp_path_factory):
    return Forged(request.param, tmp_path_factory.mktemp(request.param))


def test_mutated_and_sealed_again(forged):
    tried = Tried(WATCHED)
    for seed in range(75):
        draw, quick = random.Random(seed), seed % 4 > 0
        tried.one(b"", lambda _, draw=draw, quick=quick: forged.one(draw, quick))
    assert not tried.crashes
    assert not tried.ran
    assert 30 < tried.refused < tried.count  # some are what could have been written


def changed(**values):
    return lambda told: told.update(values)


def of(part, at, value):
    def change(told):
        told[part][at] = value

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (changed(round="2"), "round"),
        (changed(round=-1), "round"),
        (changed(seed=None), "seed"),
        (changed(solving=["sequential", 0, "fp32", "cpu", ""]), "solving"),
        (changed(stamp=[]), "stamp"),
        (changed(done={"0": {}}), "done"),
        (of("tables", "rounds.csv", -5), "tables"),
        (of("tables", "../precious.csv", 0), "tables"),
        (of("files", "server", ["../../precious", "0" * 64]), "files"),
        (of("files", "extra", ["/precious.safetensors", "0" * 64]), "files"),
        (of("files", "clients", ["seed0.clients.x.csv", 5, "0" * 64]), "files"),
    ],
)
def test_what_a_manifest_cannot_say(forged, change, says, tmp_path):
    """Names that lead out of the folder: what lies there is neither cut nor removed."""
    told = json.loads((forged.honest / "state" / "checkpoint.json").read_bytes())
    del told["sha256"]
    change(told)
    state = tmp_path / "run" / "state"
    state.mkdir(parents=True)
    (state / "checkpoint.json").write_bytes(sealed_manifest(told))
    with pytest.raises(StateError, match=f"no checkpoint: its '{says}' cannot be"):
        read_manifest(tmp_path / "run")


def test_an_honest_one_goes_on(forged):
    assert len(forged.go_on(forged.honest)) == 64
