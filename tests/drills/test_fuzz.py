"""Mutated messages and files of a real run: refused in one line, or harmless.

A few of each here; `python -m tests.drills.drills fuzz` does 100,000 messages and 10,000 files.
"""

import random
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.drills import mutants
from tests.drills.mutants import Tried
from tests.drills.targets import KINDS, LIMIT, Files, Talk, counts

METHODS = ("fedselect", "scaffold", "splitfed")
FEW = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
SEEDS = st.integers(0, 2**32)


@pytest.fixture(scope="module", params=METHODS)
def talk(request, tmp_path_factory):
    return Talk(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return Files(tmp_path_factory.mktemp("files"))


def one(data: bytes, take, tried: Tried | None = None) -> None:
    """Check what one input does, and how much memory it takes beside itself."""
    tried = tried or Tried()
    peak = traced(data, take, tried)
    if peak >= 2 * LIMIT:  # Python's table of all names grows now and then; an input takes it again
        peak = traced(data, take, tried)
    assert not tried.crashes
    assert not tried.ran
    assert peak < 2 * LIMIT


def traced(data: bytes, take, tried: Tried) -> int:
    """Try one input; return the bytes that it took at most."""
    tracemalloc.start()
    try:
        tried.one(data, take)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@FEW
@given(seed=SEEDS)
def test_mutated_answers(talk, seed):
    draw = random.Random(seed)
    asked = draw.choice(talk.heard)
    one(mutants.answer(asked.answer, draw), lambda data: talk.hear(asked, data))


@FEW
@given(seed=SEEDS)
def test_mutated_requests(talk, seed):
    draw = random.Random(seed)
    asked = draw.choice(talk.heard)
    one(mutants.state(asked.request, draw), lambda data: talk.carry(asked, data))
    talk.restore()


@pytest.mark.parametrize("kind", KINDS)
@FEW
@given(seed=SEEDS)
def test_mutated_files(home, kind, seed):
    data = home.mutant(kind, random.Random(seed))
    one(data, lambda data: home.read(kind, data), counts()[kind])


def test_what_was_not_mutated_is_accepted(talk, home):
    """Else the others would show nothing."""
    for asked in talk.heard:
        assert talk.hear(asked, asked.answer)
    assert sum(asked.sent.turn.kind == "turn" for asked in talk.heard) >= 8
    for kind, kept in home.honest.items():
        for data in kept if kind != "server states" else ():
            assert home.read(kind, data)
