"""Own data: a number that is none is refused where data are loaded, by person, column, row."""

import pytest

from tests.adversary.files.data_files import ended
from tests.cli.commands import TOY, write

OWN = '''
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.utils.data import TensorDataset

from vergence.core.data import Samples, SharedRows, Splits
from vergence.core.federation import Dataset, Federation
from vergence.data.synthetic.toy import Toy


@dataclass(frozen=True)
class Mine(Dataset):
    """A toy in which something of p01 is SPOILT."""

    part: str = "train"
    column: str = "x"
    value: str = "nan"
    how: str = "one"

    def load(self, root=None):
        whole = Toy(people=3).load()
        splits = whole.people["p01"]
        samples = getattr(splits, self.part)
        columns = {name: column.clone() for name, column in samples.columns.items()}
        spoilt = Samples(columns)
        if self.how == "one":
            if self.column not in columns:
                columns[self.column] = torch.zeros(len(samples), 2, 2)
            columns[self.column][4].view(-1)[-1] = float(self.value)
        elif self.how == "bank":
            rows = torch.zeros(6, 2)
            rows[5, 1] = float(self.value)
            columns["at"] = torch.zeros(len(samples), dtype=torch.int64)
            spoilt = Samples(columns, {self.column: SharedRows(rows, "at")})
        elif self.how == "torch":
            spoilt = TensorDataset(columns["x"], columns["y"])
        elif self.how == "numpy":
            columns["x"] = columns["x"].numpy()
        people = {**whole.people, "p01": replace(splits, **{self.part: spoilt})}
        return Federation("mine", people)
'''
SAMPLES = {"train": "training", "val": "validation", "test": "test"}


def run_on(folder, **options):
    (folder / "mine.py").write_text(OWN)
    told = ", ".join(f"{k} = {v!r}" for k, v in options.items())
    named = f"federation = {{ name = '{folder / 'mine.py'}', {told} }}"
    text = TOY.replace("METHODS", 'method = "fedavg"')
    text = text.replace('federation = { name = "toy", people = 3 }', named)
    return ended("run", write(folder, text), "--out", folder / "out")


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("part", SAMPLES)
@pytest.mark.parametrize("name", ["x", "y"])
def test_a_number_that_is_none_is_refused_at_load(tmp_path, part, name, value):
    said = run_on(tmp_path, part=part, column=name, value=value)
    whose = f"person 'p01', {SAMPLES[part]} samples"
    said.complains(3, "data set 'mine'", whose, f"'{name}' is {value} in row 4", "(1 of ")
    assert not (tmp_path / "out" / "config.toml").exists()


def test_a_number_in_rows_that_samples_share_is_refused_at_load(tmp_path):
    said = run_on(tmp_path, how="bank", column="frames")
    said.complains(3, "person 'p01'", "'frames' is nan in row 5", "(1 of 6 rows")


def test_gaze_that_was_not_recorded_may_be_nan_and_not_infinite(tmp_path):
    said = run_on(tmp_path, column="points", value="inf")
    said.complains(3, "person 'p01'", "'points' is inf in row 4")
    (tmp_path / "missing").mkdir()
    assert run_on(tmp_path / "missing", column="points", value="nan").code == 0


@pytest.mark.parametrize(
    ("how", "code", "says"),
    [
        ("torch", 2, "Splits: train must be Samples, columns by name; got torch.utils.data"),
        ("numpy", 3, "'x' is a ndarray: give a tensor"),
    ],
)
def test_samples_of_another_kind_are_named(tmp_path, how, code, says):
    run_on(tmp_path, how=how).complains(code, says)


def test_data_check_finds_it_too(tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    said = ended("data", "check", tmp_path / "mine.py")
    assert said.code == 3, said.err
    assert "is nan in row 4" in " ".join(said.out.split())
