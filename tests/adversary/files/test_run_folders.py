"""Run folders that somebody changed end in one line, and what was edited is said so."""

import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.adversary.files import run_folders
from tests.adversary.files.run_folders import CHANGES, RUN, faults, tried, wrong
from tests.cli.commands import vergence, write
from vergence.experiment import checksums

ENDLESS = (
    "people is a device without an end",
    "config is a device",
    "classes is a device",
    "people is a pipe",
    "people is vast",
)
"""What a reader that does not look first would wait for, or fill the memory with."""
KINDS = {
    "results is a list": "status OUT",
    "results is nested": "report OUT",
    "results has text for numbers": "report OUT",
    "results has text for a metric": "compare OUT",
    "results has a number for its task": "report OUT",
    "provenance is a list": "compare OUT",
    "provenance has text for data": "compare OUT",
    "index is a list": "compare OUT",
    "index has a run without a folder": "compare OUT",
    "rounds is missing": "status OUT",
    "people has a field of 300,000 characters": "compare OUT",
}
"""What ended in a traceback, and a command that did so."""


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp("made")
    assert vergence("run", write(home, run_folders.TOY), "--out", home / "out").code == 0
    return home / "out"


@pytest.mark.parametrize("name", KINDS)
def test_what_was_a_traceback_is_one_line(made, name):
    assert list(faults(CHANGES[name], made, (KINDS[name],))) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CHANGES if name not in ENDLESS])
def test_every_change_with_every_command(made, name):
    assert list(faults(CHANGES[name], made)) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "command"),
    [
        *((name, "compare OUT") for name in ENDLESS),
        ("config is a device", "status OUT"),
    ],
)
def test_what_has_no_end_is_not_waited_for(made, tmp_path, name, command):
    """In a process of its own: before, it took all memory, or never ended."""
    out = tmp_path / "out"
    shutil.copytree(made, out)
    CHANGES[name](out)
    said = alone(*command.replace("OUT", str(out)).split())
    assert said.returncode in (0, 2), said.stderr[-300:]
    assert bool(said.stdout.strip()) == (said.returncode == 0)
    assert len(said.stderr.strip().splitlines()) <= 1, said.stderr[-300:]


def alone(*args: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process that may take 4 GB and two minutes."""
    call = "from vergence.cli.main import main; main()"
    try:
        return subprocess.run(
            [sys.executable, "-c", call, *args],
            capture_output=True,
            text=True,
            timeout=120,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (2**32, 2**32)),
        )
    except subprocess.TimeoutExpired as error:
        return subprocess.CompletedProcess(error.cmd, 124, "", "it never ended")


def test_a_table_that_is_a_device_is_named(made, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(made, out)
    CHANGES["people is nothing but a device"](out)
    vergence("compare", out).complains(2, "people.csv is no regular file")


PLACES = ["HOME/private/fedavg", "../private/fedavg", "fedavg/../../private/fedavg", "..", ".", ""]


@pytest.mark.parametrize("command", ["report OUT", "compare OUT", "verify OUT"])
@pytest.mark.parametrize("place", PLACES)
def test_an_index_leads_to_no_other_run_of_the_reader(made, tmp_path, command, place):
    """A report into a folder that goes back to its sender would hold that run's people."""
    out, private = tmp_path / "out", tmp_path / "private"
    shutil.copytree(made, out)
    shutil.copytree(made, private)
    named = {"label": "fedavg", "dir": place.replace("HOME", str(tmp_path)), "method": "fedavg"}
    run_folders.table("index.json", runs=[named])(out)
    (out / "SHA256SUMS").unlink()
    (out / "report.html").unlink()
    checksums.seal(out)
    said = vergence(*command.replace("OUT", str(out)).split())
    assert not (out / "report.html").exists()
    said.complains(2, "index.json is damaged: runs.0.dir", "something in this very folder")


def test_nor_to_a_table_elsewhere(made, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(made, out)
    run_folders.table("index.json", priors=str(made / "priors.csv"))(out)
    vergence("compare", out).complains(2, "index.json is damaged: priors")


@pytest.mark.parametrize("command", ["report OUT", "compare OUT"])
@pytest.mark.parametrize("name", ["people has another value", "people has every row twice"])
def test_an_edited_table_is_shown_with_a_word(made, tmp_path, command, name):
    out = tmp_path / "out"
    shutil.copytree(made, out)
    assert vergence(*command.replace("OUT", str(out)).split()).err == ""
    CHANGES[name](out)
    said = tried(command, out)
    assert wrong(said) == ""
    assert said.code == 0
    assert f"{RUN}/people.csv: changed after the run was sealed" in said.err
    vergence("verify", out).complains(2, "people.csv is damaged")


def test_a_run_of_a_linear_network_is_pruned(made, tmp_path):
    said = tried(f"model prune OUT/{RUN} --out {tmp_path}/small --rounds 1", made)
    assert not isinstance(said, Exception)
    assert said.code == 0
    assert (tmp_path / "small" / "prune.csv").read_text().count("\n") > 3


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_changes_something(made, tmp_path, name):
    out = tmp_path / "out"
    shutil.copytree(made, out)
    CHANGES[name](out)
    assert seen(out) != seen(made)


def seen(out: Path) -> dict[str, object]:
    """Return what lies where: the content of small files, the kind of all else."""
    found: dict[str, object] = {}
    for path in out.rglob("*"):
        small = path.is_file() and not path.is_symlink() and path.stat().st_size < 2**24
        found[str(path.relative_to(out))] = path.read_bytes() if small else path.lstat().st_mode
    return found
