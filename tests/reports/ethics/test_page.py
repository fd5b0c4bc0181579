"""The page for an ethics board: what it says, where its numbers come from, what it refuses."""

import csv
import html
import json
import math
import re
import shutil

import pytest

from tests.cli.commands import vergence
from tests.engine.test_compatibility_check import EYES, TOY, experiment
from vergence.core.task import Task
from vergence.engine.plan import Plan
from vergence.errors import ConfigError, DataError
from vergence.experiment import provenance
from vergence.experiment.privacy.spent import usefulness
from vergence.experiment.privacy.study_description import read_description
from vergence.experiment.run import start
from vergence.experiment.schema import check, merge
from vergence.methods.fedavg import FedAvg
from vergence.privacy.secure_aggregation.pairwise import colluders
from vergence.reports.ethics import wording as words
from vergence.reports.ethics.facts import facts
from vergence.reports.ethics.page import CARDS, ethics, number_text, refuse_claims
from vergence.results.write import write_toml

HIDDEN = {
    "method": {"name": "fedcpf"},
    "privacy": {"aggregation": "secure", "user": {"clip": 0.5, "noise": 4.0}},
}
PLANS = {
    "plain": {**TOY, "method": {"name": "fedavg"}},
    "hidden": {**TOY, **HIDDEN},
    "split": {**EYES, "method": {"name": "splitfed_u"}},
}
AUDIT = """what the server has,seen,mse,ssim,angle_error_deg
nothing: the mean of the others,,0.1,0.1,
nothing: another picture of theirs,,0.2,0.1,
"no defence, as in the run",sent once,0.004,0.9,7.5
PixelDP l = 2,sent once,0.11,0.1,80.5
"""


TAUGHT = {
    "task": {"name": "zero_shot"},
    "model": {"name": "mlp", "inputs": 64, "hidden": [8], "classes": 16},
    "federation": {"name": "zsl_synthetic", "images": 10},
    "method": {"name": "pe_zsl", "generator_rounds": 1, "samples": 5, "batch": 40, "hidden": 8},
    "local": {"optimizer": "sgd", "epochs": 1, "batch": 32, "lr": 0.05},
    "run": {"rounds": 2, "workers": 1},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return the folder of a run of each plan, its page written; the split one was attacked."""
    found = {}
    for name, table in PLANS.items():
        folder = found[name] = tmp_path_factory.mktemp("ethics") / name
        start(check(table), folder)
        if name == "split":
            (folder / "audit").mkdir()
            (folder / "audit" / "audit.csv").write_text(AUDIT)
        ethics(folder)
    return found


def page_of(folder):
    """Return the page as a reader sees it, and its facts."""
    text = (folder / "ethics.html").read_text()
    plain = re.sub(r"<style>.*?</style>|<[^>]+>", " ", text, flags=re.DOTALL)
    seen = " ".join(html.unescape(plain).split())
    return text, seen, json.loads((folder / "ethics.json").read_text())["plan"]


@pytest.mark.parametrize("name", PLANS)
def test_the_page_needs_nothing_from_elsewhere(name, runs):
    text, _, _ = page_of(runs[name])
    assert "http" not in text
    assert not re.search(r"\bsrc=|@import|url\(|<script|<link", text)
    assert all(target.startswith("#") for target in re.findall(r'href="([^"]*)"', text))


@pytest.mark.parametrize("name", PLANS)
def test_the_page_says_what_the_json_says(name, runs):
    _, seen, plan = page_of(runs[name])
    for key in ("verdict", "assumed", "residual", "unprotected"):
        assert plan[key]
        assert all(" ".join(line.split()) in seen for line in plan[key])
    assert all(who in seen and what in seen for who, what in plan["sees"])
    assert all(f"{row['what']} → " in seen for row in plan["leaves"])
    assert all(number_text(row["bytes"]) in seen for row in plan["leaves"])


@pytest.mark.parametrize("name", PLANS)
def test_the_numbers_are_the_runs(name, runs):
    _, seen, plan = page_of(runs[name])
    results = json.loads((runs[name] / "results.json").read_text())
    headline = results["metrics"][results["headline"]]
    assert (
        f"{number_text(headline['mean'])} on average over people, {number_text(headline['worst'])}"
        in seen
    )
    assert plan["counted"] == results["bytes"]
    assert number_text(results["bytes"]["up"], 6) in seen
    if name == "hidden":
        part = results["privacy"]["person"]
        assert plan["budget"]["person"]["epsilon"] == part["seeds_together"]
        assert (
            f"{number_text(part['seeds_together'])} at {number_text(part['delta'])}, spent" in seen
        )
        assert part["neighbours"] in seen
        assert part["against"] in seen
    else:
        assert plan["budget"] == {}
        assert "Nothing. No number bounds" in seen


def test_an_attack_stands_beside_chance(runs):
    """The mean of the others is off by .1, the better guess; the attacker by .004, a 25th."""
    _, seen, plan = page_of(runs["split"])
    assert "Pictures were rebuilt from it, 25 times nearer to the originals than by chance" in seen
    assert "25 times nearer than chance: something of the person is left" in seen
    assert "the same, had there been PixelDP l = 2 sent once 0.11 0.1 0.1 80.5 no better" in seen
    assert [a["better"] for a in plan["attacks"]] == [True, False]
    assert words.nearness(1.01) == "hardly better than chance"
    _, seen, _ = page_of(runs["plain"])
    assert "Nothing was attacked in this run" in seen


@pytest.mark.parametrize("name", PLANS)
def test_cards_lie_beside_and_hold_the_same(name, runs):
    _, _, plan = page_of(runs[name])
    privacy, model, data = ((runs[name] / card).read_text() for card in CARDS)
    assert all(line in privacy for line in plan["unprotected"])
    assert number_text(plan["model"]["metrics"][0]["mean"]) in model
    assert number_text(plan["data"]["people"]) in data
    for card in (privacy, model, data):
        assert "\n\n\n" not in card.strip()
        assert all(line.endswith("|") for line in card.splitlines() if line.startswith("|"))


def test_of_a_file_the_method_that_is_named_alone_is_checked(tmp_path):
    file = tmp_path / "plan.toml"
    pads = {"privacy": {"aggregation": "secure"}}
    write_toml(file, {**TOY, "methods": ["fedavg", "fedcpf"], **pads})
    assert ethics(file, tmp_path / "out", "fedavg").is_file()
    with pytest.raises(ConfigError, match=r"'fedcpf': privacy.aggregation: .*\"a\", \"b\", \"c\""):
        ethics(file, tmp_path / "other", "fedcpf")
    with pytest.raises(ConfigError, match=r"no method 'fedavgg', but fedavg, fedcpf.*did you mean"):
        ethics(file, tmp_path / "other", "fedavgg")


def test_nothing_is_called_private_that_no_number_backs(runs, tmp_path):
    for name, folder in runs.items():
        files = [folder / file for file in ("ethics.html", "ethics.json", *CARDS)]
        backed = name == "hidden"
        assert page_of(folder)[2]["backed"] is backed
        claims = [f for f in files if re.search(r"\bprivate", f.read_text(), re.IGNORECASE)]
        assert backed or not claims
    file = tmp_path / "plan.toml"
    write_toml(file, {**TOY, "methods": [{"name": "fedavg", "label": "private"}]})
    with pytest.raises(ConfigError, match="'private' says 'private', and 'private' has no eps"):
        ethics(file, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    write_toml(
        file,
        {
            **TOY,
            "methods": [{"name": "fedavg", "label": "private"}],
            "privacy": {"user": {"epsilon": 9.0}},
        },
    )
    assert "private" in ethics(file, tmp_path / "out").read_text()
    write_toml(
        file,
        {
            **TOY,
            "methods": [{"name": "fedavg", "label": "private"}],
            "privacy": {"user": {"epsilon": 11.0}},
        },
    )
    with pytest.raises(ConfigError, match="no epsilon of 10 or less"):
        ethics(file, tmp_path / "out")


def test_claims_are_found_deep_in_the_facts():
    plan = {"label": "a", "backed": False, "data": {"facts": {"licence": "fully anonymised"}}}
    with pytest.raises(ConfigError, match="says 'anonymised'"):
        refuse_claims(plan)
    refuse_claims({**plan, "backed": True})


@pytest.mark.parametrize(
    "text",
    [
        "gaze_anonymous",
        "fully-anonymous-eyes",
        "\uff50\uff52\uff49\uff56\uff41\uff54\uff45",
        "my_private_eyes",
    ],
)
def test_claims_are_found_as_the_page_would_show_them(text):
    """Underscores become spaces there, wide letters look like others, and a folder has a name."""
    plan = {"label": "a", "backed": False, "data": {"name": text}}
    with pytest.raises(ConfigError, match="has no epsilon of 10 or less"):
        refuse_claims(plan)
    with pytest.raises(ConfigError, match="has no epsilon of 10 or less"):
        refuse_claims({"label": "a", "backed": False}, text)


EVIL = "x |\n| epsilon | 0.1 |\n\n<script>alert(1)</script> [a](http://b) anon**y**mous \u202eevoba"


def test_texts_of_a_folder_that_somebody_sent_stay_texts(runs, tmp_path):
    """Its provenance and its audit hold tags, a row of a table, a link, letters that run back."""
    folder = tmp_path / "sent"
    shutil.copytree(runs["split"], folder)
    file = folder / "provenance.json"
    table = json.loads(file.read_text())
    table["data"] = {**table.get("data", {}), "licence": EVIL, EVIL: "x"}
    file.write_text(json.dumps(table))
    with (folder / "audit" / "not_tried.csv").open("w", newline="") as out:
        csv.writer(out).writerows([["attack", "why"], [EVIL, EVIL]])
    ethics(folder, tmp_path / "out")
    for name in ("ethics.html", *CARDS):
        text = (tmp_path / "out" / name).read_text()
        assert "<script" not in text
        assert "\u202e" not in text
        if name != "ethics.html":
            assert not re.search(r"^\| epsilon", text, re.MULTILINE)
            assert "](http" not in text
            assert "**" not in text
    assert "&#60;script&#62;" in (tmp_path / "out" / "dataset_card.md").read_text()
    assert "&#60;script&#62;" in (tmp_path / "out" / "privacy_card.md").read_text()


@pytest.mark.slow
def test_a_plan_that_never_ran_says_so(tmp_path):
    file = tmp_path / "plan.toml"
    write_toml(file, {**PLANS["plain"], "privacy": {"solver": {"epsilon": 2.0}}})
    with pytest.raises(ConfigError, match="a plan, not a run: say where"):
        ethics(file)
    done = vergence("privacy", "ethics", file, "--out", tmp_path / "out")
    assert "ethics.html" in done.out
    _, seen, plan = page_of(tmp_path / "out")
    assert "nothing has been run yet" in seen
    assert "There is none about people" in seen
    assert "computed beforehand" in seen
    assert 1.9 < plan["budget"]["sample"]["epsilon"] <= 2.0


def test_where_the_data_are_not_a_run_still_says_what_was_spent(runs, tmp_path, monkeypatch):
    """As on the server of a deployment; a plan cannot be foretold there."""
    monkeypatch.setattr("vergence.data.synthetic.toy.Toy.load", missing)
    ethics(runs["hidden"], tmp_path / "out")
    _, _, plan = page_of(tmp_path / "out")
    _, _, full = page_of(runs["hidden"])
    assert plan["budget"] == full["budget"]
    assert plan["leaves"] == full["leaves"]
    assert plan["data"]["people"] is None
    write_toml(tmp_path / "plan.toml", PLANS["hidden"])
    with pytest.raises(DataError, match="not here"):
        ethics(tmp_path / "plan.toml", tmp_path / "out")


def missing(*_):
    raise DataError("not here")


def test_a_bottleneck_at_the_cut_is_told(tmp_path):
    write_toml(tmp_path / "plan.toml", experiment("splitfed_u", ("cut",)))
    ethics(tmp_path / "plan.toml", tmp_path)
    _, seen, plan = page_of(tmp_path)
    assert "About people: nothing." in seen
    (promise,) = plan["promises"]
    assert promise["text"][1:] in seen
    assert "drawn once per picture" in seen


def test_a_pooled_plan_hides_nobody():
    made = check(experiment("centralised", ()))
    plan = facts(made, "centralised", None, None)
    assert plan["verdict"][0] == "Everybody's recordings and labels are brought to one place."
    assert plan["sees"] == [["the data centre", "all recordings and labels of everybody"]]


def test_epsilon_in_words():
    """Odds of 1 : 1 become at most e^epsilon : 1; ln 3 makes three to one."""
    assert words.certainty(math.log(3)) == pytest.approx(0.75)
    assert "can become 75.00 % sure" in words.in_words("person", math.log(3), 1e-5, "x")
    assert "more than 99.99 % sure" in words.in_words("person", 50.0, 1e-5, "x")
    assert [words.tier(e).split(",")[0] for e in (1, 2, 10, 10.1)] == [
        "strong",
        "some",
        "some",
        "none to speak of",
    ]


def test_the_verdict_on_noise_is_that_of_the_sizes():
    """14 people, 1.8 M numbers, noise of .45 C in each: .45 sqrt(1.827e6) = 608 C; 8 people hidden
    among 5 numbers, pads, sums of 5 or more: at least 4 sqrt(8 / 5) sqrt(5) / 8."""
    assert "useless" in usefulness(0.45 * 1.827e6**0.5, 14)
    assert "doubtful" in usefulness(10.0, 1000)
    assert "remains possible" in usefulness(0.9, 100_000)
    made = check(PLANS["hidden"])
    plan = facts(made, "fedcpf", made.federation(), None)
    wanted = 4 * math.sqrt(8 / 5) * math.sqrt(5) / 8
    assert plan["budget"]["person"]["ratio"] == pytest.approx(wanted)


@pytest.mark.parametrize(("people", "least"), [(5, 3), (9, 6), (12, 7), (15, 9)])
def test_the_devices_that_must_help_the_server_are_counted_as_explain_counts_them(people, least):
    """Where few come, a third is one too many: 3 of 9 devices see what one person sent."""
    summed = {"name": "pairwise", "min_contributors": least}
    changed = {"federation": {"people": people}, "privacy": {"aggregation": summed}}
    made = check(merge({**PLANS["hidden"], "method": {"name": "fedavg"}}, changed))
    plan = facts(made, "fedavg", made.federation(), None)
    few, twice = colluders(people, least), max(2 * least - people, 1)
    told = " ".join(plan["assumed"])
    smaller = min(few, twice)
    assert f"fewer than {smaller} of {people} devices secretly help it. With {few} device" in told
    assert f"; with {twice} device" in told
    assert "The smaller number counts." in told
    assert f"asks for more: at least {least} people in every sum" in told


def test_what_changes_with_the_means():
    """Plain, under pads, on shares: whom it counts on is another sentence each."""
    told = set()
    for settings in ((), ("pads",), ("shares",), ("median",), ("DP people",)):
        made = check(experiment("fedavg", settings))
        means = words.PrivacyMeans(made.plan, made.methods["fedavg"], made.task(0))
        told.add(tuple(words.assumed(means)))
    assert len(told) == 5
    assert isinstance(made.task(0), Task)
    assert words.PrivacyMeans(Plan(), FedAvg(), made.task(0)).least == 0


def test_shares_name_their_helpers_and_what_these_could_find_out(tmp_path):
    write_toml(tmp_path / "plan.toml", experiment("fedcpf", ("shares",)))
    ethics(tmp_path / "plan.toml", tmp_path)
    _, seen, plan = page_of(tmp_path)
    assert "split among the helpers" in seen
    assert "the helpers (one, two) who took part" in seen
    assert "Each helper is run by somebody else, and none by who runs the server" in seen
    assert any("a server that breaks the rules can see them" in line for line in plan["residual"])
    assert any("The server follows the rules as well" in line for line in plan["assumed"])
    assert any("How many people share each number" in line for line in plan["residual"])


def test_a_page_is_about_one_plan(tmp_path):
    table = merge(TOY, {"methods": ["fedavg", "local_only"]})
    start(check(table), tmp_path / "out")
    with pytest.raises(ConfigError, match="one plan: choose it with --method, one of fedavg, loca"):
        ethics(tmp_path / "out")
    with pytest.raises(ConfigError, match=r"no method 'fedavgg'.*did you mean 'fedavg'"):
        ethics(tmp_path / "out", label="fedavgg")
    ethics(tmp_path / "out", label="local_only")
    _, seen, plan = page_of(tmp_path / "out")
    assert plan["label"] == "local_only"
    assert "What is learned from them stays there too" in seen


def test_a_study_says_who_is_responsible_and_changes_nothing_else(runs, tmp_path):
    file = tmp_path / "study.toml"
    file.write_text('[study]\nresponsible = "<b>A. Turing</b>, Lab"\nparticipants = 40\n')
    said = vergence("privacy", "ethics", runs["plain"], "--study", file, "--out", tmp_path / "out")
    assert said.code == 0, said.err
    text, seen, plan = page_of(tmp_path / "out")
    assert "Who is responsible <b>A. Turing</b>, Lab" in seen
    assert "<b>A. Turing" not in text, "a study's words are no HTML"
    assert seen.count("not said: the study must answer this") == 17
    assert f"The study plans 40 people; the data here are of {plan['data']['people']}." in seen
    _, before, facts_before = page_of(runs["plain"])
    assert before.count("not said: the study must answer this") == 19
    apart = ("study", "planned")
    assert {k: v for k, v in plan.items() if k not in apart} == {
        k: v for k, v in facts_before.items() if k not in apart
    }


def test_a_study_is_no_setting_of_a_run():
    told = merge(PLANS["plain"], {"study": {"contact": "board@example.org"}})
    digest = provenance.config_digest
    assert digest(check(told).table) == digest(check(PLANS["plain"]).table)
    assert provenance.settings(told) == provenance.settings(PLANS["plain"])


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("[run]\nrounds = 2\n", "has no table"),
        ("[study]\nresponsable = 'me'\n", "did you mean 'responsible'"),
        ("[study]\nparticipants = 0\n", "participants must be >= 1"),
        ("[study]\ntitle = 3\n", "title"),
        (f"[study]\nduration = '{'x' * 2001}'\n", "at most 2000"),
        ("[study]\ncontact = 'all data are anonymous'\n", "epsilon"),
        ("[study\n", "not valid TOML"),
    ],
)
def test_a_study_that_cannot_be_read_is_refused(text, names, runs, tmp_path):
    (tmp_path / "study.toml").write_text(text)
    out = tmp_path / "out"
    said = vergence(
        "privacy", "ethics", runs["plain"], "--study", tmp_path / "study.toml", "--out", out
    )
    said.complains(2, names)
    assert not out.exists()


@pytest.mark.parametrize(
    ("task", "model", "data", "said_of", "not_said"),
    [
        (
            {"name": "summary"},
            {"name": "vslstm", "features": 4, "hidden": 4},
            {"name": "clip_synthetic", "people": 3, "clips": 5},
            (
                "recordings: videos, and what people found important in them",
                "Rebuilt features of frames",
                "meant for shortening videos",
                "which parts of a video people find important",
            ),
            r"\bgaze|\blook(s|ed)\b|\beyes?\b|\bpictures? ",
        ),
        (
            {"name": "images"},
            {"name": "softmax"},
            {"name": "fashion_mnist", "root": "none"},
            ("recordings: pictures, and what they show", "tells what a picture shows"),
            r"\bgaze|\blook(s|ed)\b|\beyes?\b",
        ),
    ],
)
def test_a_page_speaks_of_what_is_recorded(task, model, data, said_of, not_said, tmp_path):
    file = tmp_path / "plan.toml"
    plan = {"task": task, "model": model, "federation": data, "method": {"name": "fedavg"}}
    write_toml(file, plan | {"local": {"optimizer": "sgd", "lr": 0.1}})
    ethics(file, tmp_path / "out")
    _, seen, told = page_of(tmp_path / "out")
    assert all(part in seen for part in said_of)
    assert not re.search(not_said, seen)
    assert any(said_of[-1] in meaning for _, meaning in told["glossary"])


def test_an_owner_whose_model_answers_is_told_what_the_answers_give_away(tmp_path):
    """One person alone: no interval, and a page all the same."""
    start(check(TAUGHT), tmp_path / "run")
    ethics(tmp_path / "run")
    _, seen, plan = page_of(tmp_path / "run")
    assert "real ones can be worked out from it" in seen
    assert "people look" not in seen
    assert plan["model"]["metrics"][0]["lo"] is None
    silent = merge(TAUGHT, {"method": {"regulariser": "none"}})
    plan = facts(check(silent), "pe_zsl", None, None)
    assert "worked out" not in " ".join(map(str, plan["verdict"] + plan["residual"]))
    assert "answers questions" in " ".join(plan["verdict"])


def test_a_personal_model_of_fedridge_has_its_owners_pictures_inside():
    """Neither a head without centres nor the common part alone has any."""
    eyes = {"name": "eye_synthetic", "people": 3, "samples": 40, "days": [3, 3], "size": "9x15"}
    plan = {"recipe": "eyes", "federation": eyes, "model": {"features": 4, "own_centres": 3}}
    for change, inside in (
        ({}, True),
        ({"model": {"own_centres": 0}}, False),
        ({"method": {"own_part": False}}, False),
    ):
        made = check(merge(plan, change))
        told = facts(made, "fedridge", None, None)["unprotected"]
        assert any("inside: a person's own model contains" in text for text in told) == inside


def test_a_page_names_rights_what_is_kept_and_the_models_fingerprint(runs, tmp_path):
    """As three hospitals need it: its title, its version, and books only where there are any."""
    file = tmp_path / "study.toml"
    file.write_text(
        '[study]\ntitle = "Reading at home"\nversion = "1.2 of May"\ncontrollers = "A, B and C"\n'
    )
    ethics(runs["split"], tmp_path / "split", study=read_description(file))
    text, seen, plan = page_of(tmp_path / "split")
    assert "<h1>Reading at home</h1>" in text
    assert "Description: 1.2 of May." in seen
    assert "(controllers: GDPR, Article 26) A, B and C" in seen
    results = json.loads((runs["split"] / "results.json").read_text())
    assert plan["fingerprint"] == next(iter(results["fingerprint"].values()))[:16]
    assert plan["fingerprint"] in seen
    assert "iris identifies people" in seen
    assert "for the board name, place and date, signature" in seen
    assert "vergence privacy forget" in dict(plan["rights"])["have them deleted"]
    kept = {name: dict(page_of(runs[name])[2]["stored"]) for name in ("plain", "hidden")}
    assert [any("lists of what was given away" in what for what in kept[n]) for n in kept] == [
        False,
        True,
    ]
