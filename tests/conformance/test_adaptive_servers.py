"""Servers that choose tau and their rate from the first round: resumed, in bytes, in sums, seen."""

from dataclasses import replace

import pandas as pd
import pytest
import torch

from tests.cli.commands import write
from vergence.core.local_training import LocalTraining
from vergence.data.synthetic.toy import Toy
from vergence.engine.round_loop import Plan, run_rounds
from vergence.engine.silos import Silos
from vergence.engine.storage.run_directory import RunDirectory
from vergence.experiment.run import RoundCallback, start
from vergence.experiment.schema import load
from vergence.methods.fedadagrad import FedAdagrad
from vergence.methods.fedadam import FedAdam
from vergence.methods.fedyogi import FedYogi
from vergence.models.linear import Linear
from vergence.privacy.config import Privacy, SecureAggregationConfig
from vergence.tasks.toy import ToyTask

pytestmark = pytest.mark.slow
LOCAL = LocalTraining(optimizer="sgd", epochs=1, batch=8, lr=0.05)
PEOPLE = Toy(people=4).load()
PLAN = Plan(rounds=3, evaluate_every=0, workers=1)


def go(method, folder, plan=PLAN, tick=None):
    held = RunDirectory(folder, {"config": "a", "code": "b", "data": "c"})
    held.open()
    task = ToyTask(Linear())
    return run_rounds(method, task, federation=PEOPLE, plan=plan, folder=held, tick=tick)


@pytest.mark.parametrize("kind", [FedAdam, FedYogi, FedAdagrad])
def test_a_resumed_run_has_the_same_bits_in_bytes_too(kind, tmp_path):
    method = kind(local=LOCAL, adapt="auto")
    whole = go(method, tmp_path / "whole")

    def stop(end):
        if end.round == 2:
            raise KeyboardInterrupt

    for name, engine in (("plain", "simulator"), ("bytes", "bytes")):
        plan = replace(PLAN, engine=engine)
        with pytest.raises(KeyboardInterrupt):
            go(method, tmp_path / name, plan, stop)
        assert go(method, tmp_path / name, plan).fingerprint == whole.fingerprint
    assert 0 < whole.server.tau < whole.server.server_lr


@pytest.mark.parametrize(
    "plan",
    [
        replace(PLAN, privacy=Privacy(aggregation=SecureAggregationConfig())),
        replace(PLAN, silos=Silos(labs={"one": ("p00", "p01"), "two": ("p02", "p03")})),
    ],
    ids=["sums", "labs"],
)
def test_what_is_chosen_is_that_of_the_mean_update_under_sums_and_labs(plan, tmp_path):
    """Only the mean is needed: secure sums round it, and labs of equal size have the same one."""
    method = FedAdam(local=LOCAL, adapt="auto")
    plain, other = (go(method, tmp_path / str(i), p) for i, p in enumerate((PLAN, plan)))
    assert other.server.tau == pytest.approx(plain.server.tau, rel=1e-4)
    assert torch.allclose(other.server.model.flat, plain.server.model.flat, atol=1e-3)


TEXT = """
task       = { name = "toy" }
model      = { name = "linear" }
federation = { name = "toy", people = 4 }
methods    = [
    { name = "fedadam", server_lr = 3.0, tau = 1.0 },
    { name = "fedyogi", adapt = "auto" },
    "fedavg",
]
local      = { optimizer = "sgd", epochs = 1, batch = 8, lr = 0.05 }
run        = { rounds = 2, seeds = [0, 1], workers = 1, solver = "sequential" }
"""


def test_an_overshooting_server_is_warned_of_once_a_run_and_auto_is_in_the_tables(tmp_path):
    warnings = []
    start(load(write(tmp_path, TEXT)), tmp_path / "out", RoundCallback(warn=warnings.append))
    assert len(warnings) == 1
    assert "fedadam" in warnings[0]
    assert "adapt = 'auto'" in warnings[0]
    rows = {
        label: pd.read_csv(tmp_path / "out" / label / "rounds.csv")
        for label in ("fedadam", "fedyogi")
    }
    assert not {"tau", "server_lr"} & {*rows["fedadam"].metric}
    table = rows["fedyogi"]
    for name in ("tau", "server_lr"):
        chosen = table[(table.metric == name) & (table.seed == 0)]
        assert chosen["round"].tolist() == [1, 2]
        assert chosen.value.nunique() == 1
