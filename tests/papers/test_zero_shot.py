"""Chapters 5 and 6 of the Durham thesis run again: one owner, told by seed, and its teacher."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from vergence_papers.pezsl import checks as pezsl
from vergence_papers.sgzsl import checks as sgzsl

from tests.conftest import research_data
from tests.papers.test_command import console
from vergence.errors import ConfigError
from vergence.results.verdict_rules import training_curve
from vergence_papers import command as app
from vergence_papers import generated_samples, teachers
from vergence_papers.data_sets import GROUNDS
from vergence_papers.generated_samples import APART, CLUSTERED, FAR, NEAR, REAL, Made
from vergence_papers.printed import table_parts
from vergence_papers.running import Wish, plan
from vergence_papers.teachers import TEACHER

MADE = GROUNDS["zsl_synthetic"]
PE, SG = table_parts("pezsl"), table_parts("sgzsl")
OM, QUASI = " (teacher of all classes)", " (teacher of seen classes)"
TINY = ("federation.images=20", "local.epochs=3", "local.lr=0.01", "run.workers=1")
FEW = (
    'methods=[{name="pe_zsl",label="white_box",semantics="words",generator_rounds=1,samples=4,'
    "batch=64,hidden=8,classifier_rounds=1}]"
)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Run Table 5.2's white box under both teachers, two seeds, two rounds."""
    wish = Wish(seeds=2, rounds=2, sets=(*TINY, FEW))
    out = tmp_path_factory.mktemp("taught")
    plans = [plan(PE[f"ways_{teacher}"], MADE, wish) for teacher in ("omniscient", "quasi")]
    return list(app.run_parts(plans, out).values())


@pytest.fixture(scope="module")
def told(ran):
    return {row: found for result in ran for row, found in result.scores.items()}


@pytest.mark.slow
def test_curves_say_nothing_of_what_is_learned_after_the_rounds(ran):
    """Unseen classes that the teacher does not know are learned in the last step alone."""
    omniscient, quasi = ran
    assert omniscient.late == frozenset()
    assert "white_box" + QUASI in quasi.late
    assert {TEACHER + OM, TEACHER + QUASI} <= omniscient.closed | quasi.closed
    wish = Wish(seeds=2, rounds=2, sets=(*TINY, FEW))
    plans = [plan(PE[f"ways_{teacher}"], MADE, wish) for teacher in ("omniscient", "quasi")]
    results = {(each.part.name, each.part.protocol): r for each, r in zip(plans, ran, strict=True)}
    found = app.gather(app.TABLES["pezsl/table5.2"], MADE, wish, plans, results).evidence.curves
    assert found["white_box" + QUASI] == {}
    assert "H" in found["white_box" + OM]


@pytest.mark.slow
def test_one_owner_is_told_seed_by_seed(told):
    for row in (
        "white_box" + OM,
        "white_box" + QUASI,
        TEACHER + OM,
        TEACHER + QUASI,
        "chance (prior)",
    ):
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
def test_closed_forms_are_learned_from_the_owners_samples(told):
    """Ridge regression of all classes is above chance; ESZSL is too, where unseen classes are."""
    assert told["ridge" + OM]["H"]["seed 0"] > 0.5
    assert told["ESZSL" + QUASI]["T1"]["seed 1"] > 0.4
    assert set(told["ridge" + OM]) == {"T1", "u", "s", "H"}


def test_pairs_of_unseen_classes_are_replicates():
    """All 21 of seven classes; of the first seven each class is in two."""
    pairs = GROUNDS["cifar10_unseen"].replicates
    chosen = [frozenset(told["task"]["unseen"]) for told in pairs.values()]
    assert len(set(chosen)) == 21
    assert all(told["federation"] == told["task"] for told in pairs.values())
    first = [name for two in chosen[:7] for name in two]
    assert {first.count(name) for name in GROUNDS["cifar10_unseen"].classes} == {2}


def test_replicates_are_planned_and_fewer_of_them_are_stamped():
    where = GROUNDS["cifar10_unseen"]
    planned = plan(PE["ways_omniscient"], where, Wish(root="x", seeds=2))
    assert [*planned.replicates] == ["aeroplane, car", "car, bird"]
    unseen = [e.table["federation"]["unseen"] for e in planned.replicates.values()]
    assert unseen == [["aeroplane", "car"], ["car", "bird"]]
    assert [e.plan.seeds for e in planned.replicates.values()] == [(0,), (0,)]
    assert planned.missing == dict.fromkeys(
        ("by_its_student" + OM, "by_estimates" + OM), where.omitted
    )
    assert len(plan(PE["ways_omniscient"], where, Wish(root="x")).replicates) == 21
    assert app.stamps(where, Wish(), {"seeds": 2, "rounds": 9}, 9) == ("fast: 2 of 21 splits",)
    assert app.stamps(where, Wish(), {"seeds": 21, "rounds": 9}, 9) == ()


def test_scores_of_replicates_are_means_over_what_they_share():
    """A score by seed becomes the replicate's; videos keep their names, in the mean of two."""
    scores = {
        "0/partition 0": {"a": {"f": {"video x": 1.0}, "spread": {"seed 0": 1.0, "seed 1": 3.0}}},
        "1/partition 0": {"a": {"f": {"video y": 2.0}, "spread": {"seed 0": 4.0, "seed 1": 4.0}}},
        "0/partition 1": {"a": {"f": {"video x": 3.0}, "spread": {"seed 0": 0.0, "seed 1": 0.0}}},
    }
    assert app.mean_over(scores, "fold") == {
        "a": {
            "f": {"video x": 2.0, "video y": 2.0},
            "spread": {"fold 0": 1.0, "fold 1": 4.0},
        }
    }
    assert app.mean_curve([((0, 1), (0.0, 2.0)), ((0, 1), (1.0, 4.0))]) == ((0, 1), [0.5, 3.0])


@pytest.mark.slow
def test_a_part_is_run_once_for_every_replicate(tmp_path):
    """Two choices of unseen generated classes: their scores are units, their curves one mean."""
    names = MADE.classes
    pairs = {
        f"{a}, {b}": {"task": {"unseen": [a, b]}, "federation": {"unseen": [a, b]}}
        for a, b in zip(names[:2], names[2:4], strict=True)
    }
    where = replace(MADE, replicates=pairs, unit="pair")
    wish = Wish(seeds=2, rounds=2, sets=(*TINY, FEW))
    planned = plan(PE["ways_omniscient"], where, wish)
    table = app.TABLES["pezsl/table5.2"]
    results = app.run_parts([planned], tmp_path)
    found = app.gather(table, where, wish, [planned], results)
    units = [f"pair {name}" for name in pairs]
    for row in ("white_box" + OM, TEACHER + OM, "ridge" + OM, "chance (prior)"):
        assert list(found.evidence.scores[row]["H"]) == units, row
    (result,) = results.values()
    curves = [training_curve(run, "H")[1] for run in result.runs("white_box")]
    assert len(curves) == 2
    assert found.evidence.curves["white_box" + OM]["H"][1] == pytest.approx(
        np.mean(curves, 0).tolist()
    )
    assert "pair" in {v.differences[0].unit for v in found.verdicts if v.differences}


@pytest.mark.slow
def test_costs_are_those_of_a_whole_training(told):
    """64 questions with classes, 64 without; the owner tells which of 16 classes it knows."""
    row, teacher, q, d, classes = told["white_box" + OM], told[TEACHER + OM], 64, 64, 16
    down = 4 * q * (d + 1) + 4 * q * d
    up = 4 * classes + 4 * q * (classes + d) + 4 * q * classes
    for metric, sent in ((teachers.DOWN, down), (teachers.UP, up)):
        assert set(row[metric].values()) == {sent / teachers.MB}
    weights = sum(4 * (a + 1) * b for a, b in ((64, 64), (64, 32), (32, classes)))
    for seed, kept in teacher[teachers.KEPT].items():
        assert weights < kept * teachers.MB < 1.1 * weights
        assert row[teachers.KEPT][seed] > 3 * kept, "student, generator, and Adam's moments of both"
        assert teacher[teachers.SECONDS][seed] > 0
        assert row[teachers.SECONDS][seed] > 0


@pytest.mark.slow
def test_a_classifier_that_is_trained_after_the_rounds_counts(ran):
    """Of a teacher of seen classes alone; another student ends with its last round."""
    for result, last in zip(ran, (2, 3), strict=True):
        (run,) = result.study.runs
        took = {row.round: row.seconds for row in run.rounds.itertuples() if row.seed == 0}
        assert list(took) == list(range(last + 1))
        assert min(took.values()) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["zsl_synthetic", "awa1_lists"])
def test_every_part_can_be_planned_where_it_says_it_can(name):
    root = None if name == "zsl_synthetic" else str(research_data("zsl_splits"))
    for part in (*PE.values(), *SG.values()):
        planned = plan(part, GROUNDS[name], Wish(root=root))
        assert planned.experiment is not None, (part.name, planned.missing)
        assert planned.experiment.table["federation"]["teacher"] in ("omniscient", "quasi")


def test_budgets_are_the_teachers():
    for epsilon in (1, 3, 8, 30, 50, None):
        for compare in ("profile", "samples"):
            part = SG[f"epsilon_{epsilon or 'none'}_{compare}"]
            experiment = plan(part, MADE, Wish()).experiment
            assert experiment is not None
            solver = experiment.table.get("privacy", {}).get("solver", {})
            assert solver.get("epsilon") == epsilon
            assert experiment.table["methods"][0]["compare"] == compare


def test_printed_means_that_their_row_does_not_give():
    by_table = {f.says.partition(":")[0]: f for f in (*pezsl.findings(), *sgzsl.findings())}
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


def test_made_up_samples_beside_real_ones_by_hand():
    """On a line, two classes; first the real samples themselves, then 100 off in one heap.

    In the heap all others are equally near, and the first of them is taken.
    """
    real, kinds = torch.tensor([[0.0], [1.0], [5.0], [6.0]]), torch.tensor([2, 2, 3, 3])
    same = Made(real, real[None], kinds, ())
    assert same.scores == {NEAR: 1, APART: 0, FAR: 0, CLUSTERED: 1}
    assert same.known == {NEAR: 1, FAR: 1, CLUSTERED: 1}
    heap = Made(real, torch.stack([real, real * 0 + 106]), kinds, ())
    assert heap.scores == {NEAR: 0.75, APART: 0.5, FAR: 50, CLUSTERED: 0.75}


def test_pictures_need_a_library_that_is_asked_for_before_anything_runs(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    part = PE["pictures_omniscient"]
    experiment = plan(part, MADE, Wish()).experiment
    assert experiment is not None
    with pytest.raises(ConfigError, match=r"needs sklearn: pip install 'vergence\[tsne\]'"):
        generated_samples.pictured(part, experiment, tmp_path)
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
def test_pictures_are_drawn_and_numbers_stand_beside_them(tmp_path):
    wish = Wish(seeds=2, rounds=2, sets=(*TINY, FEW))
    (found,) = app.reproduce(["pezsl/fig5.4"], console(), wish=wish, out=tmp_path)
    assert (tmp_path / "pezsl/fig5.4/fig5.4.png").stat().st_size > 10_000
    for row in ("white_box", REAL):
        assert list(found.evidence.scores[row + OM][NEAR]) == ["seed 0", "seed 1"]
    assert found.value(REAL + OM, "far") == 1
    chance = found.evidence.scores["chance (prior)"]
    assert chance[NEAR] == {"seed 0": 0.25, "seed 1": 0.25}
    assert found.value("white_box" + OM, "apart") > 0.9, "a round makes nothing that looks real"
