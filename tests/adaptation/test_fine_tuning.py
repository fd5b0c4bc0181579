"""Ways to fit a model to one person, on a made-up run whose outputs are known by hand."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tests.oracles.test_gaze_map import FlatModel
from vergence.adaptation.fine_tuning import (
    ADAPTED,
    KERNEL_ALONE,
    LAST,
    SHARED,
    WHOLE,
    Adapter,
    FineTuning,
    PersonalModel,
    personalises,
    prior_name,
    pull_name,
)
from vergence.adaptation.other_people import RESIDUAL
from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation
from vergence.core.local_training import LocalTraining
from vergence.core.randomness import RandomStream
from vergence.methods.apfl import APFL
from vergence.methods.ditto import Ditto
from vergence.methods.fedavg import FedAvg
from vergence.metrics.calibration import Correction, FittedCalibration
from vergence.models.small_eye import SmallEye
from vergence.tasks.gaze_angle import GazeAngle
from vergence.tasks.gaze_map import GazeMap

STREAM = RandomStream("adapt", 0)
TASK = GazeAngle(SmallEye(channels=(2, 2), hidden=2))
START = TASK.init()
OTHER = START.like(START.flat + 1)
LOCAL = LocalTraining(optimizer="sgd", epochs=2, batch=4, lr=0.05, schedule="cosine")


def samples(count, first=0.0, **more):
    """Samples that the network sees at (first, 0), (first + 1, 0) ...; gaze is 0.5 above that."""
    seen = torch.stack([first + torch.arange(count).float(), torch.zeros(count)], 1)
    side = torch.arange(count) % 2
    return Samples({"seen": seen, "gaze": seen + torch.tensor([0.5, 0.0]), "side": side, **more})


class Run:
    """A made-up run: outputs are what samples show, plus 10 for parameters that were trained."""

    def __init__(self, task=TASK, local=LOCAL, rounds=3, method=None):
        self.task, self.asked, self.fits = task, [], []
        self.method = method or FedAvg(local=local)
        self.experiment = SimpleNamespace(plan=SimpleNamespace(rounds=rounds))
        own = Splits(samples(8), samples(2), samples(3, 20.0))
        self.ready = Federation("made up", {"me": own})
        self.executor = SimpleNamespace(solver=SimpleNamespace(fit=self.fit))

    def fit(self, ask, stream):
        self.fits.append((ask, stream))
        return SimpleNamespace(params=OTHER)

    def newcomer(self, person):
        assert person == "me"
        return START

    def model(self, person, known=True, train=None):
        return START

    def outputs(self, params, given):
        self.asked.append((params, given))
        return given.columns["seen"] + (0.0 if torch.equal(params.flat, START.flat) else 10.0)

    def score(self, outputs, person):
        return {self.task.headline: float(outputs(self.ready.people[person].test)[:, 0].mean())}


def moved(pitch):
    zeros = torch.zeros(2, dtype=torch.float64)
    offset = torch.tensor([pitch, 0.0], dtype=torch.float64)
    return Correction(zeros, offset, torch.zeros(2, 2, dtype=torch.float64))


def test_names_of_ways():
    assert (pull_name(10.0), pull_name(0.5)) == ("pull 10", "pull 0.5")
    assert prior_name(0.25) == "own prior, exponent 0.25"
    assert (FineTuning().steps, FineTuning().lr, FineTuning().pulls) == (50, None, ())


def test_each_eye_has_its_own_correction():
    """Left eyes (0) are moved by 1, right eyes (1) by -2."""
    adapter = Adapter(Run(), "me", per_eye=True)
    given = samples(4)
    model = PersonalModel(START, {0: moved(1.0), 1: moved(-2.0)})
    assert adapter.outputs(model, given)[:, 0].tolist() == [1, -1, 3, 1]
    assert given.columns["seen"][:, 0].tolist() == [0, 1, 2, 3]
    plain = given.columns["seen"].double()
    assert adapter.outputs(model, given, plain)[:, 0].tolist() == [1, -1, 3, 1]
    assert plain[:, 0].tolist() == [0, 1, 2, 3], "what was given stays as it is"


def test_a_correction_of_both_eyes_is_told_the_sides():
    eye = torch.tensor([0.25, 0.0], dtype=torch.float64)
    both = replace(moved(1.0), eye=eye)
    adapter = Adapter(Run(), "me")
    found = adapter.outputs(PersonalModel(START, both), samples(2))
    assert found[:, 0].tolist() == [0.75, 2.25]
    assert adapter.outputs(PersonalModel(START), samples(2))[:, 0].tolist() == [0, 1]


def test_corrections_are_fitted_to_both_eyes_or_to_each():
    """Gaze is 0.5 above what is seen; of left eyes alone it is made 1 above."""
    run = Run()
    data = run.ready.people["me"].train
    data.columns["gaze"][::2, 0] += 0.5
    rows = torch.arange(8)
    whole = Adapter(run, "me").fit("offset", rows, STREAM)
    assert whole.correction.offset.tolist() == pytest.approx([0.75, 0])
    each = Adapter(run, "me", per_eye=True).fit("offset", rows, STREAM)
    assert each.correction[0].offset.tolist() == pytest.approx([1.0, 0])
    assert each.correction[1].offset.tolist() == pytest.approx([0.5, 0])
    assert each.params is whole.params is not OTHER


def test_a_correction_fitted_to_others_tells_the_eyes_apart_itself():
    parts = torch.zeros(2).double(), torch.full((2,), 1e-9).double(), torch.ones(4, 2).double()
    adapter = Adapter(Run(), "me", fitted={"fitted eyes": FittedCalibration(*parts)}, per_eye=True)
    model = adapter.fit("fitted eyes", torch.arange(8), STREAM)
    assert isinstance(model.correction, Correction)
    assert model.correction.eye is not None
    test = samples(3, 2.0)
    found = adapter.outputs(model, test)
    torch.testing.assert_close(found, test.columns["gaze"].double(), atol=1e-6, rtol=0)


def test_a_prior_is_added_to_the_logits_at_the_temperature_and_its_power():
    task = GazeMap(FlatModel(), temperature=2.0)
    run = Run(task)
    prior = torch.tensor([[0.5, -1.0]])
    given = Samples({"seen": torch.zeros(2, 2)})
    model = PersonalModel(START, exponent=0.5, prior=prior)
    found = Adapter(run, "me").outputs(model, given)
    assert found.tolist() == [[0.5, -1.0], [0.5, -1.0]], "2 * 0.5 is once the prior"
    twice = Adapter(run, "me").outputs(replace(model, exponent=1.0), given)
    assert twice.tolist() == [[1.0, -2.0], [1.0, -2.0]]


def test_without_samples_or_a_way_the_shared_model_stays():
    adapter = Adapter(Run(), "me")
    for way, count in ((SHARED, 3), (WHOLE, 0), ("offset", 0)):
        model = adapter.fit(way, torch.arange(count), STREAM)
        assert model == PersonalModel(adapter.start)
    assert not adapter.trained.fits


def test_the_shared_models_outputs_on_test_samples_are_computed_once():
    run = Run()
    adapter = Adapter(run, "me")
    model = PersonalModel(adapter.start)
    assert [adapter.error(model) for _ in range(3)] == [21.0] * 3
    assert len(run.asked) == 1
    assert adapter.error(replace(model, correction=moved(1.0))) == 22.0
    assert len(run.asked) == 1


def test_another_model_is_measured_by_its_own_outputs():
    """Trained parameters give 10 more, on test samples and on labelled ones."""
    run = Run()
    adapter = Adapter(run, "me")
    assert adapter.error(PersonalModel(adapter.start)) == 21.0
    assert adapter.error(PersonalModel(OTHER)) == 31.0
    rows = torch.tensor([5, 2])
    assert adapter.outputs_at(PersonalModel(adapter.start), rows)[:, 0].tolist() == [5, 2]
    assert adapter.outputs_at(PersonalModel(OTHER), rows)[:, 0].tolist() == [15, 12]
    asked = len(run.asked)
    adapter.outputs_at(PersonalModel(adapter.start), torch.tensor([1]))
    assert len(run.asked) == asked


def test_samples_other_than_the_test_samples_are_computed():
    """A metric may ask for validation samples, to fit a threshold."""
    run = Run()
    other = samples(2, 5.0)
    run.score = lambda outputs, _: {run.task.headline: float(outputs(other)[0, 0])}
    adapter = Adapter(run, "me")
    assert adapter.error(PersonalModel(adapter.start)) == 5.0


def test_fine_tuning_has_its_own_steps_and_the_runs_rate_unless_told():
    local = Adapter(Run(), "me", FineTuning(steps=7)).local
    assert (local.steps, local.lr, local.schedule, local.batch) == (7, 0.05, "constant", 4)
    assert Adapter(Run(), "me", FineTuning(lr=0.5)).local.lr == 0.5
    assert Adapter(Run(), "me").local.steps == 50


def test_what_is_trained_and_held_by_fine_tuning():
    """The last layer alone; everything; everything, pulled by 7.5 / 3 towards the start."""
    run = Run()
    adapter = Adapter(run, "me", FineTuning(pulls=(7.5,)))
    rows = torch.tensor([1, 4, 6])
    for way in (LAST, WHOLE, "pull 7.5"):
        assert adapter.fit(way, rows, STREAM, 2).params is OTHER
    last, whole, pulled = (ask for ask, _ in run.fits)
    head = TASK.parts()[1]
    parts = zip(START.layout.names, START.layout.shapes, strict=True)
    size = sum(math.prod(shape) for name, shape in parts if name.startswith(tuple(head)))
    assert last.trainable.count == size
    assert 0 < size < START.layout.n
    assert whole.trainable is None
    assert pulled.trainable is None
    assert last.anchor is None
    assert whole.anchor is None
    assert pulled.anchor == (adapter.start, 2.5)
    for ask in (last, whole, pulled):
        assert ask.data.columns["seen"][:, 0].tolist() == [1, 4, 6]
        assert ask.params is adapter.start
        assert ask.local == adapter.local
    keys = [stream.number() for _, stream in run.fits]
    assert keys[0] != keys[1] == keys[2] == STREAM.child(WHOLE, 2, 3).number()


@pytest.mark.parametrize(
    ("local", "rounds", "count", "steps"),
    [
        (LOCAL, 3, 8, 12),  # 2 epochs of 2 batches, in 3 rounds
        (LOCAL, 3, 5, 12),  # 5 samples are 2 batches, too
        (LOCAL, 3, 4, 6),
        (replace(LOCAL, steps=5), 4, 8, 20),
        (replace(LOCAL, steps=500), 2, 8, 1000),
        (replace(LOCAL, steps=500), 3, 8, 1000),
    ],
)
def test_training_alone_takes_the_runs_batches_but_a_thousand_at_most(local, rounds, count, steps):
    run = Run(local=local, rounds=rounds)
    assert Adapter(run, "me").train_alone(torch.arange(count), STREAM).params is OTHER
    ((ask, stream),) = run.fits
    assert (ask.local.steps, ask.local.schedule) == (steps, "constant")
    assert len(ask.data) == count
    assert torch.equal(ask.params.flat, TASK.init().flat)
    assert stream.number() == STREAM.child("alone").number()


def test_a_constant_prediction_is_the_mean_gaze_and_where_there_is_none_no_number():
    run = Run()
    adapter = Adapter(run, "me")
    run.ready.people["me"].test.columns["gaze"][:] = torch.tensor([[2.5, 0.0]] * 3)
    run.ready.people["me"].train.columns["gaze"][:] = torch.tensor([[2.5, 0.0]] * 8)
    run.ready.people["me"].train.columns["gaze"][0] = torch.tensor([2.4, 0.0])
    assert adapter.constant_error(torch.tensor([1, 2])) == pytest.approx(0, abs=0.05)
    wanted = math.degrees(0.05)
    assert adapter.constant_error(torch.tensor([0, 1])) == pytest.approx(wanted, rel=1e-3)
    run.task = SimpleNamespace(personal_baseline=lambda _: ("none", {}), headline="degrees")
    assert math.isnan(adapter.constant_error(torch.tensor([0])))


def test_ways_of_a_task_and_a_method():
    """Corrections of angles, then the network; a method's own way where its model is another."""
    bare = Adapter(Run(method=FedAvg(local=LOCAL)), "me", FineTuning(pulls=(1.0,)))
    kinds = ["offset", "shrunk offset", "affine", "shrunk affine"]
    # Kernels measure distances of crops and head poses, which these samples do not have.
    assert list(bare.ways) == [*kinds, LAST, WHOLE, "pull 1"]
    run = Run(method=FedAvg(local=LOCAL))
    eyes = samples(8, image=torch.zeros(8, 1, 9, 15, dtype=torch.uint8), pose=torch.zeros(8, 2))
    run.ready = Federation("made up", {"me": Splits(eyes, samples(2), samples(3, 20.0))})
    plain = Adapter(run, "me", FineTuning(pulls=(1.0,)))
    assert list(plain.ways) == [*kinds, RESIDUAL, KERNEL_ALONE, LAST, WHOLE, "pull 1"]
    run.model = lambda *_, **__: OTHER
    own = Adapter(run, "me")
    assert list(own.ways) == [*kinds, RESIDUAL, KERNEL_ALONE, LAST, WHOLE, ADAPTED]
    assert own.fit(ADAPTED, torch.arange(2), STREAM).params is OTHER
    turns = Adapter(Run(method=Ditto(local=LOCAL)), "me")
    assert ADAPTED in turns.ways


def test_which_methods_train_a_personal_model_by_turns():
    assert personalises(Ditto(local=LOCAL))
    assert personalises(APFL(local=LOCAL))
    assert not personalises(FedAvg(local=LOCAL))
