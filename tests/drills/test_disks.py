"""Disks that may only be read, and clocks that jump; with real mounts in the drills `readonly`."""

import errno
import json
import re
from pathlib import Path

import pytest

import vergence
from tests.cli.commands import ONE, go_on, run, write
from tests.cli.commands import vergence as command
from tests.deployment.test_remote_clients import PEOPLE, Loop, build, there
from tests.drills import disks
from tests.engine.toys import table
from vergence.core import files
from vergence.deployment.remote_clients import ClientLost
from vergence.engine.storage.run_directory import RunDirectory, read_manifest
from vergence.errors import StateError


def refuses(*_, **__):
    raise OSError(errno.EROFS, "Read-only file system")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run(tmp_path_factory.mktemp("whole"), ONE, "run.rounds=10")


@pytest.mark.parametrize("moment", disks.MOMENTS)
def test_a_run_folder_that_becomes_read_only(moment, whole, tmp_path, monkeypatch):
    """All that writes below it fails from then on; nothing is lost, and nothing else is said."""
    out, path = tmp_path / "out", write(tmp_path, ONE)
    with monkeypatch.context() as patch:

        def shut():
            patch.setattr(files, "write_whole", refuses)
            patch.setattr(RunDirectory, "_replace_manifest", refuses)
            honest = Path.open

            def opened(self, mode="r", *rest, **options):
                return (
                    refuses() if set(mode) & set("wa+x") else honest(self, mode, *rest, **options)
                )

            patch.setattr(Path, "open", opened)
            patch.setattr(Path, "unlink", refuses)
            patch.setattr(Path, "replace", refuses)

        with disks.at(moment, shut):
            said = command("run", path, "--out", out, "--set", "run.rounds=10")
        words = ("cannot save to", str(out), "Read-only file system", "make it writable")
        said.complains(5, *words, "vergence resume")
        command("resume", out).complains(5, *words, "vergence resume")
    assert 0 < read_manifest(out)["round"] < 10
    go_on(out)
    prints = [json.loads((p / "results.json").read_text())["fingerprint"] for p in (whole, out)]
    assert prints[0] == prints[1]


def test_a_client_that_cannot_write_for_a_while(tmp_path, monkeypatch):
    """It says so in one line; its turns are as silence, and afterwards it goes on."""
    method, away = build("fedcpf"), PEOPLE.clients[1]

    class Shut(Loop):
        turns = 0

        def ask(self, client, request):
            if client != away or b'"kind":"evaluate"' in request:
                return super().ask(client, request)
            self.turns += 1
            if self.turns not in (2, 3):
                return super().ask(client, request)
            if self.silent:
                raise ClientLost("silent")
            with monkeypatch.context() as patch:
                patch.setattr(files, "write_whole", self.only_elsewhere)
                try:
                    return super().ask(client, request)
                except StateError as error:
                    raise ClientLost(str(error)) from None

        def only_elsewhere(self, path, *chunks, **how):
            return refuses() if away in str(path) else self.honest(path, *chunks, **how)

        honest = staticmethod(files.write_whole)
        silent = False

    quiet = Shut(method, tmp_path / "quiet" / "homes")
    quiet.silent = True
    expected = there(method, tmp_path / "quiet", quiet).fingerprint
    assert there(method, tmp_path, Shut(method, tmp_path / "homes")).fingerprint == expected
    rows = table(tmp_path / "server", "turns.csv")
    lost = [row["status"] for row in rows if row["status"] != "ok"]
    assert len(lost) == 2
    for status in lost:
        assert status.startswith(f"lost: '{away}' cannot save: Read-only file system; make it wri")


def test_a_clock_that_jumps_changes_nothing():
    assert disks.jumped() == (True, True)


def test_nothing_that_computes_reads_the_wall_clock():
    """It may jump; what is waited for and measured goes by clocks that do not.

    The gate compares a node's clock with its own, and says so where it refuses.
    """
    package = Path(vergence.__file__).parent
    reads = re.compile(r"\btime\.time(_ns)?\(|\bdatetime\.(now|utcnow|today)\(|\blocaltime\(")
    for part in (
        "core",
        "methods",
        "engine",
        "wire",
        "training",
        "privacy",
        "tasks",
        "models",
        "metrics",
    ):
        for path in (package / part).rglob("*.py"):
            assert not reads.search(path.read_text()), path
