"""The row of a constant in a deployment: each client scores its own, no row of a model has it."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation
from vergence.core.params import Params
from vergence.deployment.remote_clients import RemoteClients
from vergence.deployment.server_run import ServerRun
from vergence.engine.evaluation import GUESS, Evaluation
from vergence.engine.records import ClientResult
from vergence.metrics.angles import angular_error_deg, mean_direction
from vergence.models.lenet import LeNet
from vergence.tasks.gaze_angle import GazeAngle

TASK = GazeAngle(LeNet())
HEADLINE = TASK.headline


def gaze(count, seed):
    return Samples(
        {"gaze": 0.2 * torch.randn(count, 2, generator=torch.Generator().manual_seed(seed))}
    )


SPLITS = Splits(gaze(20, 0), gaze(5, 1), gaze(6, 2))
PEOPLE = Federation("two", {"a": SPLITS, "b": Splits(gaze(20, 3), gaze(5, 4), gaze(6, 5))})


def outputs(_, samples):
    return samples.columns["gaze"] + 0.1


@pytest.mark.parametrize("all_here", [True, False])
def test_a_client_of_a_deployment_scores_its_own_constant_beside_the_model(all_here):
    measure = Evaluation(TASK, PEOPLE, outputs, all_here)
    found = measure.own(Params.named(a=torch.zeros(1)), "a")
    if all_here:
        assert not [name for name in found if name.startswith(GUESS)]
        return
    # Of validation samples: of training samples nothing leaves but what a protection covers.
    constant = mean_direction(SPLITS.val.columns["gaze"].double()).expand(6, 2)
    by_hand = float(angular_error_deg(constant, SPLITS.test.columns["gaze"].double()).mean())
    assert found[GUESS + HEADLINE] == pytest.approx(by_hand, abs=1e-9)
    assert found[HEADLINE] > 0


def test_the_server_notes_the_constant_apart_from_the_models_scores():
    remote: Any = SimpleNamespace(guesses={})
    said = ClientResult("a", measured={"P0": {HEADLINE: 5.0, GUESS + HEADLINE: 9.0}})
    kept = RemoteClients._without_guess(remote, said)
    assert kept.measured == {"P0": {HEADLINE: 5.0}}
    assert remote.guesses == {"a": {HEADLINE: 9.0}}


def test_priors_of_a_deployment_are_what_the_clients_said(tmp_path):
    (tmp_path / "run").mkdir()
    server: Any = SimpleNamespace(folder=tmp_path, guesses={"b": {HEADLINE: 8.5}})
    ServerRun.write_guesses(server)
    server.guesses = {}  # a server that was started again, and heard nobody yet
    ServerRun.write_guesses(server)
    rows = (tmp_path / "run" / "priors.csv").read_text(encoding="utf-8").splitlines()
    assert rows == ["prior,person,metric,value", f"own constant,b,{HEADLINE},8.5"]
