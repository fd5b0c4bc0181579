"""Accuracies class by class, in a file and in a picture."""

import csv

import numpy as np
import pytest

from tests.reports.ethics.test_page import TAUGHT
from vergence.errors import StateError
from vergence.experiment.class_accuracy import FILE
from vergence.experiment.run import start
from vergence.experiment.schema import check, merge
from vergence.reports.html import figure
from vergence.reports.plots.class_accuracy import of_study
from vergence.results.read import read


def test_every_class_has_its_accuracy_and_unseen_ones_come_last(tmp_path):
    """Their means are u and s of the results."""
    start(check(merge(TAUGHT, {"run": {"seeds": [0, 1], "rounds": 3}})), tmp_path)
    study = read(tmp_path)
    (run,) = study.runs
    with (tmp_path / FILE).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 16
    for seed in (0, 1):
        for unseen, metric in (("1", "u"), ("0", "s")):
            found = [
                float(row["accuracy"])
                for row in rows
                if row["seed"] == str(seed) and row["unseen"] == unseen
            ]
            (told,) = [
                v.value
                for v in run.values.itertuples()
                if (v.seed, v.metric, v.evaluation) == (seed, metric, "P0")
            ]
            assert np.mean(found) == pytest.approx(told)
    names = [label.get_text() for label in of_study(study).axes[0].get_xticklabels()]
    assert [name.endswith("*") for name in names] == [False] * 12 + [True] * 4
    assert figure(tmp_path, "per_class", tmp_path / "classes.png").stat().st_size > 5000
    (tmp_path / FILE).write_text("seed,person,class,unseen,accuracy\n0,owner,cat,x,1\n")
    with pytest.raises(StateError, match="is damaged"):
        of_study(study)
