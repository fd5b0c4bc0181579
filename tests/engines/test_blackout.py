"""What a deployment counts on outlasts a blackout: it is on the disk before anybody is told."""

import json
import os

import pytest

from tests.conformance.test_methods import build, task_of
from tests.engines.test_remote import COUNTS, PEOPLE, Loop, there
from vergence.core.stream import Stream
from vergence.engines import store
from vergence.engines.desk import Desk
from vergence.engines.home import Home
from vergence.engines.shelf import Shelf
from vergence.engines.turn import Worker

METHODS = ("fedcpf", "splitfed")


class Disk:
    """Knows what would outlast a blackout: files as they were when last flushed, by inode."""

    def __init__(self):
        self.flushed, self.honest = {}, os.fsync

    def fsync(self, number):
        self.honest(number)
        found = os.fstat(number)
        self.flushed[found.st_ino] = found.st_size, found.st_mtime_ns

    def holds(self, path):
        found = path.stat()
        return self.flushed.get(found.st_ino) == (found.st_size, found.st_mtime_ns)

    def names(self, path):
        """Tell whether the folder was flushed since the file took its name."""
        folder = self.flushed.get(path.parent.stat().st_ino, (0, 0))
        return folder[1] >= path.stat().st_ctime_ns


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
        worker = Worker(self.method, task, own, own, Stream("run", task.seed))
        folder = self.folder / client
        folder.mkdir(parents=True, exist_ok=True)
        shelf = Shelf(folder, task.seed, worker.records, lasting=True)
        return Home(Desk(worker, shelf), client, folder)

    def ask(self, client, errand):
        answer = super().ask(client, errand)
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
    replace, seen = store.write_whole, []

    def written(path, *chunks, lasting=False):
        if path.name == "checkpoint.json":
            manifest, run = json.loads(b"".join(chunks)), tmp_path / "server"
            named = [run / "state" / about[0] for about in manifest["files"].values()]
            tables = [run / table for table in manifest["tables"]]
            assert all(disk.holds(path) for path in [*named, *tables, run])
            assert disk.names(run / "state" / manifest["files"]["server"][0])
            seen.append(lasting)
        replace(path, *chunks, lasting=lasting)

    monkeypatch.setattr(store, "write_whole", written)
    there(build(name), tmp_path)
    assert len(seen) > 4
    assert all(seen)
