"""The dry run of a method's turns: which trainings it notes, and what it refuses."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from vergence.core.client import ClientContext
from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation
from vergence.core.local_training import LocalTraining
from vergence.core.method import Exposure
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.requests import Compute, Fit, Mean, Step
from vergence.engine.protections import dry_run as rehearsal
from vergence.engine.protections.dry_run import dry_run, unprotected
from vergence.errors import ConfigError
from vergence.methods.fedselect import FedSelect
from vergence.models.linear import Linear
from vergence.privacy.dp.dp_sgd_solver import TrainingPass
from vergence.tasks.toy import ToyTask
from vergence.training.sequential import Solver

TASK = ToyTask(Linear(inputs=2))
LOCAL = LocalTraining(optimizer="sgd", epochs=3, batch=4)


def samples(n, first=0.0):
    x = first + torch.arange(2.0 * n).reshape(n, 2) / 10
    return Samples({"x": x, "y": x.sum(1)})


PEOPLE = Federation("two", {n: Splits(samples(10), samples(6, 1.0), samples(4)) for n in "ab"})


class Made:
    """A method whose verbs make these requests: verb -> function of (site, message)."""

    served = needs_public_data = False

    def __init__(self, exposure=None, **asked):
        self.asked, self.got, self.states, self.rounds = asked, [], [], []
        self.exposure = exposure or {verb: Exposure() for verb in asked}

    def __getattr__(self, name):
        if not name.startswith("on_"):
            raise AttributeError(name)

        def turn(state, message, site):
            self.states.append(state)
            self.rounds.append((site.id, site.round, message.verb, sorted(message.trees)))
            for request in self.asked[name.removeprefix("on_")](site):
                self.got.append((yield request))
            return "later", None

        return turn

    def server(self, task):
        return task.init()

    def client(self, task):
        return "fresh"

    def offer(self, server, client):
        return {"model": server}


def fit(data, local=LOCAL, **more):
    return Fit(TASK.init(), data, local, **more)


def test_trainings_of_the_first_verb_count_each_round_and_others_once():
    """10 samples in the training, 4 of them in the second: shares 1 and .4; a mean uses all."""
    method = Made(
        train=lambda site: [
            fit(site.train),
            fit(site.train.subset(torch.arange(4)), LocalTraining(optimizer="sgd", epochs=1)),
            Mean(torch.tensor([[3.0, 4.0], [0.0, 0.5]]), 1.0),
        ],
        tell=lambda site: [fit(site.train), Mean(torch.ones(2, 1), 5.0)],
    )
    assert dry_run(method, TASK, PEOPLE, 7) == (
        TrainingPass(LOCAL, 1.0, 7),
        TrainingPass(LocalTraining(optimizer="sgd", epochs=1), 0.4, 7),
        TrainingPass(None, 1.0, 7),
        TrainingPass(LOCAL, 1.0, 1),
        TrainingPass(None, 1.0, 1),
    )
    assert method.states == ["fresh", "later"] * 2
    assert method.rounds == [("a", 0, verb, ["model"]) for verb in ("train", "tell") for _ in "12"]
    whole, part, mean = method.got[:3]
    assert torch.equal(whole.params.flat, TASK.init().flat)
    assert (whole.examples, whole.steps, whole.optimiser) == (10, 3 * 3, None)  # 10 / 4 is 3
    assert whole.metrics == {"loss": 0.0, "score": 0.0}
    assert (part.examples, part.steps) == (4, 1)
    assert mean.tolist() == pytest.approx([0.3, 0.65])


@pytest.mark.parametrize("rule", ["published", "restated"])
def test_a_method_that_asks_for_more_once_it_has_a_state_is_counted_by_that(rule):
    """FedSelect trains all entries at once at first, later personal and shared ones in turns."""
    method = FedSelect(LOCAL, rule=rule, rate=1.0, limit=0.5)
    once = replace(LOCAL, epochs=1)
    parts = [TrainingPass(once, 1.0, 7)] * (2 * LOCAL.epochs)
    expected = parts if rule == "published" else [TrainingPass(LOCAL, 1.0, 7)]
    assert dry_run(method, TASK, PEOPLE, 7) == tuple(expected)


def test_what_validation_samples_say_is_computed():
    method = Made(train=lambda site: [Compute(TASK.init(), site.val, "loss"), fit(site.train)])
    assert dry_run(method, TASK, PEOPLE, 2) == (TrainingPass(LOCAL, 1.0, 2),)
    expected = Solver(TASK).compute(Compute(TASK.init(), PEOPLE.people["a"].val, "loss"))
    assert float(method.got[0]) == float(expected)


STEP = Step(TASK.init(), TASK.init(), {}, LOCAL, TASK)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (lambda s: [Compute(TASK.init(), s.train, "loss")], "'train' .*the loss of training"),
        (lambda _: [Compute(TASK.init(), samples(6, 1.0), "loss")], "the loss of training"),
        (lambda _: [STEP], "'train' .*single batches of training samples"),
        (lambda s: [SimpleNamespace(data=s.val)], "single batches of training samples"),
        (lambda s: [fit(s.train, objective="own")], "test_dry_run:Made' minimises another"),
    ],
)
def test_what_is_no_training_of_the_tasks_loss_is_refused(asked, says):
    with pytest.raises(ConfigError, match=says):
        dry_run(Made(train=asked), TASK, PEOPLE, 2)


@pytest.mark.parametrize("again", [[], [Mean(torch.ones(1, 1), 1.0)], [STEP]])
def test_what_a_turn_asks_for_with_a_state_is_tried_and_not_counted(again):
    """From the second turn on, a method might ask for something that is refused."""
    method = Made(train=lambda site: [fit(site.train)] if len(method.states) == 1 else again)
    if again == [STEP]:
        with pytest.raises(ConfigError, match="single batches"):
            dry_run(method, TASK, PEOPLE, 3)
    else:
        assert dry_run(method, TASK, PEOPLE, 3) == (TrainingPass(LOCAL, 1.0, 3),)
    assert method.states == ["fresh", "later"]


def test_blind_turns_and_those_beyond_the_budget_are_not_tried():
    """The first verb that is declared counts each round, whether it is tried or not."""
    turns = {"blank": lambda _: [STEP], "train": lambda site: [fit(site.train)]}
    for skipped in (Exposure(blind=True), Exposure(beyond="the labels")):
        method = Made({"blank": skipped, "train": Exposure()}, **turns)
        assert dry_run(method, TASK, PEOPLE, 4) == (TrainingPass(LOCAL, 1.0, 1),)
        method = Made({"train": Exposure(), "blank": skipped}, **turns)
        assert dry_run(method, TASK, PEOPLE, 4) == (TrainingPass(LOCAL, 1.0, 4),)


@pytest.mark.parametrize(("down", "trees"), [(None, ["model"]), (("model",), ["model"]), ((), [])])
def test_a_turn_gets_what_the_method_offers_unless_it_gets_nothing(down, trees):
    method = Made({"train": Exposure(down=down)}, train=lambda site: [fit(site.train)])
    assert len(dry_run(method, TASK, PEOPLE, 1)) == 1
    assert [seen[-1] for seen in method.rounds] == [trees] * 2


@pytest.mark.parametrize("down", [("model", "question"), ("question",)])
def test_a_turn_on_what_only_the_server_can_send_is_refused(down):
    method = Made({"train": Exposure(down=down)}, train=lambda site: [fit(site.train)])
    with pytest.raises(ConfigError, match="'train' of this method also uses single batches"):
        dry_run(method, TASK, PEOPLE, 1)
    assert method.rounds == []


@pytest.mark.parametrize("error", [KeyError, ValueError, RuntimeError])
def test_what_a_dry_run_cannot_go_through_is_left_to_the_run(error):
    def breaks(_):
        raise error("column")

    method = Made(train=breaks)
    assert unprotected(method, TASK) == ""
    with pytest.raises(error):
        dry_run(method, TASK, PEOPLE, 1)


def test_without_people_a_method_is_tried_on_made_up_data():
    """8 made-up samples in each part, and they are three objects: one is not another."""
    parts = (rehearsal.TRAIN, rehearsal.VAL, rehearsal.TEST)
    assert [len(part) for part in parts] == [8, 8, 8]
    assert len({id(part) for part in parts}) == 3
    method = Made(train=lambda site: [fit(site.train), Compute(TASK.init(), site.train, "loss")])
    method.offer = lambda *_: {"model": TASK.init()}
    assert "the loss of training samples" in unprotected(method, TASK)
    method = Made(train=lambda _: [Mean(torch.ones(1, 1), 1.0)])
    method.offer = lambda *_: {}
    assert unprotected(method, TASK) == ""


def test_a_share_of_nothing_is_nothing():
    """Whoever has no training samples uses none of them."""
    nobody = ClientContext("a", samples(0), samples(0), TASK, 0, RandomStream("x"))
    recorder = rehearsal._TrainingRecorder("made", "train", nobody)
    recorder.answer(fit(samples(0)))
    recorder.answer(fit(samples(3)))
    assert [one.share for one in recorder.passes] == [0.0, 3.0]


def test_the_start_stays_as_it_is():
    start = Params.named(w=torch.zeros(2))
    site = ClientContext("a", samples(8), samples(8), TASK, 0, RandomStream("x"))
    recorder = rehearsal._TrainingRecorder("made", "train", site)
    assert recorder.answer(Fit(start, samples(8), LOCAL)).params is start
