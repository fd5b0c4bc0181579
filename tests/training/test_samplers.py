"""Batches that are balanced by class or weighted by sample, and the shuffled ones beside them."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset, WeightedRandomSampler

import vergence as vg
from tests.engine.learners import TASKS, apart, asks_of, streams_of
from tests.experiment.made_up import trained
from tests.refusals import refuses
from vergence.core.data import SAMPLING_WEIGHT, Samples
from vergence.core.local_training import LocalTraining
from vergence.core.randomness import RandomStream
from vergence.core.tags import literal_text
from vergence.engine.plan import Plan
from vergence.experiment.schema import check
from vergence.models.linear import Linear
from vergence.tasks.toy import ToyTask
from vergence.training.batches import batches, random_subset, sampling_weights
from vergence.training.cuda_graphs import Graphed
from vergence.training.sequential import Solver
from vergence.training.stacked import Stacked

TASK = ToyTask(Linear())
STREAM = RandomStream("golden", 0)
WEIGHTED, BALANCED = (
    LocalTraining(optimizer="sgd", sampler=s, batch=4) for s in ("weighted", "balanced")
)
Y = torch.tensor([1.0, -1, 1, 1, -1, 1, 1])
"""Targets of which the toy task makes two classes: the second and the fifth are of the rare one."""
SAMPLES = Samples({"y": Y, SAMPLING_WEIGHT: torch.tensor([0, 1, 2, 0, 0.5, 4, 0.0])})


def drawn(local, epochs, data=SAMPLES):
    rows = list(batches(data, replace(local, epochs=epochs), STREAM, TASK))
    return torch.cat(rows), [len(each) for each in rows]


def weights_of(data, local):
    weights = sampling_weights(data, local, TASK)
    assert weights is not None
    return weights.tolist()


def test_shuffled_batches_are_those_of_earlier_versions():
    local, five = LocalTraining(optimizer="sgd", epochs=2, batch=3), Samples({"y": Y[:5]})
    rows = [each.tolist() for each in batches(five, local, STREAM, TASK)]
    assert rows == [[2, 0, 3], [1, 4], [3, 2, 4], [0, 1]]
    assert random_subset(five, 3, local, STREAM, TASK).columns["y"].tolist() == [1, 1, 1]
    # Noise and budgets of DP-SGD follow from this text.
    assert "sampler" not in literal_text(LocalTraining(optimizer="sgd"))
    assert literal_text(WEIGHTED).endswith(", sampler='weighted')")
    assert "sampler='weighted'" in repr(WEIGHTED)


@pytest.mark.parametrize(
    ("local", "weights"),
    [
        (WEIGHTED, [0, 1, 2, 0, 0.5, 4, 0]),
        # Two classes, each with weight 1 in all, shared by its five and its two samples.
        (BALANCED, [0.2, 0.5, 0.2, 0.2, 0.5, 0.2, 0.2]),
    ],
    ids=["weighted", "balanced"],
)
def test_the_law_is_that_of_pytorchs_sampler(local, weights):
    assert weights_of(SAMPLES, local) == weights
    # The same numbers from the same generator, epoch after epoch.
    theirs = WeightedRandomSampler(weights, len(Y), generator=STREAM.torch())
    rows, sizes = drawn(local, epochs=3)
    assert rows.tolist() == [*theirs, *theirs, *theirs]
    assert sizes == [4, 3, 4, 3, 4, 3]
    # A frequency of 14,000 draws is within 5 standard deviations of its probability.
    share = torch.tensor(weights).double() / sum(weights)
    counts = drawn(local, epochs=2_000)[0].bincount(minlength=len(Y))
    assert ((counts - 14_000 * share).abs() <= 5 * (14_000 * share * (1 - share)).sqrt()).all()


def test_steps_go_on_through_epochs_and_a_client_of_one_class_is_drawn_evenly():
    rows = list(batches(SAMPLES, replace(BALANCED, steps=5), STREAM, TASK))
    assert torch.cat(rows).tolist() == drawn(BALANCED, epochs=3)[0][:18].tolist()
    alike = Samples({"y": torch.ones(4)})
    assert weights_of(alike, BALANCED) == [0.25] * 4
    few = random_subset(SAMPLES, 3, WEIGHTED, STREAM, TASK)
    assert few.columns["y"].tolist() == Y[drawn(WEIGHTED, epochs=1)[0][:3]].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["balanced", "weighted"])
def test_stacks_draw_what_single_clients_draw(sampler, device):
    local = LocalTraining(optimizer="sgd", sampler=sampler, batch=4, epochs=2, lr=0.05)
    task, make = TASKS["linear"]
    asks = [
        replace(ask, data=Samples({**ask.data.columns, SAMPLING_WEIGHT: torch.arange(12) % 3}))
        for ask in asks_of(task, make, local, "none")
    ]
    streams = streams_of(asks)
    together = Stacked(task, device).fit_all(asks, streams)
    recorded = Graphed(task, torch.device(device), "fp32", 2).fit_all(asks, streams)
    shuffled = [replace(ask, local=replace(local, sampler="shuffle")) for ask in asks]
    for number, (ask, stream) in enumerate(zip(asks, streams, strict=True)):
        alone = Solver(task).fit(ask, stream)
        for got in (together[number], recorded[number]):
            assert apart(got.params, alone.params) <= 1e-4
            assert got.examples == alone.examples == 12
        assert apart(alone.params, Solver(task).fit(shuffled[number], stream).params) > 1e-3


NAMES, ROWS = ("anna", "ben", "carl"), 40
DRAW = np.random.default_rng(0)
X, Y_OF = DRAW.normal(size=(3, ROWS, 4)), (DRAW.random((3, ROWS)) < 0.2).astype(int)
ARRAYS = {name: {"x": X[n], "y": Y_OF[n]} for n, name in enumerate(NAMES)}
WEIGHTS = dict.fromkeys(NAMES, np.arange(ROWS))


def people(**options):
    """Three people with a rare class, whose last rows weigh more."""
    return vg.Federation.from_arrays(ARRAYS, shuffle=0, **{"weights": WEIGHTS, **options})


def accuracy(outputs, targets):
    return (outputs.argmax(1) == targets).float().mean()


def network(outputs=2):
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, outputs))


CLASSES = vg.task_from(
    network, nn.functional.cross_entropy, {"accuracy": accuracy}, lower_is_better=False
)


def train(sampler, out=None, data=None, task=CLASSES, **options):
    local = vg.LocalTraining(optimizer="sgd", sampler=sampler, batch=8)
    data = people() if data is None else data
    return trained(out, vg.methods.FedPer(local=local), people=data, task=task, **options)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["balanced", "weighted"])
def test_bits_repeat_over_workers_engines_and_resume(sampler, tmp_path):
    whole = train(sampler, tmp_path / "a")
    plan = Plan(engine="bytes", solver="sequential")
    assert train(sampler, tmp_path / "b", workers=2).fingerprint == whole.fingerprint
    assert train(sampler, tmp_path / "c", plan=plan).fingerprint == whole.fingerprint

    def stop(report):
        if report.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(vg.PartialRun):
        train(sampler, tmp_path / "d", on_round=stop)
    assert train(sampler, tmp_path / "d", resume=True).fingerprint == whole.fingerprint
    with pytest.raises(vg.VergenceError, match="other settings"):
        train("shuffle", tmp_path / "d", resume=True)
    assert train("shuffle", tmp_path / "e").fingerprint != whole.fingerprint
    assert f'sampler = "{sampler}"' in (tmp_path / "a" / "config.toml").read_text()


def test_shuffled_runs_and_scores_do_not_read_weights():
    data = people()
    (ben,) = (vars(splits) for name, splits in data.people.items() if name == "ben")
    # Weights follow their rows through the split at random.
    seen = [part.columns[SAMPLING_WEIGHT] for part in ben.values()]
    assert sorted(torch.cat(seen).tolist()) == list(range(ROWS))
    rows = torch.cat([part.columns["x"] for part in ben.values()])
    assert torch.equal(rows[torch.cat(seen).argsort()], torch.tensor(X[1]).float())
    one, other = train("shuffle"), train("shuffle", data=people(weights=None))
    assert one.fingerprint == other.fingerprint
    assert one.scores.equals(other.scores)


def test_every_door_takes_weights():
    """Arrays, data sets, those that are read later, frames, parts, and a column of that name."""
    sets = {p: TensorDataset(*map(torch.tensor, own.values())) for p, own in ARRAYS.items()}
    frame = pd.concat(
        pd.DataFrame({"who": p, **{f"x{i}": own["x"][:, i] for i in range(4)}, "y": own["y"]})
        for p, own in ARRAYS.items()
    )
    columns = {"x": [f"x{i}" for i in range(4)], "y": "y"}
    named = {p: {**own, SAMPLING_WEIGHT: 1.0 * WEIGHTS[p]} for p, own in ARRAYS.items()}
    made, options = vg.Federation, {"weights": WEIGHTS, "shuffle": 0}
    want = made.from_arrays(named, shuffle=0)
    for federation in (
        people(),
        made.from_datasets(sets, **options),
        made.from_datasets(sets, lazy=True, **options),
        made.from_frame(frame, "who", columns, **options),
    ):
        for person, splits in federation.people.items():
            for part, samples in vars(splits).items():
                theirs = getattr(want.people[person], part).columns
                assert samples.columns.keys() == theirs.keys()
                assert all(torch.equal(column, theirs[n]) for n, column in samples.columns.items())
    # Of people in parts, training samples have weights.
    others = {p: {"x": own["x"] + 1, "y": own["y"]} for p, own in ARRAYS.items()}
    parts = {p: {"train": own, "test": others[p]} for p, own in ARRAYS.items()}
    splits = made.from_arrays(parts, weights=WEIGHTS).people["ben"]
    assert splits.train.columns[SAMPLING_WEIGHT].tolist() == list(range(ROWS))
    assert splits.test.columns[SAMPLING_WEIGHT].tolist() == [1.0] * ROWS


@pytest.mark.parametrize(
    ("weights", "nouns"),
    [
        ({**WEIGHTS, "ben": np.arange(ROWS) - 2.5}, ("ben", "-2.5 in row 0")),
        ({**WEIGHTS, "ben": np.where(np.arange(ROWS) == 7, np.nan, 1)}, ("ben", "nan in row 7")),
        ({**WEIGHTS, "ben": np.full(ROWS, np.inf)}, ("ben", "inf in row 0")),
        ({**WEIGHTS, "ben": np.zeros(ROWS)}, ("ben", "0 for every sample")),
        ({**WEIGHTS, "ben": np.ones(5)}, ("ben", "40", "[5]")),
        ({**WEIGHTS, "ben": np.ones((ROWS, 2))}, ("ben", "[40, 2]")),
        ({**WEIGHTS, "bent": np.ones(ROWS)}, ("'bent'", "did you mean 'ben'")),
        ({"anna": np.ones(ROWS), "carl": np.ones(ROWS)}, ("'ben'", "without weights")),
        ([1.0] * ROWS, ("{person: numbers}", "'anna'")),
    ],
)
def test_weights_that_cannot_be_drawn_by_are_refused(weights, nouns):
    sets = {p: TensorDataset(*map(torch.tensor, own.values())) for p, own in ARRAYS.items()}
    code = "bad-value" if nouns[0] == "ben" else "data"
    with refuses(code, *nouns):
        people(weights=weights)
    with refuses(code, *nouns):
        vg.Federation.from_datasets(sets, lazy=True, weights=weights)


def test_a_run_is_refused_before_it_trains():
    def own(change):
        return vg.Federation.from_arrays(
            {p: {**ARRAYS[p], SAMPLING_WEIGHT: change(WEIGHTS[p])} for p in NAMES}
        )

    with refuses("setting", "person 'anna'", SAMPLING_WEIGHT, "weights=", kind=vg.ConfigError):
        train("weighted", data=people(weights=None))
    with refuses("bad-value", "person 'anna'", SAMPLING_WEIGHT, "-1"):
        train("weighted", data=own(lambda each: -each))
    # Nothing of the training part can be drawn, and all of the last rows could.
    with refuses("bad-value", "person 'anna'", "0 for every sample"):
        train("weighted", data=own(lambda each: 1.0 * (each > 30)))
    floats = vg.Federation.from_arrays(
        {p: {**own, "y": 1.0 * own["y"]} for p, own in ARRAYS.items()}
    )
    task = vg.task_from(partial(network, 1), nn.functional.mse_loss)
    with refuses("setting", "no whole numbers", "'weighted'", kind=vg.ConfigError):
        train("balanced", data=floats, task=task)
    theirs: Any = WeightedRandomSampler([1.0], 1)
    with refuses("setting", "balanced", "weights=", kind=vg.ConfigError):
        vg.LocalTraining(optimizer="sgd", sampler=theirs)


@pytest.mark.parametrize(
    "privacy",
    [{"solver": {"clip": 1.0, "noise": 1.0}}, {"cut": {"name": "bottleneck", "noise": 1.0}}],
)
def test_guarantees_that_count_how_samples_are_drawn_refuse_samplers(privacy):
    solver = "solver" in privacy
    table = {
        "task": {"name": "toy" if solver else "gaze_angle"},
        "model": {"name": "linear" if solver else "small_eye"},
        "federation": {"name": "toy" if solver else "eye_synthetic"},
        "methods": ["fedavg" if solver else "splitfed"],
        "privacy": privacy,
        "run": {"rounds": 1},
    }
    check(table)
    for sampler in ("balanced", "weighted"):
        with refuses("setting", f"local.sampler = '{sampler}'", kind=vg.ConfigError):
            check({**table, "local": {"sampler": sampler}})
    if solver:
        with refuses("setting", "local.sampler = 'balanced'", kind=vg.ConfigError):
            train("balanced", privacy=privacy)


@pytest.mark.slow
def test_privacy_of_people_takes_samplers():
    privacy = {"user": {"clip": 1.0, "noise": 1.0}}
    runs = [train(s, rounds=1, privacy=privacy) for s in ("shuffle", "balanced")]
    ours, theirs = (run.privacy for run in runs)
    assert ours == theirs != {}


class WeighedLoss(vg.Objective):
    """The mean loss of samples, each times its column `weight`."""

    def loss(self, task, module, batch, draw):
        outputs = task.forward(module, batch)
        each = nn.functional.cross_entropy(outputs, batch["y"], reduction="none")
        return (batch["weight"] * each).mean()


class WeighedFedAvg(vg.methods.FedAvg):
    def on_train(self, c, msg, site):
        fitted = yield from vg.fit(msg["model"], site.train, self.local, objective=WeighedLoss())
        return c, vg.reply(model=fitted.params - msg["model"], weight=fitted.examples)


def test_a_column_weighs_samples_in_a_loss_of_ones_own():
    def fingerprint(method, weight):
        columns = {"weight": np.full(ROWS, weight, dtype="float32")}
        data = vg.Federation.from_arrays({p: {**own, **columns} for p, own in ARRAYS.items()})
        return trained(None, method(), people=data, task=CLASSES, rounds=1).fingerprint

    plain = fingerprint(vg.methods.FedAvg, 1.0)
    assert fingerprint(WeighedFedAvg, 1.0) == plain != fingerprint(WeighedFedAvg, 0.5)
