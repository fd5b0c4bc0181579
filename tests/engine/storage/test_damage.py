"""A foreign or damaged checkpoint is refused, and `verify` fails on one flipped byte."""

from pathlib import Path

import pytest

from tests.cli.commands import ONE, SEVERAL, go_on, run, vergence
from tests.engine.toys import Interrupt, left_behind
from vergence.core import files
from vergence.engine.storage.run_directory import filed_in, read_manifest, sealed_manifest
from vergence.errors import PartialRun, StateError
from vergence.experiment import provenance as stamp


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """A run of one method that stopped in round 2 of 3."""
    with monkeypatch.context() as patch:
        patch.setattr(files, "write_whole", Interrupt(11, after=False))
        with pytest.raises(PartialRun):
            run(tmp_path, ONE)
    assert read_manifest(tmp_path / "out")["round"] == 1
    return tmp_path / "out"


def file_of(folder, files, part):
    """Return the file of a part: the server's state, the clients' table, a client's state."""
    kind, _, client = part.partition(".")
    return filed_in(folder, files)[client].file if client else files[kind][0]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run(tmp_path_factory.mktemp("runs"), SEVERAL)


@pytest.mark.parametrize("what", ["config", "code", "data"])
def test_a_checkpoint_of_another_config_code_or_data(broken, what):
    manifest = read_manifest(broken)
    manifest["stamp"][what] = "0" * 64
    (broken / "state" / "checkpoint.json").write_bytes(sealed_manifest(manifest))
    before = left_behind(broken)
    said = vergence("resume", broken)
    said.complains(2, f"made with other {what}", "0000", "start a new run elsewhere")
    assert left_behind(broken) == before


def test_an_edited_config_is_another_config_but_workers_are_not(broken, tmp_path):
    config = broken / "config.toml"
    honest = config.read_text()
    config.write_text(honest.replace("lr = 0.05", "lr = 0.06"))
    vergence("resume", broken).complains(2, "other config")
    config.write_text(honest.replace("workers = 1", "workers = 2"))
    go_on(broken)
    assert (
        left_behind(broken)["results.json"]
        == left_behind(run(tmp_path, ONE, out="whole"))["results.json"]
    )


def test_edited_sources_are_another_code(broken, tmp_path, monkeypatch):
    monkeypatch.setattr(stamp, "code_digest", lambda: "f" * 64)
    vergence("resume", broken).complains(2, "other code", "now ffff")
    index = run(tmp_path, SEVERAL, out="several")
    (index / "fedcpf" / "SHA256SUMS").unlink()
    monkeypatch.setattr(stamp, "code_digest", lambda: "e" * 64)
    vergence("resume", index).complains(2, "other code", "now eeee")
    (index / "stamp.json").write_text("{")
    vergence("resume", index).complains(2, "stamp.json", "damaged")


def flip(path: Path, at: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def test_no_byte_of_a_manifest_can_be_flipped(broken):
    file = broken / "state" / "checkpoint.json"
    honest = file.read_bytes()
    for at in range(0, len(honest), 3):
        flip(file, at, bit=at % 8)
        with pytest.raises(StateError, match="damaged"):
            read_manifest(broken)
        file.write_bytes(honest)
    read_manifest(broken)


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", "{", '{"sha256": 1}'])
def test_a_manifest_that_is_something_else(broken, text):
    (broken / "state" / "checkpoint.json").write_text(text)
    vergence("resume", broken).complains(2, "checkpoint.json is damaged", "elsewhere")


PLACES = {"length": 3, "header": 20, "middle": 0.5, "array": -1}


def place(path, where):
    return int(where * path.stat().st_size) if isinstance(where, float) else where


@pytest.mark.parametrize("part", ["server", "clients", "client.p01"])
@pytest.mark.parametrize("where", PLACES)
def test_a_flipped_byte_in_a_state_file_stops_resume(broken, part, where):
    name = file_of(broken, read_manifest(broken)["files"], part)
    path = broken / "state" / name
    flip(path, place(path, PLACES[where]))
    vergence("resume", broken).complains(2, name, "damaged", "damaged")


@pytest.mark.parametrize("part", ["server", "clients", "client.p01"])
@pytest.mark.parametrize("where", PLACES)
def test_a_flipped_byte_in_a_state_file_fails_verify(finished, part, where):
    folder = finished / "fedcpf"
    name = file_of(folder, read_manifest(folder)["done"]["0"]["files"], part)
    path = folder / "state" / name
    at = place(path, PLACES[where])
    flip(path, at)
    for target in (folder, finished):
        vergence("verify", target).complains(2, name, "damaged")
    flip(path, at)
    assert vergence("verify", finished).code == 0


@pytest.mark.parametrize(
    "name",
    [
        "results.json",
        "people.csv",
        "rounds.csv",
        "turns.csv",
        "config.toml",
        "provenance.json",
        "masks.safetensors",
        "SHA256SUMS",
        "state/checkpoint.json",
    ],
)
@pytest.mark.parametrize("bit", [0, 7])
def test_a_flipped_byte_anywhere_else_fails_verify(finished, name, bit):
    path = finished / "fedcpf" / name
    size = path.stat().st_size
    for at in (0, size // 3, size // 2, size - 2):
        flip(path, at, bit)
        vergence("verify", finished / "fedcpf").complains(2, Path(name).name, "damaged")
        flip(path, at, bit)
    assert vergence("verify", finished / "fedcpf").code == 0


def test_a_flipped_byte_in_a_fingerprint_is_found_without_the_sums_too(finished):
    """results.json edited and sealed again: the states themselves tell."""
    folder = finished / "fedcpf"
    results, sums = folder / "results.json", folder / "SHA256SUMS"
    honest, sealed = results.read_bytes(), sums.read_bytes()
    flip(results, honest.index(read_manifest(folder)["done"]["0"]["fingerprint"].encode()))
    sums.unlink()
    go_on(folder)  # a finished run without sums is sealed again
    vergence("verify", folder).complains(2, "give fingerprint", "results.json says")
    results.write_bytes(honest)
    sums.write_bytes(sealed)
    for name in ("priors.csv", "report.html"):
        (folder / name).unlink(missing_ok=True)


@pytest.mark.parametrize("name", ["index.json", "priors.csv", "config.toml"])
def test_a_flipped_byte_beside_the_runs_fails_verify(finished, name):
    flip(finished / name, 5)
    vergence("verify", finished).complains(2, name, "damaged")
    flip(finished / name, 5)


def test_an_unfinished_run_cannot_be_verified(broken):
    vergence("verify", broken).complains(2, "no finished run", "vergence resume")


def test_missing_files_of_an_interrupted_run(broken):
    name = file_of(broken, read_manifest(broken)["files"], "client.p00")
    state = broken / "state" / name
    data = state.read_bytes()
    state.unlink()
    vergence("resume", broken).complains(2, name, "cannot be read", "No such file")
    state.write_bytes(data)
    turns = broken / "turns.csv"
    honest = turns.read_bytes()
    turns.write_bytes(honest[:50])
    vergence("resume", broken).complains(2, "turns.csv", "shorter than its checkpoint says")
    turns.unlink()
    vergence("resume", broken).complains(2, "turns.csv", "missing")
    turns.write_bytes(honest)
    go_on(broken)
    assert vergence("verify", broken).code == 0
