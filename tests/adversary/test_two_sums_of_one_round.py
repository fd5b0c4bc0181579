"""Several sums of one round, over different people, with one person's words in all of them."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
from rich.console import Console

from tests.adversary.lies import circle, method, opened, question, turn
from tests.engine.toys import run_toy
from vergence.core.conversation import aggregate
from vergence.core.local_training import LocalTraining
from vergence.core.messages import reply
from vergence.core.method import Exposure, Global, Method, NoState
from vergence.deployment.protocol import ClientRequest
from vergence.engine.participation import Participation
from vergence.engine.plan import Plan
from vergence.engine.secure_sums import SecureSum, sums_for
from vergence.errors import ConfigError, StateError
from vergence.experiment.schema import check
from vergence.privacy.config import Privacy, SecureAggregationConfig, UserLevelConfig
from vergence.reports.explain import explain

USER = UserLevelConfig(clip=0.5, noise=2.0)
FEDAVG = method("fedavg", LocalTraining(optimizer="sgd", epochs=1, batch=10**6, lr=0.05))


def sums(people, cohort=1.0, **aggregation):
    privacy = Privacy(aggregation=SecureAggregationConfig(**aggregation), user=USER)
    plan = Plan(rounds=1, privacy=privacy, presence=Participation(cohort=cohort))
    return sums_for(plan, FEDAVG, people)


@pytest.mark.parametrize(("people", "cohort", "least"), [(60, 40, 31), (12, 0.6, 7), (5, 1.0, 3)])
def test_under_pads_a_sum_with_noise_is_of_more_than_half_of_all(people, cohort, least):
    """Not of those asked: the others can be asked, too, and help to open another sum."""
    made = sums(people, cohort)
    assert made.policy.threshold == made.level.shares == least


def test_a_smaller_sum_is_refused_with_the_number_to_take():
    with pytest.raises(ConfigError, match=r"min_contributors = 8 of 60 people.* take 31 or more"):
        sums(60, 40, min_contributors=8)
    assert sums(60, 40, min_contributors=33).policy.threshold == 33


@pytest.mark.parametrize("given", [{}, {"min_contributors": 31}])
def test_a_cohort_of_half_or_less_is_refused_with_what_to_do(given):
    with pytest.raises(ConfigError, match=r"15 of 60 .* 31; ask more .*'additive'") as said:
        sums(60, 0.25, **given)
    assert "\n" not in str(said.value)
    assert sums(60, 0.25, name="additive").policy.threshold == 8


def test_nobody_is_in_two_sums_of_a_round(tmp_path):
    """Twelve people, eight asked at once: the server asks all, and sums five and one twice.

    It follows its own bound, half of those asked; clients know how many there are.
    """
    made = circle(FEDAVG, tmp_path, 12, user=USER, rounds=1, presence=Participation(cohort=8))
    victim, *others = made.names
    message = question(made, 0)
    for client in made.names:
        turn(made, client, ClientRequest("turn", client, message, "0.1"))
    honest = made.sums
    lower = SecureSum(SecureAggregationConfig(min_contributors=5), 12, honest.level)
    home = made.home

    def at_home(client):
        made.sums = honest
        try:
            return home(client)
        finally:
            made.sums = lower

    made.home, made.sums = at_home, lower
    for group in (others[:5], others[5:10]):
        with pytest.raises(StateError, match="threshold: a sum of 5 people is proposed"):
            opened(made, message, dict.fromkeys([victim, *group], "0.1"))
    made.sums = honest
    assert len(opened(made, message, dict.fromkeys(made.names[:9], "0.1"))[1].names) == 9
    with pytest.raises(StateError, match=r"spent: a sum of .* was opened before"):
        opened(made, message, dict.fromkeys([victim, *made.names[4:]], "0.1"))


def test_explain_says_who_must_help_to_see_a_person_twice():
    table = {
        "task": {"name": "toy"},
        "model": {"name": "linear", "inputs": 4},
        "federation": {"name": "toy", "people": 12, "inputs": 4},
        "method": "fedavg",
        "privacy": {"aggregation": "secure", "user": {"clip": 0.5, "noise": 2.0}},
    }
    console = Console(width=400, record=True)
    with console.capture() as found:
        explain(check(table), console)
    assert "in two sums of a round: the server with 2 clients" in found.get()
    with pytest.raises(ConfigError, match="6 of 12 people are asked at once"):
        explain(check({**table, "presence": {"cohort": 6}}), console)


@dataclass(frozen=True)
class AskedTwice(Method):
    """Asks for two sums in a round, of updates that are zero in both."""

    exposure: ClassVar = {v: Exposure(trees=("model",)) for v in ("train", "again")}

    def server(self, task):
        return Global(task.init())

    def client(self, task):
        return NoState()

    def offer(self, s, client):
        return {"model": s.model}

    def round(self, s, cohort):
        one = yield from aggregate("train", to=cohort)
        two = yield from aggregate("again", to=cohort)
        SUMS.append((one.mean("model").flat, two.mean("model").flat))
        return s

    def on_train(self, c, msg, site):
        yield from ()
        return c, reply(model=msg["model"] * 0)

    on_again = on_train

    def model_on(self, c, msg, site):
        return msg["model"]


SUMS = []


def two_sums(folder):
    SUMS.clear()
    privacy = Privacy(aggregation=SecureAggregationConfig("additive"), user=USER)
    run_toy(folder, AskedTwice(), people=4, rounds=2, inputs=2000, privacy=privacy)
    return list(SUMS)


def test_equal_replies_to_two_questions_have_noise_of_their_own(tmp_path):
    """Else a server that sends a model in which nobody moves learns the difference exactly."""
    for one, two in two_sums(tmp_path):
        assert one.std() > 0.2
        assert (one - two).std() > 1.2 * one.std()


def test_noise_at_home_is_of_a_secret_of_ones_own(tmp_path):
    """Two runs of one seed differ: a key that anyone could form would give the same noise."""
    (first, _), *_ = two_sums(tmp_path / "first")
    (second, _), *_ = two_sums(tmp_path / "second")
    assert (first - second).std() > 1.2 * first.std()
