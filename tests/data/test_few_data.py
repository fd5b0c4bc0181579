"""Few training samples: how many, which, of whom, and what stays whole."""

import pytest
import torch

from tests.cli.commands import SEVERAL, TOY, vergence, write
from vergence.core.federation import Population
from vergence.data.few_data import FewSamples
from vergence.data.saliency.osie import Osie
from vergence.data.synthetic.crowd import Crowd
from vergence.data.synthetic.toy import Toy
from vergence.errors import ConfigError, DataError
from vergence.experiment.schema import load
from vergence.experiment.validation import validate
from vergence.studies import skew
from vergence.studies.trials import on_validation

TOYS = Toy(people=3)


def inputs(federation, person):
    return {tuple(row) for row in federation.people[person].train.columns["x"].tolist()}


def test_a_larger_draw_holds_the_smaller_one_and_each_person_has_an_own_one():
    whole = TOYS.load()
    five, ten = (FewSamples(count).apply(whole) for count in (5, 10))
    for person in whole.clients:
        assert len(inputs(five, person)) == 5
        assert len(inputs(ten, person)) == 10
        assert inputs(five, person) < inputs(ten, person) < inputs(whole, person)
    assert inputs(FewSamples(5, seed=1).apply(whole), "p00") != inputs(five, "p00")
    places = {
        person: [
            whole.people[person].train.columns["x"].tolist().index(row)
            for row in five.people[person].train.columns["x"].tolist()
        ]
        for person in whole.clients
    }
    assert all(rows == sorted(rows) for rows in places.values())
    assert places["p00"] != places["p01"]


def test_a_person_has_the_same_samples_whoever_else_is_there():
    whole = TOYS.load()
    alone = FewSamples(5).apply(whole.only(["p01"]))
    assert inputs(alone, "p01") == inputs(FewSamples(5).apply(whole), "p01")


def test_validation_and_test_stay():
    whole = TOYS.load()
    few = FewSamples(1).apply(whole)
    for person, splits in few.people.items():
        assert splits.val is whole.people[person].val
        assert splits.test is whole.people[person].test


def test_all_samples_are_the_same_federation():
    whole = TOYS.load()
    assert FewSamples().apply(whole) is whole


def test_pictures_stay_shared():
    whole = Osie(images=20, viewers=(0, 1), size=(64, 48)).load()
    few = FewSamples(4).apply(whole)
    for person, splits in few.people.items():
        assert len(splits.train) == 4
        (name,) = splits.train.banks
        assert splits.train.banks[name].rows is whole.people[person].test.banks[name].rows


def test_people_made_on_demand_stay_so():
    whole = Crowd(people=1000).load()
    few = FewSamples(3).apply(whole)
    assert isinstance(few.people, Population)
    assert len(few.people["c0000999"].train) == 3
    assert few.recipe != whole.recipe


def test_label_poor_people():
    few = FewSamples(11, ("p01",), 4).apply(TOYS.load())
    assert [len(splits.train) for splits in few.people.values()] == [11, 4, 11]
    only = FewSamples(label_poor=("p01",), label_poor_samples=4).apply(TOYS.load())
    assert len(only.people["p00"].train) == len(TOYS.load().people["p00"].train)
    assert "4 training samples of 1 label-poor person" in only.about["few_data"]
    two = FewSamples(label_poor=("p01", "p02")).sentence()
    assert "9 training samples of each of 2 label-poor people" in two
    assert "p01" not in only.about["few_data"] + two


def test_more_than_there_are():
    with pytest.raises(DataError, match="9999 training samples are asked for, and 'p00' has"):
        FewSamples(9999).apply(TOYS.load())


def test_unusable_numbers_and_names():
    with pytest.raises(ConfigError, match="few_data: samples_per_person must be >= 1; got 0"):
        FewSamples(0)
    with pytest.raises(ConfigError, match="label_poor names 'p09', who is not in the data"):
        FewSamples(label_poor=("p09",)).check(["p00", "p01"])


def test_a_name_that_nobody_has_is_refused_by_whatever_reads_the_data(tmp_path):
    file = write(tmp_path, SEVERAL + 'sweep = { trials = 1 }\nfew_data = { label_poor = ["p9"] }\n')
    experiment = load(file)
    for read in (experiment.load_data, experiment.federation, lambda: on_validation(experiment)):
        with pytest.raises(ConfigError, match="label_poor names 'p9', who is not in the data"):
            read()
    with pytest.raises(ConfigError, match="label_poor names 'p9', who is not in the data"):
        skew.load(str(file), None)


def test_people_do_not_give_up_samples_of_the_few_that_they_have(tmp_path):
    file = write(tmp_path, SEVERAL)
    released, few = "proxy.share=0.1", "few_data.samples_per_person=6"
    assert load(file, [released]).proxy is not None
    for sets in ([released, few], [released, 'few_data.label_poor=["p01"]']):
        with pytest.raises(ConfigError, match=r"^few_data with proxy\.share: people would give"):
            load(file, sets)


def test_of_an_experiment(tmp_path):
    file = write(tmp_path, SEVERAL)
    sets = ["few_data.samples_per_person=6"]
    found = validate(load(file, sets))
    assert {len(splits.train) for splits in found.ready.people.values()} == {6}
    assert found.sha != validate(load(file)).sha
    again = load(file, sets)
    # Data that an experiment already holds are used as they are.
    assert validate(again.on_dataset(TOYS)).sha == validate(load(file)).sha
    vergence(
        "run", file, "--out", tmp_path / "x", "--set", "few_data.samples_per_person=0"
    ).complains(2, "few_data: samples_per_person must be >= 1; got 0")
    said = vergence("run", file, "--out", tmp_path / "x", "--set", 'few_data.label_poor=["p09"]')
    said.complains(2, "label_poor", "p09")
    assert "6 training samples of each person" in vergence("explain", file, "--set", sets[0]).out


def test_a_run_keeps_its_draw(tmp_path):
    """It can be opened, resumed and verified, and does not stand beside runs of other numbers."""
    text = TOY.replace("METHODS", 'methods = ["fedavg"]')
    file = write(tmp_path, text)
    for count in (4, 8):
        out = tmp_path / f"n{count}"
        args = ("--set", f"few_data.samples_per_person={count}")
        assert vergence("run", file, "--out", out, *args).code == 0
        assert vergence("resume", out).code == 0
        assert vergence("verify", out).code == 0
    said = vergence("compare", tmp_path / "n4", tmp_path / "n8")
    said.complains(2, "data differs")
    assert torch.is_tensor(
        validate(load(out / "config.toml")).ready.people["p00"].train.columns["x"]
    )
