"""Gaze that was never sent: solved for from a U-shape's gradients, in the method itself."""

import pytest
import torch

from benchmarks.attacks.split_parties import heard_from, tree, watched
from tests.engine.toys import STAMP
from vergence.attacks.label_inference import Follower, LabelInferenceAttack
from vergence.core.local_training import LocalTraining
from vergence.core.requests import Step
from vergence.core.stages import SMASHED, pieces
from vergence.data.synthetic.eyes.eye_synthetic import EyeSynthetic
from vergence.engine.round_loop import Plan, run_rounds
from vergence.engine.storage.run_directory import RunDirectory
from vergence.errors import ConfigError
from vergence.methods.split.splitfed_u import SplitFedU
from vergence.models.small_eye import SmallEye
from vergence.tasks.gaze_angle import GazeAngle
from vergence.training.steps import Trainer

LOCAL = LocalTraining(epochs=2, batch=16, optimizer="adamw", lr=2e-3)
PEOPLE = EyeSynthetic(people=2, samples=60, size="9x15").load()


def task(criterion):
    return GazeAngle(SmallEye(channels=(4, 6), hidden=8, pose=False), criterion=criterion)


def session(path, criterion):
    """Run one round of the U-shape with a server that looks; return what it found of p00: gaze,
    and how large the slopes it solved for are, times twice the batch."""
    about, found, sizes = task(criterion), [], []
    method = SplitFedU(local=LOCAL)
    end = method.last_piece(about)

    def follow(*_):
        follower = Follower(end, end.init(), LOCAL, criterion)

        def see(asked, answer):
            for client, message, sealed in heard_from(asked, answer):
                if client == "p00" and message is not None and message.verb == "judge":
                    t, pull = tree(message, "t"), tree(sealed, "pull")
                    sizes.append(follower.slopes(pull).abs() * 2 * len(t))
                    found.append(follower.labels(t, pull, sealed.metrics["loss"]))
            return answer

        return see

    folder = RunDirectory(path, STAMP)
    folder.open()
    plan = Plan(rounds=1, evaluate_every=0, workers=1, solver="sequential")
    run_rounds(watched(method, follow), about, federation=PEOPLE, plan=plan, folder=folder)
    return torch.cat(found), torch.cat(sizes)


def test_squared_errors_give_every_label_away_through_a_whole_round(tmp_path):
    """Two epochs, the client's last layer moving by AdamW: exact labels, each twice."""
    found, _ = session(tmp_path, "mse")
    gaze = PEOPLE.people["p00"].train.columns["gaze"]
    apart, which = torch.cdist(found.double(), gaze.double()).min(1)
    assert apart.max() < 1e-4
    assert which.bincount(minlength=len(gaze)).tolist() == [2] * len(gaze)


def test_absolute_errors_give_a_label_up_to_the_mean_residual():
    """One linear layer by hand: out 0, labels (.1, -.3) and (-.1, .1), loss .15: found +-.15."""
    about = task("l1")
    end = pieces(about, "conv1", "fc1")[2]
    zero = end.init() * 0.0
    params = zero.like(zero.flat.clone())
    names = params.layout.names
    weight = next(n for n in names if n.endswith("weight"))
    params[weight][:, :2] = torch.eye(2)
    t, gaze = torch.zeros(2, 8), torch.tensor([[0.1, -0.3], [-0.1, 0.1]])
    batch = {SMASHED: t, "gaze": gaze}
    step = Step(
        params.copy(),
        Follower(end, params, LOCAL, "l1").optimiser,
        batch,
        LOCAL,
        lambda _: end,
        SMASHED,
    )
    told = Trainer(end).step(step)
    assert told.loss == pytest.approx(0.15)
    found = Follower(end, params, LOCAL, "l1").labels(t, told.gradient, told.loss)
    assert torch.allclose(found, 0.15 * gaze.sign(), atol=1e-6)


def test_the_server_follows_the_last_layer_to_the_end_of_the_round(tmp_path):
    """With absolute errors every slope is +-1 / (2 n): to the last batch only for who knows W."""
    _, sizes = session(tmp_path, "l1")
    assert torch.allclose(sizes, torch.ones_like(sizes), atol=1e-3)


def test_a_reader_reads_what_is_linear_and_starts_at_the_mean():
    """Smashed data x, gaze x w: read back for strangers to a fifth of the mean's error."""
    rng = torch.Generator().manual_seed(0)
    weight = 0.2 * torch.randn(6, 2, generator=rng)
    x, new = torch.randn(400, 6, generator=rng), torch.randn(200, 6, generator=rng)
    network = LabelInferenceAttack(epochs=20).train(x, x @ weight)
    with torch.no_grad():
        error = (network(new) - new @ weight).norm(dim=1).mean()
        baseline = ((x @ weight).mean(0) - new @ weight).norm(dim=1).mean()
        assert error < 0.2 * baseline
    idle = LabelInferenceAttack(epochs=1).train(
        torch.randn(50, 6, generator=rng), torch.full((50, 2), 0.3)
    )
    with torch.no_grad():
        assert torch.allclose(idle(new), torch.full((200, 2), 0.3), atol=0.1)


def test_two_last_layers_are_refused():
    about = task("mse")
    end = pieces(about, "conv1", "conv3")[2]
    with pytest.raises(ConfigError, match="must be one linear layer"):
        Follower(end, end.init(), LOCAL, "mse")
