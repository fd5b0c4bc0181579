"""What an edit or a power cut does to a run's tables is named, and never sealed.

The adversary has the folder of an interrupted run: it changes a digit in the middle of a table,
swaps rows, or leaves zeros at the end as a power cut does; or it changes a table of a finished run,
and makes the seals anew.
"""

import json
import shutil

import pytest

from tests.cli.commands import ONE, SEVERAL, go_on, run, vergence
from tests.engine.toys import Interrupt, left_behind
from tests.experiment.test_interrupted import prints, tree
from vergence.core import files
from vergence.engine.storage.run_directory import OPTIONAL, TABLES, read_manifest, sealed_manifest
from vergence.errors import PartialRun
from vergence.experiment import checksums

CLOCKED = ONE + 'delivery = { name = "all", clock = true }\n'
TWO_SEEDS = ("run.seeds=[0, 1]", "run.evaluate_every=1")
NAMES = (*TABLES, *OPTIONAL)
MIDWAY = 38
"""The write before which the run stops: in the second seed, so that every table has rows."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run(tmp_path_factory.mktemp("whole"), CLOCKED, *TWO_SEEDS)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run with a virtual clock, interrupted in the second of two seeds."""
    home = tmp_path_factory.mktemp("stopped")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "write_whole", Interrupt(MIDWAY, after=False))
        with pytest.raises(PartialRun):
            run(home, CLOCKED, *TWO_SEEDS)
    told = read_manifest(home / "out")
    assert (told["seed"], told["round"]) == (1, 2)
    assert all(kept_bytes(home / "out", name).count(b"\n") > 3 for name in NAMES)
    return home / "out"


@pytest.fixture
def out(stopped, tmp_path):
    shutil.copytree(stopped, tmp_path / "out")
    return tmp_path / "out"


def kept_bytes(out, name):
    """Return what a checkpoint counts on in a table."""
    return (out / name).read_bytes()[: read_manifest(out)["tables"][name]]


def digit(data):
    """Change one digit, the one nearest to the middle."""
    digits = (i for i, byte in enumerate(data) if chr(byte).isdigit())
    at = min(digits, key=lambda i: abs(2 * i - len(data)))
    return data[:at] + (b"7" if data[at : at + 1] != b"7" else b"3") + data[at + 1 :]


def first_row(data):
    head, row, rest = data.split(b"\n", 2)
    return b"\n".join((head, digit(row), rest))


def swapped(data):
    """Let two rows change places, where they differ."""
    head, *rows, end = data.split(b"\n")
    at = next(i for i in range(1, len(rows)) if rows[i] != rows[i - 1])
    rows[at - 1 : at + 1] = rows[at], rows[at - 1]
    return b"\n".join((head, *rows, end))


HARMS = {
    "one digit in the middle": digit,
    "one digit in the first row": first_row,
    "zeros at the end": lambda data: data[:-150] + bytes(min(150, len(data))),
    "zeros in the middle": lambda data: data[:60] + bytes(20) + data[80:],
    "two rows swapped": swapped,
    "the last row doubled": lambda data: data + data.splitlines(keepends=True)[-1],
}
"""What becomes of a table as a checkpoint counts on it."""


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("harm", HARMS)
def test_a_changed_table_is_named_and_nothing_is_trained_or_sealed(out, name, harm):
    data = kept_bytes(out, name)
    worse = HARMS[harm](data)[-len(data) :]  # the same length: only a digest can tell
    assert worse != data
    (out / name).write_bytes(worse)
    before = tree(out)
    vergence("verify", out).complains(2, str(out / name), "is damaged")
    vergence("resume", out).complains(2, str(out / name), "is damaged", "start a new run")
    assert tree(out) == before
    assert not checksums.sealed(out)


@pytest.mark.parametrize("name", NAMES)
def test_a_table_that_was_cut_is_named_by_both(out, name):
    (out / name).write_bytes(kept_bytes(out, name)[:-9])
    for command in ("verify", "resume"):
        vergence(command, out).complains(2, str(out / name), "shorter than its checkpoint says")


@pytest.mark.parametrize("name", NAMES)
def test_every_table_has_a_digest_whatever_byte_is_hit(out, name):
    data = kept_bytes(out, name)
    for at in range(0, len(data), max(1, len(data) // 5)):
        (out / name).write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        vergence("verify", out).complains(2, str(out / name), "is damaged")
    (out / name).write_bytes(data)
    vergence("verify", out).complains(2, "no finished run")


def test_what_a_power_cut_leaves_after_the_checkpoint_is_cut_off(out, whole):
    """Rows of the round under way are none of the checkpoint's: torn or zero, they are remade."""
    for name in NAMES:
        (out / name).write_bytes(kept_bytes(out, name) + b"1,2,3" + bytes(150))
    go_on(out)
    assert prints(out) == prints(whole)
    assert vergence("verify", out).code == 0
    assert left_behind(out) == left_behind(whole)


def test_a_finished_run_that_was_not_sealed_yet_is_not_sealed_over_a_changed_table(tmp_path):
    """Killed between its last checkpoint and its seals."""
    out = run(tmp_path, ONE)
    (out / checksums.NAME).unlink()
    (out / "rounds.csv").write_bytes(digit((out / "rounds.csv").read_bytes()))
    vergence("resume", out).complains(2, str(out / "rounds.csv"), "is damaged")
    assert not checksums.sealed(out)
    vergence("verify", out).complains(2, str(out / "rounds.csv"), "is damaged")


def test_a_finished_method_is_looked_at_before_the_next_one_trains(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(files, "write_whole", Interrupt(25, after=False))
        with pytest.raises(PartialRun):
            run(tmp_path, SEVERAL)
    out = tmp_path / "out"
    assert (out / "local_only" / "results.json").exists()
    table = out / "local_only" / "turns.csv"
    table.write_bytes(digit(table.read_bytes()))
    before = tree(out / "fedavg")
    vergence("verify", out).complains(2, str(table), "is damaged")
    vergence("resume", out).complains(2, str(table), "is damaged")
    assert tree(out / "fedavg") == before


@pytest.mark.parametrize("name", NAMES)
def test_seals_made_anew_over_a_changed_table_do_not_vouch_for_it(whole, tmp_path, name):
    """Sums are sha256sum's: whoever edits a table can make them again, without vergence."""
    out = tmp_path / "out"
    shutil.copytree(whole, out)
    assert vergence("verify", out).code == 0
    (out / name).write_bytes(digit((out / name).read_bytes()))
    lines = (out / checksums.NAME).read_text().splitlines()
    lines = [f"{checksums.sum_of(out / n)}  {n}" for n in (x[66:] for x in lines)]
    (out / checksums.NAME).write_text("".join(f"{line}\n" for line in lines))
    vergence("verify", out).complains(2, str(out / name), "is damaged", "the checkpoint says")


def test_a_checkpoint_without_digests_is_named_and_not_gone_on_from(out):
    """As versions before this one wrote them: their finished runs are read, by their seals."""
    file = out / "state" / "checkpoint.json"
    told = json.loads(file.read_bytes())
    told.pop("sha256"), told.pop("digests", None)
    file.write_bytes(sealed_manifest(told))
    before = tree(out)
    vergence("resume", out).complains(2, str(out), "older version", "start a new run elsewhere")
    assert tree(out) == before


def test_a_finished_run_of_an_older_version_is_still_verified_by_its_seals(whole, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(whole, out)
    file = out / "state" / "checkpoint.json"
    told = json.loads(file.read_bytes())
    told.pop("sha256"), told.pop("digests", None)
    file.write_bytes(sealed_manifest(told))
    assert vergence("verify", out).code == 0
    (out / "rounds.csv").write_bytes(digit((out / "rounds.csv").read_bytes()))
    vergence("verify", out).complains(2, str(out / "rounds.csv"), "is damaged")


def test_a_person_taken_out_leaves_tables_that_the_checkpoint_knows(tmp_path):
    from vergence.unlearning import data_footprint

    out = run(tmp_path, ONE)
    data_footprint.erase(out, "p01")
    assert vergence("verify", out).code == 0
    told = read_manifest(out)
    for name in told["tables"]:
        assert checksums.sum_of(out / name) == told.get("digests", {}).get(name)


@pytest.mark.parametrize(
    "odd",
    [
        None,
        {},
        [],
        7,
        {"rounds.csv": "0" * 64},
        "more",
        "short",
        "number",
    ],
)
def test_digests_that_cannot_be_one_are_refused_under_the_right_sum(out, odd):
    file = out / "state" / "checkpoint.json"
    told = json.loads(file.read_bytes())
    told.pop("sha256")
    honest = told.get("digests", {})
    told["digests"] = (
        {
            "more": {**honest, "../x.csv": "0" * 64},
            "short": {**honest, "turns.csv": "0" * 63},
            "number": {**honest, "turns.csv": 7},
        }.get(odd, odd)
        if isinstance(odd, str)
        else odd
    )
    file.write_bytes(sealed_manifest(told))
    vergence("resume", out).complains(2, "checkpoint.json is no checkpoint", "'digests'")
