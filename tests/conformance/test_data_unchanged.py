"""Foreign code may not change our data: lines in place give the numbers of lines that are not.

Every door through which a network, a loss or a metric of the user's is called is walked twice: with
code that works in place (`x -= ...`), and with its twin that makes new tensors. Data are the same
afterwards, and every number has the same bits.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import vergence as vg
from tests.engine.toys import mostly_slow
from vergence.core.federation import PublicData
from vergence.core.local_training import LocalTraining, OptimizerState
from vergence.core.method import Method
from vergence.core.randomness import RandomStream
from vergence.core.requests import Fit, Forward, Step
from vergence.core.stages import Staged
from vergence.data.synthetic.toy import Toy
from vergence.experiment.registry import find, names
from vergence.experiment.validation import digest
from vergence.models.linear import Linear
from vergence.tasks.toy import ToyTask
from vergence.training.cuda_graphs import Graphed
from vergence.training.sequential import Solver
from vergence.training.stacked import Stacked
from vergence.training.steps import Trainer

LOCAL = LocalTraining(optimizer="sgd", epochs=1, batch=8, lr=0.05)


class Twin(Staged):
    """Three layers behind a line that changes the input; `in_place` says how."""

    def __init__(self, in_place):
        super().__init__()
        self.stages = {name: (name,) for name in ("one", "two", "three")}
        self.one, self.two, self.three = nn.Linear(4, 6), nn.Linear(6, 5), nn.Linear(5, 3)
        self.in_place = in_place

    def stage(self, name, x, *beside):
        if self.in_place:
            x *= 0.5
            x += 1
        else:
            x = x * 0.5 + 1
        return self.get_submodule(name)(x if name == "one" else x.relu())


def task(in_place):
    """A task whose network, loss and both metrics change what they are given, or do not."""

    def loss(outputs, target):
        classes = target - 1
        if in_place:
            target -= 1
        return functional.cross_entropy(outputs, classes)

    def shift(outputs, target):
        if in_place:
            outputs -= 5
            target -= 1
            return (outputs.argmax(1) == target).float().mean()
        return ((outputs - 5).argmax(1) == target - 1).float().mean()

    def confidence(outputs, target):
        return outputs.softmax(1)[torch.arange(len(target)), target - 1].mean()

    metrics = {"shift": shift, "confidence": confidence}
    return vg.task_from(lambda: Twin(in_place), loss, metrics, lower_is_better=False)


def people():
    rng = np.random.default_rng(0)
    found = {}
    for person in "abc":
        x = rng.normal(size=(40, 4))
        found[person] = {"x": x, "y": 1 + x[:, :3].argmax(1)}
    made = vg.Federation.from_arrays(found)
    public = made.people["a"]
    return vg.Federation(
        "arrays", made.people, made.about, PublicData(public.train, public.val), made.missing
    )


SUITED = {
    "feddf": {"steps": 4, "batch": 8},
    "ifca": {"groups": 2},
    "fedgroup": {"groups": 2},
    "qfedavg": {"q": 0.1},
}
OTHER = {"ap_fl", "pe_zsl", "sg_zsl", "cfedvs", "fedgen", "fedpac", "fedbn", "smashed_average"}
"""Methods that take tasks with named classes, sequences, norms or numbers as targets alone."""
NAMES = [name for name in names("methods", Method) if name not in OTHER]
QUICK = ("fedavg", "interpolation", "ifca", "split", "splitfed", "fedala", "qfedavg", "feddf")


def built(name):
    kind = find("methods", name, Method)
    options = {k: v for k, v in SUITED.get(name, {}).items() if k in kind.__dataclass_fields__}
    return kind(local=LOCAL, **options)


def run(in_place, method, **options):
    given = people()
    before = digest(given)
    made = vg.train(
        method,
        task(in_place),
        given,
        rounds=2,
        workers=1,
        evaluate_every=1,
        progress=False,
        **options,
    )
    return made, given, before == digest(given)


@pytest.mark.parametrize("name", mostly_slow(NAMES, *QUICK))
def test_methods(name):
    numbers = []
    for in_place in (True, False):
        made, given, same = run(in_place, built(name))
        assert same, "the data changed"
        curve = made.record.rounds[["metric", "value"]]
        numbers.append((made.scores, curve, made.predict("b", given.people["b"].test)))
    (scores, curve, said), (others, other_curve, other) = numbers
    assert scores.equals(others)
    assert curve.equals(other_curve)
    assert torch.equal(said, other)


@pytest.mark.parametrize("solver", ["sequential", "stacked", "graphed"])
def test_solvers(solver):
    """Batches of resident memory (stacks, recorded steps) are filled anew for every step."""
    found = []
    for in_place in (True, False):
        made, given = task(in_place), people()
        before = digest(given)
        asks = [Fit(made.init(), s.train, LOCAL, score_on=s.val) for s in given.people.values()]
        streams = [RandomStream("fit", number) for number in range(len(asks))]
        if solver == "sequential":
            alone = Solver(made)
            results = [alone.fit(a, s) for a, s in zip(asks, streams, strict=True)]
        else:
            results = {"stacked": Stacked, "graphed": Graphed}[solver](made).fit_all(asks, streams)
        found.append([(r.params.flat, r.metrics["score"]) for r in results])
        assert digest(given) == before
    for (one, score), (other, other_score) in zip(*found, strict=True):
        assert torch.equal(one, other)
        assert score == other_score


@pytest.mark.parametrize(
    "want", ["outputs", "features", "gradient", "statistics", "loss", "score", "classes"]
)
def test_what_is_computed_of_samples(want):
    found = []
    for in_place in (True, False):
        made, data = task(in_place), people().people["a"].train
        twice = [getattr(Solver(made), want)(made.init(), data) for _ in range(2)]
        found += [t if isinstance(t, torch.Tensor | float) else t.flat for t in twice]
    assert all(torch.equal(torch.as_tensor(f), torch.as_tensor(found[0])) for f in found)


@pytest.mark.parametrize("wrt", [None, "x"])
def test_a_batch_of_split_learning_is_looked_at_twice(wrt):
    """The client's layers compute it to send it, and again when its gradient comes back."""
    found = []
    for in_place in (True, False):
        made, data = task(in_place), people().people["a"].train
        batch, trainer, start = data.take(torch.arange(8)), Trainer(made), made.init()
        first = trainer.forward(Forward(start, batch, lambda t: t))
        ask = Step(start.copy(), OptimizerState({}, 0), batch, LOCAL, lambda t: t, wrt)
        done = trainer.step(ask)
        assert torch.equal(batch["x"], data.columns["x"][:8])
        found.append((first, done.params.flat, done.gradient))
    for one, other in zip(*found, strict=True):
        assert one is other or torch.equal(one, other)


def test_a_network_that_changes_its_own_target_learns_the_target():
    """An autoencoder: input and target are one column."""
    scores = []
    for in_place in (True, False):

        class Copy(nn.Module):
            def __init__(self, in_place=in_place):
                super().__init__()
                self.layer, self.in_place = nn.Linear(4, 4), in_place

            def forward(self, x):
                return self.layer(x.mul_(0.5) if self.in_place else x * 0.5)

        made = vg.task_from(Copy, functional.mse_loss, target="x")
        scores.append(
            vg.train(vg.methods.FedAvg(), made, people(), rounds=2, progress=False).scores
        )
    assert scores[0].equals(scores[1])


@dataclass(frozen=True)
class Pooling(ToyTask):
    """A task whose models are scored on everybody's samples put together, too."""

    pools: ClassVar[bool] = True


class InPlace(Pooling):
    """A task of one's own whose metrics change the samples that they are given."""

    def metrics(self, outputs, samples):
        found = super().metrics(outputs, samples)
        samples.columns["y"].add_(1)
        return found


def test_metrics_of_a_task_of_ones_own():
    """Evaluations of people, of everybody together, and of predictors without learning."""
    tables = []
    for kind in (InPlace, Pooling):
        made = Toy(people=3).load()
        before = digest(made)
        run = vg.train(
            vg.methods.FedAvg(), kind(Linear()), made, rounds=2, evaluate_every=1, progress=False
        )
        assert digest(made) == before
        rounds = run.record.rounds[["round", "metric", "value"]]
        tables.append((rounds, run.record.values, (run.folder / "priors.csv").read_text()))
    for one, other in zip(*tables, strict=True):
        assert one.equals(other) if hasattr(one, "equals") else one == other
    assert tables[0][0].metric.str.startswith("pooled_").any()
