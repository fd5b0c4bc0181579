"""FedGen: diversity of oracle O10, the generator's loss and a client's step by hand, who is asked.

Generator: shares of O12 for classes 0 and 2: (.25, .75) and (.75, .25). Heads of scores
(ln 2, 0, 0) and (0, 0, 0): losses (ln 2, ln 4) and ln 3:
    ((.25 ln 2 + .75 ln 4) + (.75 + .25) ln 3) / 2 = 1.155810

Client: head * body * x with body 2, head 1, sample (1, 3); made-up features are always 4, alpha
.25, beta .5, the one known class has the label 1:
    loss      (2 - 3)^2 / 2  +  .5 (2 - 4)^2, the 4 held fixed  +  .25 (4 head - 1)^2 / 2
    gradient  head: -1 * 2 + .5 * 2 * -2 * 2 + .25 * 3 * 4 = -3;  body: -1 - 2 = -3
"""

import math
from dataclasses import replace

import pytest
import torch

from tests.scripts import PLAIN, Product, Two, pairs, taught, values
from vergence.core.conversation import drive
from vergence.core.messages import Message, reply, seal
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.requests import Request, Step
from vergence.data.synthetic.toy import Toy as People
from vergence.engine.client_executor import ClientExecutor, Computation, LocalData
from vergence.engine.records import ClientState, ClientTask, TaskBatch
from vergence.errors import ConfigError
from vergence.methods.fedavg import FedAvg
from vergence.methods.fedgen import Consensus, FedGen, Latents, diversity, latents
from vergence.models.glc.glc_features import GlcFeatures
from vergence.models.linear import Linear
from vergence.models.small_cnn import SmallCnn
from vergence.models.small_eye import SmallEye
from vergence.models.softmax import Softmax
from vergence.tasks.gaze_angle import GazeAngle
from vergence.tasks.gaze_map import GazeMap
from vergence.tasks.images import Images
from vergence.tasks.toy import ToyTask
from vergence.training.cuda_graphs import Graphed
from vergence.training.steps import Trainers


class Signed(Product):
    """The product, whose classes stand for the labels -1 and 1."""

    def labelled(self, classes, noise=None):
        return {"y": 2.0 * classes - 1.0}


class Plain(Product):
    classes = 0


TASK, LINE = Signed(Two()), ToyTask(Linear())
METHOD = FedGen(local=PLAIN, alpha=0.25, beta=0.5, hidden=3, noise=2, batch=8, steps=4)
O12 = [[10.0, 0.0, 30.0], [30.0, 20.0, 10.0]]
SHARES = torch.tensor([[0.25, 0.75], [0.75, 0.25]])


def constant(value):
    """Return a generator that makes this number of everything."""
    start = METHOD.server(TASK).generator
    bias = Params.named(**{"outer.bias": torch.tensor([value])})
    return (start * 0.0).put(bias)


def test_o10_diversity():
    made = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 4.0]])
    loss = diversity(torch.tensor([[0.0], [1.0], [2.0]]), made)
    assert -math.log(loss) == pytest.approx(2.888889, abs=1e-5)
    assert float(loss) == pytest.approx(0.055638, abs=1e-5)


def test_the_generators_loss_by_hand():
    task = Images(Softmax(classes=3))
    batch = {
        "class": torch.tensor([0, 2]),
        "noise": torch.tensor([[0.0], [1.0]]),
        "shares": SHARES,
        "weight": torch.zeros(3, 3, 1),
        "bias": torch.tensor([[math.log(2), 0, 0], [0, 0, 0], [0, 0, 0]]),
    }
    made = torch.tensor([[0.0], [2.0]])

    def loss(eta, adversarial=0.0):
        learned = Consensus(Latents(), whole=task, eta=eta, adversarial=adversarial)
        return float(learned.loss(made, batch))

    assert loss(0.0) == pytest.approx(1.155810, abs=1e-5)
    assert loss(2.0) - loss(0.0) == pytest.approx(2 * math.exp(-(2 * 1 * 2) / 4))
    apart = []
    for share in (0.25, 0.75):
        odds = torch.tensor([2**share, 1.0, 1.0], dtype=torch.float64)
        p = odds / odds.sum()
        apart.append(float((p * (3 * p).log()).sum()))
    assert loss(0.0) - loss(0.0, 0.5) == pytest.approx(0.5 * sum(apart) / 2, abs=1e-5)


def turn(*known, round=0):
    sent = {
        "model": TASK.init(),
        "generator": constant(4.0),
        "known": Params.named(classes=torch.tensor(known)),
    }
    return taught(METHOD, TASK, METHOD.client(TASK), sent, pairs((1, 3)), round=round)[1]


def test_a_client_step_by_hand():
    sealed = turn(0.0, 1.0)
    assert values(sealed.trees["model"].total) == [0.3, 0.3]
    assert values(sealed.trees["counts"].total) == [0, 1]


def test_before_the_generator_has_learned_a_client_trains_as_ever():
    assert values(turn(0.0, 0.0).trees["model"].total) == [0.1, 0.2]


@pytest.mark.parametrize(("round", "share"), [(0, 1.0), (3, 0.98**3), (800, 0.0)])
def test_weights_fall_to_a_floor(round, share):
    """alpha and beta enter the gradients -3 + 2 + 1 share and -1 - 2 share of the step by hand."""
    alpha, beta = (max(1e-4, a * share) for a in (0.25, 0.5))
    sealed = turn(0.0, 1.0, round=round)
    body, head = 1 + 4 * beta, 2 + 8 * beta - 12 * alpha
    moved = sealed.trees["model"].total.flat.tolist()
    assert moved == pytest.approx([0.1 * body, 0.1 * head], abs=1e-7)


def rounds(method, replies, count=1):
    """Hold rounds with these replies, `[update, counts]`; return the states and all steps."""
    trainers, steps, states = Trainers(TASK), [], [method.server(TASK)]

    def answer(ask):
        if isinstance(ask, Request):
            told = [
                reply(
                    model=states[0].model.like(torch.tensor(v, dtype=torch.float64)),
                    counts=Params.named(counts=torch.tensor(n)),
                    weight={"model": 2.0, "counts": 1.0},
                )
                for v, n in replies
            ]
            return {c: seal(r, 0) for c, r in zip(ask.to, told, strict=False)}
        steps.append(ask)
        return trainers.answer(ask, 0.0)

    for _ in range(count):
        states.append(drive(method.round(states[-1], list("abc")), answer))
    return states, steps


def test_a_round_teaches_the_generator_by_the_heads_that_came():
    (start, after), steps = rounds(METHOD, [((0.0, 1.0), [10.0, 0.0]), ((0.0, 3.0), [30.0, 0.0])])
    assert values(after.model) == [2.0, 3.0]
    assert len(steps) == METHOD.steps
    assert all(isinstance(ask, Step) for ask in steps)
    batch = steps[0].batch
    assert batch["weight"].flatten().tolist() == [2, 4, 1]
    assert not batch["bias"].any()
    assert not batch["class"].any()  # nobody has class 1
    assert torch.equal(batch["shares"], torch.tensor([[0.25], [0.75]]).expand(2, 8))
    assert not torch.equal(batch["noise"], steps[1].batch["noise"])
    assert not torch.equal(after.generator.flat, start.generator.flat)
    assert after.known["classes"].tolist() == [1, 0]
    assert not METHOD.offer(start, "a")["known"].flat.any()
    assert METHOD.offer(after, "a")["generator"] is after.generator


def test_without_steps_it_is_fedavg():
    (_, after), steps = rounds(replace(METHOD, steps=0), [((0.0, 1.0), [10.0, 0.0])])
    assert (values(after.model), steps) == ([2.0, 2.0], [])
    assert not METHOD.offer(after, "a")["known"].flat.any()


def test_adam_goes_on_over_rounds_at_a_falling_rate():
    _, steps = rounds(METHOD, [((0.0, 1.0), [1.0, 1.0])], count=2)
    assert [s.optimiser.steps for s in steps] == list(range(8))
    assert [s.local.lr for s in steps] == pytest.approx([3e-4] * 4 + [0.98 * 3e-4] * 4)
    assert {(s.local.weight_decay, s.local.clip) for s in steps} == {(1e-2, 0.0)}


def test_the_generator_learns_what_the_heads_take_for_the_class():
    method = replace(METHOD, rate=0.03, steps=80, eta=0.0, hidden=8)
    (_, after), _ = rounds(method, [((0.0, 0.0), [5.0, 5.0])])
    network = Consensus(latents(TASK, 2, 8), whole=TASK).module()
    outputs = torch.func.functional_call(
        network, dict(after.generator), (torch.tensor([0, 1]), torch.full((2, 2), 0.5))
    )
    assert outputs.flatten().tolist() == pytest.approx([-1, 1], abs=0.1)


def test_labels_of_cells_lie_in_the_cells():
    task, classes = GazeAngle(SmallEye()), torch.arange(16)
    for noise in (None, torch.zeros(16, 2), torch.full((16, 2), 0.999)):
        found = task.labelled(classes, noise)
        shifted = {"gaze": found["gaze"] + (1e-6 if noise is not None else 0)}
        assert torch.equal(task.class_of(shifted), classes)


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        (Plain(Two()), "tells no classes apart, which fedgen needs"),
        (GazeMap(GlcFeatures()), "the head of GlcFeatures .* is not one linear layer"),
        (Product(Two()), "has no label for a class"),
    ],
)
def test_what_it_cannot_work_with_is_refused(task, reason):
    with pytest.raises(ConfigError, match=reason):
        FedGen().check(task)
    for fine in (GazeAngle(SmallEye()), Images(SmallCnn()), LINE):
        FedGen().check(fine)


def orders(method):
    server = method.server(LINE)
    trees = {
        **method.offer(server, ""),
        "generator": server.generator,
        "known": Params.named(classes=torch.ones(2)),
    }
    return [ClientTask(c, Message("train", trees, round=1)) for c in ("p00", "p03")]


def reply_of(worker, task):
    return worker.turn(task, ClientState(), TaskBatch("turn", [task], [1]))[1]


def test_solvers_agree_to_the_bit():
    """Made-up features are trained on one client after the other, whatever the solver."""
    method, people, stream = FedGen(hidden=4), People(people=4).load(), RandomStream("run", 0)
    plain, graphed = (
        ClientExecutor(method, LINE, LocalData(people, people), stream) for _ in range(2)
    )
    stacked = ClientExecutor(
        method, LINE, LocalData(people, people), stream, Computation(stacks=True)
    )
    graphed.graphed = Graphed(LINE, "cpu")
    alone = [reply_of(plain, task) for task in orders(method)]
    fresh = ClientExecutor(FedAvg(), LINE, LocalData(people, people), stream)
    untaught = reply_of(fresh, orders(method)[0])
    assert not torch.equal(untaught.trees["model"].total.flat, alone[0].trees["model"].total.flat)
    for worker in (stacked, graphed):
        tasks = orders(method)
        kept, batch = [ClientState()] * len(tasks), TaskBatch("turn", tasks, [len(tasks)])
        found = [sealed for _, sealed, _ in worker.turns(tasks, kept, batch)]
        for ours, theirs in zip(alone, found, strict=True):
            assert torch.equal(ours.trees["model"].total.flat, theirs.trees["model"].total.flat)
