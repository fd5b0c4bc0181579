"""Bad replies to a server that serves batch by batch: named, and as their client's silence."""

from dataclasses import replace

import pytest
import torch

from tests.engine.split.test_split import LOCAL, run, whole
from tests.engine.toys import table
from tests.engine.turns import watch_turns
from vergence.core.params import Params
from vergence.methods.split.local_loss_split import LocalLossSplit
from vergence.methods.split.split import SplitLearning
from vergence.methods.split.splitfed import SplitFed
from vergence.methods.split.splitfed_u import SplitFedU
from vergence.methods.split.splitfed_v2 import SplitFedV2

NAN = float("nan")


@pytest.mark.parametrize(("number", "reason"), [("float32", "finite"), ("int8", "finite")])
@pytest.mark.parametrize("method", [SplitFed, SplitFedV2, SplitLearning, SplitFedU])
def test_nan_from_a_client_is_its_silence(method, number, reason, tmp_path, monkeypatch):
    """In the middle of a session: the round is as if that client had never spoken."""
    method = method(local=LOCAL, number=number)

    def spoil(task, sealed):
        trees = sealed.trees
        if task.client == "p01" and "smashed" in trees and "gradient" in task.message.trees:
            flat = trees["smashed"].total.flat
            if number == "int8" and "scale" in trees["smashed"].total:
                trees["smashed"].total["scale"].copy_(torch.tensor([NAN]).view(torch.int8))
            else:
                flat[:1] = NAN

    with monkeypatch.context() as patch:
        watch_turns(patch, spoil)
        bad = run(tmp_path / "bad", method)
    with monkeypatch.context() as patch:
        patch.setattr(
            "vergence.engine.participation.Participation.loses", lambda _, c, *__: c == "p01"
        )
        quiet = run(tmp_path / "quiet", method)
    assert torch.equal(whole(bad.server), whole(quiet.server))
    rows = [r for r in table(tmp_path / "bad", "turns.csv") if r["client"] == "p01"]
    assert {r["verb"] for r in rows} == {"serve"}
    assert all(r["status"].startswith(f"quarantined: {reason}") for r in rows)


@pytest.mark.parametrize(
    ("method", "tree", "sent", "reason"),
    [
        (SplitFed, "smashed", {"values": torch.zeros(16, 3, 2, 2)}, "shape"),
        (SplitFed, "smashed", {"other": torch.zeros(16, 4, 9, 15)}, "names"),
        (
            SplitFed,
            "smashed",
            {"values": torch.zeros(16, 4, 9, 15).char(), "scale": torch.zeros(12).char()},
            "names",
        ),
        (SplitFed, "labels", {"gaze": torch.zeros(16, 2)}, "shape"),
        (SplitFed, "labels", {"gaze": torch.zeros(1, 2), "pose": torch.zeros(1, 2)}, "shape"),
        (SplitFedV2, "labels", {"gaze": torch.zeros(())}, "shape"),
        (SplitFedU, "smashed", {}, "names"),
        (SplitFedU, "pull", {"values": torch.zeros(1)}, "shape"),
        (LocalLossSplit, "labels", {"examples": torch.tensor([-3.0])}, "shape"),
    ],
)
def test_malformed_raw_data_are_quarantined(method, tree, sent, reason, tmp_path, monkeypatch):
    """Nothing is broadcast, and nobody else's round is lost."""

    def change(task, sealed):
        if task.client != "p01" or tree not in sealed.trees:
            return None
        bad = replace(sealed.trees[tree], total=Params.named(**sent))
        return replace(sealed, trees={**sealed.trees, tree: bad})

    watch_turns(monkeypatch, change)
    run(tmp_path, method(local=LOCAL))
    status = {r["client"]: r["status"] for r in table(tmp_path, "turns.csv")}
    assert status["p01"].startswith(f"quarantined: {reason}")
    assert status["p00"] == status["p02"] == "ok"


@pytest.mark.parametrize("count", [-1.0, 1e12])
def test_claims_of_examples_are_bounded(count, tmp_path, monkeypatch):
    honest = SplitFed.last_reply

    def end(self, site):
        told = honest(self, site)
        if site.id == "p01":
            told = replace(
                told, trees={**told.trees, "labels": Params.named(examples=torch.tensor([count]))}
            )
        return told

    monkeypatch.setattr(SplitFed, "last_reply", end)
    run(tmp_path, SplitFed(local=LOCAL, weights="samples"))
    status = {r["client"]: r["status"] for r in table(tmp_path, "turns.csv")}
    assert status["p01"].startswith("quarantined: weight")


def test_layers_of_another_name_are_quarantined_at_the_end(tmp_path, monkeypatch):
    """What is released is compared with what the clients were sent at the start."""
    honest = SplitFed.on_release

    def other(self, c, msg, site):
        state, told = honest(self, c, msg, site)
        if site.id == "p01":
            front = told.trees["front"]
            told = replace(told, trees={"front": Params.named(other=front.flat)})
        return state, told

    monkeypatch.setattr(SplitFed, "on_release", other)
    run(tmp_path, SplitFed(local=LOCAL))
    rows = [r for r in table(tmp_path, "turns.csv") if r["verb"] == "release"]
    assert {r["client"]: r["status"].partition(",")[0][:18] for r in rows} == {
        "p00": "ok",
        "p01": "quarantined: names",
        "p02": "ok",
    }
