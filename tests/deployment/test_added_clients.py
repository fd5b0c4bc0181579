"""A client that was added later: the round it joins in, its data, and where it is waited for."""

import json

import pytest

from vergence.deployment.folder_setup import first_free_round
from vergence.deployment.folders import ServerSide
from vergence.deployment.server_run import read_sample_counts, with_joins
from vergence.errors import StateError
from vergence.experiment.run import start
from vergence.experiment.schema import check

TABLE = {
    "task": {"name": "toy"},
    "model": {"name": "linear", "inputs": 4},
    "federation": {"name": "toy", "people": 3},
    "method": {"name": "fedavg"},
    "run": {"rounds": 3, "checkpoint_every": 2},
}


def rounds(number):
    return check({**TABLE, "run": {**TABLE["run"], "rounds": number}})


def test_a_client_joins_after_every_round_that_may_have_begun(tmp_path):
    """Three rounds are done and saved; with a checkpoint every 2, round 5 may have begun."""
    assert first_free_round(rounds(8), tmp_path) == 0
    start(rounds(3), tmp_path)
    with pytest.raises(StateError, match="finished"):
        first_free_round(rounds(8), tmp_path)
    (tmp_path / "results.json").unlink()
    assert first_free_round(rounds(6), tmp_path) == 5
    with pytest.raises(StateError, match="no round left"):
        first_free_round(rounds(5), tmp_path)


def test_without_checkpoints_nobody_joins_what_has_begun(tmp_path):
    table = {**TABLE, "run": {"rounds": 3, "checkpoint_every": 0}}
    assert first_free_round(check(table), tmp_path) == 0
    start(check(table), tmp_path)
    (tmp_path / "results.json").unlink()
    with pytest.raises(StateError, match="checkpoint_every = 0"):
        first_free_round(check(table), tmp_path)


def test_until_then_it_is_not_asked(tmp_path):
    side = ServerSide(("a", "b"), "127.0.0.1:9", "run", joins={"b": 2})
    experiment = rounds(3)
    later = with_joins(experiment, tmp_path / "joins.csv", side)
    presence = later.plan.presence
    assert [presence.ask(side.clients, r, None) for r in (0, 1, 2)] == [["a"], ["a"], ["a", "b"]]
    # Its digest is compared with that of the other machines, and of the run so far.
    assert later.table == experiment.table


def test_only_added_clients_may_be_missing_among_the_counts(tmp_path):
    file = tmp_path / "members.json"
    file.write_text(json.dumps({"a": 5}))
    assert read_sample_counts(file, ("a", "b"), {"b": 2}) == {"a": 5}
    with pytest.raises(StateError, match="does not name 'b'"):
        read_sample_counts(file, ("a", "b"), {"c": 2})
