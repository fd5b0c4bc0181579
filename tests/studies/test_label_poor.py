"""Label-poor people in tables: a group of their own, beside the others."""

import numpy as np
import pytest

from tests.cli.commands import TOY, vergence, write
from vergence.results.read import read
from vergence.studies.label_poor import label_poor, label_poor_block

METHODS = 'methods = ["local_only", "fedavg"]'
LABELS = 'few_data = { label_poor = ["p01"], label_poor_samples = 4 }'
FEW = f"{LABELS}\n{TOY.replace('METHODS', METHODS).replace('people = 3', 'people = 4')}"


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("few")
    vergence("run", write(folder, FEW), "--out", folder / "out")
    return folder / "out"


def test_the_group_by_hand(out):
    study = read(out)
    block = label_poor_block(study, "error")
    scores = study.run("fedavg").scores("error")
    row = next(r for r in block.records if r["row"] == "fedavg")
    assert row["label_poor"] == row["worst_label_poor"] == scores["p01"]
    assert row["others"] == pytest.approx(np.mean([scores[p] for p in ("p00", "p02", "p03")]))


def test_it_is_shown_beside_the_methods(out):
    assert "of 1 label-poor people and of the others" in vergence("compare", out).out


def test_nothing_to_set_apart(tmp_path):
    file = write(tmp_path, TOY.replace("METHODS", 'method = { name = "fedavg" }'))
    vergence("run", file, "--out", tmp_path / "o")
    assert label_poor_block(read(tmp_path / "o"), "error") is None


def test_people_of_several_generator_seeds(tmp_path):
    sets = ["--set", "run.split_seeds=[0, 1]", "--set", "run.rounds=1"]
    vergence("run", write(tmp_path, FEW), "--out", tmp_path / "o", *sets)
    assert label_poor(read(tmp_path / "o").runs[0]) == {"p01@0", "p01@1"}
