"""AP-FL on gaze: zones of gaze are the classes, and somebody who never took part is served."""

from dataclasses import replace

import pytest
import torch

from tests.engine.toys import STAMP, table
from vergence.core.local_training import LocalTraining
from vergence.core.randomness import RandomStream
from vergence.core.requests import Forward
from vergence.data.synthetic.eyes.eye_synthetic import EyeSynthetic
from vergence.engine.participation import Participation
from vergence.engine.round_loop import Plan, run_rounds
from vergence.engine.storage.run_directory import RunDirectory
from vergence.methods.fedavg import FedAvg
from vergence.methods.generative.ap_fl import GlobalMemory, layers_and_meaning
from vergence.methods.generative.sample_generator import (
    KIND,
    MEANING,
    NOISE,
    frozen_classifier,
    labelled_batch,
)
from vergence.models.small_eye import SmallEye
from vergence.tasks.gaze_angle import GazeAngle
from vergence.training.steps import Trainers

LOCAL = LocalTraining(epochs=2, batch=16, optimizer="adamw", lr=3e-3)
METHOD = GlobalMemory(LOCAL, FedAvg(), samples=20, passes=5, tune_epochs=2)
TASK = GazeAngle(SmallEye((4, 6), 16, pose=False))


def away(method, place, samples, rounds):
    """Run without p02; return the server's state, and p02's error in degrees at P0 and P2."""
    people = EyeSynthetic(people=3, samples=samples, days=(3, 4), size="9x15", eyes="left").load()
    folder = RunDirectory(place, STAMP)
    folder.open()
    plan = Plan(
        rounds=rounds,
        evaluate_every=0,
        workers=1,
        points=("P0", "P2"),
        presence=Participation(gone={"p02": 0}),
    )
    outcome = run_rounds(method, TASK, federation=people, plan=plan, folder=folder)
    assert outcome.clients.get("p02") is None
    found = {
        row["evaluation"]: float(row["value"])
        for row in table(place, "people.csv")
        if (row["person"], row["metric"]) == ("p02", "angle_error_deg")
    }
    return outcome.server, found["P0"], found["P2"]


def missed(method, server, generator):
    """Return how far from the centres of zones the common model sees made-up samples look."""
    (net, meaning), kinds = layers_and_meaning(generator), torch.arange(16).repeat_interleave(8)
    noise = torch.randn(len(kinds), method.noise, generator=RandomStream("zones").torch())
    batch = {NOISE: noise, MEANING: meaning[kinds], KIND: kinds}
    judge, ask = method.judge(TASK), Trainers(TASK)
    samples = ask.answer(Forward(net, batch, method.imagining), 1.0)
    theta = server.base.model.only(frozen_classifier(judge)[0].names)
    told = labelled_batch(judge, samples, kinds)
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
