"""AP-FL: oracles O10, O11 and O12, the generator's loss by hand, and who is served.

The loss: samples (1, 0), (0, 1) of class 0 (label -1) and (0, 0), (3, 4) of class 1 (label 1);
classifiers a: x1 and b: x2 + 1, half mean squared errors; counts (10, 30) and (30, 10).

    a gives 1, 0 | 0, 3: losses (4 + 1) / 4 = 1.25, (1 + 4) / 4 = 1.25
    b gives 1, 2 | 1, 5: losses (4 + 9) / 4 = 3.25, (0 + 16) / 4 = 4
    L_cls  =  ((1.25 / 4 + 3 * 3.25 / 4) + (3 * 1.25 / 4 + 4 / 4)) / 2  =  2.34375
    L_div  =  -(root 2 + 5) / 2  =  -3.207107;  inputs are in [-3, 3], so no two are further apart
              than 6 root 2 = 8.485281
    L      =  (2.34375 - 3.207107) / 2  =  -0.431678;  relative  (2.34375 - 0.377961) / 2
"""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tests.engine.toys import run_toy, table
from vergence.core.local_training import LocalTraining
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.requests import Forward, StepResult
from vergence.core.serialization import equal_states
from vergence.engine.participation import Participation
from vergence.errors import ConfigError
from vergence.methods.fedavg import FedAvg
from vergence.methods.fedavg_ft import FedAvgFT
from vergence.methods.fedprox import FedProx
from vergence.methods.generative.ap_fl import GlobalMemory, mix_models, shares
from vergence.methods.generative.sample_generator import (
    ALPHA,
    CLASSIFIERS,
    KIND,
    Conditional,
    Imagining,
    diversity,
)
from vergence.methods.scaffold import Scaffold
from vergence.models.linear import Linear
from vergence.models.small_cnn import SmallCnn
from vergence.models.small_eye import SmallEye
from vergence.tasks.gaze_angle import GazeAngle
from vergence.tasks.images import Images
from vergence.tasks.toy import ToyTask

LOCAL = LocalTraining(optimizer="sgd", epochs=2, batch=8, lr=0.05)
SMALL = GlobalMemory(LOCAL, FedAvg(), samples=20, passes=1, noise=4, tune_epochs=2)
AWAY = Participation(gone={"p02": 0})


def test_o10_diversity():
    apart = torch.tensor([(0.0, 0.0), (3.0, 4.0), (0.0, 4.0)], requires_grad=True)
    assert diversity(apart).item() == pytest.approx(-4)
    assert diversity(apart[:1]).item() == 0
    diversity(0 * apart).backward()  # equal samples
    assert apart.grad is not None
    assert apart.grad.isfinite().all()


def test_o11_interpolation():
    mine, friend = (Params.named(a=torch.tensor(x)) for x in ([1.0, 2.0], [3.0, 6.0]))
    assert mix_models(mine, friend, 0.1)["a"].tolist() == pytest.approx([1.2, 2.4])
    literal = mix_models(mine, friend, 1 - 0.1)
    assert literal["a"].tolist() == pytest.approx([2.8, 5.6])


def test_o12_weights_of_clients():
    counts = torch.tensor([[10.0, 0, 30], [30, 20, 10]])
    assert shares(counts, "class").tolist() == [[0.25, 0, 0.75], [0.75, 1, 0.25]]
    whole = [x for row in shares(counts, "global").tolist() for x in row]
    assert whole == pytest.approx([0.1, 0, 0.3, 0.3, 0.2, 0.1])
    assert shares(torch.zeros(2, 3), "class").tolist() == [[0, 0, 0]] * 2


@pytest.mark.parametrize(("relative", "loss"), [(False, -0.431678), (True, 0.982894)])
def test_the_generators_loss_by_hand(relative, loss):
    task = ToyTask(Linear(inputs=2))
    learned = replace(SMALL, distances="relative" if relative else "plain").imagining(task)
    assert isinstance(learned, Imagining)
    samples = torch.tensor([(1.0, 0), (0, 1), (0, 0), (3, 4)])
    batch = {
        KIND: torch.tensor([0, 0, 1, 1]),
        CLASSIFIERS: torch.tensor([(1.0, 0, 0), (0, 1, 1)]),
        ALPHA: shares(torch.tensor([(10.0, 30), (30, 10)]), "class"),
    }
    assert float(learned.loss(samples, batch)) == pytest.approx(loss, abs=1e-6)


def test_samples_stay_in_the_range_of_inputs_or_features():
    eyes, net = GazeAngle(SmallEye(pose=False)), SmallCnn()
    for task, space, shape, low, high in (
        (eyes, "input", (1, 9, 15), -2, 2),
        (eyes, "features", (32,), 0, 10),
        (Images(net), "input", (1, 28, 28), 0, 1),
        (Images(net), "features", (64,), 0, 10),
    ):
        made = replace(SMALL, space=space).imagining(task).network
        assert (made.shape, made.low, made.high) == (shape, low, high)


def test_a_network_that_also_takes_the_pose_is_refused():
    with pytest.raises(ConfigError, match=r"set model\.pose = false"):
        SMALL.check(GazeAngle(SmallEye()))


def back(path, method=SMALL):
    """Run without p02, who is back at the end."""
    return run_toy(path, method, presence=replace(AWAY, back=("p02",)))


def error(path, point):
    """Return the final error of the person who was away."""
    wanted = ("p02", point, "error")
    rows = table(path, "people.csv")
    (row,) = (r for r in rows if (r["person"], r["evaluation"], r["metric"]) == wanted)
    return float(row["value"])


def test_beta_0_is_the_clients_own_model_to_the_bit(tmp_path):
    """What beta = 0 predicts with, and what others mix, is theta_k: no bit of a friend is in it."""
    states = back(tmp_path / "a", replace(SMALL, beta=0.0)).clients
    for client in ("p00", "p02"):
        c = states[client]
        assert mix_models(c.mine, c.friend, 0.0) is c.mine
        assert not c.mine.flat.equal(c.friend.flat)
    other = back(tmp_path / "b", replace(SMALL, beta=0.5)).clients["p02"]
    assert states["p02"].mine.flat.equal(other.mine.flat)
    literal = replace(SMALL, beta=1.0, beta_literal=True)
    back(tmp_path / "c", literal)
    own, mix = error(tmp_path / "a", "P0"), error(tmp_path / "b", "P0")
    assert own == error(tmp_path / "c", "P0") != mix


def test_theta_k_is_what_a_clients_last_training_gave(tmp_path):
    """After one round theta is the mean of the theta_k, by samples."""
    outcome = run_toy(tmp_path, SMALL, rounds=1)
    mine = torch.stack([outcome.clients[f"p{i:02d}"].mine.flat for i in range(3)])
    rows = {
        r["client"]: float(r["examples"])
        for r in table(tmp_path, "turns.csv")
        if r["verb"] == "train"
    }
    weights = torch.tensor([rows[f"p{i:02d}"] for i in range(3)])
    theta = outcome.server.base.model.flat
    assert torch.allclose((weights / weights.sum()) @ mine, theta, atol=1e-6)


@pytest.mark.parametrize("base", [FedProx(LOCAL, mu=0.5), Scaffold(LOCAL)])
def test_the_base_method_trains_as_without_ap_fl(base, tmp_path):
    alone = run_toy(tmp_path / "a", base)
    over = run_toy(tmp_path / "b", replace(SMALL, base=base))
    assert equal_states(over.server.base, alone.server)
    assert over.server.learned


def test_who_was_away_is_served_at_the_end_and_later(tmp_path):
    """Back at the end they keep a friend; back later they make one when they predict."""
    later = run_toy(tmp_path / "a", SMALL, presence=AWAY, points=("P0", "P2"))
    assert later.clients.get("p02") is None
    assert back(tmp_path / "b").clients["p02"].friend is not None
    shared = error(tmp_path / "a", "P2")
    assert max(error(tmp_path / place, "P0") for place in "ab") < shared


@pytest.mark.parametrize("base", [FedAvg(), FedAvgFT(LOCAL, tune_epochs=1)])
def test_who_never_trained_tells_nothing(base, tmp_path):
    """The generator is the same whether somebody who never trained is there or not."""
    method = replace(SMALL, base=base)
    one = run_toy(tmp_path / "a", method, presence=AWAY).server
    assert one.learned
    assert one.generator.flat.equal(back(tmp_path / "b", method).server.generator.flat)
    gone = Participation(gone=dict.fromkeys(("p00", "p01", "p02"), 0), back=("p00",))
    assert not run_toy(tmp_path / "c", SMALL, presence=gone).server.learned


def test_a_friend_of_all_classes_knows_those_that_anybody_has(tmp_path):
    """The server says which classes somebody has; samples are of these and of one's own alone."""
    method = replace(SMALL, friend_classes="all")
    server = back(tmp_path / "a", method).server
    counts = torch.stack([torch.tensor([3.0, 0, 1]), torch.tensor([2.0, 0, 0])])
    start = Params.named(a=torch.zeros(2), meaning=torch.eye(3), classes=torch.zeros(3))
    steps = []

    def ask(conversation):
        answer = None
        while True:
            try:
                request = conversation.send(answer)
            except StopIteration as end:
                return end.value
            steps.append(request)
            answer = StepResult(request.params, request.optimiser, 1.0)

    wide = replace(method, samples=10, passes=1, noise=1)
    trained = ask(wide.train_generator(start, torch.zeros(2, 2), counts))
    assert trained["classes"].tolist() == [1, 0, 1]
    assert server.generator["classes"].sum() > 0
    assert "classes" not in back(tmp_path / "b").server.generator, "runs of before stay as they are"
    few = steps[0].batch[KIND].unique().tolist()
    assert few == [0, 2], "the generator learns classes that somebody has"

    def kinds(friend_classes, own):
        made, task = [], ToyTask(Linear())
        site = SimpleNamespace(train=None, task=task, rng=RandomStream("friend"))
        talk = replace(wide, friend_classes=friend_classes).train_friend(
            task.init(), trained, site, LOCAL
        )
        answer = None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(GlobalMemory, "check_meanings", lambda *_: None)
            while not made:
                request = talk.send(answer)
                answer = torch.tensor(own)
                if isinstance(request, Forward):
                    made.append(sorted({*request.batch[KIND].tolist()}))
        return made[0]

    assert kinds("own", [1] * 40) == [1]
    assert kinds("all", [1] * 40) == [0, 1, 2]


def test_theta_k_is_tuned_as_fine_tuning_has_it(tmp_path):
    """Tuned, theta_k has as many steps as fine-tuning; else it is of the last training."""
    rounds, tuned = (
        run_toy(tmp_path / str(tune), replace(SMALL, tune_own=tune)) for tune in (False, True)
    )
    assert tuned.server.base.model.flat.equal(rounds.server.base.model.flat)
    assert tuned.server.generator.flat.equal(rounds.server.generator.flat), "what was told stays"
    mine = [run.clients["p00"].mine.flat for run in (rounds, tuned)]
    assert not mine[0].equal(mine[1])
    steps = {}
    for place, method in (("True", None), ("ft", FedAvgFT(LOCAL, tune_epochs=2))):
        if method is not None:
            run_toy(tmp_path / place, method)
        rows = table(tmp_path / place, "turns.csv")
        ends = [r for r in rows if r["client"] == "p00" and r["verb"] in ("befriend", "tune")]
        steps[place] = int(float(ends[0]["steps"]))
    assert steps["True"] == 2 * steps["ft"], "a friend and theta_k, each as long as fine-tuning"


@pytest.mark.parametrize(("patience", "passes"), [(0, 6), (1, 3), (2, 4)])
def test_the_generator_trains_until_its_loss_stops(patience, passes):
    """Losses of the passes: 2, 1, 1, .9995, 1, 1: after the second none is .1 % less."""
    losses = iter([2.0, 1.0, 1.0, 0.9995, 1.0, 1.0])
    method = replace(SMALL, samples=10, passes=6, noise=1, patience=patience)
    start = Params.named(a=torch.zeros(2), meaning=torch.eye(2))
    talk, answer, count = (
        method.train_generator(start, torch.zeros(1, 2), torch.ones(1, 2)),
        None,
        0,
    )
    while True:
        try:
            request = talk.send(answer)
        except StopIteration:
            break
        count += 1
        answer = StepResult(request.params, request.optimiser, next(losses))
    assert count == passes


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 9, 15), (1, 14, 14)])
def test_a_generator_of_convolutions_makes_images(shape):
    made = Conditional(4, 3, shape, -2.0, 2.0, conv=True)
    samples = made.build()(torch.randn(5, 7))
    assert samples.shape == (5, math.prod(shape))
    assert 0 <= float(samples.detach().min()) < float(samples.detach().max()) <= 1
    with pytest.raises(ConfigError, match='generator = "linear"'):
        replace(SMALL, space="features", generator="conv").imagining(Images(SmallCnn()))


def test_another_vector_table_is_refused():
    task = ToyTask(Linear())
    generator = SMALL.server(task).generator
    SMALL.check_meanings(generator["meaning"], task)
    with pytest.raises(ConfigError, match="trained with other vectors of class names"):
        replace(SMALL, semantics="random").check_meanings(generator["meaning"], task)


def test_without_a_base_method_there_is_nothing_to_go_over():
    with pytest.raises(ConfigError, match="give base"):
        GlobalMemory(LOCAL)


def test_reports_say_that_classes_of_somebody_are_told_to_everybody():
    own, every = (replace(SMALL, friend_classes=kind) for kind in ("own", "all"))
    assert "which classes somebody has" in every.trees["generator"].title
    assert "which classes somebody has" not in own.trees["generator"].title
