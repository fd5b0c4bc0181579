"""Interrupted anywhere, resumed to the same bits."""

import json

import pytest

from tests.cli.commands import ONE, SEVERAL, go_on, run, vergence, write
from tests.engine.toys import LOCAL, Interrupt, left_behind, run_toy, untimed
from vergence.core import files
from vergence.core.conversation import aggregate
from vergence.engine.storage.run_directory import RunDirectory, read_manifest
from vergence.errors import PartialRun
from vergence.experiment import run as running
from vergence.methods.centralised import Centralised
from vergence.methods.fedavg_ft import FedAvgFT
from vergence.methods.fedcpf import FedCPF
from vergence.methods.local_only import LocalOnly

WRITERS = (
    "vergence.core.files",
    "vergence.results.write",
    "vergence.experiment.checksums",
)
SEEDS = ("run.seeds=[0, 1]", "run.rounds=2", "run.evaluate_every=1")


class OnceMore(LocalOnly):
    """Local-only whose people train once more in `finish`: states change after the last round."""

    def finish(self, s, clients):
        yield from aggregate("train", to=clients)
        return s


def writes(monkeypatch, do) -> int:
    """Return how many files `do` writes whole."""
    count = Interrupt(0, after=False)
    with monkeypatch.context() as patch:
        for module in WRITERS:
            patch.setattr(f"{module}.write_whole", count)
        do()
    return -count.left


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    "method",
    [
        FedCPF(local=LOCAL, rate=0.1),
        FedAvgFT(local=LOCAL, tune_epochs=1),
        pytest.param(OnceMore(local=LOCAL), marks=pytest.mark.slow),
        pytest.param(Centralised(local=LOCAL), marks=pytest.mark.slow),
    ],
    ids=lambda m: type(m).__name__,
)
def test_a_seed_interrupted_at_any_write(tmp_path, monkeypatch, method, after):
    """Between state files, before and after the manifest, in every round and in `finish`."""
    plan = {"rounds": 3, "evaluate_every": 1, "inputs": 99}
    whole = tmp_path / "whole"
    count = writes(monkeypatch, lambda: run_toy(whole, method, **plan))
    outcome, tables = run_toy(tmp_path / "again", method, **plan), untimed(whole)
    assert count >= 4 * 3
    for k in range(1, count + 1):
        path = tmp_path / str(k)
        with monkeypatch.context() as patch:
            patch.setattr(files, "write_whole", Interrupt(k, after))
            with pytest.raises(KeyboardInterrupt):
                run_toy(path, method, **plan)
        if after and k == count:
            assert read_manifest(path)["done"]["0"]["fingerprint"] == outcome.fingerprint
            continue
        assert run_toy(path, method, **plan).fingerprint == outcome.fingerprint, k
        assert untimed(path) == tables, k


def test_a_seed_interrupted_at_any_row_of_its_tables(tmp_path, monkeypatch):
    """Half of the rows are already written when it stops: they are cut off again."""
    method, honest = FedCPF(local=LOCAL, rate=0.2), RunDirectory.append
    outcome = run_toy(tmp_path / "whole", method)
    for k in range(1, 10):
        left = iter(range(k - 1, -1, -1))

        def append(self, name, rows, left=left):
            rows = list(rows)
            if next(left, -1) == 0:
                honest(self, name, rows[: len(rows) // 2])
                raise KeyboardInterrupt
            honest(self, name, rows)

        with monkeypatch.context() as patch:
            patch.setattr(RunDirectory, "append", append)
            with pytest.raises(KeyboardInterrupt):
                run_toy(tmp_path / str(k), method)
        assert run_toy(tmp_path / str(k), method).fingerprint == outcome.fingerprint
        assert untimed(tmp_path / str(k)) == untimed(tmp_path / "whole")


def test_checkpoints_may_be_rarer_than_rounds(tmp_path, monkeypatch):
    method, plan = FedCPF(local=LOCAL, rate=0.2), {"rounds": 7, "checkpoint_every": 3}
    outcome = run_toy(tmp_path / "whole", method, **plan)
    for k in (2, 6, 9, 12):
        with monkeypatch.context() as patch:
            patch.setattr(files, "write_whole", Interrupt(k, after=False))
            with pytest.raises(KeyboardInterrupt):
                run_toy(tmp_path / str(k), method, **plan)
        assert run_toy(tmp_path / str(k), method, **plan).fingerprint == outcome.fingerprint
        assert untimed(tmp_path / str(k)) == untimed(tmp_path / "whole")


# --- whole runs, as the command does them


@pytest.mark.parametrize("after", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_run_interrupted_at_any_write_leaves_the_same_behind(tmp_path, monkeypatch, after):
    """Two seeds: states, tables, masks, personal share and results are those of a whole run."""
    count = writes(monkeypatch, lambda: run(tmp_path, ONE, *SEEDS, out="whole"))
    whole = left_behind(tmp_path / "whole")
    for k in range(2 + after, count, 2):  # config.toml is the first: without it nothing began
        with monkeypatch.context() as patch:
            stop = Interrupt(k, after)
            for module in WRITERS:
                patch.setattr(f"{module}.write_whole", stop)
            with pytest.raises((KeyboardInterrupt, PartialRun)):
                run(tmp_path, ONE, *SEEDS, out=str(k))
        go_on(tmp_path / str(k))
        assert left_behind(tmp_path / str(k)) == whole, k
        assert vergence("verify", tmp_path / str(k)).code == 0


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_the_first_files_of_several_methods_may_be_the_last(tmp_path, monkeypatch, k, after):
    """Stamp, config, priors: the run can either be resumed or begun again, never neither."""
    with monkeypatch.context() as patch:
        stop = Interrupt(k, after)
        for module in WRITERS:
            patch.setattr(f"{module}.write_whole", stop)
        with pytest.raises((KeyboardInterrupt, PartialRun)):
            run(tmp_path, SEVERAL)
    out = tmp_path / "out"
    if (out / "config.toml").exists():
        go_on(out)
    else:
        run(tmp_path, SEVERAL)
    assert vergence("verify", out).code == 0


def test_resuming_a_finished_run_does_nothing(tmp_path, monkeypatch):
    out = run(tmp_path, SEVERAL)

    def files():
        return {
            p: (p.stat().st_mtime_ns, p.read_bytes())
            for p in out.rglob("*")
            if p.is_file() and p.name != ".lock"
        }

    before = files()
    monkeypatch.setattr(running, "validate", None)  # not even the data is read
    go_on(out)
    assert files() == before


def test_resuming_an_index_finishes_only_what_is_missing(tmp_path, monkeypatch):
    """Stopped in the second of three methods: the first stays, the others are done."""
    whole = run(tmp_path, SEVERAL, out="whole")
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(files, "write_whole", Interrupt(22, after=False))
        with pytest.raises(PartialRun, match=r"interrupted.*vergence resume"):
            run(tmp_path, SEVERAL)
    assert (out / "local_only" / "results.json").exists()
    assert not (out / "fedavg" / "results.json").exists()
    assert [r["label"] for r in json.loads((out / "index.json").read_text())["runs"]] == [
        "local_only"
    ]
    vergence("compare", out / "fedavg").complains(2, "no results", "vergence resume")
    kept = (out / "local_only" / "people.csv").stat().st_mtime_ns
    go_on(out)
    assert (out / "local_only" / "people.csv").stat().st_mtime_ns == kept
    assert left_behind(out) == left_behind(whole)


@pytest.mark.slow
def test_a_method_directory_can_be_resumed_by_itself_and_the_rest_later(tmp_path, monkeypatch):
    """Then harm is still judged against local-only once everything is there."""
    whole = run(tmp_path, SEVERAL, out="whole")
    with monkeypatch.context() as patch:
        patch.setattr(files, "write_whole", Interrupt(25, after=False))
        with pytest.raises(PartialRun):
            run(tmp_path, SEVERAL)
    go_on(tmp_path / "out" / "fedavg")
    go_on(tmp_path / "out")
    folders = (whole / "fedavg", tmp_path / "out" / "fedavg")
    told = [json.loads((folder / "results.json").read_text()) for folder in folders]
    assert told[0]["harmed_vs_local"] == told[1]["harmed_vs_local"] is not None
    assert vergence("verify", tmp_path / "out").code == 0


def test_a_run_that_never_began_can_be_started_again(tmp_path, monkeypatch):
    """Stopped while the data was read: there is no config yet, and --out is still free."""
    with monkeypatch.context() as patch:

        def stop(*_):
            raise KeyboardInterrupt

        patch.setattr(running, "validate", stop)
        said = vergence("run", write(tmp_path, SEVERAL), "--out", tmp_path / "out")
    said.complains(5, "interrupted")
    vergence("resume", tmp_path / "out").complains(2, "holds no run", "vergence run")
    run(tmp_path, SEVERAL)
