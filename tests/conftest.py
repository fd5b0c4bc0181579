"""Shared by all tests: where the research data lies, one thread, and a seed for nobody."""

import gc
import json
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import settings

pytest_plugins = ["tests.made_up_runs"]
torch.set_num_threads(1)
# The same examples every time, and no clock: a busy machine is not a failure.
settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile("same")
ROOT = Path(__file__).parent.parent
MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 2 << 30:
    # Runs of tests lie in memory: thousands of checkpoints wait for no disk.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# Nothing that importing and collecting make is rubbish: it is not looked through for any.
gc.disable()


def pytest_collection_finish() -> None:
    """Collect garbage from now on, and only what tests make."""
    gc.freeze()
    gc.enable()


def pytest_ignore_collect(collection_path, config):
    """Import no file that has none of the tests asked for: two thirds of files have no slow one."""
    # A file without the word, in any case, has no such mark, nor the name of a list with one.
    asked = re.fullmatch(r"(slow|nightly)( and .*)?", config.option.markexpr)
    if not asked or collection_path.suffix != ".py":
        return None
    return asked[1] not in collection_path.read_text(encoding="utf-8").lower() or None


DURATIONS = Path(__file__).with_name("durations.json")
"""Seconds of the tests of each file, which `VERGENCE_DURATIONS=write` before a run renews."""
MEASURED: dict[str, float] = {}


def pytest_runtest_logreport(report) -> None:
    """Add up the seconds of a file's tests."""
    file = report.nodeid.partition("::")[0]
    MEASURED[file] = MEASURED.get(file, 0.0) + report.duration


def pytest_sessionfinish(session) -> None:
    """Write the seconds of files that take more than one; other files keep theirs."""
    if os.environ.get("VERGENCE_DURATIONS") == "write" and not hasattr(
        session.config, "workerinput"
    ):
        seconds = {file: round(took) for file, took in MEASURED.items() if took > 1}
        known = json.loads(DURATIONS.read_text(encoding="utf-8"))
        text = json.dumps(dict(sorted({**known, **seconds}.items())), indent=1)
        DURATIONS.write_text(text + "\n", encoding="utf-8")


def pytest_collection_modifyitems(config, items) -> None:
    """Begin with the files that take longest: a late one leaves the other processes idle."""
    if hasattr(config, "workerinput"):
        seconds = json.loads(DURATIONS.read_text(encoding="utf-8"))
        items.sort(key=lambda item: -seconds.get(item.nodeid.partition("::")[0], 0))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give every file to one process whole; of the commands of the docs, every page."""
    from xdist.scheduler import LoadFileScheduling

    class FilesAndPages(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            # A page's commands use each other's runs, and no other page's.
            return nodeid.rpartition(":")[0] if nodeid.endswith("]") and file == PASTED else file

    config.option.loadscopereorder = False  # files stay in the order of their seconds
    return FilesAndPages(config, log)


PASTED = "tests/docs/test_commands.py"
"""Its tests are told apart by page and line: `...[README.md:12]`."""
GPU = torch.cuda.is_available()


@pytest.fixture(autouse=True)
def one_device(request, monkeypatch):
    """Tests marked `gpu` run on one, in float32 all through, or not; all others see none."""
    if request.node.get_closest_marker("gpu"):
        if not GPU:
            pytest.skip("needs a GPU that torch sees")
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    elif GPU:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def research_data(name: str) -> Path:
    """Return the folder of a research data set, or skip with the reason."""
    home = Path(os.environ.get("VERGENCE_DATA", ROOT.parent / "shared" / "data"))
    folder = home / name
    if not folder.is_dir():
        pytest.skip(f"research data '{name}' not at {home} (set VERGENCE_DATA)")
    return folder
