"""Three communities that nobody told of (methods design note, 5.3), and lengths that are none.

A person's clips move at one speed, have about one length, and lie about one mean. People of the
control differ in the length of their clips alone: groups by length are groups of nothing.
"""

import numpy as np
import pytest
import torch

from tests.scripts import summed, taught
from vergence.core.conversation import drive
from vergence.core.data import Samples, SharedRows
from vergence.core.local_training import LocalTraining
from vergence.core.messages import reply, seal
from vergence.data.synthetic.clip_synthetic import COMMUNITIES, ClipSynthetic, draw_clip, rate_clip
from vergence.data.video_summaries.fragments import PARTS, samples_of
from vergence.engine.round_loop import Plan, run_rounds
from vergence.engine.storage.run_directory import RunDirectory
from vergence.methods.clustered.cfedvs import CFedVS
from vergence.methods.fedavg import FedAvg
from vergence.metrics.clustering import adjusted_rand
from vergence.models.mixture_transformer import MixtureTransformer
from vergence.tasks.summary import SummaryTask

LOCAL = LocalTraining(optimizer="sgd", epochs=1, batch=8, lr=0.05)
TASK = SummaryTask(MixtureTransformer(4, 4, 1))
COMMUNITY = [i % 3 for i in range(10)]
PEOPLE = [f"p{i:02d}" for i in range(10)]


def run(method, people, place):
    folder = RunDirectory(place, {"config": "a", "code": "b", "data": "c"})
    folder.open()
    plan = Plan(rounds=1, evaluate_every=0, workers=1)
    return run_rounds(method, TASK, federation=people, plan=plan, folder=folder).server


def found(place, communities, **options):
    """Return how well the groups that a run makes agree with the communities."""
    people = ClipSynthetic(clips=5, communities=communities).load()
    server = run(CFedVS(local=LOCAL, **options), people, place)
    return adjusted_rand(COMMUNITY, [server.groups[p] for p in PEOPLE])


@pytest.mark.parametrize("options", [{}, {"space": "scalars"}, {"per_frame": True}], ids=str)
def test_three_communities_are_found(options, tmp_path):
    assert found(tmp_path, "latent", **options) == 1


@pytest.mark.slow
def test_clips_of_other_lengths_fool_dtw_as_a_sum_and_not_as_a_mean(tmp_path):
    assert found(tmp_path / "sum", "lengths") == 1
    assert found(tmp_path / "mean", "lengths", per_frame=True) < 0.4


def test_people_of_more_classes_have_clips_of_more_communities():
    """Lengths are about 60, 120, 240; who has all three is like everybody else."""
    for classes in (1, 2, 3):
        people = ClipSynthetic(clips=6, classes=classes).load().people
        for number, person in enumerate(PEOPLE):
            parts = (getattr(people[person], part) for part in PARTS)
            steps = np.concatenate([part.columns["steps"].numpy() for part in parts])
            kinds = {int(np.argmin(np.abs(np.array([60, 120, 240]) - n))) for n in steps}
            assert kinds == {(number + k) % 3 for k in range(classes)}


@pytest.mark.slow
@pytest.mark.parametrize("per_frame", [False, True])
def test_newcomers_land_in_their_group(per_frame, tmp_path):
    """190 of 200, who are measured as everybody was and change nothing."""
    method = CFedVS(local=LOCAL, per_frame=per_frame)
    server = run(method, ClipSynthetic(clips=5).load(), tmp_path)
    group_of = dict(zip(COMMUNITY, (server.groups[p] for p in PEOPLE), strict=True))
    rng, right = np.random.default_rng(1), 0
    for trial in range(200):
        x = draw_clip(rng, *COMMUNITIES["latent"][trial % 3])
        shown = [rate_clip(x, x[:, 1:].sum(1), rng)] * 3
        late = samples_of({"new": dict.fromkeys(PARTS, shown)})["new"].train
        told = taught(method, TASK, None, {"proxies": server.proxies}, late, verb="measure")[1]
        after = drive(method.assign_groups(server, ["new"]), lambda _, told=told: {"new": told})
        right += after.groups["new"] == group_of[trial % 3]
    assert right >= 190


def test_frames_are_what_counts():
    """Design note, O13: ten clips each, of 1000 and 3000 frames in all, 1 and 3 become 2.5."""
    method, sealed = FedAvg(local=LOCAL), []
    for end, frames in ((1.0, 100), (3.0, 300)):
        columns = {"steps": torch.full((10,), frames), "rows": torch.zeros(10, 300).long()}
        banks = {"features": torch.zeros(1, 4), "target": torch.zeros(1)}
        data = Samples(columns, {name: SharedRows(rows, "rows") for name, rows in banks.items()})
        (tree,) = taught(method, TASK, None, {"model": TASK.init()}, data)[1].trees.values()
        assert tree.weight == 10 * frames
        update = tree.total.like(torch.full_like(tree.total.flat, end))
        sealed.append(seal(reply(model=update, weight=tree.weight), 0))
    start = method.server(TASK)
    after = summed(method, start, sealed, {"model": TASK.init()})
    torch.testing.assert_close(after.model.flat, start.model.flat + 2.5)
