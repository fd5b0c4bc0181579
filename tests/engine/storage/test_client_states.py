"""Client states on disk: which files there are, and what an interruption leaves of them."""

import hashlib

import pytest

from tests.engine.toys import LOCAL, run_toy, table
from tests.engine.turns import watch_turns
from vergence.core import files
from vergence.engine import round_loop
from vergence.engine.participation import Participation
from vergence.engine.storage import state_journal
from vergence.errors import StateError
from vergence.methods.fedavg_ft import FedAvgFT
from vergence.methods.fedcpf import FedCPF

METHOD = FedCPF(local=LOCAL, rate=0.2)
PLAN = {"people": 8, "rounds": 6, "presence": Participation(cohort=3), "checkpoint_every": 2}


@pytest.mark.parametrize("every", [0, 1, 2])
def test_every_file_is_somebody_s_state_or_spare_after_every_round(tmp_path, monkeypatch, every):
    """Also where a reply was quarantined: its client's file stays, and no spare is lost."""
    honest_round = round_loop.RoundLoop.one_round
    looked = []

    def spoil(task, sealed):
        if (task.client, task.message.round) == ("p02", 3):
            sealed.trees["model"].total.flat[0] = float("nan")

    def one_round(self, at, server):
        server = honest_round(self, at, server)
        registry = self.exchange.clients
        mine = [entry.file for entry in registry.filed.values()]
        named = [*mine, *registry.passed, *registry.spares]
        there = {p.name for p in (tmp_path / "state").glob("*.client.*")}
        assert len(named) == len(set(named))
        assert set(named) == there
        looked.append(at)
        return server

    watch_turns(monkeypatch, spoil)
    monkeypatch.setattr(round_loop.RoundLoop, "one_round", one_round)
    plan = {**PLAN, "presence": Participation(), "checkpoint_every": every}
    outcome = run_toy(tmp_path, METHOD, **plan)
    assert looked == list(range(6))
    left = {p.name for p in (tmp_path / "state").glob("*.client.*")}
    assert left == {entry.file for entry in outcome.clients.filed.values()}
    assert [t["client"] for t in table(tmp_path, "turns.csv") if t["status"] != "ok"] == ["p02"]


@pytest.mark.slow
def test_the_table_of_clients_is_written_anew_when_it_grows_long(tmp_path, monkeypatch):
    """And a run that is interrupted at any write goes on from the new one."""
    plain = run_toy(tmp_path / "plain", METHOD, **PLAN)
    monkeypatch.setattr(state_journal, "SLACK", 0)
    plan = {**PLAN, "rounds": 12}
    long = run_toy(tmp_path / "long", METHOD, **plan)
    (name,) = [p.name for p in (tmp_path / "long" / "state").glob("*.csv")]
    assert name != "seed0.clients.0.csv"
    assert run_toy(tmp_path / "again", METHOD, **PLAN).fingerprint == plain.fingerprint
    for k in range(3, 45, 7):
        with monkeypatch.context() as patch:
            patch.setattr(files, "write_whole", Torn(k))
            with pytest.raises(KeyboardInterrupt):
                run_toy(tmp_path / str(k), METHOD, **plan)
        assert run_toy(tmp_path / str(k), METHOD, **plan).fingerprint == long.fingerprint, k


class Torn:
    """Stop like a kill -9 in the middle of the `at`-th write: half of the file is written over."""

    def __init__(self, at):
        self.left, self.honest = at, files.write_whole

    def __call__(self, path, *chunks, lasting=False):
        self.left -= 1
        if self.left:
            return self.honest(path, *chunks, lasting=lasting)
        part, whole = files.part_of(path), b"".join(chunks)
        with part.open("r+b" if part.exists() else "wb") as file:
            file.write(whole[: len(whole) // 2])
        raise KeyboardInterrupt


@pytest.mark.parametrize("k", range(2, 40, 3))
def test_a_state_torn_in_the_middle_of_a_write_does_no_harm(tmp_path, monkeypatch, k):
    whole = run_toy(tmp_path / "whole", METHOD, **PLAN)
    with monkeypatch.context() as patch:
        patch.setattr(files, "write_whole", Torn(k))
        try:
            run_toy(tmp_path / "torn", METHOD, **PLAN)
        except KeyboardInterrupt:
            pass
        else:
            pytest.skip("fewer files are written")
    assert run_toy(tmp_path / "torn", METHOD, **PLAN).fingerprint == whole.fingerprint


def test_a_client_that_keeps_nothing_has_no_file(tmp_path):
    """FedAvg with fine-tuning keeps nothing before `finish`."""
    seen = []
    honest = round_loop.RoundLoop.one_round

    def one_round(self, at, server):
        server = honest(self, at, server)
        seen.append(len(self.exchange.clients))
        return server

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(round_loop.RoundLoop, "one_round", one_round)
        outcome = run_toy(tmp_path, FedAvgFT(local=LOCAL, tune_epochs=1))
    assert set(seen) == {0}
    assert len(outcome.clients) == 3


def test_a_table_of_clients_is_never_made_longer(tmp_path):
    """A length beyond the file's end is refused, not filled up with zeros."""
    run_toy(tmp_path, FedCPF(local=LOCAL), rounds=2)
    (path,) = (tmp_path / "state").glob("seed0.clients.*.csv")
    data = path.read_bytes()
    mark = state_journal.JournalPosition(path.name, len(data) + 1, hashlib.sha256(data).hexdigest())
    with pytest.raises(StateError, match=r"shorter than its checkpoint says"):
        state_journal.StateJournal.reopen(path.parent, 0, mark)
    assert path.read_bytes() == data
