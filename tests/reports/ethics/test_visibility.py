"""The page for a board says of every method who sees what as `vergence explain` says it."""

import io
import re
from functools import cache

import pytest
from rich.console import Console

from tests.engine.test_compatibility_check import SETTINGS, experiment, told
from vergence.core.method import Method
from vergence.experiment.registry import names
from vergence.experiment.schema import check, merge
from vergence.reports.ethics.facts import facts
from vergence.reports.ethics.page import drawing
from vergence.reports.explain import explain

METHODS = names("methods", Method)
OWN = {"gradient", "t"}
"""Trees that are made of a client's own samples, and sent to it alone."""
PLAIN = {
    "front": "first layers (front)",
    "end": "last layers (end)",
    "body": "shared layers (body)",
    "head": "last layers (head)",
    "shared": "shared layers",
    "control": "correction (control)",
    "generator": "generator of features",
    "known": "which classes it knows",
    "made": "made-up samples",
    "kinds": "their classes",
    "scores": "what the teacher says of them",
    "gradients": "which way each of them would have to change",
    "centres": "mean features of every class (centres)",
    "statistics": "mean features of every class (statistics)",
}
WORDS = {
    **PLAIN,
    "model": "the common model",
    "models": "the models of all groups",
    "proxies": "clips of nobody's",
    "known": "which classes it knows",
}


SUMMED = (
    "local_only",
    "fedavg",
    "fedcpf",
    "fedper",
    "fedpac",
    "scaffold",
    "ifca",
    "splitfed",
    "smashed_average",
)
"""One method of each way to be summed: everything, part, single pictures, nothing."""
SERVER = "whoever runs the server"
EPSILON = re.compile(r"epsilon ([\d.]+)\b")
PROTECTIONS = [name for name, table in SETTINGS.items() if "privacy" in table]


def printed(made):
    """Return what `explain` prints."""
    console = Console(width=600, file=io.StringIO(), record=True)
    explain(made, console)
    return console.export_text()


def explained(made):
    """Return who -> what of the table that `explain` prints, rows of one name joined."""
    found, who = {}, ""
    for line in printed(made).splitlines():
        cells = [cell.strip() for cell in line.split("│")[1:-1]]
        if len(cells) == 2:
            who = cells[0] or who
            found[who] = f"{found.get(who, '')} {cells[1]}".strip()
    return found


@cache
def both(method, settings=()):
    """Return what `explain` says, what the page says, and the method with its task."""
    made = check(experiment(method, settings))
    plan = facts(made, method, None, None)
    return explained(made), plan, made.methods[method], made.task(0)


def alike(method, task):
    """Return the trees that a client downloads and any other one too."""
    down = {tree for exposed in method.exposure.values() for tree in exposed.down or ()}
    return {*method.offer(method.server(task), ""), *down} - OWN


@pytest.mark.parametrize("name", METHODS)
def test_other_participants_see_what_another_client_downloads(name):
    said, plan, method, task = both(name)
    sees = dict(plan["sees"])
    if method.pooled:
        assert "raw recordings and labels of everybody" in said["data centre"]
        assert sees == {"the data centre": "all recordings and labels of everybody"}
        return
    others, trees = sees["other participants"], alike(method, task)
    assert (others == "nothing") == (said["another client"] == "nothing") == (not trees)
    for tree in trees:
        assert tree in said["another client"], (tree, said["another client"])
        plain = "a generator" if (name, tree) == ("ap_fl", "generator") else WORDS[tree]
        assert plain in others, (tree, others)
    for tree in trees:
        others = others.replace(WORDS[tree], "")
    for tree in {*WORDS} - trees:
        assert WORDS[tree] not in others, (tree, others)


@pytest.mark.parametrize("name", METHODS)
def test_the_rest_of_a_model_stays_where_it_is_said_to(name):
    """What is downloaded, what the server holds and what stays at home make up a model."""
    _, plan, method, task = both(name)
    if method.pooled:
        return
    server = method.server(task)
    offered = sum(tree.flat.numel() for tree in method.offer(server, "").values())
    beside = sum(tree.flat.numel() for tree in method.server_part(server).values())
    sees, size = dict(plan["sees"]), task.init().layout.n
    at_home = offered > 0 and offered + beside < size
    assert ("stays on their device" in sees["other participants"]) is at_home
    assert ("who is measured is sent the" in sees["other participants"]) is (beside > 0)
    got = sees["whoever gets the model"]
    assert got.startswith("nobody gets one") is (offered + beside == 0)
    assert got.startswith("the model") is (offered + beside >= size)


@pytest.mark.parametrize("name", METHODS)
def test_the_server_sees_what_its_rows_say(name):
    said, plan, method, _ = both(name)
    if method.pooled:
        return
    server = dict(plan["sees"])[SERVER]
    rows = " ".join(what for who, what in said.items() if who.startswith("server ("))
    learned = any(exposed.trees for exposed in method.exposure.values())
    assert learned is ("nothing learned" not in server)
    updates = any("updates" in row for row in said.values())
    if "smashed" in rows:
        assert ("of the layers on each device" in server) is updates
    assert ("smashed" in rows) is ("for every picture, what the first layers" in server)
    assert ("classifier" in rows) is ("the person's own model" in server)
    if learned and "smashed" not in rows and "scores" not in rows:
        assert ("which entries each person shares" in rows) is ("which numbers of" in server)
        assert "how many recordings" in server
        for tree in {t for e in method.exposure.values() for t in e.trees} & {"body", "head"}:
            assert PLAIN[tree] in server, (tree, server)
    up, down = drawing(plan)["up"], drawing(plan)["down"]
    assert up, "an arrow that carries nothing"
    assert down
    assert (up[0].startswith("measurements alone")) is (not learned)


@pytest.mark.parametrize("settings", ["pads", "shares"])
def test_who_is_in_a_sum_is_told_of_those_who_learn_it(settings):
    """Pads are agreed on among the clients; of shares the aggregators alone know whose they are."""
    tried = [name for name in SUMMED if not told(experiment(name, (settings,)))]
    assert len(tried) >= 6
    for name in tried:
        said, plan, *_ = both(name, (settings,))
        others, server = (dict(plan["sees"])[who] for who in ("other participants", SERVER))
        assert ("who else is in a sum" in others) is ("another client, of sums" in said), name
        assert "how many recordings" not in server
        if name == "smashed_average":
            assert "3 people or more of what the first layers make of every picture" in server
            assert "every single person: how many batches there are" in server
            assert "every single person's count" in said["who runs or taps the server"]


def test_a_split_network_that_is_handed_on_shows_the_one_before():
    said, plan, _, _ = both("split")
    assert "as the person before left them" in dict(plan["sees"])["other participants"]
    assert "as the client before left it" in said["another client"]
    assert any(row["clients"] == "whoever is next gets it" for row in plan["leaves"] if row["up"])


@pytest.mark.parametrize("name", ["cfedvs", "fedgroup"])
def test_the_model_of_a_group_is_no_common_model_of_all(name):
    said, plan, _, _ = both(name)
    assert "the common model of their group" in dict(plan["sees"])["other participants"]
    assert "of the client's group" in said["another client"]


def test_who_counts_once_does_not_tell_how_much_there_is():
    said, plan, _, _ = both("fedavg", ("DP people",))
    assert "everybody counts once" in said["server (train)"]
    assert "how many recordings" not in dict(plan["sees"])[SERVER]


@pytest.mark.parametrize("name", PROTECTIONS)
def test_what_is_promised_is_what_explain_promises(name, tmp_path, monkeypatch):
    """The page has the largest epsilon that `explain` prints, and the size of its sums."""
    # The register knows what other tests spent on the same people, which `explain` prints, too.
    monkeypatch.setenv("VERGENCE_STATE", str(tmp_path))
    tried = [method for method in SUMMED if not told(experiment(method, (name,)))]
    assert tried, name
    for method in tried:
        made = check(experiment(method, (name,)))
        people = made.federation()
        plan, text = facts(made, method, people, None), printed(made)
        units = {unit: part for unit, part in plan["budget"].items() if unit != "beside"}
        shown = {f"{part['epsilon']:.3g}" for part in units.values() if part["epsilon"]}
        beside = " ".join(each["text"] for each in plan["promises"])
        shown |= set(EPSILON.findall(beside))
        foretold = EPSILON.findall(text)
        assert shown == ({max(foretold, key=float)} if foretold else set()), (method, foretold)
        for least in re.findall(r"(\d+) people or more", dict(plan["sees"])[SERVER]):
            assert f" {least} " in text, (method, text)


LABS = {"a": ["p00", "p01", "p02", "p03"], "b": ["p04", "p05", "p06"], "c": ["p07", "p08", "p09"]}


def of_labs(method, *settings):
    """What `explain` says of labs, and the page's facts and all its sentences."""
    table = merge(experiment(method, settings), {"federation": {"people": 10}, "silos": LABS})
    made = check(table)
    plan = facts(made, method, made.federation(), None)
    sentences = [*plan["verdict"], *plan["residual"], *plan["unprotected"], *plan["assumed"]]
    return explained(made), plan, " ".join(sentences)


@pytest.mark.parametrize("method", ["fedavg", "fedcpf"])
def test_what_labs_add_up_is_said_to_be_seen_lab_by_lab(method):
    said, plan, sentences = of_labs(method)
    assert "each lab's sum over its people" in said["server, over labs"]
    assert "every lab's sum of updates" in said["who runs or taps the server"]
    assert "per person" not in said["server (train)"]
    assert "the server sees each lab's sum" in sentences
    assert dict(plan["sees"])[SERVER].startswith("of each lab, added up over its people")
    for wrong in ("person by person, by the server", "one person's update", "each person has"):
        assert wrong not in sentences
    assert plan["sender"] == "lab"
    counts = ", and how many recordings they have"
    counts += ", and how many share each number of the model" if method == "fedcpf" else ""
    assert dict(plan["sees"])[SERVER].endswith(counts)


def test_sums_over_labs_are_counted_in_labs_everywhere():
    """Ten people in three labs: the page had counted more than half of ten, as a sum over labs."""
    said, plan, sentences = of_labs("fedavg", "pads")
    least = re.search(r"nothing of fewer than (\d) labs", said["who runs or taps the server"])[1]
    assert int(least) <= len(LABS)
    assert f"sums over {least} labs or more" in sentences
    assert f"{least} labs or more learned" in dict(plan["sees"])[SERVER]
    assert not re.search("one person's (update|part)", sentences)
    assert "each lab's test metrics" in said["who runs or taps the server"]


def test_of_labs_with_noise_two_sums_show_one_lab_s_words():
    said, _, _ = of_labs("fedavg", "pads", "DP people")
    assert "to see one lab's words, under the same noise" in said["to see one reply"]


def test_of_masks_in_labs_a_sum_counts_labs():
    """Of an entry a sum counts who sent it: a lab once, however many of its people share it."""
    said, plan, sentences = of_labs("fedcpf", "shares")
    assert "for entries that one lab alone shares" in said["to see one reply"]
    assert "Numbers of the model that one lab alone shares" in sentences
    assert "How many labs share each number of the model" in sentences
    assert "too few labs share" in " ".join(plan["assumed"])
    assert "one person alone" not in sentences + said["to see one reply"]


def test_labs_that_share_nothing_tell_their_means_alone():
    _, plan, sentences = of_labs("local_only")
    assert "for each lab, in the mean of its people" in dict(plan["sees"])[SERVER]
    assert "the server is told of each lab how well the model works" in sentences
