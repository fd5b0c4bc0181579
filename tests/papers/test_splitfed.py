"""The SplitFed thesis run again: its tables on tiny people, and claims that rows are alike."""

import io
import json
import tomllib
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from scipy import stats
from vergence_papers.splitfed import protocol as unseen_people
from vergence_papers.splitfed import untrained as capabilities
from vergence_papers.splitfed.checks import findings

from tests.papers.claims import alike
from vergence.errors import ConfigError
from vergence.experiment.trained_run import read_run
from vergence.experiment.validation import validate
from vergence.results.read import read
from vergence.studies.few_shot import FewShotOptions
from vergence_papers import command as app
from vergence_papers.claims import PaperTable
from vergence_papers.data_sets import GROUNDS
from vergence_papers.printed import table_parts
from vergence_papers.running import Wish, plan
from vergence_papers.verdicts import Evidence, judge

EYES = GROUNDS["eye_synthetic"]
UNSEEN = " on unseen people"
FEW = ("federation.people=3", "federation.days=[3,3]", "run.workers=1")
TINY = Wish(seeds=1, rounds=1, sets=(*FEW, "federation.samples=60", "local.batch=32"))
SHOTS = FewShotOptions(shots=20, source="first", draws=2, epochs=2, steps=3)
RUNS = "splitfed/runs"


def console():
    return Console(file=io.StringIO(), width=240)


def said(where):
    return where.file.getvalue()


def make(ids, out, wish=TINY):
    where = console()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VERGENCE_CACHE", str(out / "cache"))
        return {o.table.id: o for o in app.reproduce(ids, where, wish=wish, out=out)}, said(where)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Tables that share the same runs of Model 2."""
    out = tmp_path_factory.mktemp("splitfed")
    ids = [f"splitfed/{name}" for name in ("table4.7", "table4.5", "fig4.7")]
    return out, *make(ids, out)


@pytest.fixture(scope="module")
def codes(tmp_path_factory):
    out = tmp_path_factory.mktemp("codes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unseen_people, "SHOTS", SHOTS)
        return make(["splitfed/table4.9"], out)[0]["splitfed/table4.9"]


def row(label, model):
    """Return the label of a row of a model, scored on people who took no part."""
    return f"{label} model {model} left out"


def errors(found, label):
    return found.evidence.scores[label]["angle_error_deg"]


def words(found):
    return {v.claim.text: v.word for v in found.verdicts}


@pytest.mark.slow
def test_every_table_has_a_predictor_that_does_not_learn(done, codes):
    """Without one nobody can say whether a row has learned, and every claim stays open."""
    for found in (*done[1].values(), codes):
        assert found.evidence.priors("angle_error_deg"), found.table.id


@pytest.mark.slow
def test_fl_and_splitfed_have_equal_bits(done):
    """The thesis shows 0.28 degrees between them; here all three people's errors are equal."""
    found = done[1]["splitfed/table4.7"]
    assert errors(found, row("splitfed", "2")) == errors(found, row("fedavg", "2"))
    # Equal bits hold of any model; equal errors say nothing where both know no more than a mean.
    assert list(words(found).values()) == ["neither learned", "holds"]
    assert "for everybody within 1e-06; at most 0" in found.verdicts[1].reason
    stamps = " ".join(found.stamps)
    for stamp in ("fast: 1 of 5 seeds", "generated data", "changed settings"):
        assert stamp in stamps
    page = (done[0] / "splitfed/table4.7/report.md").read_text()
    assert "in the place of the SplitFed thesis's Models 1, 2 and 3" in page
    assert "| SFL (SplitFed) |" in page


@pytest.mark.slow
def test_averages_by_several_parties_are_those_by_one(tmp_path):
    """Four people: a sum needs three, and one is left out."""
    wish = replace(TINY, sets=(*TINY.sets, "federation.people=4"))
    found = make(["splitfed/table4.2"], tmp_path, wish)[0]["splitfed/table4.2"]
    assert list(words(found).values()) == ["neither learned", "holds", "holds", "not testable here"]
    parties = ("2", "2, 3 parties", "2, 4 parties")
    assert set(found.evidence.scores) >= {row("splitfed", number) for number in parties}
    ran = (tmp_path / RUNS / "sfl_2_3_parties/leave-one-out/folds/p00/config.toml").read_text()
    assert tomllib.loads(ran)["privacy"]["aggregation"]["aggregators"] == ["one", "two", "three"]


@pytest.mark.slow
def test_noise_at_the_cut_and_dp_sgd_are_rows_of_figure_4_5(tmp_path):
    wish = replace(TINY, sets=(*TINY.sets, "federation.samples=40"))
    found = make(["splitfed/fig4.5"], tmp_path, wish)[0]["splitfed/fig4.5"]
    noisy = [errors(found, row("splitfed", f"2, l = {level:g}")) for level in (0.2, 0.5, 1.0, 2.0)]
    assert sum(noisy[-1].values()) > sum(noisy[0].values())
    assert set(errors(found, row("fedavg", "2, DP-SGD"))) == {"p00", "p01", "p02"}
    assert (tmp_path / "splitfed/fig4.5/fig4.5.png").stat().st_size > 5000


@pytest.mark.slow
def test_pruned_models_are_told_with_zeros_and_sizes(done):
    """Of small_eye with (16, 40), 0.9 of the 23,108 linear weights go.

    Behind the cut are conv2 5,800, conv3 14,440, fc1 40 * 3 * 6 * 32 + 32, fc2 68 + 2; the client
    has 144 weights and 16 biases.
    """
    found = done[1]["splitfed/table4.5"]
    linear, rest = 40 * 3 * 6 * 32 + 34 * 2, 5800 + 14440 + 32 + 2
    share = found.evidence.scores["linear 0.9"]["server zeros (%)"]
    assert share["p00"] == pytest.approx(100 * 0.9 * linear / (linear + rest), abs=0.01)
    client = found.evidence.scores["conv 0.9"]["client zeros (%)"]
    assert client["p00"] == pytest.approx(100 * round(0.9 * 144) / 160)
    assert errors(found, "as trained") == pytest.approx(
        errors(done[1]["splitfed/table4.7"], row("splitfed", "2"))
    )
    (size,) = [v for v in found.verdicts if v.claim.quantity == "size server"]
    assert size.word == "holds"
    assert size.differences[0].mean > 50, "KiB less; a smaller file is better"


def test_training_errors_are_those_of_the_data_trained_on(done):
    out, found, _ = done
    table = found["splitfed/fig4.7"]
    run = read(out / RUNS / "sfl_2/leave-one-out").run("splitfed")
    saved = read_run(out / RUNS / "sfl_2/leave-one-out/folds/p00/splitfed", 0)
    judge_ = saved.on_data(validate(saved.experiment).ready)
    own = []
    for person in ("p01", "p02"):
        samples = judge_.ready.people[person].train
        outputs = judge_.outputs(judge_.model(person), samples)
        own.append(saved.task.metrics(outputs, samples)["angle_error_deg"])
    assert errors(table, "splitfed model 2 in training")["p00"] == pytest.approx(np.mean(own))
    assert errors(table, row("splitfed", "2")) == run.scores("angle_error_deg")
    assert errors(table, row("splitfed", "2, 2 epochs")) != errors(table, row("splitfed", "2"))
    assert (out / "splitfed/fig4.7/fig4.7.png").stat().st_size > 5000


def test_individual_learning_is_judged_by_the_next_person(tmp_path):
    label = row("individual", "1")
    part = next(p for p in app.TABLES["splitfed/fig4.1"].parts if p.protocol == "next")
    results = app.run_parts([plan(part, EYES, TINY)], tmp_path)
    (found,) = results.values()
    m = found.matrix
    assert m is not None
    told = found.scores[label]["angle_error_deg"]
    assert list(told.values()) == [m[1, 0], m[2, 1], m[0, 2]]


@pytest.mark.slow
def test_codes_are_read_for_people_nobody_trained_on(codes):
    """One of three people is kept out; every row, the supervised one too, is about that one."""
    assert {tuple(s["angle_error_deg"]) for s in codes.evidence.scores.values()} == {("p02",)}
    rows = set(codes.evidence.scores)
    assert rows == {
        f"cross_fl{UNSEEN}",
        "mean gaze of the shots (prior)",
        f"random encoder{UNSEEN}",
        f"shots alone{UNSEEN}",
        f"splitfed{UNSEEN}",
    }
    assert all(np.isfinite(errors(codes, label)["p02"]) for label in rows)
    assert codes.evidence.lower >= {"angle_error_deg"}
    assert set(words(codes).values()) == {"not testable here"}, "one person has no interval"


def evidence(ours, theirs):
    people = [f"p{i}" for i in range(len(ours))]
    return Evidence(
        {
            "a": {"error": dict(zip(people, ours, strict=True))},
            "b": {"error": dict(zip(people, theirs, strict=True))},
            "mean (prior)": {"error": dict.fromkeys(people, 99.0)},
        },
        frozenset({"error"}),
        {},
        {},
        curves={key: {"error": ((1, 2, 3), (-5.0, -5.0, -5.0))} for key in "ab"},
    )


def verdict(ours, theirs, within=0.1, **more):
    claim = alike("c", "1", within, "a", "b", **more)
    one = PaperTable("splitfed/none", "none", ("main",), {}, "toy", (), (claim,))
    return judge(one, claim, GROUNDS["toy"], evidence(ours, theirs))


@pytest.mark.parametrize(
    ("gaps", "word"),
    [
        ((0.01, -0.02, 0.03, 0.0), "holds"),
        ((0.05, 0.15, -0.05, 0.25), "not shown"),
        ((0.4, 0.5, 0.6, 0.5), "contradicted"),
        ((-0.4, -0.5, -0.6, -0.5), "contradicted"),
        ((0.0, 0.0, 0.0, 0.0), "holds"),
    ],
)
def test_rows_are_alike_if_both_one_sided_tests_say_so(gaps, word):
    """Gaps .05 .15 -.05 .25: mean .1 is at the margin itself, p = 0.5. .4 to .6: [.37, .63]."""
    theirs = np.array([5.0, 6.0, 7.0, 8.0])
    judged = verdict(theirs + gaps, theirs)
    assert judged.word == word, judged.reason
    if any(gaps):
        error = stats.sem(gaps)
        ps = [stats.t.sf((0.1 - side * np.mean(gaps)) / error, 3) for side in (1, -1)]
        assert judged.differences[0].alike == pytest.approx(max(ps), abs=1e-6)
    assert judged.differences[0].most == pytest.approx(np.abs(gaps).max())


def test_not_significantly_different_is_not_alike():
    """+-1 around 0: no difference shown, p = 0.5, and no equivalence either: p = 0.45."""
    assert verdict((6.0, 5.0, 8.0, 7.0), (5.0, 6.0, 7.0, 8.0)).word == "not shown"


def test_one_person_apart_breaks_a_claim_about_everybody():
    theirs = (5.0, 6.0, 7.0, 8.0)
    near = verdict((5.0, 6.0, 7.0, 8.0 + 5e-7), theirs, 1e-6, everybody=True)
    far = verdict((5.0, 6.0, 7.0, 8.0 + 5e-6), theirs, 1e-6, everybody=True)
    assert (near.word, far.word) == ("holds", "contradicted")
    assert far.reason == "5e-06 apart from b"
    lone = verdict((5.0,), (5.0,))
    assert lone.word == "not testable here"


@pytest.mark.slow
def test_capabilities_are_read_off_the_methods(tmp_path):
    """Model 2 shares gaze, and the head pose if it has one; the U-shape neither."""
    assert capabilities.SFL.shared() == {"gaze", "pose"}
    assert capabilities.NO_POSE.shared() == {"gaze"}
    assert capabilities.U_SHAPE.shared() == capabilities.FL.shared() == frozenset()
    where = console()
    assert app.reproduce(["splitfed/table5.1"], where, out=tmp_path) == []
    record = json.loads((tmp_path / "splitfed/table5.1/verdicts.json").read_text())
    assert {c["verdict"] for c in record["claims"] if not c["reason"]} == {"holds"}
    assert sum(bool(claim["reason"]) for claim in record["claims"]) == 4, "MPC and obfuscation"
    assert "not built (printed: yes)" in said(where)
    assert "6 hold, 0 contradicted, 0 not shown, 4 not testable" in app.status(
        "splitfed/table5.1", tmp_path
    )
    with pytest.raises(ConfigError, match=r"splitfed/table5.1 runs nothing and does not read --on"):
        app.reproduce(["splitfed/table5.1"], where, on="mpiigaze_crops", out=tmp_path)


def test_a_wrong_cell_is_contradicted():
    one = app.UNTRAINED["splitfed/table3.1"]
    one = replace(one, printed={"FL": one.printed["FL"]}, settings={"FL": capabilities.SFL})
    told = capabilities.cell_records(one)
    assert [r["verdict"] for r in told] == ["holds", "contradicted"]
    assert "yes (printed: no)" in capabilities.block(one, told).markdown()


def test_the_printed_zeros_and_sizes_are_those_of_model_2():
    """2,592,904 of 2,921,586 are zero at 0.9, and 288,100 * 20 B + 1,446,984 B are 6.88 MiB."""
    found = {finding.says: finding for finding in findings()}
    (ninety,) = [f for says, f in found.items() if says.startswith("Table 4.5, 0.9 of")]
    assert ninety.ok
    assert "88.75 %, 6.88 MiB" in ninety.computed
    assert all(f.ok for says, f in found.items() if "zeros" in says or ": average " in says)
    (worse,) = [f for says, f in found.items() if "unsupervised FL (Table 4.9)" in says]
    assert (worse.ok, "+0.61" in worse.computed) == (False, True)


def test_local_steps_cannot_stand_in_for_local_epochs():
    wish = Wish(seeds=1, rounds=1, sets=("local.steps=3",))
    plan(table_parts("splitfed")["sfl_2"], EYES, wish)
    with pytest.raises(ConfigError, match=r"epochs_2 has local epochs .* leave out --set local"):
        plan(table_parts("splitfed")["epochs_2"], EYES, wish)


def test_the_list_has_the_thesis(tmp_path):
    where = console()
    app.listing(where, tmp_path)
    lines = {line.partition(" ")[0]: line for line in said(where).splitlines()}
    issued = "3.1 4.2 4.4 4.5 4.6 4.7 4.8 4.9 4.10 5.1"
    names = [f"table{n}" for n in issued.split()] + [f"fig4.{n}" for n in range(1, 8)]
    for name in (*names, "costs", "all_defences", "front"):
        assert "not yet" not in lines[f"splitfed/{name}"]
    assert "eye_synthetic" in lines["splitfed/table4.6"]
    assert "read off the methods" in lines["splitfed/table3.1"]
    assert "`vergence privacy audit RUN`" in lines["splitfed/table4.3"]


def test_eyes_that_are_no_pairs_cannot_carry_codes_learned_from_pairs():
    """MPIIGaze's crops have left and right eyes of other moments; its frames have both."""
    parts = {part.name: part for part in app.TABLES["splitfed/table4.10"].parts}
    wish = Wish(root="unread", seeds=1)
    for name in ("cross_fl", "cross", "equal_features"):
        crops = plan(parts[name], GROUNDS["mpiigaze_crops"], wish)
        assert crops.experiment is None
        assert set(crops.missing.values()) == {
            "mpiigaze_crops has no pictures of both eyes at one glance, from which gaze is learned "
            "without labels"
        }
        assert plan(parts[name], GROUNDS["eye_synthetic"], replace(wish, root=None)).experiment
    assert plan(parts["simclr"], GROUNDS["mpiigaze_crops"], wish).experiment
