"""Shared by all tests: where the research data lies, one thread, and a seed for nobody."""

import atexit
import gc
import json
import os
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

pytest_plugins = ["tests.made_up_runs"]
torch.set_num_threads(1)
# The same examples every time, and no clock: a busy machine is not a failure.
settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile("same")
# Without it cuBLAS is refused where deterministic algorithms are demanded.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
ROOT = Path(__file__).parent.parent
MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 2 << 30:
    # Runs of tests lie in memory: thousands of checkpoints wait for no disk.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

if "VERGENCE_STATE" not in os.environ:
    # Marks of tests' folders are no matter of the user's, who may have real ones.
    os.environ["VERGENCE_STATE"] = tempfile.mkdtemp(prefix="vergence-state-")
    atexit.register(shutil.rmtree, os.environ["VERGENCE_STATE"], ignore_errors=True)

# Nothing that importing and collecting make is rubbish: it is not looked through for any.
gc.disable()


@pytest.fixture
def deterministic() -> Iterator[None]:
    """Demand deterministic algorithms of torch: others raise, and new memory is full of NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def pytest_collection_finish() -> None:
    """Collect garbage from now on, and only what tests make."""
    gc.freeze()
    gc.enable()


DURATIONS = Path(__file__).with_name("durations.json")
"""Seconds of each test function, its cases together, which `VERGENCE_DURATIONS=write` renews."""
SECONDS: dict[str, float] = json.loads(DURATIONS.read_text(encoding="utf-8"))
MEASURED: Counter[str] = Counter()
SHARED: dict[str, float] = {}
"""Seconds of shared fixtures, for which whichever test comes first waits, by name."""
WAITED: list[float] = []
"""Of those, what the test at hand waited for."""
FIXTURES: dict[str, float] = {}
"""Seconds of the shared fixtures that a function uses."""
# Seconds that a function's cases may take in `make test`, and in `make check`.
QUICK, SLOW = 0.5, 5.0
# Lies, formulas, bits, words and the house: these may take up to `LONGER` seconds there.
PROMISES = ("adversary/", "conformance/", "docs/", "golden/", "oracles/", "privacy/", "test_house")
LONGER = 8.0
if os.environ.get("VERGENCE_MARKS") == "written":
    # Mutants name the tests that notice them, however long these take.
    QUICK = SLOW = LONGER = float("inf")
# The first of many cases stays in `make test` where a case takes no longer than this.
CASE = 0.4


def tier(name: str) -> str:
    """Return the mark of a function by the seconds that it takes; empty: it is quick."""
    took = SECONDS.get(name, 0.0)
    longest = LONGER if name.removeprefix("tests/").startswith(PROMISES) else SLOW
    return "nightly" if took > longest else "slow" if took > QUICK else ""


def pytest_ignore_collect(collection_path, config):
    """Import no file that has none of the tests asked for: two thirds of files have no slow one."""
    # A file without the word, in any case, has no such mark, nor the name of a list with one.
    asked = re.fullmatch(r"(slow|nightly)( and .*)?", config.option.markexpr)
    if not asked or collection_path.suffix != ".py":
        return None
    file = collection_path.relative_to(ROOT).as_posix()
    if any(name.startswith(file) and tier(name) == asked[1] for name in SECONDS):
        return None
    return asked[1] not in collection_path.read_text(encoding="utf-8").lower() or None


def group(item) -> str:
    """Name a function's cases of one mark: each such group is measured on its own."""
    marks = {mark.name for mark in item.iter_markers()} & {"slow", "nightly"}
    return " ".join([item.nodeid.partition("[")[0], *sorted(marks)])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Mark what takes too long for `make test`, and begin with the files that take longest."""
    groups = [group(item) for item in items]
    cases, met, files = Counter(groups), set(), Counter()
    for item, name in zip(items, groups, strict=True):
        item.user_properties.append(("group", name))
        first = name not in met and SECONDS.get(name, 0.0) <= CASE * cases[name] > CASE
        met.add(name)
        if (mark := tier(name)) and not first:
            item.add_marker("slow" if item.get_closest_marker("ci") else mark)
    yield  # pytest takes out what was not asked for
    for item in items:
        name = dict(item.user_properties)["group"]
        # A slow test that was never measured, as where no browser is, may take long.
        unknown = SLOW if item.get_closest_marker("slow") else 0.0
        files[item.path] += SECONDS.get(name, unknown) / cases[name]
    if hasattr(config, "workerinput"):
        # A long file that begins last leaves the other processes idle.
        items.sort(key=lambda item: -files[item.path])


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef):
    """Measure what a fixture takes that several tests share."""
    began = time.perf_counter()
    value = yield
    took = time.perf_counter() - began
    # A test's own fixture may have the name of one that another file's tests shared.
    SHARED[fixturedef.argname] = 0.0 if fixturedef.scope == "function" else took
    WAITED.append(SHARED[fixturedef.argname])
    return value


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item):
    """Note what a test's shared fixtures took, and how much of that while this test waited."""
    WAITED.clear()
    yield
    shared = sum(SHARED.get(name, 0.0) for name in item.fixturenames)
    item.user_properties.append(("shared", (shared, sum(WAITED))))


def pytest_runtest_logreport(report) -> None:
    """Add up the seconds of a function's cases, and once those of the fixtures that they share."""
    about = dict(report.user_properties)
    shared, waited = about.get("shared", (0.0, 0.0))
    MEASURED[about["group"]] += report.duration - waited * (report.when == "setup")
    FIXTURES[about["group"]] = max(shared, FIXTURES.get(about["group"], 0.0))


def pytest_sessionfinish(session) -> None:
    """Write the seconds of functions that take more than a moment; others keep theirs."""
    if os.environ.get("VERGENCE_DURATIONS") == "write" and not hasattr(
        session.config, "workerinput"
    ):
        now = {name: round(took + FIXTURES[name], 1) for name, took in MEASURED.items()}
        kept = {name: took for name, took in {**SECONDS, **now}.items() if took > 0.2}
        DURATIONS.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")


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
