"""`vergence privacy audit` where clients send what they learned: view, attacks, refusals."""

import csv
import json
import shutil

import pytest
import torch

from tests.cli.commands import run, vergence
from vergence.audit import membership as audit_members
from vergence.audit import replay
from vergence.audit import updates as audit_updates
from vergence.audit.updates import ReplaySize, attack_updates
from vergence.experiment.trained_run import read_run
from vergence.reports.ethics.page import ethics
from vergence.training.pruning import bind_parameters

METHODS = 'methods = ["fedavg", { name = "fedcpf", rate = 0.1 }, "local_only"]'
EYES = """
task       = { name = "gaze_angle" }
model      = { name = "small_eye", pose = false }
federation = { name = "eye_synthetic", people = 4, samples = 40, size = "9x15" }
METHODS
local      = { optimizer = "sgd", epochs = 1, batch = 16, lr = 0.02 }
run        = { rounds = 2, evaluate_every = 0, workers = 1, solver = "sequential" }
""".replace("METHODS", METHODS)
SMALL = ReplaySize(pictures=1, steps=60, rounds=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return run(tmp_path_factory.mktemp("updates"), EYES)


def opened(folder, method):
    saved = read_run(folder / method)
    return saved, saved.trained_on, dict(audit_updates.server_views(saved)[0])


def weighed(seen, data):
    """Return the sum of updates, each as often as its owner has samples."""
    parts = [u.change * float(len(data.people[who].train)) for who, u in seen.items()]
    return sum(parts, parts[0] * 0.0)


def test_the_view_adds_up_to_the_model_of_the_run(folder):
    """FedAvg: the model after two rounds is the start and both rounds' means of what was seen."""
    saved, data, plans = opened(folder, "fedavg")
    view = replay.replay_rounds(saved, data, 2, plans["no defence, as in the run"])
    model = saved.task.init()
    for at in (0, 1):
        seen = view.updates_of_round(at)
        assert list(seen) == list(data.clients)
        model = model + weighed(seen, data) / sum(len(data.people[who].train) for who in seen)
    assert torch.allclose(model.flat, saved.server.model.flat, atol=1e-6)


def test_secure_sums_leave_the_sum_and_nothing_else(folder):
    saved, data, plans = opened(folder, "fedavg")
    plain = replay.replay_rounds(saved, data, 1, plans["no defence, as in the run"])
    hidden = replay.replay_rounds(saved, data, 1, plans["secure sums"])
    assert not hidden.updates
    assert list(hidden.sums) == [0]
    whole = weighed(plain.updates_of_round(0), data)
    assert torch.allclose(hidden.sums[0].flat, whole.flat, rtol=1e-3, atol=1e-3)


def test_masks_are_in_the_view_from_the_round_on_in_which_there_are_any(folder):
    saved, data, plans = opened(folder, "fedcpf")
    view = replay.replay_rounds(saved, data, 2, plans["no defence, as in the run"])
    shares = [[u.mask.fraction for u in view.updates_of_round(at).values()] for at in (0, 1)]
    assert shares[0] == [1.0] * 4
    assert all(0.89 < share < 0.91 for share in shares[1])
    for update in view.updates_of_round(1).values():
        assert not update.change.flat[~update.mask.bits].any()


@pytest.mark.slow
def test_one_picture_comes_back_from_its_update_and_not_from_a_sum(folder):
    saved, data, _ = opened(folder, "fedavg")
    found = attack_updates(saved, data, "p02", SMALL, lambda _: None)
    assert found.who == "p02"
    mse = {line["what the server has"]: line["mse"] for line in found.lines}
    mean = mse["nothing: the mean of the others"]
    assert mse["one picture in one step; no defence"] < 0.3 * mean
    assert mse["one picture in one step; secure sums"] > 0.7 * mean
    assert {name for name, _ in found.not_tried} == {"whose an update is; secure sums"}
    assert all(line["chance"] == "25%" for line in found.rates)


@pytest.mark.slow
def test_noise_of_a_server_that_adds_it_does_not_hide_updates_from_it(tmp_path):
    """DP for people alone is against those who get the model: the view has the bounded updates."""
    text = EYES.replace(METHODS, 'method = { name = "fedavg" }')
    out = run(tmp_path, text, "privacy.user.noise=4.0", "privacy.user.clip=0.1")
    saved = read_run(out)
    plans = dict(audit_updates.server_views(saved)[0])
    data = saved.trained_on
    seen = replay.replay_rounds(saved, data, 1, plans["DP for people, as in the run"])
    bare = replay.replay_rounds(saved, data, 1, plans["no defence"])
    for one, other in zip(seen.updates, bare.updates, strict=True):
        assert one.change.flat.norm() <= 0.1 + 1e-6
        cosine = torch.nn.functional.cosine_similarity(one.change.flat, other.change.flat, dim=0)
        assert cosine > 0.999


@pytest.mark.slow
def test_the_picture_that_made_an_update_is_left_as_it_is(folder):
    """From the true picture the attack goes nowhere: no other gradient points there better."""
    saved, data, _ = opened(folder, "fedavg")
    network = bind_parameters(saved.task.module(), saved.task.init())
    batch = data.people["p00"].train.take(torch.tensor([3]))
    image = batch["image"].float() / 255
    loss = saved.task.loss(saved.task.forward(network, batch), batch)
    slopes = torch.autograd.grad(loss, [p.requires_grad_(True) for p in network.parameters()])
    step = saved.task.init().like(-0.1 * torch.cat([slope.flatten() for slope in slopes]))
    assert torch.equal(audit_updates.invert_update(saved, step, batch, image, 3), image)
    moved = audit_updates.invert_update(saved, step * -1.0, batch, image, 3)
    assert not torch.equal(moved, image)


class Remembering(audit_members.ShadowRuns):
    """Models that fit what they had, by `much`, better than what they had not."""

    much = 3.0

    def run(self, number, data, *parts):
        draws = torch.Generator().manual_seed(number)
        there = {
            picture.numpy().tobytes()
            for splits in data.people.values()
            for picture in splits.train.columns["image"]
        }
        return [
            torch.cat(
                [
                    torch.tensor(
                        [
                            -self.much * (picture.numpy().tobytes() in there)
                            for picture in samples.columns["image"]
                        ]
                    )
                    + 0.1 * torch.randn(len(samples), generator=draws)
                    for samples in part
                ]
            ).exp()
            for part in parts
        ]


class Forgetful(Remembering):
    """Models that fit everything alike."""

    much = 0.0


def test_members_are_found_where_models_remember_and_nowhere_else(folder):
    saved, data, _ = opened(folder, "fedavg")
    found = {}
    for kind in (Remembering, Forgetful):
        shadows = kind(saved, data, saved.experiment.plan, 8)
        found[kind] = audit_members.attack_plan(shadows, "as in the run", None, lambda _: None)
    frame, person, later = (line["value"] for line in found[Remembering])
    assert frame > 0.95
    assert person == 1
    assert later < 0.6  # no model had these frames
    assert found[Forgetful][0]["low"] < 0.02


@pytest.mark.slow
def test_what_cannot_be_attacked_is_said_with_the_reason(folder):
    said = vergence("privacy", "audit", folder / "local_only", "--quick")
    assert said.code == 0, said.err
    ethics(folder / "local_only")
    plan = json.loads((folder / "local_only" / "ethics.json").read_text())["plan"]
    reasons = [each["why"] for each in plan["not_tried"]]
    assert [why.split(",")[0] for why in reasons] == [
        "nothing learned leaves a device in this method",
        "its server offers unseen clients no whole model",
    ]
    page = (folder / "local_only" / "ethics.html").read_text()
    assert all(why in page for why in reasons)
    assert "Nothing was attacked" not in page


@pytest.mark.slow
def test_the_whole_audit_and_what_the_page_for_a_board_makes_of_it(folder):
    said = vergence("privacy", "audit", folder / "fedcpf", "--quick")
    assert said.code == 0, said.err
    place = folder / "fedcpf" / "audit"
    assert (place / "audit.png").stat().st_size > 1000
    with (place / "people.csv").open(newline="") as file:
        rates = {row["finds"]: row for row in csv.DictReader(file)}
    mask = rates["who: from a mask, asked in another session; no defence, as in the run"]
    assert float(mask["low"]) <= float(mask["value"]) <= float(mask["high"])
    ethics(folder / "fedcpf")
    plan = json.loads((folder / "fedcpf" / "ethics.json").read_text())["plan"]
    assert {rate["what"] for rate in plan["rates"]} == set(rates)
    page = (folder / "fedcpf" / "ethics.html").read_text()
    assert all(rate["success"] in page for rate in plan["rates"])


def test_damaged_unfinished_and_other_runs_are_refused(folder, tmp_path):
    vergence("privacy", "audit", folder).complains(2, "several methods")
    vergence("privacy", "audit", tmp_path).complains(2, "no run directory")
    vergence("privacy", "audit", folder / "fedavg", "--person", "p9").complains(2, "no person 'p9'")
    damaged = tmp_path / "damaged"
    shutil.copytree(folder / "fedavg", damaged)
    (damaged / "people.csv").write_bytes(b"x" + (damaged / "people.csv").read_bytes()[1:])
    vergence("privacy", "audit", damaged).complains(2, "people.csv is damaged")
    unfinished = tmp_path / "unfinished"
    shutil.copytree(folder / "fedavg", unfinished)
    (unfinished / "SHA256SUMS").unlink()
    vergence("privacy", "audit", unfinished).complains(2, "no finished run", "vergence resume")
    state = tmp_path / "state"
    shutil.copytree(folder / "fedavg", state)
    for file in (state / "state").glob("*server*"):
        file.write_bytes(file.read_bytes()[:-1] + b"\xff")
    vergence("privacy", "audit", state).complains(2, "damaged")
