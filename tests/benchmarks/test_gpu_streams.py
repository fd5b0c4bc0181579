"""The benchmark of what a GPU waits for, without one."""

import pytest
import torch

from benchmarks import gpu_streams
from benchmarks.gpu_streams import doing, gaps
from tests.stand_in_device import DEVICE, StandIn
from vergence.core.local_training import LocalTraining
from vergence.data.synthetic.toy import Toy
from vergence.models.linear import Linear
from vergence.tasks.toy import ToyTask

LOCAL = LocalTraining(optimizer="sgd", batch=8, lr=0.05, steps=3)


def test_gaps_by_hand():
    """Work from 1 to 3, from 2 to 5 and from 8 to 9, in any order; looked at from 0 to 12."""
    assert gaps([(8, 9), (1, 3), (2, 5)], 0, 12) == [(0, 1), (5, 8), (9, 12)]
    assert gaps([(8, 9), (1, 3), (2, 5)], 1, 9) == [(5, 8)]
    assert gaps([], 0, 2) == [(0, 2)]
    assert gaps([(0, 5)], 1, 4) == []


def test_the_innermost_work_names_a_gap():
    host = [(0, 100, "round"), (10, 21, "copy"), (12, 13, "empty"), (50, 60, "later")]
    assert doing((11, 20), host) == "copy"
    assert doing((30, 40), host) == "round"
    assert doing((200, 210), host) == ""


@pytest.mark.slow
def test_the_measurements_run(monkeypatch, capsys):
    monkeypatch.setattr(gpu_streams, "GPU", DEVICE)
    monkeypatch.setattr(gpu_streams, "timed", lambda work, *_: work() and 1.0)
    for name in ("reset_peak_memory_stats", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 0)
    args = "toy", ToyTask(Linear()), Toy(people=3).load(), LOCAL, "fp32"
    with StandIn():
        gpu_streams.data(*args)
        gpu_streams.scores(*args)
    said = capsys.readouterr().out
    assert "toy                   data streamed   fp32   111.111 ms a step in 4 lanes" in said
    assert "equal bits: True" in said
    assert "largest difference of a score: 0.0e+00" in said
    honest = gpu_streams.Plan
    monkeypatch.setattr(gpu_streams, "Plan", lambda **plan: honest(**plan | {"device": "cpu"}))
    gpu_streams.profile(*args)
    said = capsys.readouterr().out
    assert "s a round, GPU busy   0.0 %" in said
