"""Tables of the AP-FL chapter: both tests, who was away, friends, and who has which classes."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from vergence_papers.apfl import protocol as two_tests
from vergence_papers.apfl import untrained as class_partition
from vergence_papers.apfl.checks import findings
from vergence_papers.apfl.protocol import AS_PRINTED, AWAY, COMMON, HARMONIC, TUNED

from tests.data.images.test_fashion_mnist import fill
from tests.papers.claims import better
from tests.papers.test_command import console, said
from vergence.data.images.partition import TABLE_3_1
from vergence.errors import ConfigError
from vergence.experiment.schema import check
from vergence.results.read import read
from vergence_papers import command as app
from vergence_papers import figures
from vergence_papers.claims import PaperTable, TablePart
from vergence_papers.data_sets import GROUNDS
from vergence_papers.outcome import claims
from vergence_papers.printed import table_parts
from vergence_papers.running import Wish, plan
from vergence_papers.verdicts import Evidence, judge, printed_on

FASHION = GROUNDS["fashion_mnist"]
PARTS = table_parts("apfl")
SMALL = (
    "federation.take=1.0",
    "federation.take_test=1.0",
    'model={name="softmax", image=[1,14,14]}',
    "local.steps=1",
    "run.workers=1",
)
FEW = (
    'methods=["fedavg",{name="ap_fl",passes=1,samples=10,tune_epochs=1,beta=0.25,'
    'beta_literal=true,friend_classes="all",tune_own=true}]'
)
OWN, POOLED = "accuracy", "pooled_accuracy"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return str(fill(tmp_path_factory.mktemp("fashion")))


@pytest.fixture(scope="module")
def wish(root):
    return Wish(root=root, seeds=2, rounds=1, sets=(*SMALL, FEW))


def spelt(name):
    """Return a part whose names of classes are spelt: vectors of language need another package."""
    entries = [{**entry, "semantics": "names"} for entry in PARTS[name].methods]
    return replace(PARTS[name], methods=entries)


@pytest.fixture(scope="module")
def away(wish, tmp_path_factory):
    """Return the folder and outcome of Table 3.3, with two methods, at 20 % missing classes."""
    out = tmp_path_factory.mktemp("away")
    planned = plan(spelt("away_20"), FASHION, wish)
    return planned, out, app.run_parts([planned], out)


@pytest.mark.slow
def test_scores_are_over_partitions(wish, tmp_path):
    part = spelt("dirichlet_10_01")
    planned = plan(part, FASHION, wish)
    assert planned.experiment is not None
    (found,) = app.run_parts([planned], tmp_path).values()
    label = "fedavg (10 people, alpha 0.1)"
    assert list(found.scores[label][OWN]) == list(found.scores[label][POOLED])
    assert list(found.scores[label][POOLED]) == ["seed 0", "seed 1"]
    for seed in (0, 1):
        study = read(tmp_path / part.name / f"partition{seed}")
        assert f"split_seed = {seed}\n" in study.run("ap_fl").config
        for row, name in ((AS_PRINTED, "ap_fl"), (COMMON, "fedavg")):
            mine, run = found.scores[f"{row} (10 people, alpha 0.1)"], study.run(name)
            for metric in (OWN, POOLED):
                mean = np.mean(list(run.scores(metric).values()))
                assert mine[metric][f"seed {seed}"] == pytest.approx(mean), "as the run measured"
    assert set(part.rows) <= {*found.scores}
    prior = found.scores["own most frequent (10 people, alpha 0.1) (prior)"]
    assert 0 < np.mean(list(prior[POOLED].values())) < np.mean(list(prior[OWN].values()))
    assert set(prior[HARMONIC].values()) == {0.0}, "who names one class knows no others"


def test_the_harmonic_mean_is_of_own_and_of_others_classes(away):
    """10 people, 20 test images of each class: right on 2 of 20 images of own class 8 and on 6 of
    20 of own class 9, 8 / 40 = .2; on 16 of 160 others, .1: H = 2 * .2 * .1 / .3 = .13333.
    """
    planned, _, _results = away
    runs = two_tests.settle_partitions(planned.experiment, away[1] / planned.part.name)
    own = two_tests.one_seed(runs, "ap_fl", 0)
    label = own.everybody.columns["label"]
    right = torch.zeros(len(label), dtype=torch.bool)
    mine = own.saved.ready.people[AWAY].train.columns["label"].unique()
    assert mine.tolist() == [8, 9]
    ours, others = (torch.isin(label, mine) == x for x in (True, False))
    right[ours.nonzero()[: int(ours.sum()) // 5]] = True
    right[others.nonzero()[: int(others.sum()) // 10]] = True
    one, other = (right[at].float().mean() for at in (ours, others))
    scores = own.scores(right, AWAY)
    assert scores[HARMONIC] == pytest.approx(float(2 * one * other / (one + other)))
    assert own.scores(~ours, AWAY)[HARMONIC] == 0.0
    assert own.scores(ours, AWAY)[OWN] == 1.0


@pytest.mark.slow
def test_only_who_was_away_is_scored(away):
    planned, out, results = away
    (found,) = results.values()
    for seed in (0, 1):
        study = read(out / planned.part.name / f"partition{seed}")
        for row, name in ((AS_PRINTED, "ap_fl"), (COMMON, "fedavg")):
            value = found.scores[f"{row} (20 % missing)"][OWN][f"seed {seed}"]
            assert value == pytest.approx(study.run(name).scores(OWN)[AWAY])
    own = two_tests.one_seed(
        two_tests.settle_partitions(planned.experiment, out / planned.part.name), "ap_fl", 0
    )
    train = own.saved.ready.people[AWAY].train
    few, more = (own.models(AWAY, train.subset(torch.arange(n)))[TUNED] for n in (2, len(train)))
    assert not few.flat.equal(more.flat), "few images train another model"
    assert set(planned.part.rows) <= {*found.scores}
    gone = plan(spelt("away_10"), FASHION, Wish(root="x")).experiment
    assert gone is not None
    assert gone.plan.presence.back == (AWAY,)


def test_friends_of_those_there_and_of_who_was_away(away):
    planned, out, _ = away
    part = replace(planned.part, protocol="friends", suffix="")
    few = {"name": "ap_fl", "passes": 1, "samples": 10, "tune_epochs": 1, "beta": 0.25}
    few |= {"beta_literal": True, "friend_classes": "all", "tune_own": True}
    others = [few, {**few, "label": "same"}, {**few, "label": "random", "semantics": "random"}]
    experiment = check({**planned.experiment.table, "methods": others})
    (found,) = app.run_parts(
        [replace(planned, part=part, experiment=experiment)], out / "friends"
    ).values()
    row = found.scores["same"]
    assert {*found.scores} == {"same", "random"}
    assert len(found.study.runs) == 1, "one run, and generators trained after it"
    alone = check({**experiment.table, "methods": others[:1]})
    own = two_tests.one_seed(
        two_tests.settle_partitions(alone, out / "friends" / part.name), "ap_fl", 0
    )
    there = [person for person in own.saved.ready.clients if person != AWAY]
    made = [own.generator(there, **more) for more in ({}, {"semantics": "random"})]
    assert not made[0]["meaning"].equal(made[1]["meaning"])
    assert made[0]["classes"].tolist() == [1] * 8 + [0] * 2, "nobody else has classes 8 and 9"
    assert list(row[two_tests.PRESENT_OWN]) == ["seed 0", "seed 1"]
    assert list(row[two_tests.ABSENT_POOLED]) == ["seed 0", "seed 1"]


def test_ten_percent_missing_leaves_one_class_with_who_is_away():
    for name, classes in (("away_10", 9), ("away_20", 8)):
        table = PARTS[name].over(FASHION)["federation"]["table"]
        assert {n for i, row in enumerate(table) if i != 8 for n in row} == set(range(classes))
    assert tuple(map(tuple, table)) == TABLE_3_1


def verdict(scores, **images):
    table = PaperTable("apfl/none", "none", ("main",), {}, "images", (), ())
    claim = better("a beats b", "1", "a", "b")
    constant = {"chance (prior)": {seed: 0.1 for values in scores.values() for seed in values}}
    both = {label: {POOLED: values} for label, values in (scores | constant).items()}
    flat = {key: {POOLED: ((1, 2, 3), (0.4, 0.4, 0.4))} for key in scores}
    return judge(table, claim, FASHION, Evidence(both, frozenset(), {}, {}, {}, flat, images))


def test_a_verdict_over_seeds_says_so(away):
    """Differences .10, .11: .105 -/+ 12.706 * .00707 / sqrt 2 is [.041, .169]. Leads over chance
    are .4, .5 and .3, .39, or four and five times chance; over three standard errors of 400 test
    images, .045. These images add 1.96 sqrt(.55 * .45 / 400 + .445 * .555 / 400) = .069 to the
    half width: sqrt(.0635^2 + .069^2) = .094, still above 0; 100 images .137 and .151: not shown.
    """
    scores = {"a": {"seed 0": 0.5, "seed 1": 0.6}, "b": {"seed 0": 0.4, "seed 1": 0.49}}
    found = verdict(scores, **{POOLED: 400})
    assert found.word == "holds"
    assert found.differences[0].lo == pytest.approx(0.105 - 0.0937, abs=1e-3)
    assert verdict(scores, **{POOLED: 100}).word == "not shown"
    assert found.differences[0].unit == "seed"
    planned, _, results = away
    one = PaperTable("apfl/none", "none", ("main",), {}, "images", (planned.part,), ())
    told = app.gather(one, FASHION, Wish(root="x", seeds=2), [planned], results)
    _, ((_, _, word, gain, _, units, _, _),) = claims(replace(told, verdicts=(found,)))
    assert (word, gain.partition(" ")[0], units) == ("holds", "+10.50", "2 of 2 seeds")
    alone = verdict({"a": {"seed 0": 0.5}, "b": {"seed 0": 0.4}})
    assert alone.reason == "one seed: nothing is known about the spread over seeds"
    alike = {"a": {"seed 0": 0.6, "seed 1": 0.6}, "b": {"seed 0": 0.5, "seed 1": 0.5}}
    assert verdict(alike).word == "not testable here", "an interval without width"
    assert verdict(alike).reason.startswith("all 2 seeds differ alike")
    assert verdict(alike, **{POOLED: 4000}).word == "holds", "the test's images are a sample"


def test_only_the_printed_numbers_of_ones_own_data_set_stand_beside():
    table = app.TABLES["apfl/table3.2"]
    assert list(printed_on(table, GROUNDS["cifar10"])) == ["CIFAR10"]
    assert printed_on(table, FASHION) == {}, "those of Fashion-MNIST are of no known partition"
    row = printed_on(table, GROUNDS["emnist"])["EMNIST"]["ap_fl (10 people, alpha 0.01)"]
    assert row[0] == 82.48


def test_semantics_that_are_not_here_are_named():
    wanted = plan(PARTS["semantics"], FASHION, Wish(root="x"))
    assert "clip.npz" in wanted.missing["ap_fl_clip"]
    assert wanted.experiment is not None
    assert {"ap_fl_random", "ap_fl_names"} <= set(wanted.experiment.methods)


def test_the_partition_is_dealt_and_drawn(root, tmp_path):
    where = console()
    wish = Wish(root=root, sets=("federation.take=1.0",))
    assert app.reproduce(["apfl/table3.1"], where, wish=wish, out=tmp_path) == []
    record = json.loads((tmp_path / "apfl/table3.1/verdicts.json").read_text())
    assert [claim["verdict"] for claim in record["claims"]] == ["holds"] * 10
    assert record["claims"][8]["ours"].startswith("Bag ")
    assert (tmp_path / "apfl/table3.1/table3.1.png").stat().st_size > 5000
    assert "10 hold, 0 contradicted" in said(where)
    names = "abcdefghij"
    swapped = {
        f"p{i}": {name: int(at in row) for at, name in enumerate(names)}
        for i, row in enumerate(reversed(TABLE_3_1))
    }
    records = class_partition.compare(class_partition.TABLES[0], swapped)
    words = [record["verdict"] for record in records]
    assert words.count("contradicted") == 8, "the first and the last have the same"
    with pytest.raises(ConfigError, match="cannot run on 'osie'"):
        app.reproduce(["apfl/table3.1"], where, on="osie", out=tmp_path)


def test_a_curve_ends_with_the_common_model_as_it_was_after_the_last_round(away, monkeypatch):
    """AP-FL goes on after the rounds, so its run has measured no common model after them."""
    ((_, result),) = away[2].items()
    run = result.study.run("ap_fl")
    scores = {"base": {OWN: {"seed 0": 0.5, "seed 1": 0.7}, HARMONIC: {"seed 0": 0.1}}}
    based = replace(result, scores=scores, base="base")
    curves = {OWN: ([0], [0.4])}
    monkeypatch.setattr(app, "training_curve", lambda _, metric: curves.get(metric, ([], [])))
    last = run.results["rounds"]
    found = app.curves_of(based, run, [OWN, HARMONIC])
    assert found == {OWN: ([0, last], [0.4, pytest.approx(0.6)])}, "H has no curve"
    curves[OWN] = ([0, last], [0.4, 0.5])
    assert app.curves_of(based, run, [OWN]) == {OWN: ((0, last), [0.4, 0.5])}, "measured there"


def test_curves_are_of_methods_that_all_partitions_have(away):
    planned, _, results = away
    ran = next(iter(results.values()))
    other = TablePart("other", [], planned.part.protocol, suffix=" (other)")
    table = replace(app.TABLES["apfl/fig3.4"], parts=(planned.part, other))
    fewer = replace(ran, study=replace(ran.study, runs=ran.study.runs[:1]))
    found = app.gather(table, FASHION, Wish(root="x", seeds=2), [planned], results)
    both = {**results, (other.name, other.protocol): fewer}
    figure = figures.rounds(replace(found, table=table, results=both))
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["20 % missing", "other"]
    assert [len(axes.lines) for axes in figure.axes] == [1, 1]


def test_friends_are_drawn_by_noise_and_by_samples(away):
    planned, _, results = away
    table = app.TABLES["apfl/fig3.5"]
    entries = PARTS["generator"].methods[1:]
    scores = {
        entry["label"]: {two_tests.PRESENT_OWN: {"a": 0.5, "b": 0.25 + entry["noise"] / 1e4}}
        for entry in entries
    }
    found = app.gather(table, FASHION, Wish(root="x", seeds=2), [planned], results)
    shown = replace(
        found,
        table=replace(table, columns=("A_n",)),
        evidence=Evidence(scores, frozenset(), {}, {}),
    )
    left, right = figures.generator(shown).axes
    assert np.asarray(left.lines[0].get_xdata()).tolist() == [20, 100, 400, 512]
    assert np.asarray(right.lines[0].get_xdata()).tolist() == [50, 200, 600, 1000]
    assert np.asarray(left.lines[0].get_ydata())[0] == pytest.approx(100 * (0.5 + 0.252) / 2)


def test_the_printed_numbers_do_not_fit_the_test_described():
    """Of ten classes Dirichlet(0.01) gives the largest 94 % on average; 15.76 % is not of these."""
    found = findings()
    assert not found[0].ok
    assert "94 %" in found[0].computed
    best = next(f for f in found if "surpasses most" in f.says)
    assert best.computed.startswith("18 of 20 rows; EMNIST, 5 people, alpha 0.1: scaffold 91.88")
    clip = next(f for f in found if "CLIP" in f.says)
    assert "CIFAR10 A_d: BERT 51.63, CLIP 49.79" in clip.computed


def test_classes_are_called_what_their_data_call_them():
    """What is resolved is written down; names that are given stay."""
    table = {
        "task": {"name": "images"},
        "model": {"name": "softmax"},
        "federation": {"name": "fashion_mnist"},
        "method": {"name": "fedavg"},
    }
    found = check(table)
    assert found.table["task"]["names"][8:] == ["Bag", "Ankle boot"]
    assert found.task(0).class_names()[0] == "T-shirt/top"
    given = {**table, "task": {"name": "images", "names": list("abcdefghij")}}
    assert check(given).task(0).class_names()[0] == "a"
    assert "names" not in table["task"]
