"""AP-FL on gaze: zones of gaze are the classes, and somebody who never took part is served."""

from dataclasses import replace

import pytest
import torch

from tests.engines.toys import STAMP, table
from vergence.core.fitting import Local
from vergence.core.generator import KIND, MEANING, NOISE, frozen, labelled
from vergence.core.stepping import Forward, Trainers
from vergence.core.stream import Stream
from vergence.data.eye_synthetic import EyeSynthetic
from vergence.engines.conduct import Plan, conduct
from vergence.engines.presence import Presence
from vergence.engines.store import Folder
from vergence.methods.ap_fl import GlobalMemory, apart
from vergence.methods.fedavg import FedAvg
from vergence.models.small_eye import SmallEye
from vergence.tasks.gaze_angle import GazeAngle

LOCAL = Local(epochs=2, batch=16, optimiser="adamw", lr=3e-3)
METHOD = GlobalMemory(LOCAL, FedAvg(), samples=20, passes=5, tune_epochs=2)
TASK = GazeAngle(SmallEye((4, 6), 16, pose=False))


def away(method, place, samples, rounds):
    """Run without p02; return the server's state, and p02's error in degrees at P0 and P2."""
    people = EyeSynthetic(people=3, samples=samples, days=(3, 4), size="9x15", eyes="left").load()
    folder = Folder(place, STAMP)
    folder.open()
    plan = Plan(rounds=rounds, evaluate_every=0, workers=1, points=("P0", "P2"),
                presence=Presence(gone={"p02": 0}))  # fmt: skip
    outcome = conduct(method, TASK, people, plan, folder)
    assert outcome.clients.get("p02") is None
    found = {row["evaluation"]: float(row["value"]) for row in table(place, "people.csv")
             if (row["person"], row["metric"]) == ("p02", "angle_error_deg")}  # fmt: skip
    return outcome.server, found["P0"], found["P2"]


def missed(method, server, generator):
    """Return how far from the centres of zones the common model sees made-up samples look."""
    (net, meaning), kinds = apart(generator), torch.arange(16).repeat_interleave(8)
    noise = torch.randn(len(kinds), method.noise, generator=Stream("zones").torch())
    batch = {NOISE: noise, MEANING: meaning[kinds], KIND: kinds}
    judge, ask = method.judge(TASK), Trainers(TASK)
    samples = ask.answer(Forward(net, batch, method.imagining), 1.0)
    theta = server.base.model.only(frozen(judge)[0].names)
    told = labelled(judge, samples, kinds)
    return float(TASK.loss(ask.answer(Forward(theta, told, method.judge), 1.0), told))


@pytest.mark.parametrize("space", [pytest.param("input", marks=pytest.mark.slow), "features"])
def test_a_generator_learns_where_zones_lie_and_a_stranger_is_served(space, tmp_path):
    method = replace(METHOD, space=space)
    server, own, common = away(method, tmp_path, 40, 2)
    assert own != common
    fresh = method.server(TASK).generator
    assert missed(method, server, server.generator) < 0.8 * missed(method, server, fresh)


@pytest.mark.slow
def test_a_strangers_model_is_better_than_the_common_one(tmp_path):
    _, own, common = away(replace(METHOD, tune_epochs=10), tmp_path, 300, 6)
    assert own < common - 0.5
