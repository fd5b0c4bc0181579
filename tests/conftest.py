"""Shared by all tests: where the research data lies, one thread, and a seed for nobody."""

import gc
import os
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


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give every file to one process whole; of the commands of the docs, every page."""
    from xdist.scheduler import LoadFileScheduling

    class FilesAndPages(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            # A page's commands use each other's runs, and no other page's.
            return nodeid.rpartition(":")[0] if nodeid.endswith("]") and file == PASTED else file

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
