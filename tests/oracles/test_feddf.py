"""FedDF: the losses of oracle O23, one distillation step by hand, where it stops, whom it asks.

The step, on head * body * x with body and head 2 and 1 (head body x = 2 x), proxy x = 1, one batch:
client updates (0.2, 0.4) of one sample and (-0.2, 0) of three: the average is
body 2 + (0.2 - 0.6) / 4 = 1.9, head 1 + 0.4 / 4 = 1.1, its output 2.09;
the teachers' 2.2 * 1.4 = 3.08 and 1.8 * 1 = 1.8, mean 2.44. Adam's first step is the rate with the
sign of the gradient, and the student lies below: body 1.9 + 0.01, head 1.1 + 0.01.
"""

import csv
from dataclasses import replace

import pytest
import torch

from tests.conftest import research_data
from tests.scripts import PLAIN, Product, Two, pairs, values
from vergence.core.conversation import drive
from vergence.core.federation import PublicData
from vergence.core.messages import reply, seal
from vergence.core.requests import Compute, GetPublicData, Request, Step
from vergence.experiment import run
from vergence.experiment import schema as config
from vergence.methods.feddf import DistillationPass, FedDF, Student
from vergence.models.glc.glc_features import GlcFeatures
from vergence.models.small_eye import SmallEye
from vergence.models.softmax import Softmax
from vergence.tasks.gaze_angle import GazeAngle
from vergence.tasks.gaze_map import GazeMap
from vergence.tasks.images import Images
from vergence.training.sequential import Solver
from vergence.training.steps import Trainers

TASK = Product(Two())
START = TASK.init()
UPDATES = {"a": ((0.2, 0.4), 1.0), "b": ((-0.2, 0.0), 3.0)}
METHOD = FedDF(local=PLAIN, steps=1, rate=0.01, clip=0.0)
PROXIES = PublicData(pairs((1, 9)), pairs((1, 2.44)))


class Server:
    """Answers a server's half: scripted clients, a real network, and notes what was asked."""

    def __init__(self, task, proxies=PROXIES, updates=UPDATES):
        self.task, self.proxies, self.updates, self.asked = task, proxies, updates, []
        self.solver, self.trainers = Solver(task), Trainers(task)

    def __call__(self, ask):
        self.asked.append(ask)
        if isinstance(ask, Request):
            told = {
                c: (START.like(torch.tensor(v, dtype=torch.float64)), w)
                for c, (v, w) in self.updates.items()
            }
            return {c: seal(reply(model=v, weight=w), 0) for c, (v, w) in told.items()}
        if isinstance(ask, GetPublicData):
            return self.proxies
        return (
            self.solver.compute(ask) if isinstance(ask, Compute) else self.trainers.answer(ask, 0)
        )


def taught(method, **given):
    server = Server(TASK, **given)
    after = drive(method.round(Student(START, 0), list("ab")), server)
    return after, server.asked


@pytest.mark.parametrize(
    ("teachers", "expected"),
    [
        ([[1.0, 1.0]], 0.120115),
        ([[2.0, 0.0], [0.0, 2.0]], 0.447928),
    ],
)
def test_o23_averaged_logits_and_averaged_losses(teachers, expected):
    task = Images(Softmax(classes=2))
    batch = {"teachers": torch.tensor([teachers])}
    loss = DistillationPass(task.network, whole=task).loss(torch.tensor([[1.0, 0.0]]), batch)
    assert float(loss) == pytest.approx(expected, abs=1e-5)
    halved = DistillationPass(task.network, whole=task, temperature=2.0)
    twice = {"teachers": 2 * batch["teachers"]}
    assert float(halved.loss(torch.tensor([[2.0, 0.0]]), twice)) == pytest.approx(
        expected, abs=1e-5
    )


def test_angles_are_imitated_by_squares_and_maps_by_kl_over_pixels():
    """O23's scores as two pixels of one frame, and a frame that agrees."""
    angles = GazeAngle(SmallEye()).imitation
    assert float(angles(torch.tensor([[0.1, 0.2]]), torch.tensor([[0.1, 0.4]]))) == pytest.approx(
        0.02
    )
    found = torch.tensor([[[[1.0, 0.0]], [[3.0, 1.0]]]])
    wanted = torch.tensor([[[[1.0, 1.0]], [[3.0, 1.0]]]])
    maps = GazeMap(GlcFeatures()).imitation
    assert float(maps(found, wanted)) == pytest.approx(0.120115 / 2, abs=1e-6)


@pytest.mark.parametrize(
    ("objective", "teachers"),
    [
        ("avg_logits", [[2.44]]),
        ("avg_losses", [[3.08], [1.8]]),
    ],
)
def test_a_round_by_hand(objective, teachers):
    after, asked = taught(replace(METHOD, objective=objective))
    assert values(after.model) == [1.91, 1.11]
    assert after.round == 1
    (step,) = (a for a in asked if isinstance(a, Step))
    assert step.batch["teachers"][0].tolist() == pytest.approx([t for (t,) in teachers])
    told = [a.want for a in asked if isinstance(a, Compute)]
    assert told == ["outputs", "outputs"]


def test_labels_of_what_the_server_holds_change_nothing():
    other = PublicData(pairs((1, -5)), pairs((1, 7)))
    assert taught(METHOD)[0] == taught(METHOD, proxies=other)[0]


def test_without_steps_it_is_fedavg_and_borrows_nothing():
    after, asked = taught(replace(METHOD, steps=0))
    assert values(after.model) == [1.9, 1.1]
    assert [type(a) for a in asked] == [Request]


def test_rates_fall_along_a_cosine_and_gradients_are_clipped():
    method = FedDF(steps=4)
    steps = [method.adam(at) for at in range(4)]
    assert [s.lr for s in steps] == pytest.approx([1e-3, 0.85355e-3, 0.5e-3, 0.14645e-3], abs=1e-8)
    assert {(s.optimizer, s.clip, s.weight_decay) for s in steps} == {("adam", 5.0, 0.0)}


@pytest.mark.parametrize(
    ("wanted", "patience", "steps", "end"),
    [
        (9.0, 20, 100, 100),
        (2.09, 20, 100, 20),
        (2.09, 100, 30, 30),
    ],
)
def test_stops_when_labels_say_so_and_goes_back(wanted, patience, steps, end, monkeypatch):
    """The student climbs from 2.09 to the teachers' 2.44: wanted 9, it gets better and better."""
    monkeypatch.setattr("vergence.methods.feddf.LOOK", 10)
    held = PublicData(pairs((1, 0)), pairs((1, wanted)))
    method = replace(METHOD, steps=steps, patience=patience, rate=1e-4)
    after, asked = taught(method, proxies=held)
    assert sum(isinstance(a, Step) for a in asked) == end
    assert (values(after.model) == [1.9, 1.1]) == (wanted == 2.09)


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("method", ["feddf", "fedgen"])
def test_on_pictures_of_clothes(method, tmp_path):
    """Ten people with class shares of their own, two rounds: better than guessing."""
    table = {
        "task": {"name": "images"},
        "model": {"name": "softmax"},
        "proxy": {"share": 0.02},
        "federation": {
            "name": "fashion_mnist",
            "root": str(research_data("fashion_mnist")),
            "people": 10,
            "split": "dirichlet",
            "alpha": 0.1,
        },
        "method": {"name": method, "steps": 20},
        "local": {"optimizer": "sgd", "steps": 20},
        "run": {"rounds": 2, "workers": 1, "evaluate_every": 0, "solver": "sequential"},
    }
    run.start(config.check(table), tmp_path)
    with (tmp_path / "people.csv").open(newline="") as file:
        rows = [float(r["value"]) for r in csv.DictReader(file) if r["metric"] == "pooled_accuracy"]
    assert sum(rows) / len(rows) > 0.2
