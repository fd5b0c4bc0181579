"""The very same sum is opened again with another row of one person.

Same names, accepted by all: the difference of the two sums was that person's, bit for bit; and
with noise for people it took the noise off.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from tests.adversary.lies import circle, method, opened, question, turn, turns
from tests.privacy.sums import ends, pairwise, people, random_words, register, shared, under_pads
from vergence.core.conversation import aggregate
from vergence.core.local_training import LocalTraining
from vergence.core.messages import reply
from vergence.core.method import Exposure
from vergence.deployment.protocol import ClientRequest
from vergence.errors import StateError
from vergence.methods.scaffold import Scaffold
from vergence.privacy.config import UserLevelConfig
from vergence.privacy.secure_aggregation.additive import Aggregator, Contributor
from vergence.privacy.secure_aggregation.additive_messages import Openings
from vergence.privacy.secure_aggregation.session import Invitation, Refused, UsedContributions


def again(made, victim, round, **change):
    """Open a round's sum once more, after one person was asked anew."""
    asked = turns(made, round)
    message = asked[victim].message
    stamps = {c: e.stamp for c, e in asked.items()}
    form, first = opened(made, message, stamps)  # the very same sum: allowed
    turn(made, victim, replace(asked[victim], stamp=f"{round}.7", **change))
    _, second = opened(made, message, {**stamps, victim: f"{round}.7"})
    return form, second.words - first.words


def test_a_sum_is_not_opened_with_another_row_of_one_person(tmp_path):
    made = circle(method("scaffold", LocalTraining(optimizer="sgd")), tmp_path, 5)
    made.run_rounds(rounds=2)
    with pytest.raises(StateError, match="spent: "):
        again(made, made.names[2], 1, file=None)


def test_the_very_same_row_may_be_summed_again(tmp_path):
    """A server that died before it kept a sum asks again, and learns nothing new."""
    made = circle(method("scaffold", LocalTraining(optimizer="sgd")), tmp_path, 5)
    made.run_rounds(rounds=2)
    asked = turns(made, 1)
    stamps = {c: e.stamp for c, e in asked.items()}
    first, second = (opened(made, asked["p02"].message, stamps)[1] for _ in range(2))
    assert first.names == second.names
    assert (first.words == second.words).all()


def test_noise_for_people_is_not_drawn_anew(tmp_path):
    local = LocalTraining(optimizer="sgd", epochs=2, batch=8, lr=0.05, schedule="cosine")
    made = circle(method("fedavg", local), tmp_path, 5, user=UserLevelConfig(clip=0.5, epsilon=8.0))
    made.run_rounds(rounds=3)
    before = (made.place(made.names[1]) / "sum.spent").read_text()
    with pytest.raises(StateError, match=r"progress|spent: "):
        again(made, made.names[1], 2, progress=0.05)
    assert (made.place(made.names[1]) / "sum.spent").read_text() == before


def test_one_row_of_words_is_given_to_a_question_under_pads():
    """The last line of defence, whatever made the row another one."""
    given = {name: random_words(3) for name in people(4)}
    spent = {name: UsedContributions() for name in given}
    under_pads(pairwise(4), given, spent=spent).rest()
    other = {**given, "p01": random_words(3)}
    with pytest.raises(Refused, match="spent: "):
        under_pads(pairwise(4, attempt=1), other, spent=spent).until(3)


def test_a_row_is_a_row_of_its_question_alone():
    """The same words in answer to another model tell more than the one sum they were given to."""
    spent, words = UsedContributions(), random_words(3)
    assert hasattr(spent, "spend_row"), "nothing remembers which row was given"
    spent.spend_row(shared(3), words)
    spent.spend_row(shared(3, attempt=1), words)
    with pytest.raises(Refused, match="spent: another row"):
        spent.spend_row(shared(3, form=b"asked otherwise"), words)


def test_one_row_of_words_is_given_to_a_question_on_shares():
    made = Contributor, ("p01", shared(3), random_words(3), ends("p01")[0], register(["agg0"]))
    spent = UsedContributions()
    assert hasattr(spent, "spend_row"), "nothing remembers which row was given"
    spent.spend_row(shared(3), random_words(3))
    client = made[0](*made[1], spent)
    openings = tuple(
        Aggregator(n, shared(3), ends(n)[0], {}, UsedContributions()).answer(
            Invitation(shared(3).digest)
        )
        for n in ("agg0", "agg1")
    )
    client.register = register(["agg0", "agg1"])
    with pytest.raises(Refused, match="spent: another row"):
        client.answer(Openings(shared(3).digest, openings))


@pytest.mark.parametrize("file", [None, "seed0.client.p02.0.1.safetensors"])
def test_a_new_question_is_not_answered_from_a_state_that_does_not_count(file, tmp_path):
    """Which state a client trains from changes its update as much as the model does."""
    made = circle(method("scaffold", LocalTraining(optimizer="sgd")), tmp_path, 5)
    made.run_rounds(rounds=3)
    made.plan = replace(made.plan, rounds=4)
    asked = turns(made, 2)["p02"]
    new = replace(
        asked, message=replace(asked.message, round=3), stamp="3.1", progress=0.75, drop=()
    )
    with pytest.raises(StateError, match="state: the server says that"):
        turn(made, "p02", replace(new, file=file))


def test_who_has_a_state_does_not_start_anew(tmp_path):
    """After a turn that was quarantined there is no newer state; that is not the same as none."""
    made = circle(method("scaffold", LocalTraining(optimizer="sgd")), tmp_path, 5)
    made.run_rounds(rounds=3)
    made.plan = replace(made.plan, rounds=8)
    asked = turns(made, 2)["p02"]
    file = "seed0.client.p02.2.1.safetensors"
    spoilt = {n: float("nan") * tree for n, tree in asked.message.trees.items()}
    new = replace(
        asked,
        message=replace(asked.message, round=4, trees=spoilt),
        stamp="4.1",
        file=file,
        progress=0.5,
        drop=(),
    )
    assert turn(made, "p02", new)["status"].startswith("quarantined: ")
    again = replace(
        new, message=replace(new.message, round=6), stamp="6.1", file=None, progress=0.75
    )
    with pytest.raises(StateError, match="state: the server says that None"):
        turn(made, "p02", again)


def test_a_state_counts_only_if_its_words_were_given_to_a_sum(tmp_path):
    """Else a server trains all but one person, turn after turn, until they add nothing to a sum."""
    made = circle(method("scaffold", LocalTraining(optimizer="sgd")), tmp_path, 5, rounds=4)
    first = ClientRequest("turn", "p02", question(made, 0), "0.1")
    assert turn(made, "p02", first)["status"] == "ok"
    file = "seed0.client.p02.0.1.safetensors"
    new = ClientRequest("turn", "p02", question(made, 1), "1.1", file=file, progress=0.25)
    with pytest.raises(StateError, match="state: the server says that seed0"):
        turn(made, "p02", new)
    assert turn(made, "p02", replace(new, file=None))["status"] == "ok"


def at(number):
    return f"seed0.client.p02.{number}.safetensors"


@pytest.mark.parametrize(
    "stamps",
    [("0.1.0", "0.1.1", "0.1.2", "0.1.3"), ("setup.1.0", "setup.1.1", "setup.1.2", "setup.1.3")],
    ids=["one job", "setup"],
)
def test_turns_of_several_rounds_are_no_part_of_one_job(stamps, tmp_path):
    """Else a server trains one person round after round by stamps of one job, and holds no sum."""
    made = circle(method("scaffold", LocalTraining(optimizer="sgd")), tmp_path, 5, rounds=4)
    asked = [
        ClientRequest(
            "turn",
            "p02",
            question(made, round),
            stamp,
            file=at(stamps[round - 1]) if round else None,
            progress=round / 4,
        )
        for round, stamp in enumerate(stamps)
    ]
    for request in asked[: asked[0].stamp == "0.1.0"]:
        assert turn(made, "p02", request)["status"] == "ok"
    for request in asked[asked[0].stamp == "0.1.0" :]:
        with pytest.raises(StateError, match=r"stamp: '.*' is of another part of the run than"):
            turn(made, "p02", request)


@dataclass(frozen=True)
class TwoQuestions(Scaffold):
    """SCAFFOLD whose rounds ask clients a second time; what they learn then is in no reply."""

    exposure: ClassVar = {
        "train": Exposure(trees=("model", "control")),
        "more": Exposure(trees=("model", "control")),
        "quiet": Exposure(trees=(), metrics=()),
    }
    on_more = Scaffold.on_train

    def round(self, s, cohort):
        s = yield from super().round(s, cohort)
        yield from aggregate("more", to=cohort)
        return s

    def on_quiet(self, c, msg, site):
        c, _ = yield from self.on_train(c, msg, site)
        return c, reply()


def two_questions(tmp_path, verb):
    """A client's first turn of a round, and the second, from the state that the first left."""
    made = circle(TwoQuestions(local=LocalTraining(optimizer="sgd")), tmp_path, 5, rounds=4)
    first = ClientRequest("turn", "p02", question(made, 0), "0.1.1")
    second = replace(first, message=question(made, 0, verb), stamp="0.1.2", file=at("0.1.1"))
    return made, first, second


@pytest.mark.parametrize("verb", ["more", "quiet"])
def test_within_a_job_too_a_state_counts_only_if_its_words_were_given(verb, tmp_path):
    made, first, second = two_questions(tmp_path, verb)
    assert turn(made, "p02", first)["status"] == "ok"
    with pytest.raises(StateError, match="state: the server says that seed0"):
        turn(made, "p02", second)
    assert turn(made, "p02", replace(second, file=None))["status"] == "ok"


@pytest.mark.parametrize("verb", ["more", "quiet"])
def test_no_turn_of_a_sum_is_taken_together_with_others(verb, tmp_path):
    """Only the last turn's sum is remembered: the words of those before would never be given."""
    made, first, second = two_questions(tmp_path, verb)
    with pytest.raises(StateError, match="plan: turns of several rounds, or whose replies go into"):
        turn(made, "p02", replace(first, then=(second.message,)))
    assert not (made.place("p02") / at("0.1.2")).exists()


def test_a_turn_of_an_older_round_lies_over_no_newer_state(tmp_path):
    """The name of the state that counts is no promise if an older turn may be filed under it."""
    made = circle(method("scaffold", LocalTraining(optimizer="sgd")), tmp_path, 5, rounds=4)
    made.run_rounds(rounds=3)
    made.plan = replace(made.plan, rounds=3)
    asked, file = turns(made, 1)["p02"], made.place("p02") / at("2.1")
    before = file.read_bytes()
    with pytest.raises(StateError, match=r"stamp: '2\.1' is of another part of the run"):
        turn(made, "p02", replace(asked, stamp="2.1", drop=()))
    assert file.read_bytes() == before


def test_a_turn_that_is_taken_again_lies_not_over_the_last_one(tmp_path):
    """Its words were given, so it may be; under its own name, not under that of the next turn."""
    made = circle(TwoQuestions(local=LocalTraining(optimizer="sgd")), tmp_path, 5, rounds=4)
    made.run_rounds(rounds=1)
    made.plan = replace(made.plan, rounds=4)
    first = next(e for c, e, _ in made.asked if c == "p02" and e.message.verb == "train")
    file = made.place("p02") / at("0.2")
    before = file.read_bytes()
    with pytest.raises(StateError, match=r"stamp: '0\.2' is of the last turn of 'p02', which was"):
        turn(made, "p02", replace(first, stamp="0.2", drop=()))
    assert file.read_bytes() == before
    assert turn(made, "p02", replace(first, stamp="0.3", drop=()))["status"] == "ok"
