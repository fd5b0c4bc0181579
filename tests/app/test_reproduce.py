"""Tables of papers run again: the verdict rule, the arithmetic, the runs and what they leave."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from scipy.stats import ttest_ind

from tests.conftest import research_data
from vergence.app import reproduce as app
from vergence.app.papers import adaptive, checks, fedcpf, figures
from vergence.app.papers.base import OTHERS, OWN, Claim, Pair, PaperTable, Part, better, order, peak
from vergence.app.papers.catalog import NOT_YET
from vergence.app.papers.grounds import GROUNDS, ground
from vergence.app.papers.outcome import rows
from vergence.app.papers.running import Wish, plan, unfilled
from vergence.app.papers.verdicts import Evidence, judge
from vergence.app.runs import read
from vergence.errors import ConfigError, StateError

TOY = GROUNDS["toy"]
QUICK = Wish(seeds=1, rounds=3, sets=("run.workers=1",))
FEW = 'methods=["local_only","fedavg",{name="fedcpf",rate=0.2}]'


def console():
    return Console(file=io.StringIO(), width=240)


def said(where):
    return where.file.getvalue()


def evidence(scores, lower=(), missing=None, barred=None):
    """Rows of one metric, `error`: label -> values of people a, b, c."""
    told = {k: {"error": dict(zip("abc", v, strict=False))} for k, v in scores.items()}
    return Evidence(told, frozenset(lower), missing or {}, barred or {})


def table(*claims, printed=None, unit="toy"):
    return PaperTable("fedcpf/none", "none", ("main",), printed or {}, unit, (), claims)


def verdict(claim, found, **more):
    return judge(table(claim, **more), claim, TOY, found)


@pytest.mark.parametrize(
    ("ours", "lower", "word", "why"),
    [
        ((14, 25, 36), (), "holds", "claimed side"),
        ((11, 22, 33), (), "does not hold", "no difference shown here against fedavg"),
        ((6, 15, 24), (), "does not hold", "opposite found against fedavg"),
        ((6, 15, 24), ("error",), "holds", "claimed side"),
    ],
)
def test_the_interval_over_people_decides(ours, lower, word, why):
    """Against 10, 20, 30 the differences are 4 5 6, then 1 2 3, then -4 -5 -6.

    Their deviation is 1 and the half width t(0.975, 2) / sqrt(3) = 2.484138: 5 -/+ 2.48 is above
    0, 2 -/+ 2.48 is not, -5 -/+ 2.48 is below, and above where less is better.
    """
    found = evidence({"fedcpf": ours, "fedavg": (10, 20, 30)}, lower)
    judged = verdict(better("c", "1", "fedcpf", "fedavg"), found)
    assert (judged.word, why in judged.reason) == (word, True), judged
    (gap,) = judged.differences
    sign = -1 if lower else 1
    assert gap.mean == pytest.approx(sign * (np.mean(ours) - 20))
    assert gap.hi - gap.mean == pytest.approx(2.484138, abs=1e-6)
    assert gap.share == pytest.approx(gap.mean / 20)


def test_a_claim_holds_only_if_all_its_pairs_do():
    """fedcpf beats low by 5 -/+ 2.48 and equals high: no difference shown against high."""
    found = evidence({"fedcpf": (14, 25, 36), "low": (10, 20, 30), "high": (14, 25, 36)})
    judged = verdict(better("c", "1", "fedcpf", "low", "high"), found)
    assert (judged.word, judged.reason) == (
        "does not hold", "no difference shown here against high"
    )  # fmt: skip
    assert [d.better for d in judged.differences] == [3, 0]


def test_an_order_is_its_neighbours_worst_first():
    assert order("c", "1", "a", "b", "c").pairs == (Pair(("b",), "a"), Pair(("c",), "b"))


def test_a_peak_averages_its_settings_person_by_person():
    """(12 + 16) / 2 = 14, (23 + 27) / 2 = 25, (34 + 38) / 2 = 36: 4, 5, 6 above 10, 20, 30."""
    found = evidence({"x": (12, 23, 34), "y": (16, 27, 38), "z": (10, 20, 30)})
    judged = verdict(peak("c", "1", ("x", "y"), ("z",)), found)
    assert judged.word == "holds"
    assert judged.differences[0].mean == pytest.approx(5)


def test_a_margin_forgives_its_share_of_the_rival():
    """9 19 29 against 10 20 30 is 1 worse for all, an interval of [-1, -1].

    A margin of 20 % adds 2, 4, 6: 1 3 5, deviation 2, so 3 -/+ 2 * 2.484138. With rivals 10 10 10
    it adds 2 to everybody: 1 1 1, which holds.
    """
    scores = {"a": (9, 19, 29), "b": (10, 20, 30)}
    claim = better("c", "1", "a", "b", margin=0.2)
    judged = verdict(claim, evidence(scores))
    assert judged.differences[0].eased == pytest.approx((3 - 4.968275, 3 + 4.968275), abs=1e-5)
    assert judged.word == "does not hold"
    assert "margin of 20%" in judged.reason
    assert verdict(replace(claim, margin=0.0), evidence(scores)).reason.startswith("opposite")
    even = evidence({"a": (9, 9, 9), "b": (10, 10, 10)})
    assert verdict(claim, even).word == "holds"


@pytest.mark.parametrize(
    ("claim", "found", "why"),
    [
        (Claim("c", "1", untestable="not printed"), evidence({}), "not printed"),
        (better("c", "1", "a", "b"), evidence({"a": (1, 2)}), "no row 'b'"),
        (better("c", "1", "a", "b"), evidence({"a": (1, 2)}, missing={"b": "no method"}),
         "b: no method"),
        (better("c", "1", "a", "b"), evidence({"a": (1, 2), "b": (1, 2)}, barred={"a": "empty"}),
         "a: empty"),
        (better("c", "1", "a", "b", quantity="recall"), evidence({"a": (1, 2), "b": (1, 2)}),
         "the task toy has no recall"),
        (better("c", "1", "a", "b"), evidence({"a": (2,), "b": (1,)}), "one person"),
    ],
)  # fmt: skip
def test_what_cannot_be_tested_says_why(claim, found, why):
    judged = verdict(claim, found)
    assert judged.word == "not testable here"
    assert why in judged.reason


def test_the_papers_own_difference_has_the_same_sense():
    """Errors 10.63 and 8.95: better by 1.68, as less is better; F1 40.48 and 39.28: by 1.20."""
    found = evidence({"fedadam": (1, 2, 3), "fedavg": (2, 3, 5)}, ["error"])
    angles = {"MPIIGaze": {"fedadam": (8.95,), "fedavg": (10.63,)}}
    claim = better("c", "1", "fedadam", "fedavg")
    gap = judge(table(claim, printed=angles, unit="gaze_angle"), claim, TOY, found).differences[0]
    assert gap.printed == {"MPIIGaze": pytest.approx(1.68)}
    maps = {"EGTEA": {"fedadam": (40.48,), "fedavg": (39.28,)}}
    gap = judge(table(claim, printed=maps, unit="gaze_map"), claim, TOY, found).differences[0]
    assert gap.printed == {"EGTEA": pytest.approx(1.20)}


def test_every_claim_names_rows_that_its_table_runs():
    for one in app.TABLES.values():
        made = {OWN, OTHERS} | {
            entry.get("label", entry["name"]) + part.suffix
            for part in one.parts for entry in part.entries(TOY)
        }  # fmt: skip
        for claim in one.claims:
            named = {label for pair in claim.pairs for label in (*pair.these, pair.rival)}
            assert named <= made, (one.id, claim.text)
            assert bool(claim.pairs) != bool(claim.untestable), claim.text
        for printed in one.printed.values():
            assert set(printed) <= made, one.id
            assert all(len(row) == len(one.columns) for row in printed.values()), one.id


def test_the_printed_orders_are_those_of_the_printed_numbers():
    """The order of the rows by F1 in Table 1, read off the numbers, is what the claim says."""
    orders = [c for c in app.TABLES["fedcpf/table1"].claims if c.text.startswith("order of")]
    for claim, printed in zip(orders, fedcpf.TABLE1.values(), strict=True):
        labels = [claim.pairs[0].rival, *(pair.these[0] for pair in claim.pairs)]
        assert labels == sorted(printed, key=lambda label: printed[label][2])


@pytest.mark.parametrize("where", GROUNDS.values(), ids=lambda g: g.name)
def test_every_table_makes_sound_experiments(where):
    wish = Wish(root=None if where.root == "" else "somewhere")
    for one in app.TABLES.values():
        for part in one.parts if one.paper in where.papers else ():
            planned = plan(part, where, wish)
            if planned.experiment:
                assert planned.experiment.plan.seeds == (0, 1, 2, 3, 4)
                assert planned.experiment.plan.rounds == where.rounds
                assert planned.barred == {}, "masks fill in a full run"


def test_settings_this_version_lacks_are_named():
    part = Part("p", [{"name": "no_such"}, {"name": "fedavg"}])
    planned = plan(part, TOY, QUICK)
    assert planned.missing == {"no_such": "this version has no method 'no_such'"}
    assert planned.experiment is not None
    assert list(planned.experiment.methods) == ["fedavg"]
    odd = plan(replace(part, above={"gravity": {}}, suffix=" odd"), TOY, QUICK)
    assert odd.experiment is None
    assert odd.missing["fedavg odd"] == "this version has no 'gravity' setting"


def test_masks_that_cannot_fill_are_told():
    """Three rounds of 5 % fill 15 %, enough for 10 % and not for 50 %."""
    entries = [{"name": "fedcpf", "rate": 0.05, "limit": x, "label": f"l{x}"} for x in (0.1, 0.5)]
    told = unfilled({"methods": entries, "run": {"rounds": 3}}, " odd")
    assert list(told) == ["l0.5 odd"]
    assert "15%" in told["l0.5 odd"]


@pytest.mark.parametrize(
    ("paper", "name", "root", "words"),
    [
        ("adaptive", "osie", None, ("cannot run on 'osie'", "mpiigaze")),
        ("fedcpf", "egtae", None, ("did you mean 'egtea'",)),
        ("fedcpf", "egtea", None, ("egtea needs --root", "data check egtea")),
        ("fedcpf", "ego_synthetic", "x", ("reads no files", "drop --root")),
    ],
)
def test_unusable_data_is_refused(paper, name, root, words):
    with pytest.raises(ConfigError) as told:
        plan(app.TABLES[f"{paper}/{ {'fedcpf': 'table1', 'adaptive': 'fig4'}[paper] }"].parts[0],
             ground(paper, name), Wish(root=root))  # fmt: skip
    assert all(word in str(told.value) for word in words), told.value


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fedcpf/table9", ("no table 'fedcpf/table9'", "did you mean")),
        ("apfl/table3.2", ("not reproduced yet (issue 8)",)),
        ("fedcpf/fig1", ("vergence report",)),
    ],
)
def test_unknown_tables_are_refused(name, words):
    with pytest.raises(ConfigError) as told:
        app.tables([name])
    assert all(word in str(told.value) for word in words), told.value
    assert [t.id for t in app.tables(["adaptive"])] == [
        "adaptive/fig2", "adaptive/fig3", "adaptive/fig4", "adaptive/headline"
    ]  # fmt: skip


@pytest.mark.parametrize("wrong", [{"seeds": 0}, {"rounds": 0}])
def test_no_seeds_or_rounds_are_refused(wrong):
    with pytest.raises(ConfigError, match="must be 1 or more"):
        Wish(**wrong)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    out, where = tmp_path_factory.mktemp("reproduce"), console()
    wish = replace(QUICK, sets=(*QUICK.sets, FEW))
    (found,) = app.reproduce(["fedcpf/table1"], where, on="toy", wish=wish, out=out)
    return out, found, said(where), wish


def test_a_table_leaves_rows_verdicts_and_a_page(done):
    out, found, told, _ = done
    record = json.loads((out / "fedcpf/table1/verdicts.json").read_text())
    page = (out / "fedcpf/table1/report.md").read_text()
    assert record["on"] == "toy"
    assert (record["seeds"], record["rounds"], record["people"]) == (1, 3, 4)
    assert len(record["claims"]) == len(app.TABLES["fedcpf/table1"].claims)
    words = {claim["text"]: claim["verdict"] for claim in record["claims"]}
    assert words["FedCPF improves on FedSelect"] == "not testable here", "it was not run"
    assert words["FedCPF improves on FedAvg"] != "not testable here"
    study = read(out / "fedcpf/runs/methods")
    mean = float(np.mean(list(study.run("fedavg").scores("error").values())))
    assert record["rows"]["fedavg"]["ours"]["main"] == pytest.approx(mean)
    assert record["rows"]["fedavg"]["printed"]["Ego4D"]["main"] == 13.20
    assert record["rows"]["fedselect"]["ours"]["main"] is None
    assert "global mean (prior)" in record["rows"]
    assert found.evidence.lower == {"error"}
    for text in (told, page, " ".join(record["stamps"])):
        for stamp in ("fast: 1 of 5 seeds", "fast: 3 of 8 rounds", "toy data", "changed settings"):
            assert stamp in text
        assert "workers" not in text.partition("`")[0], "workers do not change bits"


def test_numbers_of_another_task_are_not_subtracted(done):
    """Ours is an error, the paper's an F1: both are printed, their difference is not."""
    _, found, _, _ = done
    heads, lines = rows(found)
    fedavg = next(line for line in lines if line[0] == "FedAvg")
    assert fedavg[heads.index("EGTEA Gaze+, printed")] == "27.42 / 12.95 / 17.59"
    assert fedavg[heads.index("ours - printed")] == ""


def test_the_same_command_goes_on_and_other_settings_are_refused(done):
    out, _, _, wish = done
    results = out / "fedcpf/runs/methods/fedavg/results.json"
    before = results.stat().st_mtime_ns
    (again,) = app.reproduce(["fedcpf/table1"], console(), on="toy", wish=wish, out=out)
    assert results.stat().st_mtime_ns == before
    assert again.verdicts == done[1].verdicts
    with pytest.raises(StateError, match=r"other settings \(run.rounds: 3, now 4\)"):
        app.reproduce(["fedcpf/table1"], console(), on="toy", wish=replace(wish, rounds=4), out=out)


def test_the_list_has_every_table_and_its_state(done, tmp_path):
    out, _, _, _ = done
    where = console()
    app.listing(where, out)
    told = said(where).splitlines()
    for name in [*app.TABLES, *NOT_YET]:
        assert any(line.startswith(f"{name} ") for line in told), name
    for name in ("fedcpf/table1", "fedcpf/fig3", "adaptive/fig2", "adaptive/headline"):
        assert name in app.TABLES
    (line,) = [line for line in told if line.startswith("fedcpf/table1")]
    assert "toy, 1 seeds, fast" in line
    (line,) = [line for line in told if line.startswith("fedcpf/table2")]
    assert "not run" in line
    assert any("issue 9: not yet" in line for line in told if line.startswith("sgzsl/table6.2"))
    file = tmp_path / "fedcpf/table1/verdicts.json"
    file.parent.mkdir(parents=True)
    file.write_text("{")
    assert "is damaged" in app.status("fedcpf/table1", tmp_path)


def test_the_person_matrix_has_ones_own_error_on_its_diagonal(tmp_path):
    """The diagonal is what the run itself measured; `others` is the mean of a column's rest."""
    (found,) = app.reproduce(["adaptive/fig2"], console(), on="toy", wish=QUICK, out=tmp_path)
    (result,) = found.results.values()
    own = read(tmp_path / "adaptive/runs/individual").run("local_only").scores("error")
    assert result.matrix is not None
    assert np.diag(result.matrix) == pytest.approx(list(own.values()), abs=1e-9)
    rest = (result.matrix.sum(0) - np.diag(result.matrix)) / 3
    assert list(found.evidence.scores[OTHERS]["error"].values()) == pytest.approx(rest)
    assert found.evidence.scores[OWN]["error"] == pytest.approx(own)
    assert (tmp_path / "adaptive/fig2/fig2.png").stat().st_size > 5000


def test_the_headline_scores_people_who_took_no_part(tmp_path):
    wish = replace(QUICK, sets=(*QUICK.sets, "federation.people=3"))
    (found,) = app.reproduce(["adaptive/headline"], console(), on="toy", wish=wish, out=tmp_path)
    assert {v.word for v in found.verdicts} <= {"holds", "does not hold"}
    folds = sorted(p.name for p in (tmp_path / "adaptive/runs/left_out").rglob("folds/*"))
    assert folds == ["p00", "p01", "p02"]
    other = replace(wish, rounds=2)
    with pytest.raises(StateError, match="other settings"):
        app.reproduce(["adaptive/headline"], console(), on="toy", wish=other, out=tmp_path)


def test_the_noise_curve_is_drawn_from_its_rows(done):
    scores = {adaptive.noisy(method, share): {"error": {"a": 1.0 + share, "b": 2.0 + share}}
              for method in ("fedavg", "fedadam") for share in adaptive.SHARES}  # fmt: skip
    found = replace(
        done[1], table=app.TABLES["adaptive/fig4"],
        evidence=Evidence(scores, frozenset({"error"}), {}, {}),
    )  # fmt: skip
    figure = figures.noise(found)
    assert figure is not None
    lines = [line for line in figure.axes[0].lines if len(line.get_xdata()) == len(adaptive.SHARES)]
    assert [float(y) for y in lines[0].get_ydata()] == pytest.approx(
        [1.5 + share for share in adaptive.SHARES]
    )
    assert len(lines) == 2


def test_the_published_f1_is_the_harmonic_mean_but_for_two_rows():
    """Rows of 37.56 and 37.32, where 2PR / (P + R) is 37.543 and 37.302."""
    first, twins, chosen = checks.check_fedcpf()[:3]
    assert not first.ok
    assert first.computed.startswith("36 of 38 rows")
    assert "rho_10: 37.56, computed 37.54" in first.computed
    assert "rho_70: 37.32, computed 37.30" in first.computed
    assert not twins.ok
    assert "Table 2 rho_30 = Table 3 acc_10, (54.79, 30.56, 39.24)" in twins.computed
    assert twins.computed.count(" = ") == 1
    assert not chosen.ok


def sample(mean, deviation, n):
    """n numbers with exactly this mean and standard deviation."""
    z = np.arange(n, dtype=float)
    z = (z - z.mean()) / z.std(ddof=1)
    return mean + deviation * z


@pytest.mark.parametrize(("at", "runs"), [(0, 9), (1, 10), (2, 38), (3, 10)])
def test_the_t_tests_need_different_numbers_of_runs(at, runs):
    """SciPy's t-test on samples with the printed mean and SD gives the printed p for these n."""
    _, _, one, other, p = fedcpf.TESTS[at]
    samples = [sample(float(m), float(s), runs) for m, s in (one, other)]
    assert ttest_ind(*samples).pvalue == pytest.approx(float(p), abs=0.0025)
    assert runs in checks.runs_fitting(one, other, p)
    assert f"about {runs} runs" in checks.check_fedcpf()[3 + at].computed


def test_the_findings_about_the_text():
    found = {f.says: f for f in checks.check_fedcpf()}
    (text,) = [f for says, f in found.items() if "precision of FedCPF, 25.2," in says]
    assert (text.ok, text.computed) == (False, "Table 1 prints 25.07")
    assert found["14596 train clips"].ok
    assert not found["the four t-tests are of one experiment, with one number of runs"].ok
    holm = found["FedCPF is significantly better than FedSelect"]
    assert "0.092, 0.092, 0.092, 0.092" in holm.computed, "4 * .023, then never less"
    assert [f.verdict for f in found.values() if "is best at" in f.says] == ["ok", "ok"]


def test_the_findings_about_adaptive_fl():
    """(10.63 - 8.95) / 10.63 = 15.80 %; the mean gaze, 9.21, is better than FedAvg by 1.42."""
    gain, constant, best, single, *_ = checks.check_adaptive()
    assert gain.ok
    assert "15.8 %" in gain.computed
    assert not constant.ok
    assert "9.21" in constant.computed
    assert "+1.42" in constant.computed
    assert (best.ok, single.ok) == (True, False)
    measured = checks.check_adaptive(8.0, 11)
    assert not measured[2].ok, "a constant of 8.0 would beat adaptive FL"
    assert "11 people" in measured[1].computed


def test_check_paper_prints_a_verdict_for_each():
    where = console()
    found = app.check_paper(["fedcpf"], where)
    assert said(where).count("does not hold") == sum(not f.ok for f in found) > 3


@pytest.mark.data
def test_the_mean_gaze_of_eleven_real_people():
    """The evaluation subset of all 15 people gives 9.21 degrees; eleven of them nearly so."""
    research_data("eyes/mpiigaze_9x15")
    error, people = app.mean_gaze()
    assert people == 11
    assert error == pytest.approx(9.21, abs=0.1)
