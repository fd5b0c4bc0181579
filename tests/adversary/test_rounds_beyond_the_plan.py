"""A server goes on asking after the rounds that a person's noise was made for."""

import csv
from dataclasses import replace

import pytest

from tests.adversary.lies import circle, method, opened, question, turn, turns
from vergence.core.local_training import LocalTraining
from vergence.core.tags import tag
from vergence.deployment.protocol import ClientRequest
from vergence.errors import StateError
from vergence.privacy.config import UserLevelConfig
from vergence.privacy.release_log import Release, ReleaseLog, secret_in

LOCAL = LocalTraining(optimizer="sgd", epochs=1, batch=10**6, lr=0.05, momentum=0.0)


def run(tmp_path, rounds=3):
    made = circle(method("fedavg", LOCAL), tmp_path, 5, user=UserLevelConfig(clip=0.5, epsilon=8.0))
    made.run_rounds(rounds=rounds)
    return made


def lines(made, client):
    book = made.place(client) / "privacy" / "seed0.sums.csv"
    return list(csv.reader(book.read_text().splitlines())) if book.exists() else []


@pytest.mark.parametrize(
    ("round", "why"),
    [
        (3, "'train' is asked for after the last round, and fedavg.finish_verbs names none"),
        (4, "round 4 is asked for, and this run has 3"),
        (1001, "round 1001 is asked for, and this run has 3"),
    ],
)
def test_rounds_beyond_the_plan_are_refused(round, why, tmp_path):
    made = run(tmp_path)
    asked = turns(made, 0)["p01"]
    more = replace(
        asked,
        message=replace(asked.message, round=round),
        stamp=f"{round}.1",
        progress=round / 3 % 1.0,
        drop=(),
    )
    with pytest.raises(StateError, match=f"plan: {why}"):
        turn(made, "p01", more)


def test_every_contribution_stands_in_the_clients_own_book(tmp_path):
    made = run(tmp_path)
    for client in made.names:
        assert [line[:2] for line in lines(made, client)] == [
            ["0", "0.train"],
            ["1", "1.train"],
            ["2", "2.train"],
        ]


def test_a_spent_budget_ends_contributions_whatever_the_plan_says(tmp_path):
    """The plan has rounds left, and the book says that all is spent: the words stay at home."""
    made = circle(method("fedavg", LOCAL), tmp_path, 5, user=UserLevelConfig(clip=0.5, epsilon=8.0))
    noise = made.sums.level.noise
    for client in made.names:
        place = made.place(client) / "privacy"
        made.identity(client).mark.check()  # the book is this client's own, and no copy
        secret_in(place)
        with (place / "seed0.sums.csv").open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(
                [str(at), f"{at}.tune", repr(noise), "1.0", "1"] for at in range(3)
            )
        turn(made, client, ClientRequest("turn", client, question(made, 0), "0.1"))
    with pytest.raises(StateError, match="privacy budget is spent"):
        opened(made, question(made, 0), dict.fromkeys(made.names, "0.1"))


def test_a_booked_release_is_not_repeated_with_other_noise(tmp_path):
    """A name that was paid for once is no free pass for the same sum with less noise on it."""
    book, budget = ReleaseLog(tmp_path / "book.csv"), UserLevelConfig(clip=1.0, epsilon=8.0)
    paid = Release("0", "0.train", 4.0, 1.0, 1)
    book.charge(paid, budget)
    book.charge(paid, budget)
    assert book.entries == [paid]
    for other in (paid._replace(noise=0.5), paid._replace(rate=0.5), paid._replace(steps=2)):
        with pytest.raises(StateError, match="with other noise"):
            ReleaseLog(book.path).charge(other, budget)
    assert ReleaseLog(book.path).entries == [paid]


def test_a_line_is_there_before_the_words_leave(tmp_path):
    user = UserLevelConfig(clip=0.5, epsilon=8.0)
    made = circle(method("fedavg", LOCAL), tmp_path, 5, user=user, rounds=1)
    seen, honest = [], made.ask

    def ask(client, request):
        answer = honest(client, request)
        said = tag(type(made.asked[-1][1].sum_message))
        seen.append((said, len(lines(made, client))))
        return answer

    made.ask = ask
    made.run_rounds(rounds=1)
    assert {many for said, many in seen if said == "Delivery"} == {1}
    assert {many for said, many in seen if said == "Invitation"} == {0}


def test_a_second_question_of_a_round_is_refused(tmp_path):
    """Another model under the same round and verb: one row is given, and one is charged."""
    made = run(tmp_path)
    asked = turns(made, 2)
    message = asked["p01"].message
    other = replace(message, trees={n: 0.5 * tree for n, tree in message.trees.items()})

    def ask():
        for client, request in asked.items():
            turn(made, client, replace(request, message=other, stamp="2.7"))
        opened(made, other, dict.fromkeys(made.names, "2.7"))

    with pytest.raises(StateError, match="spent: "):
        ask()
    assert all(len(lines(made, client)) == 3 for client in made.names)
