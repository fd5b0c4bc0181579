"""A person for whom a metric is NaN: left out alike wherever people are summed up, and named once.

Three people have .5, .7 and .9, p1 has none: mean .7, worst .5, deviation .2.
"""

import io
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn
from torch.nn.functional import cross_entropy

import vergence as vg
from vergence.engine.evaluation import broken
from vergence.engine.lab_runner import means
from vergence.engine.round_loop import averages
from vergence.metrics.fairness import fairness
from vergence.metrics.held_out import simplest_near_best
from vergence.metrics.intervals import interval, with_number
from vergence.results.divergence import divergence_notes
from vergence.results.layout import spread
from vergence.results.write import summary
from vergence.studies.merge_splits import spread_of
from vergence.studies.trials import diverged

NAN, INF = math.nan, math.inf
SCORES = {"p0": 0.5, "p1": NAN, "p2": 0.7, "p3": 0.9}
THREE = {p: v for p, v in SCORES.items() if p != "p1"}


def both(measure, *parts):
    """The measure over four people, of whom one has no number, and over the three others."""
    return measure(SCORES, *parts), measure(THREE, *parts)


CONSUMERS = {
    "summary": lambda people: summary(people, False, None),
    "fairness": lambda people: fairness(people, False, {**SCORES, "p1": 0.6}),
    "fairness, alone": lambda people: fairness(THREE, False, people),
    "rounds.csv": lambda people: averages({"P0": {p: {"auc": v} for p, v in people.items()}}),
    "a lab": lambda people: means([{"P0": {"auc": value}} for value in people.values()]),
    "printed": lambda people: spread(people.values(), 3, None),
    "splits": lambda people: spread_of(
        {
            split: SimpleNamespace(scores=lambda _: people, estimates={"auc": 0})
            for split in ("1", "2")
        }
    ),
}


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_every_consumer_leaves_out_the_same_person(consumer):
    with_nan, without = both(CONSUMERS[consumer])
    assert with_nan == without
    assert "nan" not in str(with_nan)


def test_the_mean_by_hand():
    found = summary(SCORES, False, None)
    assert (found["mean"], found["worst"], found["std"]) == pytest.approx((0.7, 0.5, 0.2))
    assert with_number([NAN, NAN]) != [], "nobody has a number: nothing is made up"
    assert math.isnan(summary({"p0": NAN}, False, None)["mean"])


def test_a_trial_of_a_sweep_has_not_failed_for_it(tmp_path):
    (tmp_path / "turns.csv").write_text(
        "seed,round,client,verb,tree,examples,weight,bytes_up,bytes_down,steps,status,"
        "personal_fraction\n"
    )
    assert diverged(tmp_path, {"auc": SCORES}, ["auc"]) is None
    assert diverged(tmp_path, {"auc": {**SCORES, "p2": -INF}}, ["auc"]) == "auc of 'p2' is -inf"
    assert diverged(tmp_path, {"auc": {"p1": NAN}}, ["auc"]) == "auc of 'p1' is nan"


def test_a_block_without_a_number_says_nothing_to_the_gate_of_interpolation():
    blocks = [[2.0, 1.0], [NAN, NAN], [2.0, 1.5]]
    assert (
        simplest_near_best(blocks, [4, 4, 4], 1.0)
        == simplest_near_best([blocks[0], blocks[2]], [4, 4], 1.0)
        == 1
    )
    assert simplest_near_best([[2.0, 1.0], [2.0, NAN]], [4, 4], 0.0) == 0, (
        "a model that broke is not taken"
    )


class Task(SimpleNamespace):
    lower_is_better = frozenset({"loss"})


@pytest.mark.parametrize("spoilt", [NAN, INF])
def test_a_model_that_broke_has_the_worst_number(spoilt):
    outputs = torch.tensor([0.0, spoilt])
    scores = {"loss": NAN, "auc": NAN, "hits": 0.5}
    assert broken(Task(), scores, outputs) == {"loss": INF, "auc": -INF, "hits": 0.5}
    assert broken(Task(), scores, {"logits": outputs})["auc"] == -INF
    kept = broken(Task(), scores, torch.zeros(2))
    assert math.isnan(kept["auc"])
    assert math.isnan(kept["loss"])


def test_a_model_that_broke_is_not_left_out():
    people = {**THREE, "p1": -INF}
    assert summary(people, False, None)["mean"] == -INF
    assert np.isnan(interval(people.values())).all()
    found = fairness(people, False, {**THREE, "p1": 0.6})
    assert (found.worst_person, found.most_harmed, found.harmed) == ("p1", "p1", 0.25)
    assert fairness(THREE, False, {"p0": INF}).harmed is None


def auc(outputs, target):
    """NaN where one class is missing, as libraries have it."""
    ranks, ones = outputs.softmax(1)[:, 1], target == 1
    return (ranks[ones][:, None] > ranks[~ones]).float().mean()


@pytest.fixture(scope="module")
def runs():
    draw = np.random.default_rng(0)
    people = {
        f"p{i}": {"x": (x := draw.normal(size=(60, 4))), "y": (x[:, 0] > 0)} for i in range(4)
    }
    people = {p: {**own, "y": own["y"].astype(int)} for p, own in people.items()}
    people["p1"]["y"][:] = 0
    given = vg.Federation.from_arrays(people)
    task = vg.task_from(lambda: nn.Linear(4, 2), cross_entropy, {"auc": auc}, False)
    methods = vg.methods.FedAvg(), vg.methods.LocalOnly(), vg.methods.Ditto()
    return [vg.train(m, task, given, rounds=2, evaluate_every=1, progress=False) for m in methods]


def test_tables_of_a_run_and_of_a_comparison_agree(runs):
    run, compared = runs[0], vg.compare(*runs)
    assert math.isnan(run.scores.loc["p1", "auc"])
    three = run.scores.auc.dropna()
    assert run.summary.loc["auc", "mean"] == pytest.approx(three.mean())
    assert float(compared.table.loc["fedavg", "auc"]) == pytest.approx(three.mean())
    assert run.history.auc.iloc[-1] == pytest.approx(three.mean())
    fair = compared.fairness.set_index("row").loc["fedavg"]
    assert (fair.best, fair.worst) == pytest.approx((three.max(), three.min()))
    assert set(compared.tests.people) == {3}
    assert "over 3 people" in str(compared.parts["ranks"][0].heading)


def test_the_person_is_named_once(runs):
    line = "p1: no auc (NaN), left out of it"
    assert divergence_notes(runs[0].record) == [line]
    for shown in (repr(runs[0]), repr(vg.compare(*runs)), runs[0]._repr_html_()):
        assert shown.count("no auc (NaN)") == 1


def test_figures_and_the_report_are_drawn(runs):
    assert runs[0].report().is_file()
    for name in ("persons", "slope"):
        assert vg.compare(*runs).figure(name).figure is not None
    Console(file=io.StringIO()).print(runs[0])
