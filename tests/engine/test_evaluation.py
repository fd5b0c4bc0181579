"""Everybody's test samples put together: every sample alike, a shared model scored once."""

import csv
from collections import Counter
from dataclasses import dataclass, replace
from types import MappingProxyType

import pytest
import torch

from tests.engine.toys import STAMP
from vergence.core.aggregation import Sum
from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation
from vergence.core.local_training import LocalTraining
from vergence.core.messages import Message
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.engine.client_executor import ClientExecutor, LocalData
from vergence.engine.client_runner import ClientRunner
from vergence.engine.evaluation import GUESS
from vergence.engine.lab_runner import LabRunner
from vergence.engine.records import ClientState, ClientTask, TaskBatch
from vergence.engine.round_loop import Plan, run_rounds
from vergence.engine.silos import Silos
from vergence.engine.storage.client_states import ClientStateIndex, ClientStateStore
from vergence.engine.storage.run_directory import RunDirectory
from vergence.engine.workers.pools import InProcess
from vergence.methods.fedavg import FedAvg
from vergence.methods.local_only import LocalOnly
from vergence.models.softmax import Softmax
from vergence.tasks.images import Images
from vergence.training.cuda_graphs import Graphed

SCORED = Counter()


@dataclass(frozen=True)
class Counting(Images):
    """Counts how often it is asked to score everybody's samples."""

    def pooled(self, outputs, samples):
        SCORED[len(samples)] += 1
        return super().pooled(outputs, samples)


def images(*labels):
    """Two pixels an image: class 0 is bright on the left, class 1 on the right."""
    label = torch.tensor(labels)
    image = torch.zeros(len(label), 1, 1, 2, dtype=torch.uint8)
    image[range(len(label)), 0, 0, label] = 255
    return Samples({"image": image, "label": label})


PEOPLE = Federation(
    "two",
    {
        "a": Splits(images(0, 0, 0, 0, 0, 0), images(0), images(0, 0, 0)),
        "b": Splits(images(1, 1), images(1), images(1)),
    },
)
NETWORK = Softmax(image=(1, 1, 2), classes=2)
TASK = Counting(NETWORK)


def of(left, right):
    """Return the network with these scores for a bright left and a bright right pixel."""
    module = TASK.module()
    with torch.no_grad():
        module.linear.weight[:] = torch.tensor([[left, right], [0.0, 0.0]])
        module.linear.bias.zero_()
    return Params.of(module)


def measured(worker, client, model):
    message = Message("evaluate", {"model": model})
    return worker.evaluate(client, message, ClientState(), ("P0", "P2")).measured


def test_every_test_image_counts_alike_whosever_it_is():
    """The model says 0 to everything: right for a's three images, wrong for b's one.

    Own accuracies 1 and 0, their mean 1/2; of the four images together 3/4. Scores 2 and 0 where
    the left pixel is bright, 1 and 0 where the right one is: the mean log loss of all four is
    (3 ln(1 + e^-2) + ln(1 + e)) / 4.
    """
    worker = ClientExecutor(
        FedAvg(), TASK, LocalData(PEOPLE, PEOPLE, all_here=True), RandomStream("t")
    )
    found = {client: measured(worker, client, of(2.0, 1.0)) for client in "ab"}
    assert [found[client]["P0"]["accuracy"] for client in "ab"] == [1.0, 0.0]
    loss = (3 * torch.log1p(torch.tensor(-2.0).exp()) + torch.log1p(torch.tensor(1.0).exp())) / 4
    for client in "ab":
        for point in ("P0", "P2"):
            assert found[client][point]["pooled_accuracy"] == 0.75
            assert found[client][point]["pooled_log_loss"] == pytest.approx(float(loss))
            assert "pooled_score" not in found[client][point]


def test_a_model_that_people_share_is_scored_once_and_another_again():
    worker = ClientExecutor(
        FedAvg(), TASK, LocalData(PEOPLE, PEOPLE, all_here=True), RandomStream("t")
    )
    SCORED.clear()
    for client in "ab":
        measured(worker, client, of(2.0, 1.0))  # equal, not the same object
    assert SCORED == {4: 1}
    assert measured(worker, "b", of(2.0, -1.0))["P0"]["pooled_accuracy"] == 1.0
    assert SCORED == {4: 2}


def test_at_an_end_of_a_deployment_nobody_has_everybodys_images():
    alone = PEOPLE.only(["a"])
    worker = ClientExecutor(FedAvg(), TASK, LocalData(alone, alone), RandomStream("t"))
    assert not [n for n in measured(worker, "a", of(2.0, 1.0))["P0"] if n.startswith("pooled")]


def on_a_gpu(method, federation=PEOPLE, task=TASK):
    """Return an executor that evaluates as on a GPU, with the code that a CPU runs of it."""
    worker = ClientExecutor(
        method, task, LocalData(federation, federation, all_here=True), RandomStream("t")
    )
    worker.graphed = Graphed(task)
    worker.measure.outputs = worker.graphed.outputs
    return worker


def task_of(client, model):
    return ClientTask(client, Message("evaluate", {"model": model}), None)


@pytest.mark.parametrize("method", [FedAvg(), LocalOnly()])
@pytest.mark.parametrize("points", [("P0", "P2", "V0"), ("V0",), ("P2",)])
def test_people_evaluated_together_have_the_scores_of_each_alone(method, points, monkeypatch):
    """FedAvg's people share both models; of LocalOnly's, both have one of their own."""
    worker, model = on_a_gpu(method), of(2.0, 1.0)
    states = [ClientState(), ClientState()]
    if isinstance(method, LocalOnly):
        states = [
            ClientState(replace(method.client(TASK), params=of(*own)))
            for own in [(2.0, -1.0), (-1.0, 1.0)]
        ]
    tasks = [task_of(client, model) for client in "ab"]
    alone = [
        worker.evaluate(t.client, t.message, s, points) for t, s in zip(tasks, states, strict=True)
    ]
    passes, honest = [], worker.graphed.outputs_of
    monkeypatch.setattr(
        worker.graphed, "outputs_of", lambda *rest: passes.append(rest[0]) or honest(*rest)
    )
    assert worker.prepares
    together = worker.evaluate_all(tasks, states, points)
    assert together == alone
    assert not worker.measure.ready
    # One pass; after it, only everybody's samples are left, which `pooled` has scored before.
    assert len(passes) == 1
    parts = {(len(samples), int(samples.columns["label"].sum())) for _, samples in passes[0]}
    tests, validation = {(3, 0), (1, 1)}, {(1, 0), (1, 1)}
    assert parts == (tests if points != ("V0",) else set()) | (
        validation if "V0" in points or TASK.uses_validation else set()
    )


def test_an_error_of_people_evaluated_together_names_the_person():
    worker = on_a_gpu(FedAvg(), task=Broken(NETWORK))
    worker.measure.pools = False
    with pytest.raises(RuntimeError, match="one sample") as failure:
        worker.evaluate_all(
            [task_of(client, of(2.0, 1.0)) for client in "ab"], [ClientState()] * 2, ("P0",)
        )
    assert any("person 'b'" in note for note in failure.value.__notes__)


@dataclass(frozen=True)
class Broken(Images):
    """Cannot compute with one sample, or four."""

    def forward(self, module, batch):
        if len(batch["label"]) != 3:
            raise RuntimeError("one sample")
        return super().forward(module, batch)


def test_who_is_evaluated_alone(monkeypatch):
    worker = on_a_gpu(FedAvg())
    assert worker.prepares
    monkeypatch.setattr(worker, "hooks", (object(),))
    assert not worker.prepares
    assert not on_a_gpu(FedAvg(), replace(PEOPLE, people=MappingProxyType(PEOPLE.people))).prepares
    monkeypatch.setattr(worker, "hooks", ())
    monkeypatch.setattr(worker, "graphed", None)
    assert not worker.prepares


def test_people_of_a_lab_are_evaluated_one_by_one(tmp_path, monkeypatch):
    """Their states are parts of the lab's."""
    worker = on_a_gpu(FedAvg())
    together = worker.evaluate_all
    calls: list[int] = []
    monkeypatch.setattr(
        worker, "evaluate_all", lambda *rest: calls.append(len(rest[0])) or together(*rest)
    )
    store = ClientStateStore(tmp_path, 0, ())
    tasks = [task_of(client, of(2.0, 1.0)) for client in "ab"]
    batch = TaskBatch("evaluate", tasks, [2], points=("P0",))
    labs = Silos({"lab": ("a", "b")})
    plain = ClientRunner(worker, store).carry_out(batch, 0, Sum()).results
    assert calls == [2]
    assert LabRunner(labs, worker, store).carry_out(batch, 0, Sum()).results == plain
    assert calls == [2]


def columns(tmp_path, method, pool_factory=None):
    folder = RunDirectory(tmp_path, STAMP)
    folder.open()
    plan = Plan(rounds=2, evaluate_every=1, workers=1, points=("P0", "P1"))
    run_rounds(
        method,
        Images(NETWORK),
        federation=PEOPLE,
        plan=plan,
        folder=folder,
        pool_factory=pool_factory,
    )
    with (tmp_path / "people.csv").open() as file:
        last = {(r["person"], r["metric"]): float(r["value"]) for r in csv.DictReader(file)}
    with (tmp_path / "rounds.csv").open() as file:
        told = {(r["evaluation"], r["metric"]) for r in csv.DictReader(file)}
    return last, told


def test_a_simulation_has_both_columns_and_a_pool_from_elsewhere_only_ones_own(tmp_path):
    """Trained alone, each knows the class it has: 1 on its own test, 3/4 and 1/4 on all four."""
    method = LocalOnly(local=LocalTraining(optimizer="sgd", epochs=20, batch=4, lr=1.0))
    last, told = columns(tmp_path / "here", method)
    assert [last[client, "accuracy"] for client in "ab"] == [1.0, 1.0]
    assert [last[client, "pooled_accuracy"] for client in "ab"] == [0.75, 0.25]
    assert ("P0", "pooled_accuracy") in told
    assert ("P1", "accuracy") in told
    assert ("P1", "pooled_accuracy") not in told
    afar, told = columns(
        tmp_path / "afar",
        method,
        lambda runner: (InProcess(runner), ClientStateIndex(runner.store)),
    )
    models = {key: value for key, value in afar.items() if not key[1].startswith(GUESS)}
    assert models == {key: value for key, value in last.items() if "pooled" not in key[1]}
    assert afar["a", GUESS + "accuracy"] == 1.0, "its own most frequent class, beside the model"
    assert not [metric for _, metric in told if "pooled" in metric]
