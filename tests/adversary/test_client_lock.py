"""A client's lock: of two answers to one step of a secure sum at once, one is given.

The adversary is the server: it sends one client two requests at the same time, each with another
list of who has shared secrets. Both answers would be the same words under the same pads, less the
pads of whoever is left out of one list: n + 1 such lists and every pad of that client is known. In
turn the second is refused, since the step is over; only a lock makes them come in turn.
"""

import errno
import fcntl
import io
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conformance.test_methods import build
from tests.engine.circle import Circle
from vergence.core.messages import Message
from vergence.core.serialization import pack, unpack
from vergence.deployment.protocol import ClientRequest, unframed
from vergence.deployment.remote_clients import ClientLost
from vergence.engine.secure_sum_attempts import SumAnswer
from vergence.errors import StateError
from vergence.privacy.secure_aggregation.pairwise_messages import Masked, RelayedShares

STILL = 100
"""Looks, 10 ms apart, after which who waits for a lock is taken to go on waiting."""


class Meeting:
    """Makes two threads overlap: who opens what is left of an attempt waits there for the other.

    The first until the other has it open as well, has ended, or waits for a lock for good; the
    other until the first has ended. What an open file holds stays as it was when another takes its
    name. Nothing of the package is changed: the system's calls are watched, `open` and `flock`.
    """

    def __init__(self, monkeypatch):
        self.came, self.locking, self.ended, self.all = [], set(), set(), set()
        self.open, self.flock = io.open, fcntl.flock
        monkeypatch.setattr(io, "open", self.opens)
        monkeypatch.setattr(fcntl, "flock", self.locks)

    def opens(self, path, *arguments, **more):
        file = self.open(path, *arguments, **more)
        if Path(str(path)).name == "sum.attempt":
            self.meet(threading.get_ident())
        return file

    def locks(self, *arguments):
        me = threading.get_ident()
        self.locking.add(me)
        self.flock(*arguments)
        self.locking.discard(me)

    def meet(self, me):
        if me not in self.all or me in self.came:
            return
        self.came.append(me)
        (other,) = self.all - {me}
        first, looks = self.came[0] == me, 0
        while other not in self.ended and not (first and (other in self.came or looks > STILL)):
            looks = looks + 1 if other in self.locking else 0
            time.sleep(0.01)

    def at_once(self, *calls):
        """Carry out two calls in a thread each; return what became of each."""
        found, ready = [None] * len(calls), threading.Barrier(len(calls))

        def carry(number, call):
            self.all.add(me := threading.get_ident())
            ready.wait()
            try:
                found[number] = call()
            except StateError as error:
                found[number] = error
            finally:
                self.ended.add(me)

        threads = [threading.Thread(target=carry, args=each) for each in enumerate(calls)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found


class Twice(Circle):
    """Asks one client twice at once for its masked words, of two lists; the attempt ends there."""

    meeting: Meeting
    other = staticmethod(lambda request: request)

    def ask(self, client, request):
        what = unpack(request, ClientRequest)
        if not isinstance(what.sum_message, RelayedShares) or client != self.names[2]:
            return super().ask(client, request)
        requests = request, pack(self.other(what))
        homes = [self.home(client) for _ in requests]
        self.found = self.meeting.at_once(
            *(
                lambda home=home, each=each: home.answer(each)
                for home, each in zip(homes, requests, strict=True)
            )
        )
        raise ClientLost("it has seen enough")


def fewer(request):
    """Leave one of those who have shared out: their pad would not be on the words."""
    boxes = dict(request.sum_message.boxes)
    del boxes[sorted(boxes)[0]]
    return replace(request, sum_message=replace(request.sum_message, boxes=boxes))


@pytest.fixture
def circle(tmp_path, monkeypatch):
    made = Twice(build("fedavg"), tmp_path, people=6)
    made.meeting = Meeting(monkeypatch)
    return made


def words(answer):
    return unpack(unframed(answer)[1], *SumAnswer.__args__)


def test_two_lists_at_once_get_one_answer(circle):
    circle.other = fewer
    circle.run_rounds(rounds=1)
    assert circle.meeting.came, "nobody opened what is left of the attempt"
    answers = [words(found) for found in circle.found if isinstance(found, bytes)]
    refusals = [str(found) for found in circle.found if isinstance(found, StateError)]
    assert len(answers) == 1, "two answers: their difference is a pad"
    assert isinstance(answers[0], Masked)
    assert len(refusals) == 1
    assert "order" in refusals[0] or "spent" in refusals[0], refusals


def test_either_list_alone_would_have_been_answered(circle):
    """Or the test above would show nothing: the shorter list is one that a client answers."""
    circle.meeting.at_once = lambda _, call: [call()]
    circle.other = fewer
    circle.run_rounds(rounds=1)
    assert isinstance(words(circle.found[0]), Masked)


def test_the_same_request_twice_at_once_is_answered_once(circle):
    """As when a server that lost patience asks again: both get the stored bytes."""
    circle.run_rounds(rounds=1)
    one, other = circle.found
    assert isinstance(one, bytes), one
    assert one == other


def say_no(monkeypatch, number):
    """Let the lock's file be one that cannot be opened, for this reason."""
    honest = os.open

    def opens(path, *arguments, **more):
        if Path(os.fsdecode(path)).name == ".turn":
            raise OSError(number, "no")
        return honest(path, *arguments, **more)

    monkeypatch.setattr(os, "open", opens)


def first_turn(folder):
    made = Circle(build("fedavg"), folder, people=6)
    offered = made.method.offer(made.method.server(made.task), "")
    return made, pack(ClientRequest("turn", "p02", Message("train", offered), "0.1"))


def test_without_a_lock_nothing_is_answered(tmp_path):
    made, request = first_turn(tmp_path)
    (made.place("p02") / ".turn").mkdir(parents=True)
    with pytest.raises(StateError, match=r"\.turn cannot be locked \(Is a directory\)") as said:
        made.home("p02").answer(request)
    assert "\n" not in str(said.value)
    assert {path.name for path in made.place("p02").iterdir()} == {".turn"}


@pytest.mark.parametrize("number", [errno.EACCES, errno.EMFILE, errno.ENOSPC, errno.ENOLCK])
def test_only_a_disk_that_may_only_be_read_goes_without(number, tmp_path, monkeypatch):
    made, request = first_turn(tmp_path)
    say_no(monkeypatch, number)
    with pytest.raises(StateError, match="cannot be locked"):
        made.home("p02").answer(request)
    say_no(monkeypatch, errno.EROFS)
    assert unframed(made.home("p02").answer(request))[0]["status"] == "ok"
