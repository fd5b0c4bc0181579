"""What a deployment counts on outlasts a blackout: it is on the disk before anybody is told."""

import json
import os
from pathlib import Path

import pytest

from tests.conformance.test_methods import build, task_of
from tests.deployment.test_remote_clients import COUNTS, PEOPLE, Loop, there
from vergence.core import files
from vergence.core.randomness import RandomStream
from vergence.deployment.client_node import ClientNode
from vergence.engine.client_executor import ClientExecutor, LocalData
from vergence.engine.client_runner import ClientRunner
from vergence.engine.storage.client_states import ClientStateStore

METHODS = ("fedcpf", "splitfed")


class Disk:
    """Knows what would outlast a blackout: files and folders as they were when last flushed.

    Of a file that is its content, of a folder the names in it and what they stand for.
    """

    def __init__(self):
        self.flushed, self.honest = {}, os.fsync

    def fsync(self, number):
        self.honest(number)
        found = os.fstat(number)
        self.flushed[found.st_dev, found.st_ino] = there_now(Path(f"/proc/self/fd/{number}"))

    def _of(self, path):
        found = path.stat()
        return self.flushed.get((found.st_dev, found.st_ino))

    def holds(self, path):
        return self._of(path) == there_now(path)

    def names(self, path):
        """Tell whether the folder was flushed since the file took its name."""
        return (self._of(path.parent) or {}).get(path.name) == path.stat().st_ino

    def lost(self, root, but=()):
        """Return what below a folder a blackout would take, or bring back."""
        found = []
        for path in sorted(p for p in root.rglob("*") if p.name not in but):
            if not self.names(path):
                found.append(f"the name of {path.relative_to(root)}")
            if path.is_file() and not self.holds(path):
                found.append(f"what is in {path.relative_to(root)}")
            if path.is_dir():
                left = set(self._of(path) or {}) - {p.name for p in path.iterdir()} - set(but)
                found += [f"that {path.relative_to(root) / name} is gone" for name in sorted(left)]
        return found


def there_now(path):
    """Return what is in a file, or the names in a folder and their inodes."""
    if path.is_dir():
        return {entry.name: entry.inode() for entry in os.scandir(path)}
    return path.read_bytes()


@pytest.fixture
def disk(monkeypatch):
    made = Disk()
    monkeypatch.setattr(os, "fsync", made.fsync)
    return made


class Lasting(Loop):
    """Homes of a deployment: at every answer, what it stands for must be on the disk."""

    def __init__(self, method, folder, disk):
        super().__init__(method, folder)
        self.disk, self.kept = disk, 0

    def home(self, client):
        own, task = PEOPLE.only((client,)), task_of(self.method)
        worker = ClientExecutor(
            self.method, task, LocalData(own, own), RandomStream("run", task.seed)
        )
        folder = self.folder / client
        folder.mkdir(parents=True, exist_ok=True)
        store = ClientStateStore(folder, task.seed, worker.records, lasting=True)
        return ClientNode(ClientRunner(worker, store), client, plan=self.plan)

    def ask(self, client, request):
        answer = super().ask(client, request)
        files = [f for f in (self.folder / client).iterdir() if f.name != ".turn"]
        assert all(self.disk.holds(file) and self.disk.names(file) for file in files)
        self.kept += len(files)
        return answer


@pytest.mark.parametrize("name", METHODS)
def test_an_answer_leaves_when_its_state_is_on_the_disk(name, tmp_path, disk):
    line = Lasting(build(name), tmp_path / "homes", disk)
    there(line.method, tmp_path, line)
    assert line.kept > 2 * len(COUNTS)


@pytest.mark.parametrize("name", METHODS)
def test_a_checkpoint_names_nothing_that_a_blackout_takes(name, tmp_path, disk, monkeypatch):
    replace, seen = files.write_whole, []

    def written(path, *chunks, lasting=False):
        if path.name == "checkpoint.json":
            manifest, run = json.loads(b"".join(chunks)), tmp_path / "server"
            named = [run / "state" / about[0] for about in manifest["files"].values()]
            tables = [run / table for table in manifest["tables"]]
            assert all(disk.holds(path) for path in [*named, *tables, run])
            assert disk.names(run / "state" / manifest["files"]["server"][0])
            seen.append(lasting)
        replace(path, *chunks, lasting=lasting)

    monkeypatch.setattr(files, "write_whole", written)
    there(build(name), tmp_path)
    assert len(seen) > 4
    assert all(seen)
