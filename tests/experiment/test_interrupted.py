"""Run directories that are taken, full, interrupted or orphaned: one clear line, nothing lost."""

import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import vergence as vg
from tests.cli.commands import ONE, SEVERAL, Said, go_on, run, vergence, write
from vergence.engine.storage.run_directory import read_manifest
from vergence.errors import PartialRun
from vergence.experiment.nothing_learned import refuse_unlearned
from vergence.experiment.run import locked
from vergence.experiment.schema import load
from vergence.results.read import read
from vergence.results.write import write_index


def prints(out, label="."):
    return {s: d["fingerprint"] for s, d in read_manifest(out / label)["done"].items()}


def tree(out):
    return {p: p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file() and p.name != ".lock"}


def test_two_runs_into_one_directory_one_after_the_other(tmp_path):
    out = run(tmp_path, ONE)
    before = tree(out)
    said = vergence("run", write(tmp_path, ONE), "--out", out)
    said.complains(2, "holds a run already", f"vergence resume {out}", "--out")
    assert tree(out) == before


def test_the_command_goes_on_with_a_finished_run_without_reading_its_data(tmp_path, monkeypatch):
    out = run(tmp_path, ONE)

    def reads(_):
        raise AssertionError("the data of a finished run need not be there any more")

    monkeypatch.setattr("vergence.experiment.run.validate", reads)
    said = vergence("resume", out)
    assert said.code == 0, said.err


def test_turns_of_a_seed_that_was_not_asked_for_are_no_damage(tmp_path):
    out = run(tmp_path, ONE)
    plan = load(out / "config.toml", ["run.seeds=[1]"]).plan
    with pytest.raises(PartialRun, match="seed 1: nobody's reply counted"):
        refuse_unlearned({"fedcpf": out}, plan)


@pytest.mark.parametrize("taken", [".", "fedcpf"])
def test_two_runs_into_one_directory_at_the_same_time(tmp_path, taken):
    """The whole OUT, or one method's directory in it, is being written by another process."""
    here, there = multiprocessing.Pipe()

    def hold():
        with locked(tmp_path / "out" / taken):
            there.send("held")
            there.recv()

    other = multiprocessing.get_context("fork").Process(target=hold)
    other.start()
    assert here.recv() == "held"
    said = vergence("run", write(tmp_path), "--out", tmp_path / "out")
    here.send("go")
    other.join()
    said.complains(2, "another run is writing", "--out")
    if taken == ".":
        assert not (tmp_path / "out" / "config.toml").exists()
    else:
        go_on(tmp_path / "out")


def test_out_with_other_files_in_it_is_left_alone(tmp_path):
    out = tmp_path / "thesis"
    out.mkdir()
    (out / ".gitkeep").touch()
    (out / "chapter.tex").write_text("precious")
    before = tree(out)
    said = vergence("run", write(tmp_path, ONE), "--out", out)
    said.complains(
        2, "holds no run, and chapter.tex: nothing is written", "--out, or out= in Python"
    )
    toy = vg.tasks.ToyTask(vg.models.Linear(4))
    for resume in (False, True):
        with pytest.raises(vg.StateError, match=r"holds no run, and chapter\.tex"):
            vg.train(vg.methods.FedAvg(), toy, vg.data.Toy(), out=out, resume=resume)
    assert tree(out) == before
    (out / "chapter.tex").unlink()
    assert vergence("run", write(tmp_path, ONE), "--out", out).code == 0


def test_out_that_is_a_file(tmp_path):
    (tmp_path / "out").write_text("precious")
    vergence("run", write(tmp_path), "--out", tmp_path / "out").complains(2, "is a file", "--out")
    assert (tmp_path / "out").read_text() == "precious"


def with_little_disk(limit: int, *args: object) -> Said:
    """Run the command in a child process that cannot write files of more than `limit` bytes."""
    here, there = multiprocessing.Pipe()

    def child():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        there.send(vergence(*args))

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    there.close()
    said = here.recv()
    process.join()
    return said


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "inputs"), [(2200, 4), (1500, 4), (20_000, 4000)])
def test_out_of_disk_while_saving(tmp_path, limit, inputs):
    """What does not fit: turns.csv in mid-run, the manifest of three clients, a client's state."""
    sets = ["run.rounds=20", f"model.inputs={inputs}", f"federation.inputs={inputs}"]
    whole = run(tmp_path, ONE, *sets)
    args = [word for change in sets for word in ("--set", change)]
    out = tmp_path / "full"
    said = with_little_disk(limit, "run", write(tmp_path, ONE), "--out", out, *args)
    said.complains(5, "cannot save to", "File too large", "make room", "vergence resume")
    assert not list(out.rglob("*.part"))
    assert 0 <= read_manifest(out)["round"] < 20
    go_on(out)
    assert prints(out) == prints(whole)
    assert vergence("verify", out).code == 0


def children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def heeding():
    """Let Ctrl-C be heard where the tests themselves run in the background and it is not."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.slow
def test_ctrl_c_keeps_the_rounds_done_and_leaves_no_process(tmp_path):
    sets = ["run.rounds=50", "run.workers=2"]
    out, args = tmp_path / "out", [word for change in sets for word in ("--set", change)]
    code = "from vergence.cli.main import main; main()"
    command = [sys.executable, "-c", code, "run", write(tmp_path, ONE), "--out", out, *args]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=heeding
    )
    turns = out / "turns.csv"
    while not turns.exists() or turns.read_text().count("\n") < 10:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    workers = children(process.pid)
    os.kill(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=30)
    Said(process.returncode, stdout, stderr).complains(5, "interrupted", f"vergence resume {out}")
    assert len(workers) == 2
    assert not any(map(alive, workers))
    assert 0 < read_manifest(out)["round"] < 50
    go_on(out)
    assert prints(out) == prints(run(tmp_path, ONE, "run.rounds=50", out="whole"))


def test_a_worker_that_dies_is_one_line_and_the_run_can_go_on(tmp_path, monkeypatch):
    """As when the system kills it for memory: the child ends itself in round 2."""
    from vergence.engine.client_executor import ClientExecutor

    honest, parent = ClientExecutor.turn, os.getpid()

    def dies(self, task, kept, batch):
        if task.message.round == 2 and os.getpid() != parent:
            os._exit(9)
        return honest(self, task, kept, batch)

    args = ["--out", tmp_path / "out", "--set", "run.workers=2"]
    with monkeypatch.context() as patch:
        patch.setattr(ClientExecutor, "turn", dies)
        said = vergence("run", write(tmp_path, ONE), *args)
    said.complains(5, "a worker process died", "run.workers = 1", "vergence resume")
    assert read_manifest(tmp_path / "out")["round"] == 2
    go_on(tmp_path / "out")
    assert prints(tmp_path / "out") == prints(run(tmp_path, ONE, out="whole"))


@pytest.mark.slow
def test_a_method_that_ended_before_its_index_was_written_is_listed(tmp_path, monkeypatch):
    honest = write_index

    def killed(out, runs, *about):
        if len(runs) == 3:
            raise KeyboardInterrupt
        honest(out, runs, *about)

    with monkeypatch.context() as patch:
        patch.setattr("vergence.results.write.write_index", killed)
        out = tmp_path / "out"
        assert vergence("run", write(tmp_path, SEVERAL), "--out", out).code == 5
    assert len(read(out).runs) == 2
    assert vergence("resume", out).code == 0
    assert [run.label for run in read(out).runs] == ["local_only", "fedavg", "fedcpf"]
