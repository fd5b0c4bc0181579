"""Tables of papers run again: their experiments, the runs and what they leave."""

import csv
import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from tests.conftest import research_data
from tools.examiner import examine
from vergence.data.io.checks import data_path
from vergence.data.noise import Noise
from vergence.errors import ConfigError, StateError
from vergence.experiment.run import start
from vergence.experiment.trained_run import read_run
from vergence.results.read import read
from vergence_papers import command as app
from vergence_papers import figures
from vergence_papers.claims import OTHERS, OWN, PaperTable, TablePart
from vergence_papers.data_sets import GROUNDS, ground
from vergence_papers.outcome import rows
from vergence_papers.running import Wish, plan, unfilled
from vergence_papers.verdicts import Evidence

TOY = GROUNDS["toy"]
SEED = "fedadam_seed"
SHARES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
RATE = {"local": {"optimizer": "sgd", "lr": 2e-5, "weight_decay": 0.0, "clip": 0.0}}
QUICK = Wish(seeds=1, rounds=3, sets=("run.workers=1",))
FEW = 'methods=["local_only","fedavg",{name="fedcpf",rate=0.2}]'


def console():
    return Console(file=io.StringIO(), width=240)


def said(where):
    return where.file.getvalue()


LIKE_OTHERS = (
    "egtea_paper",
    "ego4d_paper",
    "mpiigaze",
    "tvsum_keyframes",
    "summe",
    "cifar10",
    "emnist",
    "apy_lists",
    "awa1_lists",
    "awa2_lists",
    "xlsa17",
    "cifar10_unseen",
)
NAMED = {
    "awa1_lists": "zsl_splits/AWA1",
    "awa2_lists": "zsl_splits/AWA2",
    "apy_lists": "zsl_splits/APY",
    "cifar10_unseen": "zsl_splits/APY",
    "xlsa17": "xlsa17/AWA2",
}
"""Where the names or descriptions of classes lie, which an experiment needs to be read."""


def marks(g):
    missing = g.name in NAMED and not Path(data_path(NAMED[g.name])).is_dir()
    reason = f"no research data: {NAMED.get(g.name)}; set VERGENCE_DATA"
    slow = [pytest.mark.slow] if g.name in LIKE_OTHERS else []
    return [*slow, pytest.mark.skipif(missing, reason=reason)]


WHERE = [pytest.param(g, marks=marks(g)) for g in GROUNDS.values()]


@pytest.mark.parametrize("where", WHERE, ids=lambda g: g.name)
def test_every_table_makes_sound_experiments(where):
    wish = Wish(root=None if where.root == "" else "somewhere")
    for one in app.TABLES.values():
        for part in one.parts if one.paper in where.papers else ():
            planned = plan(part, where, wish)
            if planned.experiment:
                seeds = (0,) if where.replicates else (0, 1, 2, 3, 4)
                assert planned.experiment.plan.seeds == seeds
                assert planned.experiment.plan.rounds == part.rounds(where)
                assert planned.barred == {}, "masks fill in a full run"


def test_masks_grow_slowly_where_windows_are_to_restart():
    """80 rounds at 0.01, in which rho 0.7 fills; fewer where they are asked for."""
    where, (part,) = GROUNDS["mpiigaze_crops_300"], app.TABLES["fedcpf/table2"].parts
    rates = {entry["rate"] for entry in part.entries(where)}
    assert (rates, part.rounds(where), where.rounds) == ({0.01}, 80, 40)
    fast = plan(part, where, Wish(root="somewhere", rounds=60))
    assert fast.experiment is not None
    assert fast.experiment.plan.rounds == 60
    assert list(fast.barred) == ["rho_70"]


def test_a_data_set_like_another_differs_in_what_it_says():
    few, all_ = GROUNDS["mpiigaze_crops_100"], GROUNDS["mpiigaze_crops"]
    assert few.table == {**all_.table, "few_data": {"samples_per_person": 100}}
    assert few.values == {**all_.values, "windows": {"run": {"rounds": 100}}}
    assert (few.papers, few.root, few.kind) == (("fedcpf",), all_.root, "real")


@pytest.mark.slow
def test_pages_on_windows_tell_when_they_restarted(tmp_path):
    """Scores of two seeds reach other levels; a large step is climbed less often."""
    wish = Wish(seeds=2, rounds=3, sets=("run.workers=1",))
    (found,) = app.reproduce(["fedcpf/table3"], console(), on="toy", wish=wish, out=tmp_path)
    levels, last = found.run_facts.values()
    folder = tmp_path / "fedcpf/runs/acc/acc_01"
    ends = [read_run(folder, seed).clients["p00"].window for seed in (0, 1)]
    assert levels["acc_01"]["p00"] == sum(end.level for end in ends) / 2 - 1
    assert last["acc_01"]["p00"] == sum(end.since for end in ends) / 2 + 1
    assert all(levels["acc_01"][p] > levels["acc_20"][p] for p in levels["acc_01"])
    page = (tmp_path / "fedcpf/table3/report.md").read_text()
    assert "| score steps climbed, people | last restart (round), people |" in page
    told = list(csv.DictReader((tmp_path / "fedcpf/table3/facts.csv").read_text().splitlines()))
    value = next(x["value"] for x in told if (x["row"], x["person"]) == ("acc_01", "p00"))
    assert float(value) == levels["acc_01"]["p00"]


@pytest.mark.slow
@pytest.mark.parametrize("where", WHERE, ids=lambda g: g.name)
def test_the_parts_of_a_table_differ_in_their_methods_alone(where):
    """A table says what else differs (noise is other data); all of adaptive FL has 80 % a round."""
    wish = Wish(root=None if where.root == "" else "somewhere")
    for one in app.TABLES.values():
        made = [plan(part, where, wish) for part in one.parts if one.paper in where.papers]
        tables = [dict(p.experiment.table) for p in made if p.experiment is not None]
        for table in tables:
            entries = {e.get("label", e["name"]): e for e in table.pop("methods")}
            own = {key for entry in entries.values() for key in entry.get("local", {})}
            assert own <= {"lr"}, one.id
            for entry in entries.values():
                entry.pop("local", None)
            assert bool(table.pop("noise", {})) <= ("data" in one.apart), one.id
            for key in one.apart:
                table.pop(key, None)
            assert table == tables[0], one.id
            if one.paper == "adaptive":
                assert table["presence"] == {"cohort": 0.8}, one.id
            if one.paper == "adaptive" and SEED in entries:
                assert entries["fedavg"]["weights"] == "equal"
                label = {("label", "fedadam_seed")}
                assert entries.get("fedadam", {}).items() <= entries[SEED].items() | label
                assert entries[SEED]["variant"] == "seed_exact"


def sizes(where, tmp_path, above):
    """Return the root mean square of the mean update of a first round, by regime."""
    found = {}
    for name, regime in (
        ("average", where.filled("$average").get("local", {})),
        ("server", where.filled("$server").get("local", {})),
        ("server_printed", RATE["local"]),
    ):
        part = TablePart(
            "first",
            [{"name": "fedavg", "weights": "equal"}],
            above=[{"presence": {"cohort": 0.8}}, {"local": regime}],
        )
        sets = ("run.evaluate_every=1", "run.workers=1", *above)
        experiment = plan(part, where, Wish(seeds=1, rounds=1, sets=sets)).experiment
        assert experiment is not None
        start(experiment, tmp_path / name)
        saved = read_run(tmp_path / name / "fedavg", 0)
        update = (saved.server.model - saved.task.init()).flat
        found[name] = float(update.square().mean().sqrt())
    return found


def check_servers(where, found):
    """No server overshoots; the printed regime's is ten times tau, as in experiments/."""
    server, printed = where.values["server"], where.values["server_printed"]
    assert server["tau"] < found["server"]
    assert server["server_lr"] <= 4 * found["server"]
    assert 1.5 < printed["tau"] / found["server_printed"] < 6
    assert printed["server_lr"] == pytest.approx(10 * printed["tau"])


@pytest.mark.parametrize(
    ("name", "above"), [("toy", ()), ("eye_synthetic", ("federation.people=5",))]
)
def test_servers_fit_the_first_update(name, above, tmp_path):
    check_servers(GROUNDS[name], sizes(GROUNDS[name], tmp_path, above))


@pytest.mark.data
@pytest.mark.slow
def test_servers_fit_the_first_update_of_real_eyes(tmp_path):
    folder = research_data("eyes/mpiigaze_9x15")
    above = (f'federation.root="{folder}"',)
    where = GROUNDS["mpiigaze_crops"]
    check_servers(where, sizes(where, tmp_path, above))


def test_settings_this_version_lacks_are_named():
    part = TablePart("p", [{"name": "no_such"}, {"name": "fedavg"}])
    planned = plan(part, TOY, QUICK)
    assert planned.missing == {"no_such": "this version has no method 'no_such'"}
    assert planned.experiment is not None
    assert list(planned.experiment.methods) == ["fedavg"]
    odd = plan(replace(part, above=[{"gravity": {}}], suffix=" odd"), TOY, QUICK)
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
        (
            "fedcpf",
            None,
            "x",
            (
                "ego_synthetic is generated",
                "say which data DIR holds with --on",
                "(osie, gazecom, hevc_video, mpiigaze_crops, mpiigaze_crops_100, ",
                "mpiigaze_crops_300, mpiigaze, egtea, ego4d, egtea_paper, ego4d_paper)",
            ),
        ),
        ("adaptive", None, "x", ("--on (mpiigaze_crops, mpiigaze)",)),
    ],
)
def test_unusable_data_is_refused(paper, name, root, words):
    with pytest.raises(ConfigError) as told:
        plan(
            app.TABLES[f"{paper}/{ {'fedcpf': 'table1', 'adaptive': 'fig4'}[paper] }"].parts[0],
            ground(paper, name),
            Wish(root=root),
        )
    assert all(word in str(told.value) for word in words), told.value


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fedcpf/table9", ("no table 'fedcpf/table9'", "did you mean")),
        ("pezsl/table5.1", ("vergence data check",)),
        ("fedcpf/fig1", ("vergence report",)),
    ],
)
def test_unknown_tables_are_refused(name, words):
    with pytest.raises(ConfigError) as told:
        app.tables([name])
    assert all(word in str(told.value) for word in words), told.value
    assert [t.id for t in app.tables(["adaptive"])] == [
        "adaptive/fig2",
        "adaptive/fig3",
        "adaptive/fig4",
        "adaptive/headline",
        "adaptive/headline-small-rate",
        "adaptive/headline-as-printed",
    ]


@pytest.mark.parametrize("wrong", [{"seeds": 0}, {"rounds": 0}])
def test_no_seeds_or_rounds_are_refused(wrong):
    with pytest.raises(ConfigError, match="must be 1 or more"):
        Wish(**wrong)


def test_options_that_nothing_reads_are_refused():
    app.unread("--list", {"--on": None, "--seeds": None})
    with pytest.raises(ConfigError, match="--list runs nothing and does not read --on, --seeds"):
        app.unread("--list", {"--on": "osie", "--root": None, "--seeds": 0})


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


def test_the_examiner_computes_every_verdict_again(done, tmp_path):
    """From the two CSV files that a run leaves, and with one score changed it does not agree."""
    made = done[0] / "fedcpf/table1"
    assert examine(made / "report.md", made) == ("agrees", [])
    shutil.copytree(made, tmp_path / "t")
    rows = list(csv.reader((made / "scores.csv").read_text().splitlines()))
    at = next(i for i, row in enumerate(rows) if row[0] == "fedcpf" and row[3] == "p00")
    rows[at][6] = "99.0"
    with (tmp_path / "t/scores.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    assert examine(tmp_path / "t/report.md", tmp_path / "t")[0] == "disagrees"


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
    with pytest.raises(StateError, match=r"\(run.rounds: 3, now 30\).*--rounds 3 again"):
        app.reproduce(
            ["fedcpf/table1"], console(), on="toy", wish=replace(wish, rounds=30), out=out
        )
    with pytest.raises(StateError, match=r"choose another --out, or ask for --seeds 1 again"):
        app.reproduce(["fedcpf/table1"], console(), on="toy", wish=replace(wish, seeds=2), out=out)


def test_the_list_has_every_table_and_its_state(done, tmp_path):
    out, _, _, _ = done
    where = console()
    app.listing(where, out)
    told = said(where).splitlines()
    for name in app.TABLES:
        assert any(line.startswith(f"{name} ") for line in told), name
    for name in ("fedcpf/table1", "fedcpf/fig3", "adaptive/fig2", "adaptive/headline"):
        assert name in app.TABLES
    (line,) = [line for line in told if line.startswith("fedcpf/table1")]
    assert "toy, 1 seed, fast: " in line
    counts = app.tally([v.word for v in done[1].verdicts])
    assert app.status("fedcpf/table1", out) == f"toy, 1 seed, fast: {counts}"
    (line,) = [line for line in told if line.startswith("fedcpf/table2")]
    assert "not run" in line
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


@pytest.mark.slow
def test_the_headline_scores_people_who_took_no_part(tmp_path):
    wish = replace(QUICK, sets=(*QUICK.sets, "federation.people=3"))
    (found,) = app.reproduce(["adaptive/headline"], console(), on="toy", wish=wish, out=tmp_path)
    assert "not testable here" not in {v.word for v in found.verdicts}
    (note,) = [stamp for stamp in found.stamps if stamp.startswith("by design, split differs")]
    assert "fedavg left out has leave one person out: trained on all others" in note
    assert TOY.table["federation"]["people"] == 4, "--set is for this command only"
    page = (tmp_path / "adaptive/headline/report.md").read_text()
    assert "![learning curves](headline_curves.png)" in page
    assert (tmp_path / "adaptive/headline/headline_curves.png").stat().st_size > 5000
    assert re.search(r"training samples of a client: \d+(?: to \d+)?; gradient steps of a", page)
    assert "- tuned: nothing" in page
    assert "both, and FedAvg, count people equally" in page
    assert "0 hold, 0 contradicted, 0 not shown, 3 not learned." in page
    assert "| adaptive FL (FedAdam as printed) left out |" in page
    folds = sorted(p.name for p in (tmp_path / "adaptive/runs/left_out").rglob("folds/*"))
    assert folds == ["p00", "p01", "p02"]
    other = replace(wish, rounds=2)
    with pytest.raises(StateError, match="other settings"):
        app.reproduce(["adaptive/headline"], console(), on="toy", wish=other, out=tmp_path)


def test_parts_that_are_not_alike_are_not_judged(tmp_path):
    parts = (
        TablePart("all", [{"name": "fedavg"}]),
        TablePart("half", [{"name": "local_only"}], above=[{"presence": {"cohort": 0.5}}]),
    )
    planned = [plan(part, TOY, QUICK) for part in parts]
    results = app.run_parts(planned, tmp_path)
    one = PaperTable("fedcpf/none", "none", ("main",), {}, "toy", parts, ())
    with pytest.raises(ConfigError, match=r"none: cannot compare: presence.cohort differs") as told:
        app.gather(one, TOY, QUICK, planned, results)
    assert "--allow" not in str(told.value)
    found = app.gather(replace(one, apart=("presence",)), TOY, QUICK, planned, results)
    assert "by design, presence.cohort differs: fedavg has 1.0; local_only has 0.5" in found.stamps


@pytest.mark.slow
def test_rows_of_noise_tell_how_many_people_are_noisy(tmp_path):
    (found,) = app.reproduce(["adaptive/fig4"], console(), on="toy", wish=QUICK, out=tmp_path)
    people = read(tmp_path / "adaptive/runs/noise_00").runs[0].people
    for share in SHARES:
        noisy = len(Noise(share, 0.5).noisy_clients(people))
        for label in ("fedavg", "fedadam", SEED):
            assert found.noisy[f"{label} {round(100 * share)} % noisy"] == noisy
    names = [line[0] for line in rows(found)[1]]
    assert "FedAvg 70 % noisy (3 of 4 people)" in names
    record = json.loads((tmp_path / "adaptive/fig4/verdicts.json").read_text())
    assert record["rows"]["fedavg 70 % noisy"]["noisy"] == 3
    assert any(stamp.startswith("by design, data differs") for stamp in found.stamps)


def test_the_noise_curve_is_drawn_from_its_rows(done):
    scores = {
        f"{method} {round(100 * share)} % noisy": {"error": {"a": 1.0 + share, "b": 2.0 + share}}
        for method in ("fedavg", "fedadam")
        for share in SHARES
    }
    found = replace(
        done[1],
        table=app.TABLES["adaptive/fig4"],
        evidence=Evidence(scores, frozenset({"error"}), {}, {}),
    )
    figure = figures.noise(found)
    assert figure is not None
    lines = [line for line in figure.axes[0].lines if len(line.get_xdata()) == len(SHARES)]
    assert [float(y) for y in lines[0].get_ydata()] == pytest.approx(
        [1.5 + share for share in SHARES]
    )
    assert len(lines) == 2
