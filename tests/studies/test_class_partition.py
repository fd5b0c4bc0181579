"""`vergence data partition`, the table it leaves in a run, and the picture of it."""

import csv
import io
import re

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from tests.cli.commands import vergence, write
from tests.data.images.test_fashion_mnist import fill
from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation
from vergence.errors import ConfigError, StateError
from vergence.experiment.class_counts import FILE, counts
from vergence.experiment.class_counts import write as write_table
from vergence.reports.html import figure, report
from vergence.results.read import StudyResults
from vergence.studies.class_partition import bubbles, of_study, show
from vergence.unlearning import data_footprint

ONE = """
task = { name = "images" }
model = { name = "softmax" }
federation = { name = "fashion_mnist", people = 10, split = "table" }
methods = ["fedavg"]
local = { optimizer = "sgd", epochs = 1, batch = 8, lr = 0.1 }
run = { rounds = 1, seeds = [0], workers = 1 }
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return fill(tmp_path_factory.mktemp("fashion"))


def people(**labels):
    found = {}
    for name, own in labels.items():
        samples = Samples({"label": torch.tensor(own)})
        found[name] = Splits(samples, samples, samples)
    return Federation("f", found, {"classes": "cat, dog, owl"})


def test_counts_have_every_class_by_name_or_else_by_number():
    assert counts(people(a=[0, 0, 2], b=[1])) == {
        "a": {"cat": 2, "dog": 0, "owl": 1},
        "b": {"cat": 0, "dog": 1, "owl": 0},
    }
    assert counts(people(a=[3])) == {"a": {"0": 0, "1": 0, "2": 0, "3": 1}}


def test_a_disc_is_as_large_as_its_number():
    """Areas 1 : 4, and none where there is none."""
    drawn = bubbles({"a": {"cat": 10, "dog": 0}, "b": {"cat": 0, "dog": 40}})
    discs = drawn.axes[0].collections
    assert [tuple(d.get_offsets()[0]) for d in discs] == [(0, 0), (1, 1)]
    small, large = (float(d.get_sizes()[0]) for d in discs)
    assert large == pytest.approx(4 * small)


def test_the_command_tells_and_draws(root, tmp_path):
    text, picture = io.StringIO(), tmp_path / "p.png"
    sets = ["federation.people=10", "federation.split=table"]
    show("fashion_mnist", str(root), Console(file=text, width=160), sets, picture)
    (last,) = (line for line in text.getvalue().splitlines() if "p008" in line)
    assert re.search(r"72 .* 24 .* 2 .* Bag \d+, Ankle boot \d+", last)
    assert "classes by a table" in text.getvalue()
    assert np.asarray(Image.open(picture).convert("L")).std() > 8


def test_what_has_no_classes_or_too_many_people_is_refused(root):
    with pytest.raises(ConfigError, match="samples of 'toy' have no `label`"):
        show("toy", None, Console(file=io.StringIO()))
    sets = ["federation.people=101"]
    with pytest.raises(ConfigError, match="at most 100 people, 'fashion_mnist' has 101"):
        show("fashion_mnist", str(root), Console(file=io.StringIO()), sets)


def test_a_runs_table_is_what_its_picture_shows(tmp_path):
    write_table(tmp_path / FILE, people(a=[0, 0, 2], b=[1]))
    assert (tmp_path / FILE).read_text() == (
        "person,class,samples\na,cat,2\na,dog,0\na,owl,1\nb,cat,0\nb,dog,1\nb,owl,0\n"
    )
    drawn = of_study(StudyResults(tmp_path, (), {}))
    assert len(drawn.axes[0].collections) == 3
    assert of_study(StudyResults(tmp_path / "one" / "label", (), {})) is None
    (tmp_path / FILE).write_text("person,class,samples\na,cat,many\n")
    with pytest.raises(StateError, match=r"classes\.csv is damaged"):
        of_study(StudyResults(tmp_path, (), {}))


@pytest.mark.slow
def test_a_run_keeps_the_table_draws_it_and_forgets_a_person(root, tmp_path):
    out = tmp_path / "out"
    said = vergence("run", write(tmp_path, ONE), "--out", out, "--set", f"federation.root={root}")
    assert said.code == 0, said.err
    with (out / FILE).open() as file:
        found = {(r["person"], r["class"]): int(r["samples"]) for r in csv.DictReader(file)}
    assert found["p008", "Bag"] + found["p008", "Ankle boot"] == 72  # of 80, 8 are for validation
    assert found["p008", "Shirt"] == 0
    assert '<h2 id="classes">' in report(out).read_text(encoding="utf-8")
    figure(out / "fedavg", "classes", tmp_path / "one.svg")
    assert FILE in (out / "SHA256SUMS").read_text()
    assert f"10 rows of {FILE}" in data_footprint.rows(out, "p008")
    data_footprint.erase(out, "p008")
    assert "p008" not in (out / FILE).read_text()
    assert vergence("verify", out).code == 0
