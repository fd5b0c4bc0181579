"""What pages say of a run is what the run was: where it ran, what was compared, what it shows."""

import html
import json
import re
import shutil
import tomllib

import pytest

from tests.cli.commands import vergence
from tests.conftest import ROOT
from tests.engine.test_compatibility_check import TOY
from tests.made_up_runs import write_study
from tests.reports.ethics.test_page import page_of
from vergence.experiment.run import start
from vergence.experiment.schema import check, merge
from vergence.reports import html as reporting
from vergence.reports.ethics.facts import facts
from vergence.reports.ethics.page import ethics
from vergence.reports.html import report
from vergence.results.write import write_toml

LABELS = ("local_only", "fedavg", "centralised")
HERE = "This run was a simulation: all recordings were on one computer. In a deployment "
GAZE = "other people's gaze on the same pictures (an upper reference, not a guess)"


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A run of local-only, beside one of FedAvg and one of FedPer."""
    out = tmp_path_factory.mktemp("alone") / "out"
    table = merge(TOY, {"methods": list(LABELS)})
    start(check(table), out)
    return out


@pytest.fixture
def plain(monkeypatch):
    """A page of words and tables: drawing takes most of its time."""
    monkeypatch.setattr(reporting, "SECTIONS", ())


def text_of(path):
    """Return a page as a reader sees it."""
    text = re.sub(r"<style>.*?</style>|<[^>]+>", " ", path.read_text(), flags=re.DOTALL)
    return " ".join(html.unescape(text).split())


def test_a_simulation_is_said_to_be_one_in_the_first_box(alone, tmp_path):
    for label in LABELS:
        ethics(alone, tmp_path, label)
        said = " ".join(page_of(tmp_path)[2]["verdict"])
        if label == "centralised":
            assert "This run was a simulation: all recordings were on one computer." in said
        else:
            assert said.startswith(HERE)


def test_a_simulation_on_a_cluster_names_it(alone, tmp_path):
    copy = shutil.copytree(alone / "fedavg", tmp_path / "fedavg")
    table = tomllib.loads((copy / "config.toml").read_text())
    write_toml(copy / "config.toml", merge(table, {"run": {"engine": "ray"}}))
    ethics(copy)
    _, _, plan = page_of(copy)
    assert "a simulation: all recordings were on the machines of one cluster" in plan["verdict"][0]


def test_a_deployment_alone_says_that_recordings_stay(alone, tmp_path):
    copy = shutil.copytree(alone / "fedavg", tmp_path / "fedavg")
    told = json.loads((copy / "provenance.json").read_text())
    (copy / "provenance.json").write_text(json.dumps({**told, "deployment": {"tls": True}}))
    ethics(copy)
    _, seen, plan = page_of(copy)
    assert plan["verdict"][0] == "Recordings stay on each person's device."
    assert "was a simulation" not in seen
    planned = facts(check({**TOY, "method": {"name": "fedavg"}}), "fedavg", None, None)
    assert planned["verdict"][0].startswith("Nothing has been run.")


def test_nothing_leaves_without_a_word_and_the_bytes_agree(alone, tmp_path):
    ethics(alone / "local_only", tmp_path)
    _, seen, _ = page_of(tmp_path)
    assert "leaves the device: measurements alone, nothing that was learned comes back:" in seen
    assert "Together 0 bytes to the server and 0 back; besides 8 bytes of plain numbers" in seen
    assert "Counted in this run, without these: 0 and 0 bytes" in seen
    ethics(alone / "fedavg", tmp_path)
    _, seen, _ = page_of(tmp_path)
    assert "Together 20 bytes to the server and 20 back; besides 16 bytes" in seen
    assert "without these: 20 and 20 bytes" in seen


def test_a_board_reads_words_of_its_own(alone, tmp_path):
    ethics(alone / "local_only", tmp_path)
    _, seen, plan = page_of(tmp_path)
    assert "kept by the method: the person's own model (20 bytes)" in plan["stays"]
    assert "params" not in seen
    assert not re.search(r"\d B\b", seen)
    assert "how well training goes (loss)" in seen
    assert "numbers: loss" not in seen
    assert "error how far predictions are from the truth" in seen, "the words explain the metric"


def test_other_peoples_gaze_is_no_guess(alone, tmp_path):
    """As if the toy's people had looked at the same pictures, and others' gaze were worth 0.25."""
    copy = shutil.copytree(alone, tmp_path / "out")
    rows = (copy / "priors.csv").read_text()
    others = rows.replace("global mean,", "other people,").splitlines()[1:]
    others = [f"{line.rpartition(',')[0]},0.25" for line in others]
    (copy / "priors.csv").write_text("\n".join([rows.rstrip(), *others, ""]))
    ethics(copy, label="fedavg")
    _, seen, _ = page_of(copy)
    assert f"0.25 by {GAZE}." in seen
    assert "by predicting everybody's mean;" in seen
    assert "by guessing" not in seen
    assert f"| without training | 0.25 ({GAZE}) |" in (copy / "model_card.md").read_text()


@pytest.mark.usefixtures("plain")
def test_the_lead_names_what_needs_no_training_beside_the_best(out, tmp_path):
    copy = shutil.copytree(out, tmp_path / "OUT")
    seen = text_of(report(copy))
    lead = seen[: seen.index("Results")]
    assert "the best guess, predicting the centre, has 0.75" in lead
    assert f"{GAZE} has 3.55" in lead
    assert "other people (reference)" in vergence("compare", copy).out
    assert "other people (prior)" not in vergence("compare", copy, "--format", "markdown").out


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize(("people", "verdict"), [(4, "no difference shown"), (8, "different")])
def test_report_and_compare_give_one_verdict(people, verdict, tmp_path):
    """FedCPF is better for everybody: of four people the test cannot show it, of eight it does.

    By mean ranks, over all pairs, FedCPF and FedAvg are not apart in either case.
    """
    out = write_study(tmp_path / "OUT", people=people)
    lead = text_of(report(out))
    lead = lead[: lead.index("Results")]
    said = " ".join(vergence("compare", out).out.split())
    sentence = re.search(r"FedCPF against FedAvg: .*? people; (.*?)\.(?= [A-Z0-9])", lead)
    assert sentence, lead
    assert sentence[1].startswith(f"{verdict} (Holm's p 0.")
    assert sentence[0] in said
    assert "excludes 0" not in lead
    assert "Not to be told apart" not in said
    assert "Not apart in mean ranks: FedCPF, FedAvg." in said
    coarse = said.index("a coarser look at all pairs than the paired tests")
    assert coarse < said.index(sentence[0]), "the verdict comes last"


@pytest.mark.usefixtures("plain")
def test_what_repeats_a_run_names_the_folder_as_it_is_reached(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_study(tmp_path / "runs" / "my demo")
    page = text_of(report("runs/my demo"))
    for verb in ("verify", "compare", "report"):
        assert f"vergence {verb} 'runs/my demo'" in page
    assert "vergence verify runs/x" in text_of(report(write_study(tmp_path / "runs" / "x")))
    below = text_of(report("runs/x/fedavg"))
    assert "vergence verify runs/x/fedavg" in below
    monkeypatch.chdir(write_study(tmp_path / "away").parent / "runs")
    assert f"vergence verify {tmp_path / 'away'}" in text_of(report(tmp_path / "away"))


@pytest.mark.parametrize(
    "page",
    [
        "explanation/secure_aggregation",
        "explanation/private_inference",
        "how-to/private_inference",
        "how-to/deploy",
    ],
)
def test_pages_on_cryptography_begin_with_who_has_reviewed_it(page):
    text = (ROOT / "docs" / f"{page}.md").read_text()
    first = text.split("\n\n")[1]
    assert first.startswith("Nobody outside the project has reviewed")


def test_how_to_report_a_weakness_is_written_down():
    page = ROOT / "SECURITY.md"
    assert page.exists()
    text = " ".join(page.read_text(encoding="utf-8").split())
    for told in (
        "private security advisory",
        "names no details and asks for a contact",
        "Nobody outside the project has reviewed the cryptography",
        "docs/explanation/secure_aggregation.md",
        "docs/explanation/differential_privacy.md",
        "docs/how-to/deploy.md",
        "There is no release yet",
    ):
        assert told in text
