"""TensorBoard's event files and MLflow's runs hold what rounds.csv says, once."""

import csv
import json
import shutil
import struct
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cli.commands import ONE, go_on, run, vergence, write
from vergence.core import files
from vergence.engine.storage.run_directory import read_manifest
from vergence.monitoring import mlflow_export
from vergence.tracking import tensorboard
from vergence.tracking.tensorboard import Board

SETS = ("run.rounds=5", "run.seeds=[0, 1]", "run.evaluate_every=2")


def crc(data: bytes) -> int:
    """Return the masked CRC-32C, bit by bit from its polynomial: independent of any library."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    value ^= 0xFFFFFFFF
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


def events(file: Path):
    """Return the events of a file, with both checksums of every record checked."""
    from tensorboardX.proto.event_pb2 import Event

    data, found = file.read_bytes(), []
    while data:
        (size,) = struct.unpack("<Q", data[:8])
        record = data[12 : 12 + size]
        assert struct.unpack("<I", data[8:12]) == (crc(data[:8]),)
        assert struct.unpack("<I", data[12 + size : 16 + size]) == (crc(record),)
        found.append(Event.FromString(record))
        data = data[16 + size :]
    return found


def scalars(out: Path, seed: int):
    """Return tag -> [(round, value)] of the only event file of a seed."""
    (file,) = (out / "tensorboard" / f"seed{seed}").iterdir()
    first, start, *rest = events(file)
    assert (first.file_version, start.session_log.status) == ("brain.Event:2", 1)
    found = {}
    for event in rest:
        for value in event.summary.value:
            found.setdefault(value.tag, []).append((event.step, value.simple_value))
    times = [e.wall_time for e in rest]
    assert times == sorted(times)
    return found


def table(out: Path, seed: int):
    with (out / "rounds.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["seed"] == str(seed)]
    found = {}
    for row in rows:
        name = f"{row['evaluation']}/{row['metric']}"
        found.setdefault(name, []).append((int(row["round"]), float(row["value"])))
    for cost in tensorboard.COSTS:
        told = {int(row["round"]): float(row[cost]) for row in rows if row[cost]}
        found[f"cost/{cost}"] = sorted(told.items())
    return found


def same(out: Path, seed: int) -> bool:
    board, rows = scalars(out, seed), table(out, seed)
    assert board.keys() == rows.keys()
    for tag, points in rows.items():
        assert [at for at, _ in board[tag]] == [at for at, _ in points]
        assert [v for _, v in board[tag]] == pytest.approx([v for _, v in points], rel=1e-6)
    return True


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    return run(tmp_path_factory.mktemp("runs"), ONE, *SETS)


def test_event_files_hold_every_round_once(out):
    """Rounds 1 to 5 in training; evaluated at 0, 2, 4 and after the last."""
    assert same(out, 0)
    assert same(out, 1)
    assert [at for at, _ in scalars(out, 1)["train/loss"]] == [1, 2, 3, 4, 5]
    assert [at for at, _ in scalars(out, 1)["P0/error"]] == [0, 2, 4, 5]


def test_they_grow_with_the_run(tmp_path, monkeypatch):
    seen, follow = [], Board.follow

    def looked(board):
        follow(board)
        told = scalars(board.table.parent, 0).values()
        seen.append(max((at for points in told for at, _ in points), default=0))

    monkeypatch.setattr(Board, "follow", looked)
    run(tmp_path, ONE, "run.rounds=3")
    # Three times at the end: after the last round, its evaluation, and the seed.
    assert seen == [0, 1, 2, 3, 3, 3]


@pytest.mark.parametrize("at", [4, 9, 14])
def test_no_round_twice_after_an_interruption(tmp_path, monkeypatch, at):
    honest, left = files.write_whole, [at]

    def interrupt(path, *chunks, lasting=False):
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        honest(path, *chunks, lasting=lasting)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_whole", interrupt)
        vergence(
            "run",
            write(tmp_path, ONE),
            "--out",
            tmp_path / "out",
            *(w for s in SETS for w in ("--set", s)),
        ).complains(5, "interrupted")
    for file in (tmp_path / "out").rglob("*.tfevents.*"):  # as kill -9 may leave it
        file.write_bytes(file.read_bytes()[:-7])
    go_on(tmp_path / "out")
    assert same(tmp_path / "out", 0)
    assert same(tmp_path / "out", 1)
    assert read_manifest(tmp_path / "out")["done"].keys() == {"0", "1"}


def test_curves_that_cannot_be_written_are_not_worth_a_run(out, tmp_path, capsys):
    """A file stands where the folder should be: said once per seed, and the bits are the same."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "tensorboard").write_text("in the way")
    run(tmp_path, ONE, *SETS)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" (")[0] for line in lines] == [
        f"vergence: no TensorBoard curves of seed {s}" for s in (0, 1)
    ]
    mine, theirs = (read_manifest(p)["done"] for p in (tmp_path / "out", out))
    assert {s: d["fingerprint"] for s, d in mine.items()} == {
        s: d["fingerprint"] for s, d in theirs.items()
    }


def test_what_failed_for_a_while_is_made_up_for_at_the_end(tmp_path, monkeypatch):
    write_honestly, left = Board._write, [2]

    def full(board, made):
        left[0] -= 1
        if not left[0]:
            raise OSError(28, "No space left on device")
        write_honestly(board, made)

    monkeypatch.setattr(Board, "_write", full)
    assert same(run(tmp_path, ONE, *SETS), 0)


@pytest.mark.slow
def test_tensorboardx_is_imported_when_it_writes():
    code = (
        "import sys, vergence.experiment.run, vergence.tracking.tensorboard\n"
        "sys.exit('tensorboardX' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_mlflow_is_told_no_names_of_a_run_that_hides_people():
    table = {
        "few_data": {"label_poor": ["p01"], "label_poor_samples": 9},
        "presence": {"gone": {"p01": 2}, "back": ["p01"], "lost": 0.1},
        "tuning": {"people": ["p01"], "trials": 3},
    }
    kept = {"few_data": {"label_poor_samples": 9}, "presence": {"lost": 0.1}}
    assert mlflow_export.unnamed(table) == {**kept, "tuning": {"trials": 3}}


def test_mlflow_needs_its_extra(out, monkeypatch):
    monkeypatch.setattr(mlflow_export, "find_spec", lambda _: None)
    said = vergence("study", "mlflow", out, "--to", "sqlite:///x.db")
    said.complains(2, "mlflow is not installed", "vergence[mlflow]")


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mlflow") is None, reason="needs the extra 'mlflow'")
def test_mlflow_gets_every_round_once(out, tmp_path, monkeypatch):
    """Sent in mid-run and again: two runs of one experiment, every value of rounds.csv once."""
    monkeypatch.chdir(tmp_path)
    to, rounds, results = "sqlite:///m.db", out / "rounds.csv", out / "results.json"
    whole, told = rounds.read_text(), results.read_bytes()
    lines = whole.splitlines(keepends=True)
    half = max(i for i, line in enumerate(lines) if line.startswith("1,2,")) + 1
    try:
        results.unlink()
        rounds.write_text("".join(lines[:half]) + "1,3,tr")
        first = vergence("study", "mlflow", out, "--to", to)
    finally:
        results.write_bytes(told)
        rounds.write_text(whole)
    second, third = (
        vergence("study", "mlflow", out, "--to", to),
        vergence("study", "mlflow", out, "--to", to),
    )
    assert (first.code, second.code) == (0, 0), first.err + second.err
    count = sum(len(points) for seed in (0, 1) for points in table(out, seed).values())
    sent = [int(s.out.split()[-3]) for s in (first, second, third)]
    assert 0 < sent[1] < sent[0]
    assert sent == [sent[0], count - sent[0], 0]
    elsewhere = shutil.copytree(out, tmp_path / "elsewhere")
    about = json.loads((elsewhere / "provenance.json").read_text())
    about["deployment"] = {"run": "another"}
    (elsewhere / "provenance.json").write_text(json.dumps(about))
    other = vergence("study", "mlflow", elsewhere, "--to", to, "--experiment", "other people")
    assert other.out.split()[-3] == str(count)
    again = vergence("study", "mlflow", out, "--to", to, "--experiment", "other people")
    assert again.out.split()[-3] == str(count)  # the same bits of other people are another run
    with mlflow_export.quiet(to):
        from mlflow.tracking import MlflowClient

        client = MlflowClient(tracking_uri=to)
        home = client.get_experiment_by_name("vergence").experiment_id
        runs = sorted(client.search_runs([home]), key=lambda r: r.data.params["seed"])
        assert [r.data.params["seed"] for r in runs] == ["0", "1"]
        for seed, sent_run in enumerate(runs):
            assert sent_run.info.status == "FINISHED"
            assert sent_run.data.params["method.rate"] == "0.2"
            print_of = read_manifest(out)["done"][str(seed)]["fingerprint"]
            assert sent_run.data.tags["vergence.fingerprint"] == print_of
            for name, points in table(out, seed).items():
                history = client.get_metric_history(sent_run.info.run_id, name)
                assert sorted((m.step, m.value) for m in history) == sorted(points)
            files = {f.path for f in client.list_artifacts(sent_run.info.run_id)}
            assert {"config.toml", "results.json", "people.csv"} <= files


@pytest.mark.slow
def test_mlflow_that_is_not_there_is_one_line(out):
    if find_spec("mlflow") is None:
        pytest.skip("needs the extra 'mlflow'")
    said = vergence("study", "mlflow", out, "--to", "http://127.0.0.1:9")
    said.complains(5, "MLflow at http://127.0.0.1:9")
