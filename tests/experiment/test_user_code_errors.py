"""Faults in somebody's own method or task while a run goes on: one line, and the traceback kept."""

import re
from dataclasses import dataclass

import pytest

import vergence as vg
from tests.cli.commands import ONE, run, vergence, write
from tests.experiment.made_up import trained

METHOD = """
from dataclasses import dataclass

from vergence import Global, fit, reply
from vergence.methods.fedavg import FedAvg


@dataclass(frozen=True)
class Mine(FedAvg):
    def on_train(self, c, msg, site):
        BODY
        sent = reply(model=fitted.params - model, weight=fitted.examples, metrics={})
        return c, sent
"""
GOOD = 'model = msg["model"]; fitted = yield from fit(model, site.train, self.local)'
FAULTS = {
    "name": (GOOD.replace("self.local", "locla"), "NameError: name 'locla' is not defined"),
    "key": (GOOD.replace('msg["model"]', 'msg["modl"]'), "KeyError: 'modl'"),
    "yield from": (
        GOOD.replace("yield from ", ""),
        "'generator' object has no attribute 'params'; is a `yield from` missing?",
    ),
}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("what", FAULTS)
def test_one_line_names_the_line_of_the_file(what, workers, tmp_path):
    body, says = FAULTS[what]
    (tmp_path / "err2.py").write_text(METHOD.replace("BODY", body))
    text = ONE.replace('name = "fedcpf", rate = 0.2', 'name = "err2.py", label = "mine"')
    out = tmp_path / "out"
    said = vergence("run", write(tmp_path, text), "--out", out, "--set", f"run.workers={workers}")
    said.complains(2, "err2.py:1", ", on_train: ", says, f"the traceback is in {out}/traceback.txt")
    assert re.search(r"err2\.py:1[12], on_train", said.err)
    kept = (out / "traceback.txt").read_text()
    assert kept.startswith("Traceback")
    assert "client_executor.py" in kept


def test_a_fault_of_the_package_itself_is_not_laid_at_the_users_door(tmp_path, monkeypatch):
    def fails(*_):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("vergence.experiment.run._write_final_files", fails)
    with pytest.raises(ZeroDivisionError):
        run(tmp_path, ONE)


@dataclass(frozen=True)
class Broken(vg.methods.FedAvg):
    """FedAvg whose clients fail."""

    def on_train(self, c, msg, site):
        """Fail."""
        raise LookupError("nowhere")


def test_in_python_the_exception_is_chained(tmp_path):
    with pytest.raises(
        vg.ConfigError, match=r"test_user_code_errors\.py:\d+, on_train: LookupErr"
    ) as e:
        trained(method=Broken())
    assert isinstance(e.value.__cause__, LookupError)
    assert "traceback.txt" not in str(e.value), "the folder goes with the run"
    with pytest.raises(vg.ConfigError, match=r"the traceback is in .*out/traceback\.txt$"):
        trained(tmp_path / "out", method=Broken())


def test_what_a_listener_raises_goes_to_the_caller():
    def listen(_):
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        trained(method=vg.methods.FedAvg(), on_round=listen)
