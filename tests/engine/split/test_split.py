"""Split learning: the same bits as the whole network, and what crosses between the two halves."""

import re
from dataclasses import replace

import pytest
import torch

from tests.engine.toys import STAMP, mostly_slow, table
from vergence.core.federation import POOLED
from vergence.core.local_training import LocalTraining, OptimizerState
from vergence.core.params import Params
from vergence.core.requests import Forward, Step
from vergence.core.stages import SMASHED, pieces, stages_of
from vergence.data.synthetic.eyes.eye_synthetic import EyeSynthetic
from vergence.engine.channel import Channel
from vergence.engine.round_loop import Plan, run_rounds
from vergence.engine.storage.run_directory import RunDirectory
from vergence.errors import ConfigError
from vergence.methods.centralised import Centralised
from vergence.methods.fedavg import FedAvg
from vergence.methods.split.base import pack, unpack
from vergence.methods.split.local_loss_split import LocalLossSplit
from vergence.methods.split.smashed_average import SmashedAverage
from vergence.methods.split.split import SplitLearning
from vergence.methods.split.splitfed import SplitFed
from vergence.methods.split.splitfed_u import SplitFedU
from vergence.methods.split.splitfed_v2 import SplitFedV2
from vergence.models.lenet import LeNet
from vergence.models.resnet_preact import ResNetPreact
from vergence.models.small_eye import SmallEye
from vergence.models.softmax import Softmax
from vergence.tasks.gaze_angle import GazeAngle
from vergence.tasks.images import Images
from vergence.training.steps import Trainers
from vergence.wire.codecs import Compression

LOCAL = LocalTraining(epochs=2, batch=16, optimizer="adamw", lr=1e-3, clip=0.0)
SMALL = GazeAngle(SmallEye(channels=(4, 6), hidden=8))
PEOPLE = EyeSynthetic(people=3, samples=60, size="9x15").load()
NETWORKS = {
    "lenet": (LeNet((3, 4)), EyeSynthetic(people=2, samples=40).load()),
    "resnet": (ResNetPreact(), EyeSynthetic(people=2, samples=40, size="9x15").load()),
}


def run(path, method, people=PEOPLE, task=SMALL, **plan):
    """Run two rounds; return the outcome."""
    folder = RunDirectory(path, STAMP)
    folder.open()
    plan = {"rounds": 2, "evaluate_every": 0, "workers": 1, "solver": "sequential", **plan}
    return run_rounds(method, task, federation=people, plan=Plan(**plan), folder=folder)


def whole(server):
    """Return all parameters of a server and its clients, in the order of the network."""
    if hasattr(server, "model"):
        return server.model.flat
    parts = [server.front, server.tail, *([server.end] if hasattr(server, "end") else [])]
    return Params.join(*parts).flat


@pytest.mark.parametrize("name", NETWORKS)
def test_v1_is_fedavg_with_every_cut(name, tmp_path):
    """Bit for bit, the end of the network included, where a server has nothing but the loss."""
    model, people = NETWORKS[name]
    task = GazeAngle(model)
    expected = run(tmp_path / "whole", FedAvg(local=LOCAL, weights="equal"), people, task)
    for cut in stages_of(model):
        found = run(tmp_path / cut, SplitFed(local=LOCAL, cut=cut), people, task)
        assert torch.equal(whole(found.server), whole(expected.server)), cut


def test_many_clients_have_the_same_bits_on_two_workers(tmp_path):
    """Above 64 clients a group has several, and each still trains with a copy of its own."""
    people = EyeSynthetic(people=66, samples=40, size="9x15").load()
    method = SplitFed(local=LocalTraining(optimizer="sgd", steps=2, batch=8, clip=0.0))
    one, two = (
        run(tmp_path / str(n), method, people, rounds=1, workers=n).fingerprint for n in (1, 2)
    )
    assert one == two


def test_u_shape_is_fedavg_with_every_pair_of_cuts(tmp_path):
    expected = run(tmp_path / "whole", FedAvg(local=LOCAL, weights="equal"))
    stages = stages_of(SMALL.network)[:-1]  # the last one takes the pose, which stays
    pairs = [(a, b) for i, a in enumerate(stages) for b in stages[i + 1 :]]
    for cut, last in pairs:
        found = run(tmp_path / f"{cut}-{last}", SplitFedU(local=LOCAL, cut=cut, last=last))
        apart = (whole(found.server) - whole(expected.server)).abs().max()
        assert apart < 1e-6, (cut, last)


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["samples", "equal"])
def test_unequal_people_are_summed_as_in_fedavg(weights, tmp_path):
    """Bit for bit: sums are taken in the same order, the largest person first."""
    uneven = EyeSynthetic(people=4, counts=(60, 100, 40, 80), size="9x15").load()
    expected = run(tmp_path / "whole", FedAvg(local=LOCAL, weights=weights), uneven)
    found = run(tmp_path / "split", SplitFed(local=LOCAL, weights=weights), uneven)
    assert torch.equal(whole(found.server), whole(expected.server))
    other = "equal" if weights == "samples" else "samples"
    apart = run(tmp_path / "apart", SplitFed(local=LOCAL, weights=other), uneven)
    assert not torch.allclose(whole(apart.server), whole(expected.server), atol=1e-5)


@pytest.mark.slow
def test_many_people_are_summed_as_in_fedavg(tmp_path):
    """With more than 64 people, several are added up at once: in the same groups."""
    data = PEOPLE.people["p00"]
    many = replace(PEOPLE, people={f"p{i:02d}": data for i in range(70)})
    once = LocalTraining(optimizer="sgd", steps=1, batch=16, lr=0.05, clip=0.0)
    expected = run(tmp_path / "whole", FedAvg(local=once, weights="equal"), many, rounds=1)
    found = run(tmp_path / "split", SplitFed(local=once), many, rounds=1)
    assert torch.equal(whole(found.server), whole(expected.server))


@pytest.mark.parametrize(
    "local", [LOCAL, LocalTraining(optimizer="sgd", batch=16, lr=0.05, momentum=0.0, clip=0.0)]
)
@pytest.mark.parametrize("method", [SplitFed, SplitFedV2, SplitLearning])
def test_one_client_is_the_data_centre(method, local, tmp_path):
    """To the bit: for one round, and for two where no optimiser remembers the one before.

    The data centre's optimiser goes on over rounds, a client's starts anew in each.
    """
    alone, rounds = PEOPLE.pooled(), 1 if local.buffers else 2
    assert alone.clients == (POOLED,)
    expected = run(tmp_path / "centre", Centralised(local=local), alone, rounds=rounds)
    found = run(tmp_path / "split", method(local=local), alone, rounds=rounds)
    assert torch.equal(whole(found.server), whole(expected.server))


@pytest.mark.parametrize(
    "method",
    mostly_slow(
        [SplitFed, SplitFedV2, SplitLearning, SplitFedU, LocalLossSplit, SmashedAverage],
        SplitFed,
        SplitFedU,
    ),
)
def test_all_engines_agree(method, tmp_path):
    one = run(tmp_path / "one", method(local=LOCAL)).fingerprint
    assert run(tmp_path / "bytes", method(local=LOCAL), engine="bytes").fingerprint == one
    assert run(tmp_path / "two", method(local=LOCAL), workers=2).fingerprint == one


@pytest.mark.slow
@pytest.mark.parametrize("number", ["float16", "int8"])
@pytest.mark.parametrize("method", [SplitFed, SplitFedU])
def test_smaller_numbers_go_through_bytes(method, number, tmp_path):
    method = method(local=LOCAL, number=number)
    one = run(tmp_path / "one", method).fingerprint
    assert run(tmp_path / "bytes", method, engine="bytes").fingerprint == one


class Tap:
    """Everything that crosses between server and served clients, down and up."""

    def __init__(self, monkeypatch):
        self.down, self.up = [], []

        def message(_, message):
            self.down.append(message)
            return message

        def reply(_, sealed, __):
            if len(self.up) < len(self.down):  # else it is of no session
                self.up.append(sealed)
            return sealed

        monkeypatch.setattr(Channel, "message", message)
        monkeypatch.setattr(Channel, "reply", reply)

    def up_bytes(self):
        return b"".join(t.total.flat.numpy().tobytes() for s in self.up for t in s.trees.values())


def private(people):
    """Return the bytes of every label and head pose of everybody, row by row."""
    rows = [s.train.columns[name] for s in people.people.values() for name in ("gaze", "pose")]
    return [row.numpy().tobytes() for column in rows for row in column]


def test_labels_and_pose_stay_at_home_under_the_u_shape(tmp_path, monkeypatch):
    """No row of gaze or pose is in the bytes that the server gets; in those of V1 all are."""
    tap = Tap(monkeypatch)
    run(tmp_path / "u", SplitFedU(local=LOCAL))
    sent = tap.up_bytes()
    assert len(sent) > 100_000
    assert not [row for row in private(PEOPLE) if row in sent]
    tap.up.clear()
    run(tmp_path / "v1", SplitFed(local=LOCAL))
    sent = tap.up_bytes()
    assert all(row in sent for row in private(PEOPLE))


def test_a_network_without_pose_does_not_ask_for_it(tmp_path, monkeypatch):
    tap = Tap(monkeypatch)
    blind = GazeAngle(replace(SMALL.network, pose=False))
    run(tmp_path, SplitFed(local=LOCAL), task=blind)
    names = {n for s in tap.up for n in s.trees["labels"].total.layout.names}
    assert names == {"gaze", "examples"}


def test_neither_side_gets_the_other_sides_layers(tmp_path, monkeypatch):
    """No tensor of the tail is sent down, none of the front goes up while clients are served."""
    tap = Tap(monkeypatch)
    method = SplitFed(local=LOCAL)
    server = run(tmp_path, method).server
    sent = {n for m in tap.down for tree in m.trees.values() for n in tree.layout.names}
    assert not sent & set(server.tail.layout.names)
    assert set(server.front.layout.names) <= sent
    told = {n for s in tap.up for tree in s.trees.values() for n in tree.total.layout.names}
    assert not told & {*server.front.layout.names, *server.tail.layout.names}


def test_bytes_are_counted_both_ways(tmp_path):
    """Per round: 2 epochs of the samples up, and as much gradient down."""
    for number, each in (("float32", 4), ("float16", 2), ("int8", 1)):
        run(tmp_path / number, SplitFed(local=LOCAL, number=number))
        rows = [
            r
            for r in table(tmp_path / number, "turns.csv")
            if (r["verb"], r["client"], r["round"]) == ("serve", "p00", "2")
        ]
        n = len(PEOPLE.people["p00"].train)
        batches = 2 * -(-n // LOCAL.batch)
        scales = (4 * (batches + 1), 4 * batches) if number != "float32" else (0, 0)
        smashed = 2 * n * 4 * 9 * 15 * each  # channels, rows, columns
        found = {r["tree"]: (int(r["bytes_up"]), int(r["bytes_down"])) for r in rows}
        assert found["smashed"] == (smashed + scales[0], 0)
        assert found["gradient"] == (0, smashed + scales[1])


@pytest.mark.slow
def test_smaller_numbers_cost_little_accuracy(tmp_path):
    """float16 within 5e-4 of the largest entry, int8 within half a step of 1/127 of it."""
    values = torch.randn(16, 3, 5, generator=torch.Generator().manual_seed(0))
    top = float(values.abs().max())
    assert torch.equal(unpack(pack(values, "float32")), values)
    assert (unpack(pack(values, "float16")) - values).abs().max() < 5e-4 * top
    tiny = values * 1e-9  # below what float16 can hold
    assert (unpack(pack(tiny, "float16")) - tiny).abs().max() < 5e-13 * top
    assert (unpack(pack(values, "int8")) - values).abs().max() <= top / 254 * 1.001
    assert len(unpack(pack(torch.empty(0), "int8"))) == 0
    exact = run(tmp_path / "exact", SplitFed(local=LOCAL))
    for number in ("float16", "int8"):
        found = run(tmp_path / number, SplitFed(local=LOCAL, number=number))
        apart = (whole(found.server) - whole(exact.server)).abs().max()
        assert 0 < apart < 0.01


def test_moments_live_through_a_round():
    """An optimiser made anew for every batch turns Adam into sign-SGD: each step is then 1e-3."""
    task = pieces(SMALL, "conv1")[1]
    trainers = Trainers(SMALL)
    front = pieces(SMALL, "conv1")[0]
    train = PEOPLE.people["p00"].train
    local = replace(LOCAL, optimizer="adam", weight_decay=0.0)
    smashed = trainers.answer(Forward(front.init(), train.take(slice(0, 16)), lambda _: front), 0.0)
    batch = {**train.take(slice(0, 16)), SMASHED: smashed}
    moves = {}
    for kept in (True, False):
        tail, state, moves[kept] = task.init(), OptimizerState({}, 0), []
        for _ in range(4):
            before = tail.copy()
            done = trainers.answer(Step(tail, state, batch, local, lambda _: task), 0.0)
            tail, state = done.params, done.optimiser if kept else OptimizerState({}, 0)
            moves[kept].append((tail - before).flat.abs())
    moved = moves[False][-1][moves[False][-1] > 0]
    assert torch.allclose(moved.median(), torch.tensor(1e-3), rtol=1e-3)
    assert not torch.allclose(moves[True][-1], moves[False][-1], rtol=0.05)


def test_lost_clients_do_not_count(tmp_path, monkeypatch):
    """A client whose replies are lost is as one that was not there."""
    two = PEOPLE.only(("p00", "p02"))
    expected = run(tmp_path / "two", SplitFed(local=LOCAL), two)
    monkeypatch.setattr(
        "vergence.engine.participation.Participation.loses", lambda _, client, *__: client == "p01"
    )
    found = run(tmp_path / "three", SplitFed(local=LOCAL))
    assert torch.equal(whole(found.server), whole(expected.server))
    status = {r["client"]: r["status"] for r in table(tmp_path / "three", "turns.csv")}
    assert status == {"p00": "ok", "p01": "lost", "p02": "ok"}


@pytest.mark.parametrize(
    ("plan", "named"),
    [
        ({"precision": "bf16"}, "run.precision"),
        ({"wire": Compression("int8")}, "leave out wire, and set the method's `number`"),
    ],
)
def test_what_sessions_do_not_do_is_refused(plan, named, tmp_path):
    with pytest.raises(ConfigError, match=re.escape(named)):
        run(tmp_path, SplitFed(local=LOCAL), **plan)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (SmashedAverage(local=LOCAL, cut="fc2"), "leaves the server nothing to train"),
        (LocalLossSplit(local=LOCAL, cut="fc2"), "leaves the server nothing to train"),
        (SmashedAverage(local=LocalTraining(optimizer="sgd", steps=3)), "give local.epochs"),
        (SplitLearning(local=LOCAL, weights="samples"), "averages no clients"),
        (
            SplitFedU(local=LocalTraining(optimizer="sgd", steps=3), weights="samples"),
            "give local.epochs",
        ),
    ],
)
def test_options_without_a_meaning_are_refused(method, said):
    with pytest.raises(ConfigError, match=said):
        method.check(SMALL)


def test_a_network_of_one_stage_has_no_u_shape():
    with pytest.raises(ConfigError, match="takes three stages"):
        SplitFedU().check(Images(Softmax()))


def test_alike_batches_come_from_the_same_part_of_everybodys_labels(tmp_path, monkeypatch):
    """Of two batches a pass the first has the lower yaws, also of who has samples for six."""
    uneven = EyeSynthetic(people=2, counts=(60, 180), size="9x15").load()
    seen = []
    honest = SmashedAverage.batch_rows

    def rows(self, site, *at):
        found = honest(self, site, *at)
        seen.append((site.id, at[1], float(site.train.columns["gaze"][found, 1].mean())))
        return found

    monkeypatch.setattr(SmashedAverage, "batch_rows", rows)
    run(tmp_path, SmashedAverage(local=LOCAL, alike=True), uneven)
    for person in uneven.clients:
        low, high = ([yaw for p, q, yaw in seen if (p, q) == (person, at)] for at in (0, 1))
        assert max(low) < min(high)
        middle = float(uneven.people[person].train.columns["gaze"][:, 1].median())
        assert max(low) < middle < min(high)


def test_the_u_shape_keeps_the_pose_and_the_predictions_at_the_client():
    method = SplitFedU(cut="conv1", last="fc2")
    with pytest.raises(ConfigError, match="take what must stay"):
        method.check(SMALL)
    with pytest.raises(ConfigError, match="leaves the client no last layers"):
        method.check(GazeAngle(replace(SMALL.network, pose=False)))


def test_cuts_are_checked():
    with pytest.raises(ConfigError, match=r"in order: conv1, conv2, conv3, fc1, fc2; got conv9"):
        SplitFed(cut="conv9").check(SMALL)
