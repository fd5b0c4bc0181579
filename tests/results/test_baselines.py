"""Sentences on baselines: guesses, references, and learners alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.made_up_runs import write_study
from vergence.results import baselines
from vergence.results.read import StudyResults, read
from vergence.results.verdict_rules import standings


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> StudyResults:
    """Return two methods, whose means over four people are 2.15 and 2.35."""
    return read(write_study(tmp_path_factory.mktemp("study"), ("local_only", "fedavg")))


def with_alone(study: StudyResults, value: float, name: str = "kernel ridge alone") -> StudyResults:
    people = study.runs[0].people
    return replace(study, priors={name: {p: {"nss": value} for p in people}})


@pytest.mark.parametrize(
    ("value", "end"),
    [
        (3.0, "has 3.00, and is not beaten by local-only, FedAvg."),
        (2.2, "has 2.20, and is not beaten by local-only."),
        (1.0, "has 1.000; the mean of every method here is better."),
    ],
)
def test_rows_that_do_not_beat_the_learner_alone_are_named(study, value, end) -> None:
    sentence = baselines.alone_sentence(with_alone(study, value), "nss")
    assert sentence.startswith("Without training a network: kernel ridge regression of each person")
    assert sentence.endswith(end)


def test_a_guess_that_is_better_than_every_learner_alone_takes_its_place(study) -> None:
    people = study.runs[0].people
    rows = {"nearest picture": 0.7, "personal prior": 2.2, "other people": 9.0}
    priors = {name: {p: {"nss": value} for p in people} for name, value in rows.items()}
    sentence = baselines.alone_sentence(replace(study, priors=priors), "nss")
    assert sentence.startswith("Without training a network: predicting where the person looks most")
    assert sentence.endswith("has 2.20, and is not beaten by local-only.")


def test_where_less_is_better_smaller_means_beat_it(study) -> None:
    people = study.runs[0].people
    priors = {"kernel ridge alone": {p: {"kld": 1.2} for p in people}}
    sentence = baselines.alone_sentence(replace(study, priors=priors), "kld")
    assert sentence.endswith("is not beaten by local-only, FedAvg.")


def test_a_learner_alone_is_no_guess(study) -> None:
    """A method that is worse than it may have learned, and only guesses say whether it has."""
    assert baselines.alone_sentence(with_alone(study, 2.2, "centre"), "nss") == ""
    assert baselines.baseline_sentence(with_alone(study, 3.0), "nss") == ""
    for value in (1.0, 9.0):
        known = standings(with_alone(study, value), "nss")
        assert {row.learned for row in known.values()} == {None}
    assert {r.learned for r in standings(with_alone(study, 9.0, "centre"), "nss").values()} == {
        False
    }
