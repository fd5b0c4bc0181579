"""A run enters no module of what its plan does not ask for."""

import subprocess
import sys

import pytest

from tests.conftest import ROOT

RUN = """
import sys
from pathlib import Path

from tests.engine.toys import LOCAL, run_toy
from vergence.training.pruning import Gradual
from vergence.engine.silos import Silos
from vergence.methods.fedcpf import FedCPF
from vergence.privacy.config import Privacy, SecureAggregationConfig

out, asked, entered = Path(sys.argv[1]), eval(sys.argv[2]), set()


def note(frame, event, _):
    if event == "call":
        entered.add(frame.f_code.co_filename)


sys.setprofile(note)
run_toy(out, FedCPF(local=LOCAL, rate=0.2), rounds=2, evaluate_every=1, **asked)
sys.setprofile(None)
print("\\n".join(entered))
"""
PRUNING = {"training/pruning.py", "engine/pruning_hooks.py"}
SECURE_SUMS = {"engine/secure_sums.py", "privacy/secure_aggregation/reply_layout.py"}
LABS = {"engine/silos.py", "engine/lab_runner.py"}


def entered(out, asked):
    """Modules of the package of which a function was called in a run with these settings."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(out), asked],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    return {path.rpartition("/vergence/")[2] for path in done.stdout.splitlines()}


def test_a_plain_run_enters_no_module_of_pruning_labs_or_secure_sums(tmp_path):
    found = entered(tmp_path, "{}")
    assert {"methods/fedcpf.py", "engine/client_executor.py"} <= found
    assert not found & (PRUNING | LABS | SECURE_SUMS)
    assert not [name for name in found if "secure" in name or "labs" in name]


@pytest.mark.parametrize(
    ("asked", "modules"),
    [
        ("{'pruning': Gradual(0.5)}", PRUNING),
        ("{'silos': Silos({'one': ('p00', 'p01'), 'two': ('p02',)})}", LABS),
        (
            "{'privacy': Privacy(aggregation=SecureAggregationConfig('additive'))}",
            SECURE_SUMS,
        ),
    ],
    ids=["pruning", "labs", "secure sums"],
)
def test_a_run_that_asks_for_it_enters_it(asked, modules, tmp_path):
    """Else the test above would look at the wrong modules."""
    assert modules <= entered(tmp_path, asked)
