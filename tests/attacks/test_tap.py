"""Servers and clients that do not keep to the method, inside real runs."""

import pytest
import torch

from benchmarks.attacks.split_parties import heard_from, lying, tree, watched
from benchmarks.cut_poisoning import LIES
from tests.engine.toys import STAMP
from vergence.core.local_training import LocalTraining
from vergence.data.synthetic.eyes.eye_synthetic import EyeSynthetic
from vergence.engine.round_loop import Plan, run_rounds
from vergence.engine.storage.run_directory import RunDirectory
from vergence.methods.split.split import SplitLearning
from vergence.methods.split.splitfed import SplitFed
from vergence.methods.split.splitfed_v2 import SplitFedV2
from vergence.models.small_eye import SmallEye
from vergence.tasks.gaze_angle import GazeAngle

TASK = GazeAngle(SmallEye(channels=(4, 6), hidden=8, pose=False))
LOCAL = LocalTraining(batch=16, optimizer="adamw", lr=2e-3)
PEOPLE = EyeSynthetic(people=3, samples=60, size="9x15").load()
DRAWS = torch.Generator().manual_seed(0)


def run(path, method):
    folder = RunDirectory(path, STAMP)
    folder.open()
    plan = Plan(rounds=1, evaluate_every=0, workers=1, solver="sequential")
    return run_rounds(method, TASK, federation=PEOPLE, plan=plan, folder=folder)


@pytest.mark.parametrize("kind", [SplitFed, SplitFedV2, SplitLearning])
def test_who_only_looks_or_says_the_truth_changes_no_bit(kind, tmp_path):
    seen = []

    def follow(*_):
        def see(asked, answer):
            for client, _, sealed in heard_from(asked, answer):
                smashed = tree(sealed, "smashed")
                if smashed is not None and len(smashed):
                    seen.append((client, len(smashed)))
            return answer

        return see

    plain = run(tmp_path / "plain", kind(local=LOCAL))
    looked = run(tmp_path / "looked", watched(kind(local=LOCAL), follow))
    true = run(tmp_path / "true", lying(kind(local=LOCAL), ["p01"], lambda smashed, _: smashed))
    for other in (looked, true):
        assert torch.equal(other.server.front.flat, plain.server.front.flat)
        assert torch.equal(other.server.tail.flat, plain.server.tail.flat)
    assert sum(count for client, count in seen if client == "p02") == len(
        PEOPLE.people["p02"].train
    )


def test_a_lie_reaches_the_server_from_liars_alone(tmp_path):
    sent = {}

    def follow(*_):
        def see(asked, answer):
            for client, _, sealed in heard_from(asked, answer):
                smashed = tree(sealed, "smashed")
                if smashed is not None and len(smashed):
                    sent.setdefault(client, []).append(float(smashed.abs().max()))
            return answer

        return see

    run(tmp_path, watched(lying(SplitFed(local=LOCAL), ["p01"], lambda s, _: s * 0 + 7), follow))
    assert set(sent["p01"]) == {7.0}
    assert all(7.0 not in sent[client] for client in ("p00", "p02"))


def test_lies_by_hand():
    """Two samples of two features, (0, 1) and (2, 5): the means are 1 and 3, of all 2."""
    smashed = torch.tensor([[0.0, 1.0], [2.0, 5.0]])
    assert LIES["exchanged"](smashed, DRAWS).tolist() == [[2.0, 5.0], [0.0, 1.0]]
    assert LIES["mirrored"](smashed, DRAWS).tolist() == [[2.0, 5.0], [0.0, 1.0]]
    assert LIES["scaled"](smashed, DRAWS).tolist() == [[0.0, 10.0], [20.0, 50.0]]
    many = LIES["noise"](smashed.repeat(20_000, 1), DRAWS)
    assert abs(float(many.mean()) - 2) < 0.05
    assert abs(float(many.std()) - smashed.repeat(20_000, 1).std()) < 0.05
