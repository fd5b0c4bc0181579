"""The crowd: the same people in any order and any size, a digest that makes nobody else."""

import pytest
import torch

from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation, Population
from vergence.core.serialization import equal_states
from vergence.data.synthetic.crowd import Crowd, check
from vergence.data.synthetic.toy import Toy
from vergence.errors import ConfigError
from vergence.experiment.validation import digest


def columns(splits):
    return [part.columns for part in (splits.train, splits.val, splits.test)]


def test_a_person_does_not_depend_on_who_else_there_is_or_was_asked_before():
    many, few = Crowd().load(), Crowd(people=5).load()
    backwards = {c: columns(many.people[c]) for c in reversed(few.clients)}
    for client in few.clients:
        assert equal_states(columns(few.people[client]), backwards[client])
    assert not equal_states(backwards["c0000000"], backwards["c0000001"])
    other = Crowd(seed=1).load().people["c0000000"]
    assert not equal_states(columns(other), backwards["c0000000"])


def test_sizes_and_split():
    """20 samples of 4 inputs: 12 / 4 / 4."""
    federation = Crowd().load()
    assert len(federation.clients) == 1_000_000
    found = [(len(c["y"]), tuple(c["x"].shape)) for c in columns(federation.people["c0999999"])]
    assert found == [(12, (12, 4)), (4, (4, 4)), (4, (4, 4))]
    assert "60/20/20" in federation.about["split"]


def test_people_weigh_the_same_inputs_differently():
    """Least squares over 400 samples finds the coefficients to 0.1 / sqrt(240); noise aside, two
    people differ by sqrt(2) * strength, and alike people not at all."""

    def weights(strength, client):
        part = Crowd(samples=400, strength=strength).load().people[client].train.columns
        return torch.linalg.lstsq(part["x"], part["y"][:, None]).solution

    apart = [
        float((weights(s, "c0000000") - weights(s, "c0000001")).norm()) for s in (0.0, 1.0, 10.0)
    ]
    assert apart[0] < 0.1
    assert apart[1] == pytest.approx(apart[2] / 10, rel=0.1)
    assert apart[1] > 0.3


def test_bad_options_are_named():
    with pytest.raises(ConfigError, match=r"crowd: people must be >= 1 and <= 1e\+07; got 0"):
        Crowd(people=0)
    with pytest.raises(ConfigError, match="crowd: samples must be >= 5; got 4"):
        Crowd(samples=4)


def test_the_digest_is_that_of_the_recipe_and_of_two_people():
    made = []

    def make(number):
        made.append(number)
        part = Samples({"x": torch.full((3,), float(number))})
        return Splits(part, part, part)

    def told(count, recipe, make=make):
        return digest(Federation("f", Population(count, make, recipe)))

    first = told(1_000_000, "a")
    assert made == [0, 999_999]
    assert first == told(1_000_000, "a")
    other = Crowd(people=1).load().people["c0000000"]
    assert (
        len({first, told(1_000_000, "b"), told(999_999, "a"), told(10**6, "a", lambda _: other)})
        == 4
    )


def test_every_option_of_a_crowd_is_in_its_digest():
    changes = [{}, {"people": 999}, {"samples": 21}, {"inputs": 5}, {"strength": 2.0}, {"seed": 1}]
    assert len({digest(Crowd(**change).load()) for change in changes}) == len(changes)


def test_the_digest_of_held_people_is_still_that_of_everything():
    """Change one number of the middle of three people."""
    federation = Toy(people=3).load()
    before = digest(federation)
    federation.people["p01"].val.columns["y"][2] += 1
    assert digest(federation) != before


def test_check_looks_at_the_last_person_only():
    assert [(c.what, c.actual, c.ok) for c in check()] == [
        ("people", "1,000,000", True),
        ("samples of the last person", "20", True),
    ]
