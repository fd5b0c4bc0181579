"""Three communities that nobody told of (methods design note, 5.3), and lengths that are none.

A person's clips move at one speed, have about one length, and lie about one mean. People of the
control differ in the length of their clips alone: groups by length are groups of nothing.
"""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from tests.scripts import summed, taught
from vergence.core.fitting import Local
from vergence.core.site import Federation, Samples, Splits
from vergence.core.wire import reply, seal
from vergence.engines.conduct import Plan, conduct
from vergence.engines.store import Folder
from vergence.engines.turn import drive
from vergence.methods.cfedvs import CFedVS
from vergence.methods.fedavg import FedAvg
from vergence.metrics.clusters import adjusted_rand
from vergence.models.linear import Linear
from vergence.tasks.toy import Toy

LATENT = ((0.1, 60, 0.0), (0.4, 120, 2.0), (1.0, 240, 5.0))
LENGTHS = ((0.4, 60, 0.0), (0.4, 120, 0.0), (0.4, 240, 0.0))
FOURTH = (0.2, 90, -1.0)
"""Speed in radians a frame, frames, and mean of the first feature; the last is the proxy's."""
ROOM = 260
PEOPLE = [f"p{i}" for i in range(10)]
COMMUNITY = [i % 3 for i in range(10)]
LOCAL = Local(epochs=1, batch=8, lr=0.05)


def clip(rng, speed, frames, mean):
    """Return frames `[frames, 4]`: sines of random phase, and noise."""
    t = np.arange(round(frames * rng.uniform(0.95, 1.05)))[:, None]
    x = np.sin(rng.uniform(0, 2 * np.pi, 4) + speed * t) + 0.3 * rng.normal(size=(len(t), 4))
    x[:, 0] += mean
    return torch.from_numpy(x).float()


@dataclass(frozen=True)
class Clips(Toy):
    """The toy task on samples that have a clip each, of its own length; frames are what counts."""

    def sequences(self, samples):
        pairs = zip(samples.columns["clip"], samples.columns["frames"], strict=True)
        return [frames[:n] for frames, n in pairs]

    def proxies(self, count):
        rng = np.random.default_rng(99)
        return [clip(rng, *FOURTH) for _ in range(count)]

    def weigh(self, samples):
        return float(samples.columns["frames"].sum())


TASK = Clips(Linear())


def samples(rng, community, count=3):
    clips = [clip(rng, *community) for _ in range(count)]
    padded = torch.zeros(count, ROOM, 4)
    for row, frames in zip(padded, clips, strict=True):
        row[: len(frames)] = frames
    x = torch.from_numpy(rng.normal(size=(count, 4))).float()
    frames = torch.tensor([len(c) for c in clips])
    return Samples({"x": x, "y": x.sum(1), "clip": padded, "frames": frames})


def federation(communities, seed, people=PEOPLE):
    rng = np.random.default_rng(seed)
    parts = {p: samples(rng, communities[COMMUNITY[i]]) for i, p in enumerate(people)}
    return Federation("clips", {p: Splits(part, part, part) for p, part in parts.items()})


def run(method, people, place):
    folder = Folder(place, {"config": "a", "code": "b", "data": "c"})
    folder.open()
    plan = Plan(rounds=1, evaluate_every=0, workers=1)
    return conduct(method, TASK, people, plan, folder).server


def found(place, communities, seed, **options):
    """Return how well the groups that a run makes agree with the communities."""
    server = run(CFedVS(local=LOCAL, **options), federation(communities, seed), place)
    return adjusted_rand(COMMUNITY, [server.groups[p] for p in PEOPLE])


@pytest.mark.parametrize("options", [{}, {"space": "scalars"}, {"per_frame": True}], ids=str)
def test_three_communities_are_found(options, tmp_path):
    assert found(tmp_path, LATENT, 0, **options) == 1


def test_clips_of_other_lengths_fool_dtw_as_a_sum_and_not_as_a_mean(tmp_path):
    assert found(tmp_path / "sum", LENGTHS, 0) == 1
    assert found(tmp_path / "mean", LENGTHS, 0, per_frame=True) < 0.4


@pytest.mark.slow
@pytest.mark.parametrize("per_frame", [False, True])
def test_newcomers_land_in_their_group(per_frame, tmp_path):
    """190 of 200, who are measured as everybody was and change nothing."""
    method = CFedVS(local=LOCAL, per_frame=per_frame)
    server = run(method, federation(LATENT, 0), tmp_path)
    group_of = dict(zip(COMMUNITY, (server.groups[p] for p in PEOPLE), strict=True))
    rng, right = np.random.default_rng(1), 0
    for trial in range(200):
        late = samples(rng, LATENT[trial % 3])
        told = taught(method, TASK, None, {"proxies": server.proxies}, late, verb="measure")[1]
        after = drive(method.seated(server, ["new"]), lambda _, told=told: {"new": told})
        right += after.groups["new"] == group_of[trial % 3]
    assert right >= 190


def test_frames_are_what_counts():
    """Design note, O13: ten clips each, of 1000 and 3000 frames in all, 1 and 3 become 2.5."""
    method, sealed = FedAvg(local=LOCAL), []
    for end, frames in ((1.0, 100), (3.0, 300)):
        column = torch.full((10,), frames)
        data = Samples({"x": torch.zeros(10, 4), "y": torch.zeros(10), "frames": column})
        (tree,) = taught(method, TASK, None, {"model": TASK.init()}, data)[1].trees.values()
        assert tree.weight == 10 * frames
        update = tree.total.like(torch.full_like(tree.total.flat, end))
        sealed.append(seal(reply(model=update, weight=tree.weight), 0))
    after = summed(method, method.server(TASK), sealed, {"model": TASK.init()})
    assert set(after.model.flat.tolist()) == {2.5}
