"""The server's range of smashed data as a setting of a run."""

from dataclasses import replace

import pytest
import torch

from tests.engine.split.test_split import LOCAL, PEOPLE, SMALL, run
from tests.engine.toys import table
from vergence.deployment.joined_node import deployable
from vergence.engine.protections.output_range import SmashedRangeCheck
from vergence.errors import ConfigError
from vergence.experiment import schema as config
from vergence.methods.split.local_loss_split import LocalLossSplit
from vergence.methods.split.split import SplitLearning
from vergence.methods.split.splitfed import SplitFed
from vergence.methods.split.splitfed_u import SplitFedU
from vergence.privacy.config import Privacy
from vergence.privacy.split.defense import BottleneckCut
from vergence.privacy.split.output_range import OutputRange

RANGED = Privacy(output_range=OutputRange("p00"))


def lying(kind):
    """Return a method in which p02 sends 50 times what its layers give."""

    class Lying(kind):
        def on_train(self, c, msg, site):
            state, reply = yield from super().on_train(c, msg, site)
            if site.id == "p02":
                smashed = reply.trees["smashed"] * 50.0
                reply = replace(reply, trees={**reply.trees, "smashed": smashed})
            return state, reply

    return Lying


@pytest.mark.parametrize("kind", [SplitFed, SplitLearning, SplitFedU, LocalLossSplit])
def test_who_is_out_of_range_is_quarantined_by_name_and_leaves_no_trace(kind, tmp_path):
    """The same bits as where p02 takes no part."""
    found = run(tmp_path / "a", lying(kind)(local=LOCAL, cut="conv1"), privacy=RANGED)
    rows = table(tmp_path / "a", "turns.csv")
    statuses = {c: {r["status"] for r in rows if r["client"] == c} for c in PEOPLE.clients}
    assert statuses["p00"] == statuses["p01"] == {"ok"}
    why = "quarantined: range: 'smashed' reaches from 0 to"
    assert all(status.startswith(why) for status in statuses["p02"])
    two = PEOPLE.only(["p00", "p01"])
    alone = run(tmp_path / "b", kind(local=LOCAL, cut="conv1"), people=two)
    assert torch.equal(found.server.front.flat, alone.server.front.flat)
    assert torch.equal(found.server.tail.flat, alone.server.tail.flat)


@pytest.mark.parametrize("number", ["float32", "int8"])
def test_honest_people_are_not_disturbed(number, tmp_path):
    method = SplitFed(local=LOCAL, number=number)
    honest = run(tmp_path / "honest", method, privacy=RANGED)
    assert honest.fingerprint == run(tmp_path / "plain", method).fingerprint
    assert {r["status"] for r in table(tmp_path / "honest", "turns.csv")} == {"ok"}


def test_nor_are_they_behind_a_defence(tmp_path):
    privacy = replace(RANGED, cut=BottleneckCut(epsilon=8.0))
    run(tmp_path, SplitFed(local=LOCAL, cut="conv3"), privacy=privacy)
    assert {r["status"] for r in table(tmp_path, "turns.csv")} == {"ok"}


def test_the_range_is_that_of_the_roots_pictures():
    method, policy = SplitFed(local=LOCAL, cut="conv2"), OutputRange("p01", widen=0.5)
    front = method.front(SMALL)
    z = front.forward(front.module(), PEOPLE.people["p01"].train.take(slice(None))).detach()
    low, high, longest = float(z.min()), float(z.max()), float(z.flatten(1).norm(dim=1).max())
    found = SmashedRangeCheck(policy, method, SMALL, PEOPLE.people["p01"].train).span(front.init())
    assert found.low == pytest.approx(low - 0.5 * (high - low))
    assert found.high == pytest.approx(high + 0.5 * (high - low))
    assert found.longest == pytest.approx(1.5 * longest)


def test_a_deployment_has_nobodys_pictures():
    table = {
        "task": {"name": "gaze_angle"},
        "model": {"name": "small_eye"},
        "federation": {"name": "eye_synthetic", "people": 3, "size": "9x15"},
        "methods": ["splitfed"],
        "privacy": {"output_range": {"root": "p00"}},
    }
    with pytest.raises(ConfigError, match="deployment has nobody's pictures"):
        deployable(config.check(table))
