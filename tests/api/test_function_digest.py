"""Digests of behaviour: equal for one source in any process, and for nothing else."""

import functools
import os
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn.functional import l1_loss, mse_loss

import vergence as vg
from tests.api.test_train import Interrupting
from tests.conftest import ROOT
from tests.experiment.made_up import network, regression, trained
from vergence.api.function_digest import behaviour_digest

FACTOR = 2.0


def weighted(outputs, targets):
    return FACTOR * mse_loss(outputs, targets)


def twice(outputs, targets):
    return 2 * weighted(outputs, targets)


def by_name(outputs, targets, names=frozenset({"alpha", "beta", "gamma"})):
    return mse_loss(outputs, targets) * len(names & {"alpha", "delta", "omega"})


def scaled(by):
    return lambda outputs, targets: by * mse_loss(outputs, targets)


class Huber(nn.Module):
    """A loss with a setting."""

    def __init__(self, delta=1.0):
        super().__init__()
        self._delta = delta

    def forward(self, outputs, targets):
        return nn.functional.huber_loss(outputs, targets, delta=self._delta)


class Power:
    """An object that is called as a function."""

    def __init__(self, of=2):
        self.of = of

    def __call__(self, outputs, targets):
        return (outputs - targets).abs().pow(self.of).mean()


ALL = (
    mse_loss,
    weighted,
    twice,
    by_name,
    scaled(3),
    Huber(),
    Power(),
    nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0])),
    functools.partial(mse_loss, reduction="sum"),
    Power(3).__call__,
    torch.nn.functional.cosine_similarity,
)


def digests():
    return [behaviour_digest(thing) for thing in ALL]


def test_it_is_the_same_in_every_process():
    code = "from tests.api import test_function_digest as t; print(*t.digests())"
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    told = digests()
    assert found == {" ".join(told) + "\n"}
    assert len(set(told)) == len(ALL)
    assert all(len(digest) == 64 for digest in told)


def test_it_does_not_change_with_use():
    before = digests()
    for _ in range(200):
        for loss in (weighted, twice, by_name):
            loss(torch.zeros(2), torch.ones(2))
    assert digests() == before


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda o, t: mse_loss(o, t), lambda o, t: l1_loss(o, t)),
        (lambda o, t: 2 * mse_loss(o, t), lambda o, t: 3 * mse_loss(o, t)),
        (scaled(2), scaled(3)),
        (scaled([1, 2]), scaled([1, 3])),
        (scaled(torch.tensor([1.0, 2.0])), scaled(torch.tensor([1.0, 3.0]))),
        (lambda by=1: by, lambda by=2: by),
        (lambda *, by=1: by, lambda *, by=2: by),
        (lambda: (lambda: 1)(), lambda: (lambda: 2)()),
        (nn.MSELoss(), nn.MSELoss(reduction="sum")),
        (Huber(1.0), Huber(2.0)),
        (Power(2), Power(3)),
        (Power(2).__call__, Power(3).__call__),
        (
            nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0])),
            nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0])),
        ),
        (functools.partial(mse_loss), functools.partial(mse_loss, reduction="sum")),
        (mse_loss, l1_loss),
    ],
)
def test_what_behaves_otherwise_has_another(one, other):
    assert behaviour_digest(one) != behaviour_digest(other)


def test_the_same_written_twice_has_the_same():
    first, second = (lambda o, t: 2 * mse_loss(o, t)), (lambda o, t: 2 * mse_loss(o, t))
    assert behaviour_digest(first) == behaviour_digest(second)
    assert behaviour_digest(scaled(2)) == behaviour_digest(scaled(2))
    assert behaviour_digest(Huber(2.0)) == behaviour_digest(Huber(2.0))


def test_a_global_number_that_a_function_reads_counts(monkeypatch):
    before = [behaviour_digest(weighted), behaviour_digest(twice)]
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 3.0)
    after = [behaviour_digest(weighted), behaviour_digest(twice)]
    assert before[0] != after[0]
    assert before[1] != after[1], "also where another function reads it"


def test_functions_that_call_each_other_have_an_end():
    def one(outputs, targets):
        return other(outputs, targets)

    def other(outputs, targets):
        return one(outputs, targets)

    assert len(behaviour_digest(one)) == 64


@pytest.mark.parametrize(
    ("begun", "now"),
    [
        (lambda o, t: mse_loss(o, t), lambda o, t: 5 * mse_loss(o, t)),
        (nn.MSELoss(), nn.MSELoss(reduction="sum")),
    ],
    ids=["lambda", "module"],
)
def test_a_run_is_not_gone_on_with_under_another_loss(begun, now, tmp_path):
    task = vg.task_from(network, begun)
    with pytest.raises(vg.PartialRun):
        trained(tmp_path / "out", task=task, on_round=Interrupting((0, 1)))
    with pytest.raises(vg.StateError, match="begun with other settings"):
        trained(tmp_path / "out", task=vg.task_from(network, now), resume=True)
    run = trained(tmp_path / "out", task=vg.task_from(network, begun), resume=True)
    assert run.fingerprint == trained(task=vg.task_from(network, begun)).fingerprint


def test_runs_whose_metrics_of_one_name_differ_are_not_compared():
    def task(by):
        return regression(metrics={"error": lambda o, t: by * l1_loss(o, t)}, lower_is_better=True)

    runs = [trained(task=task(by), label=f"by{by}", rounds=1) for by in (1, 2)]
    with pytest.raises(
        vg.ConfigError,
        match=r"compare: task.metric_digests differs, by1 has error [0-9a-f]{12}, by2 has error ",
    ):
        vg.compare(*runs)
    assert vg.compare(*runs, allow="task.metric_digests").notes
    again = trained(method=vg.methods.FedAvg(), task=task(1), label="again", rounds=1)
    assert vg.compare(runs[0], again).notes == ()
