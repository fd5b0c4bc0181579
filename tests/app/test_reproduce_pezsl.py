"""Chapters 5 and 6 of the Durham thesis run again: one owner, told by seed, and its teacher."""

import json

import pytest

from tests.app.test_reproduce import console
from tests.conftest import research_data
from vergence.app import reproduce as app
from vergence.app.papers import pezsl, pezsl_checks, sgzsl_tables
from vergence.app.papers.grounds import GROUNDS
from vergence.app.papers.pezsl import OM, QUASI, TEACHER
from vergence.app.papers.running import Wish, plan

MADE = GROUNDS["zsl_synthetic"]
PARTS = {part.name: part for one in (*app.pezsl_tables.TABLES, *sgzsl_tables.TABLES)
         for part in one.parts}  # fmt: skip
TINY = ("federation.images=20", "local.epochs=3", "local.lr=0.01", "run.workers=1")
FEW = (
    'methods=[{name="pe_zsl",label="white_box",semantics="words",generator_rounds=1,samples=4,'
    'batch=64,hidden=8,classifier_rounds=1}]'
)  # fmt: skip


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Return scores of Table 5.2's white box under both teachers, two seeds, two rounds."""
    wish = Wish(seeds=2, rounds=2, sets=(*TINY, FEW))
    out = tmp_path_factory.mktemp("taught")
    plans = [plan(pezsl.every_way(teacher), MADE, wish) for teacher in pezsl.KINDS]
    return {row: found for result in app.run_parts(plans, out).values()
            for row, found in result.scores.items()}  # fmt: skip


@pytest.mark.slow
def test_one_owner_is_told_seed_by_seed(told):
    for row in ("white_box" + OM, "white_box" + QUASI, TEACHER + OM, TEACHER + QUASI,
                "chance (prior)"):  # fmt: skip
        for metric in ("T1", "u", "s", "H"):
            assert list(told[row][metric]) == ["seed 0", "seed 1"], (row, metric)
    assert set(told["chance (prior)"]["T1"].values()) == {0.25}


@pytest.mark.slow
def test_the_teacher_is_the_one_that_answered(told):
    """Without outputs for unseen classes it is right on none of them, by definition."""
    knows_all, knows_seen = told[TEACHER + OM], told[TEACHER + QUASI]
    for metric in ("T1", "u", "H"):
        assert set(knows_seen[metric].values()) == {0.0}
    assert min(knows_seen["s"].values()) > 1 / 16
    assert min(knows_all["T1"].values()) > 0.25
    first, second = ([knows_all[m][f"seed {i}"] for m in ("T1", "u", "s")] for i in (0, 1))
    assert first != second, "every seed has a teacher of its own"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["zsl_synthetic", "awa2_lists"])
def test_every_part_can_be_planned_where_it_says_it_can(name):
    root = None if name == "zsl_synthetic" else str(research_data("zsl_splits"))
    for part in PARTS.values():
        planned = plan(part, GROUNDS[name], Wish(root=root))
        assert planned.experiment is not None, (part.name, planned.missing)
        assert planned.experiment.table["federation"]["teacher"] in pezsl.KINDS


def test_budgets_are_the_teachers():
    for epsilon in sgzsl_tables.BUDGETS:
        for compare in sgzsl_tables.COMPARED:
            experiment = plan(sgzsl_tables.private(epsilon, compare), MADE, Wish()).experiment
            assert experiment is not None
            solver = experiment.table.get("privacy", {}).get("solver", {})
            assert solver.get("epsilon") == epsilon
            assert experiment.table["methods"][0]["compare"] == compare


def test_printed_means_that_their_row_does_not_give():
    by_table = {f.says.partition(":")[0]: f for f in
                (*pezsl_checks.check_pezsl(), *pezsl_checks.check_sgzsl())}  # fmt: skip
    assert "15,339" in by_table["Table 5.1"].computed
    assert "82.5, computed 82.42" in by_table["Table 6.3"].computed
    assert "69.5, computed 69.60" in by_table["Table 6.6"].computed


def test_a_table_is_written_with_its_verdicts(tmp_path):
    wish = Wish(seeds=2, rounds=2, sets=(*TINY, FEW))
    (found,) = app.reproduce(["sgzsl/table6.3"], console(), wish=wish, out=tmp_path)
    record = json.loads((tmp_path / "sgzsl/table6.3/verdicts.json").read_text())
    assert record["rows"][TEACHER + OM]["ours"]["main"] == found.value(TEACHER + OM, "main")
    assert {claim["verdict"] for claim in record["claims"]} == {"not testable here"}
    assert "no row 'mmd" in record["claims"][0]["reason"]
