"""The Cross-Encoder's loss against the published formula, its gradients, and a federated run."""

import numpy as np
import pytest
import torch
from torch import nn

from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation
from vergence.core.local_training import LocalTraining
from vergence.core.randomness import RandomStream
from vergence.core.requests import Fit
from vergence.engine.round_loop import Plan, run_rounds
from vergence.engine.storage.run_directory import RunDirectory
from vergence.errors import DataError
from vergence.methods.fedavg import FedAvg
from vergence.models.cross_encoder import CrossEncoder as Model
from vergence.tasks.auto_encoder import AutoEncoder
from vergence.tasks.cross_encoder import CrossEncoderTask
from vergence.training.sequential import Solver

SMALL = Model(size="9x15", width=4)
TASK = CrossEncoderTask(SMALL)


def glances(n, seed=0, whose=0, eyes=2, size=(9, 15)):
    source = torch.Generator().manual_seed(seed)
    image = torch.randint(256, (n, eyes, 1, *size), generator=source, dtype=torch.uint8)
    return Samples({"eyes": image, "whose": torch.full((n,), whose)})


def published(given, drawn):
    """The eight terms for items of two frames, `[items, frame, side, pixels]`, by numpy.

    First half of the items eye-consistent, second half gaze-similar. Source: eyeimages note, 2.
    """
    half = len(given) // 2
    total = 0.0
    for side in (0, 1):
        for part in (slice(None, half), slice(half, None)):
            total += np.abs(given[part, :, side] - drawn[part, :, side]).mean()
        apart = [x[:half, 0, side] - x[:half, 1, side] for x in (given, drawn)]
        total += np.abs(apart[0] - apart[1]).mean()
    for frame in (0, 1):
        apart = [x[half:, frame, 0] - x[half:, frame, 1] for x in (given, drawn)]
        total += 0.5 * np.abs(apart[0] - apart[1]).mean()
    return total


def test_the_loss_is_the_published_sum():
    """Eight rows of one person are four items; the first two are eye-consistent."""
    batch = glances(8).take(slice(None))
    drawn = torch.rand(8, 2, 1, 9, 15, generator=torch.Generator().manual_seed(1))
    items = [
        x.numpy().astype(np.float64).reshape(4, 2, 2, -1)
        for x in (batch["eyes"].float() / 255, drawn)
    ]
    assert float(TASK.loss(drawn, batch)) == pytest.approx(published(*items), rel=1e-5)


def test_the_residual_by_hand():
    """Two rows, all pixels given 0, drawn 0.1 and 0.4 on both sides: one eye-consistent pair.

    |e| is 0.25 on average, on either side: 0.5; e_a - e_b is 0.3 on either side: 0.6.
    """
    batch = {
        "eyes": torch.zeros(2, 2, 1, 9, 15, dtype=torch.uint8),
        "whose": torch.zeros(2, dtype=torch.long),
    }
    drawn = torch.tensor([0.1, 0.4]).view(2, 1, 1, 1, 1).expand(2, 2, 1, 9, 15)
    assert float(TASK.loss(drawn, batch)) == pytest.approx(1.1, abs=1e-6)


def test_a_lone_glance_has_the_terms_of_its_two_eyes():
    """Drawn 0.1 left and 0.4 right: 0.1 + 0.4, and their difference, 0.3, once."""
    batch = {
        "eyes": torch.zeros(1, 2, 1, 9, 15, dtype=torch.uint8),
        "whose": torch.zeros(1, dtype=torch.long),
    }
    drawn = torch.tensor([0.1, 0.4]).view(1, 2, 1, 1, 1).expand(1, 2, 1, 9, 15)
    assert float(TASK.loss(drawn, batch)) == pytest.approx(0.8, abs=1e-6)


@pytest.mark.parametrize("rows", [1, 2, 3, 5])
def test_any_batch_has_a_finite_loss_and_gradient(rows):
    """Fault 6: the mean over a half without rows is no number."""
    module = TASK.module()
    batch = glances(rows).take(slice(None))
    loss = TASK.loss(TASK.forward(module, batch), batch)
    loss.backward()
    assert all(bool(torch.isfinite(p.grad).all()) for p in module.parameters())


def test_gradients_flow_from_both_halves_to_both_codes():
    """Of an eye-consistent row's error to the giver's eye code, of a similar one's to the twin."""
    module = TASK.module()
    batch = glances(6).take(slice(None))
    eyes, beside = TASK.inputs(batch)
    codes = module.encode(eyes).detach().requires_grad_()
    drawn = module.decode(module.stage("swap", codes, *beside))
    (to_codes,) = torch.autograd.grad(drawn[0, 0].sum(), codes, retain_graph=True)
    gaze, eye = to_codes[..., -12:].abs().sum(2), to_codes[..., :-12].abs().sum(2)
    assert gaze.nonzero().tolist() == [[0, 0]]
    assert eye.nonzero().tolist() == [[1, 0]]
    (to_codes,) = torch.autograd.grad(drawn[4, 0].sum(), codes)
    gaze, eye = to_codes[..., -12:].abs().sum(2), to_codes[..., :-12].abs().sum(2)
    assert gaze.nonzero().tolist() == [[4, 1]]
    assert eye.nonzero().tolist() == [[4, 0]]


class Perfect(nn.Module):
    """Codes that are the truth: the eye code says who, the gaze code what both eyes share."""

    def forward(self, eyes, whose):
        return eyes


def test_perfect_drawing_costs_nothing_and_scores_one():
    batch = glances(5)
    drawn = TASK.forward(Perfect(), batch.take(slice(None)))
    assert float(TASK.loss(drawn, batch.take(slice(None)))) == 0
    assert TASK.metrics(drawn, batch) == {"recon_l1": 0.0, "score": 1.0}


def test_constant_grey_scores_nothing_on_equalised_pixels():
    """Pixels 0 to 255 once each: mean distance from 0.5 is 0.25098, just above 0.25."""
    ramp = torch.arange(256, dtype=torch.uint8).view(1, 1, 1, 16, 16)
    samples = Samples({"eyes": ramp, "whose": torch.zeros(1)})
    assert TASK.metrics(torch.full(ramp.shape, 0.5), samples)["score"] == 0.0
    half = TASK.metrics(0.5 * (torch.full(ramp.shape, 0.5) + ramp / 255), samples)
    assert half["score"] == pytest.approx(0.5, abs=0.01)


def person(n, number, **options):
    return Splits(*(glances(n, seed=3 * number + i, whose=2 * number, **options) for i in range(3)))


def test_somebody_with_one_glance_is_refused_by_name():
    """Fault 7."""
    people = Federation("two", {"ann": person(4, 0), "bob": person(1, 1)})
    with pytest.raises(DataError, match=r"'bob' has 1 glance.*leave this person out"):
        TASK.check(people)
    TASK.check(people.only(["ann"]))


def test_fedavg_trains_it_and_the_loss_falls(tmp_path):
    """Two people whose eyes are two stripes that move: two rounds of FedAvg."""
    stripes = torch.zeros(12, 2, 1, 9, 15, dtype=torch.uint8)
    for row in range(12):
        stripes[row, :, :, :, row : row + 3] = 255
    whole = Samples({"eyes": stripes, "whose": torch.zeros(12, dtype=torch.long)})
    other = Samples({"eyes": 255 - stripes, "whose": torch.full((12,), 2)})
    people = Federation(
        "stripes", {"a": Splits(whole, whole, whole), "b": Splits(other, other, other)}
    )
    TASK.check(people)
    folder = RunDirectory(tmp_path, {"config": "a", "code": "b", "data": "c"})
    folder.open()
    local = LocalTraining(epochs=3, batch=5, optimizer="adam", lr=5e-3, weight_decay=0)
    plan = Plan(rounds=2, evaluate_every=0, workers=1)
    outcome = run_rounds(FedAvg(local=local), TASK, federation=people, plan=plan, folder=folder)
    before, solver = TASK.init(), Solver(TASK)
    for splits in people.people.values():
        assert solver.loss(outcome.server.model, splits.train) < 0.8 * solver.loss(
            before, splits.train
        )


def test_pairs_are_made_anew_in_every_epoch():
    """The rows a batch brings together are a fresh permutation: pairs of two epochs differ."""
    seen = []

    class Watched(CrossEncoderTask):
        def forward(self, module, batch):
            seen.append(batch["row"].tolist())
            return super().forward(module, batch)

    data = glances(8)
    data = Samples({**data.columns, "row": torch.arange(8)})
    task = Watched(SMALL)
    Solver(task).fit(
        Fit(task.init(), data, LocalTraining(optimizer="sgd", epochs=2, batch=8)), RandomStream("a")
    )
    pairs = [{frozenset(rows[i : i + 2]) for i in range(0, 8, 2)} for rows in seen]
    assert len(pairs) == 2
    assert pairs[0] != pairs[1]


def test_the_auto_encoder_uses_each_eyes_own_codes():
    task = AutoEncoder(SMALL)
    module, batch = task.module(), glances(4).take(slice(None))
    output = task.forward(module, batch)
    alone = task.forward(module, glances(4).take(slice(2, 3)))
    assert torch.allclose(output[2:3], alone, atol=1e-5)
    images = output[..., :135].reshape(batch["eyes"].shape)
    wanted = (images - batch["eyes"].float() / 255).abs().mean()
    assert float((task.loss(output, batch) - wanted).detach()) == pytest.approx(0, abs=1e-6)


def test_the_equal_feature_constraint_by_hand():
    """Four rows: 0 and 1 a pair, 2 and 3 apart. Images drawn perfectly, codes are zero but for
    row 0's eye codes, all 1 (distance 1 from row 1's), and row 2's left gaze code, all 2.

    |eye_0 - eye_1| is 1 for both rows of the pair: 1. |left - right| of the gaze codes is 2 in row
    2, 0 in row 3: 1. With weight 0.5 the loss is 1.
    """
    batch = glances(4).take(slice(None))
    codes = torch.zeros(4, 2, 44)
    codes[0, :, :32] = 1
    codes[2, 0, 32:] = 2
    output = torch.cat([batch["eyes"].float().flatten(2) / 255, codes], 2)
    task = AutoEncoder(SMALL, equal=0.5)
    assert float(task.loss(output, batch)) == pytest.approx(1.0, abs=1e-6)
    assert task.metrics(output, glances(4))["score"] == pytest.approx(1.0)
