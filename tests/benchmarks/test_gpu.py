"""The benchmark of steps and rounds on a GPU, without one."""

import pytest
import torch

from benchmarks import gpu
from tests.stand_in_device import DEVICE, StandIn
from vergence.core.local_training import LocalTraining, Precision
from vergence.data.synthetic.toy import Toy
from vergence.engine import round_loop, solver_selection
from vergence.engine.storage import checkpoint_validation
from vergence.errors import ConfigError
from vergence.models.linear import Linear
from vergence.tasks.toy import ToyTask

LOCAL = LocalTraining(optimizer="sgd", batch=8, lr=0.05, steps=3)


def refused(*_):
    raise ConfigError("no stacks")


@pytest.mark.slow
def test_the_measurements_run(monkeypatch, capsys):
    # Torch's fused optimisers do not know the stand-in.
    precisions: list[Precision] = ["fp32"]
    args = "toy", ToyTask(Linear()), Toy(people=3).load(), LOCAL, precisions
    monkeypatch.setattr(gpu, "GPU", torch.device("cpu"))
    gpu.plain(args[1], args[2].people["p00"].train, LOCAL, "fp32")()
    monkeypatch.setattr(gpu, "plain", lambda *_: lambda: None)
    monkeypatch.setattr(gpu, "GPU", DEVICE)
    monkeypatch.setattr(gpu, "timed", lambda work, *_: (work(), 1.0)[1])
    monkeypatch.setattr(solver_selection, "choose_device", lambda _: DEVICE)
    shape = dict(checkpoint_validation.SHAPE, solving=object)
    monkeypatch.setattr(checkpoint_validation, "SHAPE", shape)
    # The rows of a run change it.
    monkeypatch.setattr(round_loop, "stays_on", round_loop.stays_on)
    for name in ("reset_peak_memory_stats", "synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    # It has no batched operations either: the row says what a solver refuses.
    monkeypatch.setattr(gpu.Stacked, "fit_all", refused)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 0)
    with StandIn():
        steps, rounds = gpu.steps(*args), gpu.rounds(*args)
    assert [row["solver"] for row in steps] == [
        "plain loop",
        "graph",
        "graphs in streams",
        "sequential, one core",
    ]
    assert [(row["method"], row["models"]) for row in rounds] == [
        (method, models) for method in ("FedAvg", "FedCPF") for models in ("stay", "come home")
    ]
    said = capsys.readouterr().out
    assert said.count("x the plain loop's") == 4
    assert "ConfigError: no stacks" in said
