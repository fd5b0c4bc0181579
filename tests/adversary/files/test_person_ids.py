"""Ids are looked at once, where people become a federation, and every table can be read again.

The ids come from an npz, as anybody may send one: those with commas and quotes train to the end.
"""

import csv

import numpy as np
import pytest

from tests.cli.commands import vergence, write
from tests.data.eye_images.test_mpiigaze_crops import write_crops
from vergence.core.federation import Federation
from vergence.data.synthetic.toy import Toy
from vergence.errors import DataError
from vergence.results.read import read

EYES = """
task       = { name = "gaze_angle" }
model      = { name = "small_eye" }
federation = { name = "mpiigaze_crops", root = "ROOT", people = COUNT }
methods    = ["local_only", "fedavg"]
local      = { optimizer = "sgd", steps = 1, batch = 4 }
run        = { rounds = 1, workers = 1, evaluate_every = 0 }
"""
LEGAL = ["Doe, J", 'a,"b', '"', "O'Neil", "Zoë", "[b]x", "x.y z"]


def run_on(folder, ids):
    write_crops(folder, people=len(ids), person=np.array(ids))
    text = EYES.replace("ROOT", str(folder)).replace("COUNT", str(len(ids)))
    return vergence("run", write(folder, text), "--out", folder / "out")


def test_commas_and_quotes_train_to_the_end_and_are_read_again(tmp_path):
    assert run_on(tmp_path, LEGAL).code == 0
    for command in ("compare", "verify", "status"):
        said = vergence(command, tmp_path / "out")
        assert said.code == 0, (command, said.err)
    study = read(tmp_path / "out")
    assert {who for people in study.priors.values() for who in people} == set(LEGAL)
    for run in study.runs:
        assert run.people == LEGAL
        assert set(run.scores(run.headline)) == set(LEGAL)
        assert {*run.turns.client} == set(LEGAL)


BAD = {
    "a formula": (["=1+1", "c"], "begins with ="),
    "an option": (["--help", "c"], "begins with -"),
    "a newline": (["p0\np1", "c"], "cannot be printed"),
    "a carriage return": (["p0\rp1", "c"], "cannot be printed"),
    "an escape": (["\x1b[31mred", "c"], "cannot be printed"),
    "text from right to left": (["a\u202eb", "c"], "cannot be printed"),
    "an isolate": (["a\u2066b", "c"], "cannot be printed"),
    "a NUL": (["a\0b", "c"], "cannot be printed"),
    "nothing": (["", "c"], "is empty"),
    "spaces": (["  ", "c"], "is empty"),
    "a folder": (["a/b", "c"], "another folder"),
    "another way to write a folder": (["a\\b", "c"], "another folder"),
    "a way out": (["../../x", "c"], "another folder"),
    "the folder itself": (["..", "c"], "another folder"),
    "a long name": (["é" * 51, "c"], "has 102 bytes"),
    "twins": (["c", "c", "d"], "there twice"),
    "twins but for capitals": (["Anna", "anna", "d"], "one file's name"),
    "twins but for the way of writing": (["Zo\u00eb", "Zoe\u0308", "d"], "one file's name"),
    "twins but for capitals of others": (["Straße", "STRASSE", "d"], "one file's name"),
}


@pytest.mark.parametrize("case", BAD)
def test_an_id_that_no_table_or_file_can_hold_is_refused_at_load(tmp_path, case):
    ids, rule = BAD[case]
    said = run_on(tmp_path, ids)
    said.complains(3, "person id", rule, "at most 100 bytes", "mpiigaze_9x15.npz")
    assert said.err.strip().isprintable()
    assert not (tmp_path / "out" / "config.toml").exists()


@pytest.mark.parametrize("case", [case for case in BAD if case != "twins"])
def test_no_federation_is_built_of_such_ids(case):
    ids, rule = BAD[case]
    somebody = next(iter(Toy(people=1).load().people.values()))
    with pytest.raises(DataError, match=rule) as caught:
        Federation("mine", dict.fromkeys(ids, somebody))
    assert str(caught.value).isprintable()


def test_priors_of_plain_names_are_the_bytes_that_they_were(tmp_path):
    assert run_on(tmp_path, ["p00", "p01"]).code == 0
    data = (tmp_path / "out" / "priors.csv").read_bytes()
    with (tmp_path / "out" / "priors.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["prior", "person", "metric", "value"]
    assert len(rows) > 2
    assert data == "".join(",".join(row) + "\n" for row in rows).encode()
