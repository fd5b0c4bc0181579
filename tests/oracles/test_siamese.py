"""SimCLR and BYOL: losses by hand, the target network, and views that are kept when measuring."""

import math

import pytest
import torch

from tests.oracles.test_cross_encoder import glances
from vergence.core.local_training import LocalTraining
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.requests import Fit
from vergence.errors import ConfigError
from vergence.models.cross_encoder import CrossEncoder
from vergence.models.siamese import Siamese as Model
from vergence.models.siamese import view
from vergence.tasks.siamese import SiameseTask
from vergence.training.sequential import Solver

SMALL = CrossEncoder(size="9x15", width=4)
SIMCLR = SiameseTask(Model(SMALL, hidden=8, out=4), temperature=0.5)
BYOL = SiameseTask(Model(SMALL, hidden=8, out=4, target=True), objective="byol")


def output(*pictures):
    """Return `[pictures, 1, 4, 2]` from the four vectors of each."""
    return torch.tensor(pictures, dtype=torch.float32)[:, None]


def test_simclr_by_hand():
    """Two pictures with orthogonal views, each equal to its own other view, temperature 0.5.

    Every view has one partner of similarity 1 / 0.5 = 2 and two others of 0: -log(e^2 / (e^2 + 2)).
    """
    x, y = [3.0, 0.0], [0.0, 2.0]
    loss = SIMCLR.loss(output([x, x, x, x], [y, y, y, y]), {})
    assert float(loss) == pytest.approx(math.log(1 + 2 * math.exp(-2)), abs=1e-6)


def test_byol_by_hand():
    """2 - 2 cos for both directions, halved: queries (1, 0), (0, 1), keys (1, 0), (1, 0).

    Query 1 against key 2: 1; query 2 against key 1: 0. Sum over directions: 2 - 1 = 1.
    """
    found = output([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    assert float(BYOL.loss(found, {})) == pytest.approx(1.0)


def test_a_picture_is_matched_by_its_own_other_view():
    x, y = [1.0, 0.0], [0.0, 1.0]
    found = output([x, x, x, x], [x, y, y, y])
    # The second picture's first view looks like the first picture's second one.
    assert SIMCLR.metrics(found, glances(2)) == {"match": 0.5, "score": 0.5}


def test_one_code_for_everything_matches_nothing():
    assert SIMCLR.metrics(torch.ones(5, 2, 4, 3), glances(5))["match"] == 0.0


def test_the_target_begins_as_the_network_and_gets_no_gradient():
    module, batch = BYOL.module(), glances(4).take(slice(None))
    for kept, own in module._followed():
        assert torch.equal(kept, own)
    BYOL.loss(BYOL.forward(module.train(), batch), batch).backward()
    assert all(p.grad is None for p in module.target.parameters())
    assert all(bool(torch.isfinite(p.grad).all()) for p in module.encoder.parameters())


def test_the_target_follows_by_its_decay_and_travels_with_the_parameters():
    """target <- 0.99 target + 0.01 own: from 1 towards 3 it is 1.02; measuring moves nothing."""
    module, batch = BYOL.module(), glances(2).take(slice(None))
    with torch.no_grad():
        for kept, own in module._followed():
            kept.fill_(1.0)
            own.fill_(3.0)
    BYOL.forward(module.eval(), batch)
    assert all(bool((kept == 1).all()) for kept, _ in module._followed())
    BYOL.forward(module.train(), batch)
    for kept, _ in module._followed():
        assert torch.allclose(kept, torch.full_like(kept, 1.02))
    assert {n for n in Params.of(module).layout.names if n.startswith("target.")}


def test_training_moves_the_target_behind_the_network():
    """After a fit the target lies between where it began and the encoder."""
    start, solver = BYOL.init(), Solver(BYOL)
    local = LocalTraining(epochs=2, batch=4, optimizer="adam", lr=1e-2, weight_decay=0)
    end = solver.fit(Fit(start, glances(8), local), RandomStream("a")).params
    name = "encoder.conv1.0.weight"
    moved = (end[name] - start[name]).norm()
    lag = (end["target.0.conv1.0.weight"] - start[name]).norm()
    assert 0 < float(lag) < 0.2 * float(moved)


@pytest.mark.parametrize("task", [SIMCLR, BYOL])
def test_measuring_gives_the_same_views_every_time_training_does_not(task):
    module, batch = task.module(), glances(3).take(slice(None))
    one = task.forward(module.eval(), batch)
    torch.manual_seed(5)
    assert torch.equal(one, task.forward(module, batch))
    module.train()
    assert not torch.equal(task.forward(module, batch), task.forward(module, batch))


def test_training_brings_views_together():
    task, local = (
        SIMCLR,
        LocalTraining(epochs=12, batch=12, optimizer="adam", lr=1e-2, weight_decay=0),
    )
    data, solver = glances(12), Solver(task)
    end = solver.fit(Fit(task.init(), data, local), RandomStream("a")).params
    assert solver.loss(end, data) < 0.85 * solver.loss(task.init(), data)


def test_views_are_not_flipped():
    """A picture dark on the left stays dark on the left, however it is shifted and lit."""
    picture = torch.ones(200, 1, 9, 15)
    picture[..., :5] = 0
    found = view(picture, torch.Generator().manual_seed(0))
    assert bool((found[..., :3].mean((1, 2, 3)) < found[..., -6:].mean((1, 2, 3))).all())


def test_objective_and_network_must_fit():
    with pytest.raises(ConfigError, match="target = true; got false"):
        SiameseTask(Model(SMALL), objective="byol")
    with pytest.raises(ConfigError, match="needs model siamese, got 'cross_encoder'"):
        SiameseTask(SMALL)
