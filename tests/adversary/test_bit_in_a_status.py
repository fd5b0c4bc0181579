"""A model of which training overflows exactly where a number of somebody's data is large."""

import csv
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from tests.adversary.lies import circle, method, model, opened, question, row, turn
from tests.engine.toys import table
from vergence.core.local_training import LocalTraining
from vergence.core.randomness import RandomStream
from vergence.deployment.protocol import ClientRequest
from vergence.engine.client_executor import ClientExecutor, LocalData
from vergence.engine.protections.setup import client_hooks
from vergence.engine.protections.user_level import UserLevelHooks
from vergence.errors import PartialRun
from vergence.experiment.run import start
from vergence.experiment.schema import check
from vergence.privacy.config import DpSgd, Privacy, UserLevelConfig
from vergence.privacy.dp.per_sample_gradients import Clipper
from vergence.privacy.release_log import ReleaseLog

USER = UserLevelConfig(clip=0.5, noise=2.0)
LOCAL = LocalTraining(optimizer="sgd", epochs=1, batch=10**6, lr=1.0, momentum=0.0)


def lying(made, at=0.0, round=0):
    """A question whose training overflows where data hold a number above `at` in size."""
    asked = question(made, round)
    weight = torch.finfo(torch.float32).max / 2 / max(at, 1e-3)
    entry = {n: t.like(t.flat * 0 + weight) for n, t in asked.trees.items()}
    return replace(asked, trees=entry)


def notes(made, message, stamp="0.1"):
    return {
        client: turn(made, client, ClientRequest("turn", client, message, stamp))
        for client in made.names
    }


@pytest.mark.parametrize("name", ["fedavg", "fedper", "ditto", "scaffold"])
def test_a_faulty_reply_is_answered_like_any_other(name, tmp_path):
    """The note that the server gets has the same fields and values, a state's file too."""
    found = {}
    for how in ("fine", "faulty"):
        made = circle(method(name, LOCAL), tmp_path / how, 5, user=USER)
        message = question(made, 0) if how == "fine" else lying(made)
        found[how] = turn(made, "p02", ClientRequest("turn", "p02", message, "0.1"))
        assert found[how]["status"] == "ok"
        assert (made.place("p02") / "privacy" / "zeros.seed0.csv").exists() == (how == "faulty")
    fine, faulty = found["fine"], found["faulty"]
    assert {k: type(v) for k, v in fine.items()} == {k: type(v) for k, v in faulty.items()}
    assert {**fine, "to": "", "filed": ""} == {**faulty, "to": "", "filed": ""}
    if fine["filed"] is not None:
        assert (fine["filed"][0], fine["filed"][2]) == (faulty["filed"][0], faulty["filed"][2])


def test_zeros_are_summed_with_their_noise_and_charged(tmp_path):
    """All of the noise is there, of a deviation of at least 2 x 0.5 in every entry."""
    made = circle(method("fedavg", LOCAL), tmp_path, 5, user=USER, inputs=4000)
    message = lying(made)
    assert {note["status"] for note in notes(made, message).values()} == {"ok"}
    form, whole = opened(made, message, dict.fromkeys(made.names, "0.1"))
    noise = model(form, whole.words, 5)
    assert noise.std() == pytest.approx(2.0 * 0.5 * (5 / 3) ** 0.5, rel=0.05)
    for client in made.names:
        assert len(ReleaseLog(made.place(client) / "privacy" / "seed0.sums.csv").entries) == 1
    one, other = (model(form, row(made, client)) for client in made.names[:2])
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.1


def test_the_state_of_before_is_kept_and_the_client_goes_on(tmp_path):
    made = circle(method("ditto", LOCAL), tmp_path, 5, user=USER)
    note = turn(made, "p02", ClientRequest("turn", "p02", lying(made), "0.1"))
    node = made.home("p02")
    kept = node.runner.store.read(note["filed"][0]).state
    fresh = node.runner.fresh.state
    assert all(torch.equal(a.flat, b.flat) for a, b in zip(parts(kept), parts(fresh), strict=True))


def parts(state):
    return [value for value in vars(state).values() if hasattr(value, "flat")]


def test_no_bit_of_the_data_is_in_the_statuses(tmp_path):
    made = circle(method("fedavg", LOCAL), tmp_path, 5, user=USER, inputs=1, rounds=2)
    data = made.federation.people["p02"].train.columns["x"]
    largest, seen = float(data.abs().max()), set()
    for round, at in enumerate((largest / 2, largest * 2)):
        message, stamp = lying(made, at, round), f"{round}.1"
        asked = ClientRequest("turn", "p02", message, stamp, progress=round / 2)
        seen.add(turn(made, "p02", asked)["status"])
    assert seen == {"ok"}
    faulty = (made.place("p02") / "privacy" / "zeros.seed0.csv").read_text().splitlines()
    assert [line[:2] for line in csv.reader(faulty)] == [["p02", "0"]]


def test_the_operator_alone_is_told():
    told = []
    assert UserLevelHooks(USER, None, told.append).covers("p02", 3, "finite: 'model' holds NaN")
    (line,) = told
    assert "'p02' sent zeros in round 3" in line
    assert "(finite: 'model' holds NaN); the server is not told" in line


def test_without_a_promise_a_faulty_reply_is_told(tmp_path):
    made = circle(method("fedavg", LOCAL), tmp_path, 5)
    assert {note["status"][:19] for note in notes(made, lying(made)).values()} == {
        "quarantined: finite"
    }


def test_a_simulation_of_nothing_but_zeros_says_so(tmp_path):
    experiment = check(
        {
            "task": {"name": "toy"},
            "model": {"name": "linear"},
            "federation": {"name": "toy", "people": 4},
            "method": "fedavg",
            "local": {"optimizer": "sgd", "epochs": 9, "batch": 8, "lr": 1e30, "clip": 0.0},
            "privacy": {"user": {"clip": 0.5, "noise": 1.0}},
            "run": {"rounds": 2, "evaluate_every": 0, "workers": 1},
        }
    )
    with pytest.raises(PartialRun, match=r"nobody's reply counted in any round \(8 of 8 .*finite"):
        start(experiment, tmp_path)
    assert {line["status"] for line in table(tmp_path, "turns.csv")} == {"ok"}


NETWORKS = {
    "linear": lambda: nn.Linear(3, 2),
    "deep": lambda: nn.Sequential(nn.Linear(3, 40), nn.ReLU(), nn.LayerNorm(40), nn.Linear(40, 2)),
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 3)), nn.Conv1d(1, 4, 2), nn.Flatten(), nn.Linear(8, 2)
    ),
    "rows": lambda: nn.Sequential(nn.Unflatten(1, (3, 1, 1)), nn.Conv2d(3, 9, 1), nn.Flatten()),
}


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("far", [3e38, math.inf, math.nan])
def test_a_samples_gradient_that_is_not_finite_counts_as_zero(kind, far):
    """The sum of the others' clipped gradients is what it is without that sample, to the bit."""
    torch.manual_seed(0)
    network = NETWORKS[kind]()
    samples = torch.randn(5, 3)
    spoiled = torch.cat([samples, torch.full((1, 3), far)])

    def summed(rows):
        into = {name: torch.full_like(p, 7.0) for name, p in network.named_parameters()}
        with Clipper(network, 1.0) as clipper:
            clipper.gradients(network(rows).square().sum(1) * 1e5, into)
        return into

    alone, together = summed(samples), summed(spoiled)
    for name, gradient in alone.items():
        torch.testing.assert_close(together[name], gradient, rtol=1e-5, atol=1e-6)


def test_under_dp_sgd_one_sample_does_not_make_a_reply_faulty(tmp_path):
    """One client's data with and without a number of which the training overflows."""

    def status(name, outlier):
        still = replace(LOCAL, weight_decay=0.0)  # a part of 1e38 is out of range
        made = circle(method("fedavg", still), tmp_path / name, 5, inputs=1)
        made.privacy = Privacy(
            aggregation=made.privacy.aggregation, solver=DpSgd(clip=1.0, epsilon=1.0)
        )
        made.plan = replace(made.plan, privacy=made.privacy)
        own = made.federation.only(("p02",))
        train = own.people["p02"].train
        numbers = train.columns["x"].clone().clamp(-2, 2)
        numbers[0] = 2.4 if outlier else 0.0
        train = replace(train, columns={**train.columns, "x": numbers})
        own = replace(own, people={"p02": replace(own.people["p02"], train=train)})
        hooks = client_hooks(made.plan, made.method, made.task, own, made.place("p02"))
        data, stream = LocalData(own, own), RandomStream("run", 0)
        made.workers["p02"] = ClientExecutor(made.method, made.task, data, stream, hooks=hooks)
        return turn(made, "p02", ClientRequest("turn", "p02", lying(made, 2.2), "0.1"))["status"]

    assert [status(f"{k}{outlier}", outlier) for k in range(2) for outlier in (True, False)] == [
        "ok"
    ] * 4
