"""What DP-SGD adds must be what it promised: a solver with part of its noise is found by measuring.

Nothing is replaced here: gradients are zero, so that what a training leaves is its noise.
"""

import math
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from vergence.core.client import ClientContext
from vergence.core.data import Samples
from vergence.core.local_training import LocalTraining, OptimizerState
from vergence.core.masks import Mask
from vergence.core.objectives import FeatureAlignment
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.requests import Fit, Mean
from vergence.errors import ConfigError
from vergence.models.linear import Linear
from vergence.privacy.config import DpSgd
from vergence.privacy.dp.dp_sgd_solver import DpSolver, TrainingPass, book_of
from vergence.privacy.release_log import ReleaseLog
from vergence.tasks.toy import ToyTask

ENTRIES, SAMPLES, BATCH = 20_000, 64, 16
LOCAL = LocalTraining(optimizer="sgd", steps=1, batch=BATCH, lr=1.0, momentum=0.0, weight_decay=0.0)
WIDE = ToyTask(Linear(ENTRIES))
START = Params.of(WIDE.module()) * 0.0


def solver(folder, task=WIDE, local=LOCAL, **policy):
    """Return a solver whose secret is the same in every run of these tests."""
    (folder / "privacy").mkdir(parents=True)
    (folder / "privacy" / "secret").write_bytes(bytes(range(32)))
    (folder / "privacy" / "secret").chmod(0o600)
    return DpSolver(task, DpSgd(**policy), folder, 0, [TrainingPass(local, 1.0, 1)])


def still(samples=SAMPLES):
    """Return samples of which no parameter but the bias has a gradient, and that one none yet."""
    return Samples({"x": torch.zeros(samples, ENTRIES), "y": torch.zeros(samples, 1)})


def trained(made, ask, client="p00", stream="x", progress=0.0):
    """Return how far one training moved the parameters."""
    site = ClientContext(client, ask.data, ask.data, made.task, 0, RandomStream(stream))
    return (made.train(site, ask, RandomStream(stream), progress).params - ask.params).flat.numpy()


@pytest.mark.parametrize(("noise", "clip"), [(2.0, 1.0), (2.0, 0.1), (0.7, 3.0), (1.1, 20.0)])
def test_noise_on_every_entry_is_the_multiplier_times_clip_over_the_expected_batch(
    noise, clip, tmp_path
):
    """Of 20,001 entries a deviation is known to 0.5 %; 2 % less noise would be found."""
    made, ask = solver(tmp_path, noise=noise, clip=clip), Fit(START, still(), LOCAL)
    for client in ("p00", "p01", "p02"):  # whatever was drawn of their 64 samples
        found = trained(made, ask, client)
        assert found.std() == pytest.approx(noise * clip / BATCH, rel=0.02)
        assert abs(found.mean()) < 4 * noise * clip / BATCH / math.sqrt(ENTRIES)


def test_every_step_has_noise_of_its_own(tmp_path):
    local = replace(LOCAL, steps=9)
    found = trained(solver(tmp_path, local=local, noise=2.0), Fit(START, still(), local))
    assert found.std() == pytest.approx(2.0 / BATCH * math.sqrt(9), rel=0.02)


def test_a_mean_over_samples_has_its_noise_too(tmp_path):
    """`Mean`: ten times the multiplier, of the bound of a row, over all samples."""
    made = solver(tmp_path, noise=2.0)
    made.passes = (*made.passes, TrainingPass(None, 1.0, 1))
    site = ClientContext("p00", still(), still(), WIDE, 0, RandomStream("x"))
    found = made.mean(site, Mean(torch.zeros(SAMPLES, ENTRIES), 3.0)).numpy()
    assert found.std() == pytest.approx(2.0 * 10 * 3.0 / SAMPLES, rel=0.02)


def test_a_sum_is_divided_by_the_batch_that_is_expected_and_not_by_who_came(tmp_path):
    """64 samples that all pull one way, by 1 each: what comes is how many were drawn, over 16."""
    task = ToyTask(Linear(2))
    data = Samples({"x": torch.full((SAMPLES, 2), 9.0), "y": torch.full((SAMPLES, 1), 1e6)})
    made = solver(tmp_path, task, noise=1e-7, clip=1.0)
    ask = Fit(Params.of(task.module()) * 0.0, data, LOCAL)
    drawn = [BATCH * float(np.linalg.norm(trained(made, ask, f"p{i:02d}"))) for i in range(40)]
    np.testing.assert_allclose(drawn, np.round(drawn), atol=0.01)
    assert len(set(np.round(drawn))) > 5  # not always the same, as over who came it would be
    assert np.mean(drawn) == pytest.approx(BATCH, abs=2)  # of 40: a deviation of 0.55


OWN = {"data", "score_on"}
"""Fields of a `Fit` that are a client's own samples: no server names them."""
ONES = START.like(torch.ones_like(START.flat))
HALF = Mask(torch.arange(START.layout.n) % 2 == 0, START.layout)
OTHERS = {
    "params": [ONES],
    "trainable": [HALF],
    "anchor": [(ONES, 1e-9), (ONES, 1e-6)],
    "optimiser": [OptimizerState({}, 0), OptimizerState({}, 1)],
    "correction": [ONES, ONES * 2.0],
    "local": [
        replace(LOCAL, **{name: value})
        for name, value in {
            "epochs": 2,
            "steps": 2,
            "batch": 17,
            "optimizer": "adam",
            "lr": 0.5,
            "momentum": 0.5,
            "nesterov": True,
            "weight_decay": 0.1,
            "clip": 1.0,
            "schedule": "step",
            "sampler": "balanced",
        }.items()
    ],
}
"""Every other field, and what a server may put there."""


def test_every_field_of_a_training_is_looked_at():
    """A new field must be put among these lists: the same noise on two trainings takes it off."""
    assert {f.name for f in fields(Fit)} == {*OTHERS, *OWN, "objective"}
    assert len({repr(local) for local in OTHERS["local"]}) == len(fields(LocalTraining))


@pytest.mark.parametrize("name", [*OTHERS, "stream", "progress"])
def test_another_training_never_has_the_same_noise(name, tmp_path):
    """Who gets two answers with one noise subtracts them, and has two trainings without any."""
    made, ask = solver(tmp_path, noise=2.0), Fit(START, still(), LOCAL)
    seen = [trained(made, ask)]
    if name == "stream":
        seen.append(trained(made, ask, stream="y"))
    elif name == "progress":
        seen.append(trained(made, ask, progress=0.5))
    else:
        seen += [trained(made, replace(ask, **{name: other})) for other in OTHERS[name]]
    moved = np.array([row[::2] for row in seen])  # HALF: the entries that all of them train
    alike = np.abs(np.corrcoef(moved) - np.eye(len(seen)))
    assert alike.max() < 0.06  # six deviations of 10,000 entries
    assert len(ReleaseLog(tmp_path / "privacy" / book_of(0, "p00")).entries) == len(seen)


def test_the_same_training_again_is_one_release(tmp_path):
    made, ask = solver(tmp_path, noise=2.0), Fit(START, still(), LOCAL)
    assert np.array_equal(trained(made, ask), trained(made, ask))
    assert len(ReleaseLog(tmp_path / "privacy" / book_of(0, "p00")).entries) == 1


def test_another_loss_is_not_trained_at_all(tmp_path):
    pulled = Fit(START, still(), LOCAL, objective=FeatureAlignment(torch.zeros(2, 4), 1.0))
    with pytest.raises(ConfigError, match="minimises another"):
        trained(solver(tmp_path, noise=2.0), pulled)
