"""The package where fcntl, resource, os.fork and the like are missing: same results, or one line.

`other_system/sitecustomize.py` plays such a system; it is no Windows, where nothing here was run.
"""

import json
import os
import pkgutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import vergence
from tests.drills.deployment import CLIENTS, TABLE, deployed, simulated
from vergence.experiment.run import start
from vergence.experiment.schema import load

HERE = Path(__file__).parent / "other_system"
PLACE = {
    "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
    "PYTHONWARNDEFAULTENCODING": "1",
    "PYTHONIOENCODING": "cp1252",
}
EVERY_MODULE = """
import importlib, sys
for name in sys.stdin.read().split():
    importlib.import_module(name)
    print(name)
"""
LACKING = """
import os, sys
from vergence.system import file_access, file_locks, local_sockets, memory, processes
assert file_locks.fcntl is None
assert memory.resource is None
assert not processes.can_fork()
assert not local_sockets.LOCAL
assert not file_access.HAS_MODES
assert not file_access.SYNC_FOLDERS
assert not file_access.NOFOLLOW
assert not hasattr(os, "fork")
"""


def elsewhere(*arguments, said=None, folder=None):
    """What Python says on the other system."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        input=said,
        cwd=folder,
        env={**os.environ, **PLACE},
        capture_output=True,
        text=True,
        encoding="cp1252",
        timeout=270,
        check=False,
    )


def command(folder, *arguments):
    """What the command line prints there, without an error."""
    done = elsewhere("-m", "vergence", *arguments, folder=folder)
    assert done.returncode == 0, done.stderr
    return done


def fingerprints(out):
    """Fingerprints of a run of several methods or of one."""
    found = sorted(out.glob("*/results.json")) or [out / "results.json"]
    return [json.loads(file.read_text("utf-8"))["fingerprint"] for file in found]


def test_the_other_system_lacks_what_it_should():
    done = elsewhere("-c", LACKING)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_module_is_imported():
    modules = [each.name for each in pkgutil.walk_packages(vergence.__path__, "vergence.")]
    done = elsewhere("-c", EVERY_MODULE, said=" ".join(modules))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == modules
    assert len(modules) > 400


def test_a_run_has_the_same_bits_in_one_process_and_says_so(tmp_path):
    setting = ["run.workers=2", "run.rounds=3", "run.seeds=[0, 1]", 'methods=["fedavg", "fedcpf"]']
    given = [word for each in setting for word in ("--set", each)]
    done = command(tmp_path, "run", "toy", "--out", "there", *given)
    (note,) = [line for line in done.stderr.splitlines() if "workers" in line]
    assert note.startswith("vergence: run.workers = 2: this system cannot fork processes")
    start(load("toy", setting), tmp_path / "here")
    assert fingerprints(tmp_path / "there") == fingerprints(tmp_path / "here")
    command(tmp_path, "report", "there")
    assert (tmp_path / "there" / "report.html").exists()


HELD = """
import sys
from vergence.system.file_locks import try_process_lock
with open("lock", "r+b") as file:
    file.write(b" 123")
    file.flush()
    print(try_process_lock(file), flush=True)
    sys.stdin.read()
"""
TRIED = """
from pathlib import Path
from vergence.system.file_locks import lock_owner, try_lock, try_process_lock
print(lock_owner(Path("lock")))
with open("lock", "r+b") as file, open("lock", "rb") as other:
    print(try_process_lock(file), try_lock(other))
"""


def test_a_lock_holds_between_processes_and_ends_with_its_own(tmp_path):
    (tmp_path / "lock").touch()
    first = subprocess.Popen(
        [sys.executable, "-c", HELD],
        cwd=tmp_path,
        env={**os.environ, **PLACE},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with first:
        assert first.stdout.readline() == b"True\n"
        assert elsewhere("-c", TRIED, folder=tmp_path).stdout == "0\nFalse False\n"
        first.kill()
    assert elsewhere("-c", TRIED, folder=tmp_path).stdout == "None\nTrue False\n"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_demo_runs(tmp_path):
    setting = ["run.rounds=2", 'methods=["fedavg", "fedcpf"]']
    given = [word for each in setting for word in ("--set", each)]
    command(tmp_path, "run", "quickstart", "--out", "there", *given)
    start(load("quickstart", setting), tmp_path / "here")
    assert fingerprints(tmp_path / "there") == fingerprints(tmp_path / "here")
    video = Path(vergence.__file__).parent / "data/samples/aria/adt/rgb_upright.mp4"
    assert "FedCPF" in command(tmp_path, "compare", "there").stdout
    assert "finished" in command(tmp_path, "status", "there").stdout
    command(tmp_path, "predict", "there/fedcpf", video, "--out", "seen.mp4")
    assert (tmp_path / "seen.mp4").stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(find_spec("flwr") is None, reason="needs Flower: extra 'deploy'")
def test_a_deployment_has_the_same_bits(tmp_path, monkeypatch):
    """Server and clients, all on the other system: every task in an interpreter of its own."""
    table = {**TABLE, "methods": TABLE["methods"][1:]}
    for name, value in PLACE.items():
        monkeypatch.setenv(name, value)
    with deployed(tmp_path, table) as made:
        served = made.serve()
        joined = [made.join(name) for name in CLIENTS]
        assert served.wait(800) == 0, made.events()
        assert [process.wait(60) for process in joined] == [0, 0, 0]
        assert made.fingerprints() == simulated(table, tmp_path / "here")
        # Who stood by for a next task ends by itself, once it has imported and sees nobody there.
        made.until(lambda: not made.leftovers(), 60)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("flwr") is None, reason="needs Flower: extra 'deploy'")
def test_a_main_server_is_refused_in_one_line(tmp_path):
    table = {**TABLE, "methods": ["splitfed"]}
    with deployed(tmp_path, table, ["--main-server"]) as made:
        done = elsewhere("-m", "vergence", "deploy", "join", made.folder / "out" / "main")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "Linux alone has" in line
