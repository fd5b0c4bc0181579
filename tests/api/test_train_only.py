"""People without test or validation samples, and data sets that do not fit into memory."""

import subprocess
import sys

import pytest

import vergence as vg
from tests.conftest import ROOT
from tests.experiment.made_up import arrays, trained

PARTS = {"train": slice(0, 20), "val": slice(20, 30), "test": slice(30, 40)}


def people(*, val=(), test=()):
    """Five people in parts; those in `val` or `test` lack this part."""
    without = {"train": (), "val": val, "test": test}
    return vg.Federation.from_arrays(
        {
            person: {
                part: {name: column[rows] for name, column in own.items()}
                for part, rows in PARTS.items()
                if person not in without[part]
            }
            for person, own in arrays().items()
        }
    )


def test_who_has_no_test_samples_trains_and_is_in_no_table(tmp_path):
    run = trained(tmp_path / "a", vg.methods.FedAvg(), people=people(test=("p01", "p03")))
    whole = trained(tmp_path / "b", vg.methods.FedAvg(), people=people())
    measured = ["p00", "p02", "p04"]
    assert run.fingerprint == whole.fingerprint
    assert run.people == measured
    assert list(run.scores.index) == measured
    assert run.scores.equals(whole.scores.loc[measured])
    assert repr(run).startswith("Run fedavg: 3 people measured of 5, in")
    assert "3 people measured of 5" in run._repr_html_()
    assert repr(whole).startswith("Run fedavg: 5 people, in")
    assert list(run.predictions().person.unique()) == measured
    # Everybody's training samples count in the constant that is compared with.
    priors = [(p / "priors.csv").read_text().splitlines() for p in (run.folder, whole.folder)]
    assert set(priors[0]) == {row for row in priors[1] if row.split(",")[1] not in ("p01", "p03")}


def test_methods_are_compared_over_the_same_people(tmp_path):
    data = people(test=("p01",))
    runs = [
        trained(tmp_path / n, m, people=data) for n, m in (("a", vg.methods.FedAvg()), ("b", None))
    ]
    compared = vg.compare(*runs)
    assert "4 people" in repr(compared)


def test_tasks_and_baselines_take_such_people(tmp_path):
    """Images has two constants, and a test on everybody's samples together."""
    data = people(test=("p01",), val=("p01", "p02"))
    images = {
        who: {
            part: {
                "image": (samples.columns["x"].reshape(-1, 1, 2, 2) * 20 + 100).clip(0, 255).byte(),
                "label": (samples.columns["y"] > 0).long(),
            }
            for part, samples in vars(splits).items()
            if len(samples)
        }
        for who, splits in data.people.items()
    }
    made = vg.Federation.from_arrays(images)
    task = vg.tasks.Images(vg.models.Softmax(image=(1, 2, 2), classes=2))
    run = trained(tmp_path, vg.methods.FedAvg(), task=task, people=made)
    assert list(run.scores.index) == ["p00", "p02", "p03", "p04"]
    assert run.scores.notna().all(axis=None)


def test_what_chooses_on_validation_samples_needs_some(tmp_path):
    lacking = people(val=("p01",))
    for method in (vg.methods.FedCPF(), vg.methods.Interpolation()):
        with pytest.raises(vg.DataError, match=r"p01: without validation .* method '"):
            trained(tmp_path / "a", method, people=lacking)
    trained(tmp_path / "b", vg.methods.FedCPF(select="random"), people=lacking)
    stopping = {"early_stopping": vg.EarlyStopping(patience=1)}
    trained(tmp_path / "c", vg.methods.FedAvg(), people=lacking, **stopping)
    with pytest.raises(vg.DataError, match=r"p00, p01, .* early stopping chooses"):
        trained(tmp_path / "d", vg.methods.FedAvg(), people=people(val=arrays()), **stopping)


SCRIPT = """
import resource, sys
import torch
from torch import nn
import vergence as vg

class Pictures(torch.utils.data.Dataset):
    def __init__(self, person):
        self.person = person
    def __len__(self):
        return 200
    def __getitem__(self, at):
        dice = torch.Generator().manual_seed(1000 * self.person + at)
        return torch.rand(3, 64, 64, generator=dice) / 2 + at % 2 / 2, at % 2

def net():
    return nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(192, 2))

used = next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmData"))
limit = used * 1024 + 700 * 2**20
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
people = {f"p{i}": Pictures(i) for i in range(120)}
data = vg.Federation.from_datasets(people, lazy=sys.argv[1] == "lazy", stratify="y")
task = vg.task_from(net, nn.CrossEntropyLoss())
local = vg.LocalTraining(batch=8, lr=0.1)
run = vg.train(vg.methods.FedAvg(local=local), task, data, rounds=2, workers=2, progress=False)
print(run.summary)
"""


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["lazy", "at once"])
def test_pictures_that_do_not_fit_into_memory_train(how):
    """1.2 GB of pictures where 700 MB are allowed beside what Python and torch have taken."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, how], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if how == "lazy":
        assert done.returncode == 0, done.stderr[-2000:]
        assert "test_loss" in done.stdout
    else:
        assert done.returncode != 0
        assert "memory" in done.stderr.lower()
