"""Samples of nobody's, which a server holds: of another data set, or what people gave up."""

from types import SimpleNamespace

import pytest
import torch

from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation
from vergence.core.serialization import equal_states
from vergence.deployment.client_app import AnsweringClient
from vergence.deployment.joined_node import deployable
from vergence.engine.client_executor import public_data
from vergence.errors import ConfigError, DataError
from vergence.experiment import schema as config
from vergence.experiment import validation
from vergence.experiment.public_data import ReleasedSamples


def test_a_server_that_holds_nothing_is_told_so_before_anything_is_trained():
    with pytest.raises(ConfigError, match="add proxy = "):
        public_data(Federation("bare", {}))
    people = {"name": "eye_synthetic", "people": 2, "samples": 40, "size": "9x15"}
    eyes = {
        "method": {"name": "feddf"},
        "task": {"name": "gaze_angle"},
        "model": {"name": "small_eye"},
        "federation": people,
    }
    with pytest.raises(ConfigError, match="method 'feddf': this method's server needs samples"):
        validation.validate(config.check(eyes))
    found = config.check({**eyes, "proxy": {**people, "seed": 9}})
    ready = validation.validate(found).ready
    assert "eye_synthetic" in ready.about["proxies"]
    assert sorted(ready.proxies.train.columns) == sorted(ready.people["p00"].train.columns)
    pooled = Samples.concatenate([s.train for s in ready.people.values()])
    assert not torch.equal(pooled.columns["image"], ready.proxies.train.columns["image"])
    apart = validation.validate(config.check({**eyes, "proxy": {**people, "seed": 8}}))
    assert validation.digest(ready) != apart.sha


def test_what_people_give_up_is_theirs_no_more():
    """3 of 12 and 3 of 4 samples; a share that rounds to none still gives one."""
    whole = Federation(
        "rows", {"a": splits(range(12), range(4)), "b": splits(range(12, 24), range(4, 8))}
    )
    moved = ReleasedSamples(0.25).move_to_server(whole)
    assert moved.proxies is not None
    for part, each in (("train", 3), ("val", 1)):
        held = set(getattr(moved.proxies, part).columns["x"].tolist())
        kept = [getattr(s, part).columns["x"].tolist() for s in moved.people.values()]
        assert len(held) == 2 * each
        assert all(row == sorted(row) for row in kept)
        before = [getattr(s, part).columns["x"].tolist() for s in whole.people.values()]
        assert sorted([*held, *kept[0], *kept[1]]) == sorted([*before[0], *before[1]])
    assert moved.people["a"].test is whole.people["a"].test
    assert equal_states(
        moved.proxies.train.columns,
        ReleasedSamples(0.25).move_to_server(whole).proxies.train.columns,
    )
    assert not equal_states(
        moved.proxies.train.columns,
        ReleasedSamples(0.25, 1).move_to_server(whole).proxies.train.columns,
    )
    assert len(ReleasedSamples(0.01).move_to_server(whole).proxies.train) == 2


def splits(train, val):
    return Splits(*(Samples({"x": torch.tensor(list(rows))}) for rows in (train, val, range(2))))


def test_a_deployments_people_give_up_nothing():
    toy = {
        "task": {"name": "toy"},
        "model": {"name": "linear"},
        "federation": {"name": "toy"},
        "method": {"name": "feddf"},
        "proxy": {"share": 0.1},
    }
    with pytest.raises(ConfigError, match="people of a deployment give up nothing"):
        deployable(config.check(toy))
    with pytest.raises(ConfigError, match="proxy: share must be > 0 and < 1"):
        config.check({**toy, "proxy": {"share": 1.0}})


def test_a_deployments_client_does_not_read_what_the_server_holds():
    toy = {
        "task": {"name": "toy"},
        "model": {"name": "linear"},
        "federation": {"name": "toy"},
        "method": {"name": "feddf"},
        "proxy": {"name": "osie", "root": "/nowhere"},
    }
    experiment = deployable(config.check(toy))
    with pytest.raises(DataError, match="nowhere"):
        experiment.federation()
    node = SimpleNamespace(experiment=experiment, names_in_data=lambda _: {"anna": "p01"})
    found = AnsweringClient.read_own_data(node)  # type: ignore[arg-type]
    assert list(found.people) == ["anna"]
