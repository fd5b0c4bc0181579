"""Private inference measured, without SPU: cases, what is printed and written, refusals."""

import csv
import json
import math

import numpy as np
import pytest
import torch
from rich.console import Console

from benchmarks.bench import mpc_report
from benchmarks.bench.mpc import (
    CASES,
    LARGEST,
    NUMBERS,
    Case,
    Installed,
    Subject,
    arithmetic,
    find,
    judged,
    work,
)
from benchmarks.mpc.spu_parties import InferenceAnswer
from tests.benchmarks.commands import benched
from vergence.errors import ConfigError, PartialRun, StateError
from vergence.models.lenet import LeNet


@pytest.fixture
def subject():
    torch.manual_seed(0)
    return Subject(
        LeNet((2, 4)).build().eval(), torch.rand(3, 1, 36, 60), torch.rand(3, 2), "small"
    )


def answer(given, off=0.0, clear=0.0):
    wanted = given.wanted.astype(np.float32)
    return InferenceAnswer(wanted + off, wanted + clear, (3.0, 1.0), 5.0, (10, 30), (8, 4), 100.0)


def test_rows_are_what_was_measured(subject):
    given = work(Case("cheetah", 2, images=2), subject, 2)
    assert given.inputs["x"].shape == (2, 2, 1, 36, 60)
    row = judged(Case("cheetah", 2, images=2), given, answer(given, off=5e-5)).row()
    assert row["s"] == 2.0  # of 3 and 1
    assert row["cpu"] == 5 / 4
    assert row["sent"] == (5.0, 15.0)
    assert row["messages"] == 4.0
    assert math.isclose(row["error"], 5e-5, rel_tol=1e-3)
    assert row["security"].startswith("semi-honest, dishonest majority")


def test_images_begin_anew_where_there_are_too_few(subject):
    given = work(Case("aby3", 3, images=2), subject, 2)
    assert np.array_equal(given.inputs["x"][1, 1], given.inputs["x"][0, 0])
    assert np.array_equal(given.wanted[1, 1], given.wanted[0, 0])


@pytest.mark.parametrize("changed", [{"pruned": 0.9}, {"halved": True}, {"after": "pool1"}])
def test_a_variant_is_judged_by_its_own_answers_and_leaves_the_network_alone(subject, changed):
    before = [p.clone() for p in subject.network.parameters()]
    given = work(Case("aby3", 3, **changed), subject, 1)
    whole = work(Case("aby3", 3), subject, 1)
    assert np.array_equal(given.wanted, whole.wanted) is ("after" in changed)
    assert given.parts.products < whole.parts.products
    pairs = zip(before, subject.network.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert subject.network.conv1.weight.dtype == torch.float32


def test_public_weights_leave_no_secret_products(subject):
    case = Case("aby3", 3, public=True)
    given = work(case, subject, 2)
    assert judged(case, given, answer(given)).products == 0


def test_another_network_than_torchs_is_refused(subject):
    given = work(Case("aby3", 3), subject, 2)
    with pytest.raises(StateError, match=r"difference of 0\.001"):
        judged(Case("aby3", 3), given, answer(given, clear=1e-3))


def test_the_arithmetic_is_of_100_000_numbers():
    given = arithmetic()
    x, y = given.inputs["x"], given.parts.arrays["by.weight"]
    assert given.wanted.size == x.size == y.size == NUMBERS == 100_000
    assert LARGEST * 0.99 < max(np.abs(x).max(), np.abs(y).max()) <= LARGEST
    assert given.wanted[0, 0, 5] == float(x[0, 0, 5]) * float(y[0, 5])


def test_names_are_checked():
    assert list(find(["aby3", "cheetah"])) == ["aby3", "cheetah"]
    assert find([]) == {n: c for n, c in CASES.items() if not n.startswith(("malicious", "mascot"))}
    with pytest.raises(ConfigError, match="did you mean 'cheetah'"):
        find(["chetah"])


@pytest.fixture
def no_spu(monkeypatch, subject):
    """SPU's part: the network's own answers, off by 2e-5."""
    monkeypatch.setattr(Installed, "check", lambda _self, _case: None)
    monkeypatch.setattr(mpc_report, "fresh", lambda _images: subject)

    def infer(_self, case, given, say):
        say("batch 1 of 1", 0.5)
        if case.parties == 5:
            raise StateError("private inference: party 4 failed: no more")
        return answer(given, off=2e-5)

    monkeypatch.setattr(Installed, "infer", infer)


@pytest.mark.usefixtures("no_spu")
def test_it_prints_and_writes_every_row_with_its_security_model(tmp_path):
    out, file = Console(record=True, width=250), tmp_path / "new" / "mpc.csv"
    mpc_report.run(["aby3", "semi2k_3"], out, Installed(tmp_path), file, batches=2)
    text = out.export_text()
    assert "semi-honest, DEALER: the first party makes the triples and could open all" in text
    assert "2.0e-05" in text
    with file.open() as opened:
        rows = list(csv.DictReader(opened))
    assert [row["case"] for row in rows] == ["aby3", "semi2k_3"]
    assert rows[1]["seconds"] == "3.0 1.0"
    assert all(row["security"] for row in rows)
    told = json.loads(file.with_suffix(".json").read_text())
    assert told["rows"]["aby3"]["products"] == int(rows[0]["products"])
    assert told["machine"]["cores"] >= 1
    assert (told["network"], told["images"]) == ("small", 3)


@pytest.mark.usefixtures("no_spu")
def test_what_was_measured_before_a_failure_is_kept(tmp_path):
    file = tmp_path / "mpc.csv"
    with pytest.raises(PartialRun, match=r"1 of 2 cases measured: .*party 4 failed"):
        mpc_report.run(["aby3", "semi2k_5"], Console(quiet=True), Installed(tmp_path), file)
    assert len(file.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["aby4"], "no case 'aby4' (did you mean 'aby3'?)"),
        (["aby3", "--batches", "0"], "--batches must be 1 or more; got 0"),
        (["aby3", "--out", "mpc.txt"], "--out is a .csv file; got mpc.txt"),
        (["aby3", "--python", "/nowhere/python"], "no Python at /nowhere/python: python3.11 -m"),
    ],
)
def test_refusals_are_one_line(words, told):
    benched("mpc", *words).complains(2, told)
