"""What defences cost, what attackers and liars make of them, and rows that no other row beats."""

import csv
import io
import itertools
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from vergence_papers.splitfed import protocol as defences

from vergence.audit import run as audit
from vergence.audit import smashed_data
from vergence.experiment.trained_run import read_run
from vergence.experiment.validation import validate
from vergence_papers import command as app
from vergence_papers import outcome as outcomes
from vergence_papers.claims import PRIOR, PaperTable, TablePart
from vergence_papers.data_sets import GROUNDS
from vergence_papers.outcome import ReproducedTable
from vergence_papers.printed import table_parts
from vergence_papers.running import Wish, load_or_measure, plan
from vergence_papers.verdicts import Evidence

EYES, TOY = GROUNDS["eye_synthetic"], GROUNDS["toy"]
ERROR, WORST, LIED, EPSILON = "angle_error_deg", "worst", "lied to", "epsilon"
TINY = (
    "federation.people=4",
    "federation.days=[3,3]",
    "federation.samples=40",
    "run.workers=1",
    "local.batch=16",
)


def weighed(rows):
    """Return an outcome of rows: label -> errors of two people, error under liars, epsilon."""
    scores = {}
    for label, (errors, lied, epsilon) in rows.items():
        values = {ERROR: errors, defences.LIED: (lied, lied)}
        values |= {} if epsilon is None else {EPSILON: (epsilon, epsilon)}
        scores[label] = {m: dict(zip("ab", v, strict=True)) for m, v in values.items()}
    table = PaperTable(
        "splitfed/none",
        "none",
        ("main", WORST, LIED, EPSILON),
        {},
        "gaze_angle",
        (),
        (),
        front=(WORST, LIED, EPSILON),
    )
    evidence = Evidence(scores, defences.LOWER | {ERROR}, {}, {})
    return ReproducedTable(table, EYES, (), {"people": 2}, evidence, (), {})


def test_a_row_is_on_the_front_if_no_other_beats_it():
    """`bad` loses to `plain` in all but no epsilon; `same` equals `plain`; `safe` has the least."""
    found = weighed(
        {
            "plain": ((5.0, 6.0), 25.0, None),
            "same": ((2.0, 6.0), 25.0, None),
            "bad": ((5.0, 6.0), 26.0, None),
            "rule": ((5.0, 6.5), 7.0, None),
            "safe": ((8.0, 9.0), 9.0, 0.5),
            "loud": ((8.0, 9.0), 9.0, 8.0),
        }
    )
    assert found.front() == {"plain", "same", "rule", "safe"}
    heads, lines = outcomes.rows(found)
    assert heads[-1] == "on the front"
    assert [line[-1] for line in lines] == ["yes", "yes", "", "yes", "yes", ""]


@pytest.mark.parametrize("seed", range(20))
def test_every_row_off_the_front_is_beaten_by_one_on_it(seed):
    rng = np.random.default_rng(seed)
    values = [tuple(map(int, row)) for row in rng.integers(0, 4, (rng.integers(1, 7), 3))]
    rows = {f"r{i}": ((0.0, w), lied, eps) for i, (w, lied, eps) in enumerate(values)}
    best = weighed(rows).front()
    assert best
    for at, mine in enumerate(values):
        rivals = [other for i, other in enumerate(values) if f"r{i}" in best and other != mine]
        beaten = [other for other in rivals if np.all(np.array(other) <= mine)]
        assert bool(beaten) == (f"r{at}" not in best)


@pytest.mark.parametrize("name", ["splitfed/costs", "splitfed/front"])
def test_every_row_loads_and_has_a_name(name):
    table = app.TABLES[name]
    planned = [plan(part, EYES, Wish(seeds=1)) for part in table.parts]
    assert not any(one.missing or one.barred for one in planned)
    assert set(table.rows) == {
        label + one.part.suffix
        for one in planned
        if one.experiment
        for label in one.experiment.methods
    }
    told = {c.quantity for c in table.claims} | {*table.front, *table.columns}
    assert told <= {*EYES.quantities, WORST}


def test_a_deep_cut_is_where_features_are_few():
    """3 x 6 and 6 x 12 places of 3 and of 1 channels: 54 and 72 numbers, and noise for each."""
    for where, stage, channels in (("eye_synthetic", "conv3", 3), ("mpiigaze", "pool2", 1)):
        ground = GROUNDS[where]
        (entry,) = table_parts("splitfed")["cost_all"].entries(ground)
        assert entry["cut"] == stage
        assert table_parts("splitfed")["cost_all"].over(ground)["model"]["channels"][-1] == channels


def test_liars_are_in_a_run_of_their_own(tmp_path):
    """One of four toy people sends minus four times the update; the clean run has none."""
    part = TablePart("p", [{"name": "fedavg"}], "lied_to", (), ", sum")
    experiment = plan(part, TOY, Wish(seeds=1, rounds=3, sets=("run.workers=1",))).experiment
    assert experiment is not None
    found = defences.lied_to(part, experiment, tmp_path)
    scores = found.scores["fedavg, sum"]
    lied, clean = (list(scores[m].values()) for m in (defences.LIED, "error"))
    assert np.mean(lied) > np.mean(clean)
    (clean_run,) = found.study.runs
    assert not clean_run.poison
    assert "sign_flip by 1 of 4 people" in (tmp_path / "liars/fedavg/provenance.json").read_text()
    assert EPSILON not in scores
    assert any("error" in found.scores[row] for row in found.scores if row.endswith(PRIOR))
    assert {defences.LIED, "error"} <= found.lower


def test_seconds_are_measured_once(tmp_path):
    counted = itertools.count()
    for _ in range(2):
        told = load_or_measure(tmp_path / "costs.json", lambda: {"seconds": next(counted)})
        assert told == {"seconds": 0}


def made(ids, out, sets):
    console = Console(file=io.StringIO(), width=240)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VERGENCE_CACHE", str(out / "cache"))
        patch.setattr(smashed_data, "attacker_epochs", lambda *_, **__: 40)
        wish = Wish(seeds=1, rounds=1, sets=sets)
        return {o.table.id: o for o in app.reproduce(ids, console, wish=wish, out=out)}


@pytest.mark.slow
def test_the_cost_table_runs(tmp_path, monkeypatch):
    keys = ("plain", "shares", "pixel 2", "all", "fl all")
    table = app.TABLES["splitfed/all_defences"]
    parts = [table_parts("splitfed")[f"cost_{key.replace(' ', '_')}"] for key in keys]
    labels = {key: p.methods[0]["name"] + p.suffix for key, p in zip(keys, parts, strict=True)}
    rows = {label: table.rows[label] for label in labels.values()}
    small = replace(table, title="few", parts=tuple(parts), rows=rows, claims=table.claims[:2])
    monkeypatch.setitem(app.TABLES, small.id, small)
    (found,) = made([small.id], tmp_path, TINY).values()
    scores = {key: found.evidence.scores[labels[key]] for key in keys}
    assert scores["plain"][ERROR] == pytest.approx(scores["shares"][ERROR], abs=1e-3)
    assert all(next(iter(told[defences.SECONDS].values())) > 0 for told in scores.values())
    assert {key for key in keys if defences.FOUND in scores[key]} == set(keys) - {"fl all"}
    assert {key for key in keys if EPSILON in scores[key]} == set(keys) - {"plain", "shares"}
    picture = (scores["pixel 2"], found.evidence.scores[defences.MEAN_PICTURE], scores["plain"])
    noisy, mean, plain = (np.mean(list(told[defences.FOUND].values())) for told in picture)
    assert plain < mean
    assert plain < noisy
    page = (tmp_path / small.id / "report.md").read_text()
    assert "| mean picture of the others (prior) | – |" in page

    saved = read_run(tmp_path / "splitfed/runs/cost_plain/splitfed")
    with monkeypatch.context() as patch:
        patch.setattr(smashed_data, "attacker_epochs", lambda *_, **__: 40)
        lines = audit.audit(saved.folder, Console(file=io.StringIO()), quick=True).pictures.records
        mine, mean = smashed_data.reconstruction_errors(
            saved, validate(saved.experiment).ready, "p00"
        )
    told = {line["what the server has"]: line["mse"] for line in lines}
    assert told["no defence, as in the run"] == pytest.approx(mine)
    assert told["nothing: the mean of the others"] == pytest.approx(mean)


@pytest.mark.slow
def test_the_front_runs(tmp_path, monkeypatch):
    table = app.TABLES["splitfed/front"]
    few = [p for p in table.parts if "epsilon" not in p.name or p.name.endswith("0.5")]
    monkeypatch.setitem(app.TABLES, table.id, replace(table, parts=tuple(few)))
    (found,) = made([table.id], tmp_path, (*TINY, "local.steps=1")).values()
    assert found.front()
    assert found.value("fedavg, sum, epsilon 0.5", EPSILON) == pytest.approx(0.5, abs=0.02)
    assert found.value("fedavg, sum, no noise", LIED) > 0
    assert (tmp_path / "splitfed/front/front.png").stat().st_size > 5000
    text = (tmp_path / "splitfed/front/scores.csv").read_text()
    labels = {line["row"] for line in csv.DictReader(io.StringIO(text))}
    assert sum(label.startswith("fed") for label in labels) == 12
