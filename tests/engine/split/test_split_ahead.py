"""Split learning with batches sent ahead, and with networks whose labels are the pictures."""

from dataclasses import replace

import pytest
import torch

from tests.engine.split.test_split import LOCAL, PEOPLE, SMALL, Tap, run, whole
from tests.engine.toys import mostly_slow
from vergence.core.local_training import LocalTraining
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.stages import PULL, SMASHED, pieces
from vergence.data.synthetic.eyes.eye_glances import EyeGlances
from vergence.errors import ConfigError
from vergence.methods.fedavg import FedAvg
from vergence.methods.split.local_loss_split import LocalLossSplit
from vergence.methods.split.split import SplitLearning
from vergence.methods.split.splitfed import SplitFed
from vergence.methods.split.splitfed_u import SplitFedU
from vergence.methods.split.splitfed_v2 import SplitFedV2
from vergence.models.cross_encoder import CrossEncoder as CrossEncoderNet
from vergence.tasks.auto_encoder import AutoEncoder
from vergence.tasks.cross_encoder import CrossEncoderTask
from vergence.training.batches import batches

PLAIN = LocalTraining(
    epochs=2, batch=16, optimizer="sgd", lr=0.05, momentum=0.0, weight_decay=0.0, clip=0.0
)
ALONE = PEOPLE.only(("p00",))
DRAWING = CrossEncoderTask(CrossEncoderNet(size="9x15", width=4))
GLANCES = DRAWING.network.prepare(EyeGlances(people=2, samples=80, size="9x15").load())


def late(ahead):
    """Return the whole network after one round of one client, by torch alone.

    The batch sent `ahead` earlier is the one whose gradient arrives now.
    """
    front, tail = (piece.module().train() for piece in pieces(SMALL, "conv1"))
    one, other = pieces(SMALL, "conv1")
    train = ALONE.people["p00"].train
    drawn = list(batches(train, PLAIN, rounds_stream("p00").child("batches", 0), None))
    sent = []

    def send():
        if len(sent) < len(drawn):
            batch = train.take(drawn[len(sent)])
            sent.append((batch, one.forward(front, batch).detach()))

    def descend(module, loss):
        module.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in module.parameters():
                p -= PLAIN.lr * p.grad

    for _ in range(ahead + 1):
        send()
    for at in range(len(drawn)):
        batch, smashed = sent[at][0], sent[at][1].requires_grad_()
        given = {**batch, SMASHED: smashed}
        descend(tail, other.loss(other.forward(tail, given), given))
        pulled = {**batch, PULL: smashed.grad.clone()}
        descend(front, one.loss(one.forward(front, pulled), pulled))
        send()
    return Params.join(Params.of(front), Params.of(tail)).flat


def rounds_stream(client):
    """Return the randomness of a client's turns in the first round."""
    return RandomStream("", 0).child(client, 1, "train")


@pytest.fixture
def known_batches(monkeypatch):
    """Let the engine draw the batches that `late` draws, whatever the run's own stream is."""
    monkeypatch.setattr(
        "vergence.methods.split.base.nth_batch",
        lambda data, local, site, at: dict(
            enumerate(batches(data, local, rounds_stream(site.id).child("batches", 0), None))
        ).get(at),
    )


@pytest.mark.usefixtures("known_batches")
@pytest.mark.parametrize("ahead", [0, 1, 3, 50])
def test_ahead_is_descent_along_late_gradients(ahead, tmp_path):
    found = run(tmp_path, SplitFed(local=PLAIN, cut="conv1", ahead=ahead), ALONE, rounds=1)
    assert torch.allclose(whole(found.server), late(ahead), atol=1e-6)
    assert ahead == 0 or not torch.allclose(late(0), late(ahead), atol=1e-4)


@pytest.mark.parametrize(
    "method", mostly_slow([SplitFed, SplitFedV2, SplitLearning, SplitFedU], SplitFed)
)
def test_all_engines_agree_on_batches_sent_ahead(method, tmp_path):
    method = method(local=LOCAL, ahead=2)
    one = run(tmp_path / "one", method).fingerprint
    assert run(tmp_path / "bytes", method, engine="bytes").fingerprint == one
    assert run(tmp_path / "two", method, workers=2).fingerprint == one
    assert run(tmp_path / "none", replace(method, ahead=0)).fingerprint != one


def test_so_many_batches_are_on_their_way_at_once(tmp_path, monkeypatch):
    """Before the first gradient comes down, 1 + ahead batches went up; then one for each."""
    tap = Tap(monkeypatch)
    run(tmp_path, SplitFed(local=PLAIN, ahead=2), ALONE, rounds=1)
    crossed = ["gradient" in message.trees for message in tap.down]
    n = 2 * -(-len(ALONE.people["p00"].train) // PLAIN.batch)
    assert crossed == [False] * 3 + [True] * n
    sizes = [len(s.trees["smashed"].total["values"]) for s in tap.up]
    assert [size > 0 for size in sizes] == [True] * n + [False] * 3


def test_who_waits_for_nothing_sends_nothing_ahead():
    with pytest.raises(ConfigError, match="leave out ahead = 1"):
        LocalLossSplit(ahead=1).check(SMALL)


@pytest.mark.slow
@pytest.mark.parametrize("last", ["up1", "up2", "grow"])
def test_the_cross_encoder_cut_in_encoder_and_decoder_is_fedavg(last, tmp_path):
    """The swap is the server's, the pictures are at both ends of the clients' layers."""
    expected = run(tmp_path / "whole", FedAvg(local=LOCAL, weights="equal"), GLANCES, DRAWING)
    for cut in ("conv1", "code"):
        method = SplitFedU(local=LOCAL, cut=cut, last=last)
        found = run(tmp_path / f"{cut}-{last}", method, GLANCES, DRAWING)
        assert (whole(found.server) - whole(expected.server)).abs().max() < 1e-5, cut


def test_no_picture_leaves_a_client_of_the_cut_cross_encoder(tmp_path, monkeypatch):
    """Not as bytes, not as floats in [0, 1]; whose rows are does, as the middle's swap needs."""
    tap = Tap(monkeypatch)
    run(tmp_path, SplitFedU(local=LOCAL, cut="conv1", last="up2"), GLANCES, DRAWING)
    sent = tap.up_bytes()
    rows = [row for s in GLANCES.people.values() for row in s.train.columns["eyes"].flatten(0, 1)]
    assert not [row for row in rows if row.numpy().tobytes() in sent]
    assert not [row for row in rows if (row.float() / 255).numpy().tobytes() in sent]
    names = {n for s in tap.up if "public" in s.trees for n in s.trees["public"].total.layout.names}
    assert names == {"whose"}
    sent = [s.trees["public"].total for s in tap.up if "public" in s.trees]
    told = torch.cat([tree["whose"] for tree in sent if "whose" in tree])
    assert set(told.tolist()) == {0}  # which rows are alike, not the number made of a name


@pytest.mark.parametrize("method", [SplitFed, SplitFedV2, SplitLearning, LocalLossSplit])
def test_pictures_are_not_sent_as_labels(method):
    with pytest.raises(ConfigError, match=r"the pictures themselves \(eyes\); use splitfed_u"):
        method().check(DRAWING)


@pytest.mark.parametrize("method", [SplitFed, SplitFedU])
def test_a_network_fed_as_a_whole_is_not_cut(method):
    with pytest.raises(ConfigError, match="task 'auto_encoder' feeds its network as a whole"):
        method().check(AutoEncoder(DRAWING.network))
