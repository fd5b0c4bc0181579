"""Summaries: losses by hand, clips of unequal length apart, F and ranks, frames that count."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from tests.conftest import research_data
from tests.data.video_summaries.test_h5_files import group, write
from vergence.core.data import Samples
from vergence.core.federation import Federation
from vergence.core.objectives import loss_per_sample
from vergence.data.synthetic.clip_synthetic import ClipSynthetic
from vergence.data.video_summaries.clients import clip_of
from vergence.data.video_summaries.fragments import PARTS, RatedClip, samples_of
from vergence.data.video_summaries.h5_files import read_videos
from vergence.errors import ConfigError, DataError
from vergence.models.linear import Linear
from vergence.models.mixture_transformer import MixtureTransformer
from vergence.models.vslstm import VsLSTM
from vergence.privacy.dp.per_sample_gradients import Clipper
from vergence.tasks.summary import SummaryTask
from vergence.training.sequential import Solver

TASK = SummaryTask(VsLSTM(2, 3))


class Column(nn.Module):
    """Says the first feature."""

    def forward(self, x, steps):
        return x[..., 0]


def clip(logits, target, ratings, chosen=(0,), length=2):
    """Two frames a step, shots of `length` steps; everybody chose the shots `chosen`."""
    steps = len(logits)
    frames = np.arange(2 * steps)
    starts = frames[:: 2 * length]
    shots = np.stack([starts, np.append(starts[1:], 2 * steps) - 1], 1)
    choices = np.isin(frames // (2 * length), chosen)[None].repeat(len(ratings), 0)
    x = np.stack([logits, np.zeros(steps)], 1)
    return RatedClip(x, frames[::2], np.array(target), np.array(ratings, float), choices, shots)


def samples(*every) -> Samples:
    return samples_of({"p": dict.fromkeys(PARTS, every)})["p"].train


LONG = clip(np.linspace(0, 1.9, 20), np.linspace(0, 1, 20), [range(20), range(20, 0, -1)], (9,))
SHORT = clip([0.0, math.log(3)], [0.5, 0.25], [[1, 2], [1, 2]], length=1)


def test_loss_is_a_mean_over_steps_and_then_over_clips():
    """Importances 1/2 and 3/4, targets 1/2 and 1/4: squared errors 0 and 1/4, mean 1/8.

    The other clip, 1/2 and 1/2 for 1 and 1 and 1 and 1: 1/4. Clips: 3/16; over steps it were 5/24.
    """
    data = samples(SHORT, clip(np.zeros(4), np.ones(4), [[1, 1, 1, 1]])).take(slice(0, 2))
    output = TASK.forward(Column(), data)
    assert float(TASK.loss(output, data)) == pytest.approx(3 / 16)
    # Cross-entropy: ln 2; -(ln 3/4 + 3 ln 1/4) / 4; ln 2 four times.
    mixed = -(math.log(3 / 4) + 3 * math.log(1 / 4)) / 4
    wanted = ((math.log(2) + mixed) / 2 + math.log(2)) / 2
    bce = SummaryTask(VsLSTM(2, 3), criterion="bce")
    assert float(bce.loss(output, data)) == pytest.approx(wanted)


@pytest.mark.parametrize(
    "network",
    [
        VsLSTM(2, 3),
        MixtureTransformer(2, 3),
        MixtureTransformer(2, 3, mixture="values"),
        MixtureTransformer(2, 3, mixture="none"),
    ],
    ids=str,
)
def test_a_longer_clip_beside_it_changes_nothing_of_a_clip(network):
    """Neither its scores, nor the gradient of its loss."""
    task = SummaryTask(network)
    module = task.module()
    alone, beside = samples(SHORT).take(slice(0, 1)), samples(SHORT, LONG).take(slice(0, 2))
    one, two = task.forward(module, alone), task.forward(module, beside)
    torch.testing.assert_close(two[0, :2], one[0])
    assert not two[0, 2:].any()
    grads = []
    for output, data in ((one, alone), (two[:1], {k: v[:1] for k, v in beside.items()})):
        loss = task.loss(output, data)
        grads.append(torch.autograd.grad(loss, list(module.parameters()), allow_unused=True))
    for first, second in zip(*grads, strict=True):
        torch.testing.assert_close(first, second)


def test_f_and_ranks_by_hand():
    """20 steps of 2 frames, shots of 4 frames, room for int(0.15 * 40) = 6 frames: one shot.

    Logits rise, so the last shot is kept; everybody chose it: F 1. One ranks likewise, one the
    other way: tau and rho 0, and against their mean, which is constant, 0 as well.
    """
    data = samples(LONG)
    outputs = TASK.forward(Column(), data.take(slice(0, 1)))
    expected = {"f": 1.0, "tau": 0.0, "rho": 0.0, "score": 0.5}
    assert TASK.metrics(outputs, data) == pytest.approx(expected)
    agreed = samples(clip(np.arange(20) / 10, np.ones(20), [range(20), [*range(19), 0]], (0, 9)))
    tau = (1 + (171 - 18) / math.sqrt(190 * 189)) / 2
    found = TASK.metrics(outputs, agreed)
    # One shot kept of two chosen ones: precision 1, recall 1/2.
    assert found["f"] == pytest.approx(2 / 3)
    assert found["tau"] == pytest.approx(tau)
    assert found["score"] == pytest.approx((1 + tau) / 2)


def test_summe_takes_the_largest_f_and_the_mean_of_people():
    """One chose the kept shot, one another; ranks against the mean of both, which rises too."""
    ratings = [range(20), [19, *range(1, 20)]]
    apart = clip(np.arange(20) / 10, np.ones(20), ratings, (9,))
    apart.choices[1] = np.roll(apart.choices[1], 4)
    data = samples(apart)
    outputs = TASK.forward(Column(), data.take(slice(0, 1)))
    assert TASK.metrics(outputs, data)["f"] == pytest.approx(0.5)
    summe = SummaryTask(VsLSTM(2, 3), judged="summe").metrics(outputs, data)
    assert summe["f"] == 1
    # Means 9.5, 1, 2, ..., 19: the first is above nine of the others and below ten.
    assert summe["tau"] == pytest.approx((190 - 2 * 9) / 190)


def test_priors_are_random_rows_and_people_on_the_same_shots():
    people = ClipSynthetic(people=1, clips=15).load()
    rows = TASK.priors(people)
    assert set(rows) == {"random", "people"}
    random, human = (rows[name]["p00"] for name in ("random", "people"))
    assert abs(random["tau"]) < 0.1
    assert human["tau"] > 0.6
    assert human["f"] > random["f"] + 0.3


@pytest.mark.slow
def test_gradients_of_clips_can_be_told_apart():
    """What DP-SGD clips: the sum is that of every clip's own gradient, padded or not."""
    solver = Solver(SummaryTask(MixtureTransformer(2, 3)))
    data = samples(SHORT, LONG).take(slice(0, 2))
    expected, own = [torch.zeros_like(p) for p in solver.parameters], []
    for i in range(2):
        alone = {name: column[i : i + 1] for name, column in data.items()}
        loss = solver.task.loss(solver.task.forward(solver.module, alone), alone)
        gradients = torch.autograd.grad(loss, solver.parameters)
        own.append(float(torch.cat([g.flatten() for g in gradients]).norm()))
        for total, g in zip(expected, gradients, strict=True):
            total += g * min(1.0, 0.01 / own[-1])
    into = {name: torch.zeros_like(p) for name, p in solver.module.named_parameters()}
    with Clipper(solver.module, 0.01) as clipper:
        output = solver.task.forward(solver.module, data)
        clipper.gradients(loss_per_sample(solver.task, output, data), into)
    assert min(own) > 0.01
    assert clipper.norms.tolist() == pytest.approx(own, rel=1e-4)
    for found, wanted in zip(into.values(), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-6)


@pytest.mark.slow
@pytest.mark.data
def test_priors_of_summe_as_measured_on_whole_videos():
    """Design notes on data, 2.5: random 40.3 (20 draws), people 54.3; tau 0.296 by `rest`."""
    path = research_data("video_summarisation") / "summe_annotations.h5"
    every = [
        clip_of(replace(v, features=np.zeros((len(v.picks), 1), np.float32)), "")
        for v in read_videos(path).values()
    ]
    people = Federation("s", samples_of({"p": dict.fromkeys(PARTS, tuple(every))}))
    rows = SummaryTask(VsLSTM(1, 1), judged="summe").priors(people)
    assert rows["random"]["p"]["f"] == pytest.approx(0.403, abs=0.01)
    assert rows["people"]["p"]["f"] == pytest.approx(0.5433, abs=5e-4)
    assert rows["people"]["p"]["tau"] == pytest.approx(0.296, abs=5e-4)


def test_frames_or_clips_count():
    data = samples(SHORT, LONG)
    assert (TASK.weigh(data), SummaryTask(VsLSTM(2, 3), counts="clips").weigh(data)) == (22, 2)


def test_sequences_are_clips_without_padding_and_proxies_are_alike_for_all():
    first, second = TASK.sequences(samples(SHORT, LONG))
    np.testing.assert_allclose(first, SHORT.features, rtol=1e-6)
    np.testing.assert_allclose(second, LONG.features, rtol=1e-6)
    proxies, again = TASK.proxies(2), TASK.proxies(1)
    assert proxies[0].shape[1] == 2
    assert proxies[0].equal(again[0])
    assert not proxies[0].equal(proxies[1])


def test_proxies_may_be_videos_of_another_data_set(tmp_path):
    """Three steps of 1024 features each, in the order of a fixed draw."""
    path = write(tmp_path / "other.h5", {"video_1": group(), "video_2": group()})
    task = SummaryTask(VsLSTM(1024, 3), proxy=str(path))
    first, second = task.proxies(2)
    assert first.equal(torch.eye(3, 1024))
    assert second.equal(task.proxies(2)[1])
    with pytest.raises(DataError, match="has 2 videos with 1024 features a frame, 3 are needed"):
        task.proxies(3)
    with pytest.raises(DataError, match="has 0 videos with 2 features"):
        SummaryTask(VsLSTM(2, 3), proxy=str(path)).proxies(1)


def test_people_joined_are_scored_as_apart():
    """Banks are joined and rows moved: a clip stays what it was."""
    people = ClipSynthetic(people=2, clips=5).load()
    task = SummaryTask(VsLSTM(4, 3))
    solver, params = Solver(task), task.init()
    apart = [task.metrics(solver.outputs(params, s.test), s.test) for s in people.people.values()]
    whole = people.pooled().people["everyone"].test
    joined = task.metrics(solver.outputs(params, whole), whole)
    for name in ("f", "tau", "rho"):
        assert joined[name] == pytest.approx(np.mean([row[name] for row in apart]))


def test_refusals_say_what_to_set(tmp_path):
    data = samples(SHORT).take(slice(0, 1))
    wide = SummaryTask(VsLSTM(5, 3))
    with pytest.raises(ConfigError, match=r"2 features a frame, the model takes 5; set model\.fea"):
        wide.forward(wide.module(), data)
    with pytest.raises(ConfigError, match=r"Identity returned \[1, 2, 2\] for 1 clips of 2 steps"):
        TASK.forward(Unmoved(), data)
    with pytest.raises(ConfigError, match="Linear has no option 'features'"):
        SummaryTask(Linear()).proxies(1)
    with pytest.raises(DataError, match="missing file"):
        SummaryTask(VsLSTM(2, 3), proxy=str(tmp_path / "none.h5")).proxies(1)
    summe = Federation("summe", {}, {"judged": "summe"})
    with pytest.raises(ConfigError, match=r'as tvsum; set task\.judged = "summe"'):
        TASK.check(summe)


class Unmoved(nn.Identity):
    def forward(self, x, steps):
        return x


Unmoved.__name__ = "Identity"
