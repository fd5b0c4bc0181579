"""Answers are read in an order that does not depend on when they come, in bounded memory."""

import os
import random
import time

import pytest

from tests.conformance.test_methods import build, run
from tests.deployment.test_remote_clients import Loop, there
from tests.engine.toys import table
from vergence.data.synthetic.toy import Toy as People
from vergence.deployment import answer_order, remote_clients
from vergence.deployment.answer_order import WaitingAnswers, reading_order


def test_answers_of_a_group_are_read_in_its_order():
    """Groups (0, 1), (2, 3, 4) and (5,): 1 waits for 0; group 1 is behind the window until then."""
    read = list(reading_order([2, 3, 1], 1, [1, 3, 2, 5, 0, 4]))
    assert read == [(0, 0), (0, 1), (1, 2), (1, 3), (1, 4), (2, 5)]
    ahead = list(reading_order([2, 3, 1], 2, [1, 3, 2, 5, 0, 4]))
    assert ahead == [(1, 2), (1, 3), (0, 0), (0, 1), (2, 5), (1, 4)]


@pytest.mark.parametrize("ahead", [1, 2, 7, 100])
def test_every_answer_is_read_once_and_few_groups_are_open(ahead):
    draw = random.Random(ahead)
    for _ in range(200):
        groups = [draw.randint(1, 4) for _ in range(draw.randint(1, 12))]
        arrivals = draw.sample(range(sum(groups)), sum(groups))
        left, open_groups = list(groups), set()
        for group, _ in reading_order(groups, ahead, arrivals):
            left[group] -= 1
            open_groups = (open_groups | {group}) - {g for g in open_groups if not left[g]}
            first = next(iter(g for g, count in enumerate(left) if count), len(groups))
            assert max(open_groups, default=0) < max(first, 1) + ahead
        assert not any(left)


def test_long_answers_wait_in_a_file_that_has_no_name(tmp_path, monkeypatch):
    monkeypatch.setattr(answer_order, "MEMORY", 10)
    waiting, lost = WaitingAnswers(tmp_path), ValueError("no answer")
    answers = {0: b"a" * 8, 1: b"b" * 8, 2: lost, 3: b"c" * 9, 4: b"d"}
    for number, answer in answers.items():
        waiting.put(number, answer)
    assert set(waiting.answers) == {0, 2, 4}
    assert not list(tmp_path.iterdir())
    assert {number: waiting[number] for number in answers} == answers
    waiting.discard(0)
    waiting.put(5, b"e" * 9)
    assert 5 in waiting.answers
    waiting.close()


def test_a_full_disk_does_not_end_the_round(tmp_path, monkeypatch):
    def full(**_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(answer_order, "MEMORY", 0)
    monkeypatch.setattr(answer_order.tempfile, "TemporaryFile", full)
    waiting = WaitingAnswers(tmp_path)
    waiting.put(0, b"answer")
    assert waiting[0] == b"answer"


class Late(Loop):
    """A line on which answers come in an order of their own in every run."""

    def ask(self, client, request):
        answer = super().ask(client, request)
        time.sleep(random.Random(os.urandom(8)).random() / 50)
        return answer


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "fedcpf", "fedpac"])
def test_the_bits_do_not_depend_on_memory_or_arrival(name, tmp_path, monkeypatch):
    """70 people are groups of two; FedPAC's statistics have shapes on which replies vote."""
    crowd = People(people=70).load()
    counts = {client: len(s.train) for client, s in crowd.people.items()}
    for module in ("test_remote_clients.PEOPLE", "test_remote_clients.COUNTS"):
        monkeypatch.setattr(f"tests.deployment.{module}", crowd if "PEOPLE" in module else counts)
    method = build(name)
    expected = run(method, tmp_path / "here", crowd, solver="sequential", rounds=2)[1].fingerprint
    found = there(method, tmp_path / "much", Late(method, tmp_path / "much/homes"), rounds=2)
    assert found.fingerprint == expected
    monkeypatch.setattr(remote_clients, "SUMS", 0)
    monkeypatch.setattr(answer_order, "MEMORY", 0)
    found = there(method, tmp_path / "little", Late(method, tmp_path / "little/homes"), rounds=2)
    assert found.fingerprint == expected
    rows = table(tmp_path / "little/server", "turns.csv")
    assert rows == table(tmp_path / "here", "turns.csv")
    assert not list((tmp_path / "little/server/state").glob("tmp*"))
