"""Questions about the metrics of any model, any number of times, without noise."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from tests.adversary.lies import circle, method, question, refusals, turn
from vergence.core.local_training import LocalTraining
from vergence.core.method import Exposure
from vergence.deployment.protocol import ClientRequest
from vergence.errors import StateError
from vergence.methods.fedavg import FedAvg

P0 = ("P0",)


def homes(tmp_path, **plan):
    return circle(method("fedavg", LocalTraining(optimizer="sgd")), tmp_path, 5, rounds=4, **plan)


def evaluation(made, done, client="p01", points=P0, shift=0.0):
    asked = question(made, done, "evaluate")
    trees = {name: tree.like(tree.flat + shift) for name, tree in asked.trees.items()}
    return ClientRequest("evaluate", client, replace(asked, trees=trees), points=points)


def test_a_turn_is_measured_only_where_the_plan_says(tmp_path):
    made = homes(tmp_path)
    with pytest.raises(StateError, match=r"plan: after 0 rounds nothing is measured here"):
        turn(made, "p01", ClientRequest("turn", "p01", question(made, 0), "0.1", points=("P1",)))


@pytest.mark.parametrize(
    ("done", "points"), [(1, P0), (0, P0), (4, ("P0", "P2")), (4, ("P1",)), (5, P0)]
)
def test_an_evaluation_that_the_plan_does_not_have_is_refused(done, points, tmp_path):
    made = homes(tmp_path)
    with pytest.raises(StateError, match="plan: "):
        turn(made, "p01", evaluation(made, done, points=points))


def test_the_same_point_of_a_run_is_measured_once(tmp_path):
    """Ten models, ten numbers: a gradient. The very same question is answered again."""
    made = homes(tmp_path, evaluate_every=2)
    first = turn(made, "p01", evaluation(made, 2))
    assert turn(made, "p01", evaluation(made, 2)) == first
    for shift in (0.5, 1.5, 2.0):
        with pytest.raises(StateError, match="measured after 2 rounds before, with another model"):
            turn(made, "p01", evaluation(made, 2, shift=shift))


def test_a_client_trains_on_the_model_that_it_was_measured_with(tmp_path):
    """So that a model made up for one person's metrics puts that person out of the sum."""
    made = homes(tmp_path, evaluate_every=2)
    turn(made, "p01", evaluation(made, 2, shift=0.5))
    asked = {
        c: ClientRequest("turn", c, question(made, 2), "2.1", progress=0.5) for c in made.names
    }
    refused = refusals(made, asked)
    assert list(refused) == ["p01"], refused
    assert "is not the one that 'p01' was measured with" in refused["p01"]


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedper", "fedadam", "ditto", "fedala"])
def test_an_honest_run_is_measured_as_planned(name, tmp_path):
    made = circle(method(name, LocalTraining(optimizer="sgd")), tmp_path, 4)
    made.run_rounds(rounds=3, evaluate_every=1, points=("P0", "P1"))
    asked = [e for c, e, _ in made.asked if e.kind == "evaluate" and c == "p01"]
    assert [e.message.round for e in asked] == [0, 1, 2, 3]


def test_a_turn_is_asked_one_question(tmp_path):
    """Turn after turn in one round, each with another model, each measured where it ends."""
    made = homes(tmp_path, evaluate_every=1, points=("P0", "P1"))
    asked = ClientRequest("turn", "p01", question(made, 0), "0.1", points=("P1",))
    first = turn(made, "p01", asked)
    assert turn(made, "p01", asked) == first
    tree = {name: tree.like(tree.flat + 1) for name, tree in asked.message.trees.items()}
    other = replace(asked, message=replace(asked.message, trees=tree), stamp="0.7")
    with pytest.raises(StateError, match=r"spent: 'run 0.train' was another question before"):
        turn(made, "p01", other)


def test_a_model_is_measured_before_its_round_or_not_at_all(tmp_path):
    """Else any model could be measured once the round's own has been trained on."""
    made = homes(tmp_path, evaluate_every=1)
    turn(made, "p01", ClientRequest("turn", "p01", question(made, 1), "1.1", progress=0.25))
    with pytest.raises(StateError, match="has trained in round 1, and is measured before that"):
        turn(made, "p01", evaluation(made, 1, shift=0.5))


def shifted(request, shift=0.5):
    trees = {name: tree.like(tree.flat + shift) for name, tree in request.message.trees.items()}
    return replace(request, message=replace(request.message, trees=trees))


def at_the_start(tmp_path):
    made = circle(
        method("scaffold", LocalTraining(optimizer="sgd")),
        tmp_path,
        5,
        rounds=4,
        evaluate_every=1,
        points=("P0",),
    )
    return made, ClientRequest("turn", "p01", question(made, 0), "0.1")


STAMPS = ("0.1", "setup.1", "finish.1")


@pytest.mark.parametrize("stamp", STAMPS)
def test_a_stamp_makes_no_round_part_of_setup(stamp, tmp_path):
    """SCAFFOLD's setup asks nobody anything: whatever a server calls a turn, it is the round's."""
    made, asked = at_the_start(tmp_path)
    turn(made, "p01", evaluation(made, 0, shift=0.5))
    with pytest.raises(StateError, match=r"stamp: |is not the one that 'p01' was measured with"):
        turn(made, "p01", replace(asked, stamp=stamp))


@pytest.mark.parametrize("stamp", STAMPS)
def test_who_trained_in_setup_is_not_measured_with_any_model(stamp, tmp_path):
    made, asked = at_the_start(tmp_path)
    refused = refusals(made, {"p01": replace(asked, stamp=stamp)})
    assert bool(refused) is (stamp != "0.1"), refused
    turn(made, "p01", asked)
    with pytest.raises(StateError, match="has trained in round 0, and is measured before that"):
        turn(made, "p01", evaluation(made, 0, shift=0.5))


def test_a_round_that_is_over_does_not_come_again(tmp_path):
    """Else a later round makes a client forget which model it was measured with."""
    made = homes(tmp_path, evaluate_every=1)
    turn(made, "p01", evaluation(made, 1))
    turn(made, "p01", ClientRequest("turn", "p01", question(made, 2), "2.1", progress=0.5))
    asked = ClientRequest("turn", "p01", question(made, 1), "1.1", progress=0.25)
    for again in (shifted(asked), asked):
        with pytest.raises(StateError, match="has trained in round 2, and round 1 is over"):
            turn(made, "p01", again)


@dataclass(frozen=True)
class Twofold(FedAvg):
    """FedAvg whose rounds ask clients for a second update."""

    exposure: ClassVar = {"train": Exposure(), "more": Exposure()}
    on_more = FedAvg.on_train


def test_every_turn_of_a_round_is_on_the_model_that_was_measured(tmp_path):
    made = circle(
        Twofold(local=LocalTraining(optimizer="sgd")), tmp_path, 5, rounds=4, evaluate_every=1
    )
    turn(made, "p01", evaluation(made, 1))
    first = ClientRequest("turn", "p01", question(made, 1), "1.1", progress=0.25)
    second = replace(first, message=question(made, 1, "more"), stamp="1.2")
    turn(made, "p01", first)
    with pytest.raises(StateError, match="is not the one that 'p01' was measured with"):
        turn(made, "p01", shifted(second))
    assert turn(made, "p01", second)["status"] == "ok"


@pytest.mark.parametrize(("name", "verb"), [("fedavg_ft", "train"), ("fedrep", "train")])
def test_after_the_last_round_only_finish_is_asked(name, verb, tmp_path):
    made = circle(method(name, LocalTraining(optimizer="sgd")), tmp_path, 5, rounds=4)
    own = made.method.finish_verbs[0]
    with pytest.raises(StateError, match=rf"plan: '{verb}' is asked for after the last round, .*"):
        turn(made, "p01", ClientRequest("turn", "p01", question(made, 4, verb), "finish.1"))
    done = turn(made, "p01", ClientRequest("turn", "p01", question(made, 4, own), "finish.1"))
    assert done["status"] == "ok"
