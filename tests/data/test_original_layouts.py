"""Ego4D as its own tool leaves it, EGTEA in BeGaze's two versions: check, and a training round.

Forms are those of the published samples and readers, the content is made up. This does not show
that the original files are read: nobody here has them.
"""

import csv
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from tests.cli.commands import vergence
from tests.data.originals import ego4d_lists, ego4d_tree, egtea_lists, egtea_tree
from vergence.data.gaze_video.ego4d import Ego4d
from vergence.data.gaze_video.egtea import Egtea
from vergence.experiment.schema import load
from vergence_papers.data_sets import GROUNDS
from vergence_papers.printed import numbers

ROOT = Path(__file__).parents[2]

EXPERIMENT = """
task       = {{ name = "gaze_map" }}
model      = {{ name = "glc_vit", preset = "tiny64" }}
federation = {{ name = "{name}", root = "{root}"{more} }}
method     = "fedavg"
local      = {{ steps = 1, batch = 2, optimizer = "adamw", lr = 1e-3 }}
run        = {{ rounds = 1, seeds = [0], workers = 1 }}
"""


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VERGENCE_CACHE", str(tmp_path / "cache"))


def check(name, root):
    """Run the check; return what was said, and by line of its table what was found."""
    said = vergence("data", "check", name, "--root", root)
    rows = [line.split("│") for line in said.out.splitlines() if line.count("│") > 4]
    return said, {row[2].strip(): row[3].strip() for row in rows}


def advises(said, text):
    """Is `text` in the last column of the table, across its line breaks?"""
    column = [line.split("│")[5] for line in said.out.splitlines() if line.count("│") > 4]
    return "".join(text.split()) in "".join("".join(column).split())


def train(tmp_path, name, root, more=""):
    """Run one round; return what was said and the people in the table that it left."""
    file = tmp_path / "one_round.toml"
    file.write_text(EXPERIMENT.format(name=name, root=root, more=more))
    said = vergence("run", file, "--out", tmp_path / "out")
    tables = [path.read_text() for path in (tmp_path / "out").rglob("people.csv")]
    return said, [row for table in tables for row in csv.DictReader(table.splitlines())]


def finite(rows):
    return all(np.isfinite(float(row["value"])) for row in rows if row["value"])


def test_the_papers_clips_are_counted_alike_by_checks_and_tables():
    from vergence.data.gaze_video import published_clip_counts

    egtea, ego4d = published_clip_counts.STATED["egtea"], published_clip_counts.STATED["ego4d"]
    parts = zip(egtea[1:], ego4d[1:], strict=True)
    printed = numbers("fedcpf")["clips"].values()
    assert [[a, b, a + b] for a, b in parts] == list(printed)


def test_ego4d_as_its_tool_leaves_it_passes_the_check(tmp_path):
    root, _ = ego4d_tree(tmp_path, seconds=4)
    said, found = check("ego4d", root)
    assert said.code == 0, said.out + said.err
    assert found["videos"] == found["gaze files"] == "27"
    assert found["gaze files that GLC leaves out"] == "4"
    assert found["gaze files read to the end"] == "31"


@pytest.mark.slow
def test_one_round_of_training_on_ego4d_as_its_tool_leaves_it(tmp_path):
    root, names = ego4d_tree(tmp_path, people=3)
    said, rows = train(tmp_path, "ego4d", root)
    assert said.code == 0, said.out + said.err
    assert {row["person"] for row in rows} == set(names)
    assert finite(rows)


@pytest.mark.nightly
def test_whole_egtea_of_both_versions_of_begaze_passes_the_check(tmp_path):
    """10,321 clips of 86 sessions of 32 subjects, the clips one file under as many names."""
    subjects = [f"OP{i:02d}" for i in range(1, 7)] + [f"P{i:02d}" for i in range(1, 27)]
    names = [f"{s}-R{k:02d}-PastaSalad" for k in (1, 2, 3) for s in subjects][:86]
    sessions = {name: 1 + i % 2 for i, name in enumerate(names)}
    root = egtea_tree(tmp_path / "egtea", sessions, clips=120, length=8, gap=0)
    last = root / "cropped_clips" / names[0]
    os.link(next(last.iterdir()), last / f"{names[0]}-0-1-F000001-F000002.mp4")
    said, found = check("egtea", root)
    assert said.code == 0, said.out + said.err
    assert found["clips"] == "10,321"
    assert found["gaze files read to the end"] == "86"
    assert found["clips with valid gaze"] == "10,321 of 10,321"


@pytest.mark.slow
@pytest.mark.parametrize("clip_s", [0, 3])
def test_one_round_of_training_on_both_versions_of_begaze(tmp_path, clip_s):
    sessions = {"OP01-R01-PastaSalad": 1, "P16-R03-BaconAndEggs": 2}
    root = egtea_tree(tmp_path / "egtea", sessions)
    said, rows = train(tmp_path, "egtea", root, f", clip_s = {clip_s}" if clip_s else "")
    assert said.code == 0, said.out + said.err
    assert {row["person"] for row in rows} == {"OP01", "P16"}
    assert finite(rows)


PAPER = """
extends    = ["{file}"]
model      = {{ name = "glc_vit", preset = "tiny64" }}
federation = {{ root = "{root}", window = 4, size = [64, 64] }}
methods    = [{{ name = "fedcpf", rate = 0.2 }}]
local      = {{ optimizer = "sgd", steps = 1, batch = 2 }}
run        = {{ rounds = 1, seeds = [0], workers = 1 }}
"""
"""Experiments at paper size, small: the rest (lists, five clients, clips of 5 s) is theirs."""


def official_egtea(tmp_path):
    """32 subjects with ten clips of 5.4 s, two of which are in the test list of the first 26."""
    subjects = [f"OP{i:02d}" for i in range(1, 7)] + [f"P{i:02d}" for i in range(1, 27)]
    sessions = {f"{who}-R01-PastaSalad": 1 + i % 2 for i, who in enumerate(subjects)}
    root = egtea_tree(tmp_path / "egtea", sessions, clips=10, length=130, gap=14)
    egtea_lists(root, without_test=subjects[26:])
    return root, {"train": 32 * 10 - 52, "test": 52}, [7, 7, 6, 6, 6]


def official_ego4d(tmp_path):
    """27 videos of 60 s, seven in the test list; eleven of the twelve clips of each are listed."""
    root, names = ego4d_tree(tmp_path, seconds=60)
    ego4d_lists(root, names, 60)
    return root, {"train": 20 * 11, "test": 7 * 11}, [6, 6, 5, 5, 5]


@pytest.mark.slow
@pytest.mark.parametrize(
    "make", [official_egtea, pytest.param(official_ego4d, marks=pytest.mark.nightly)]
)
def test_a_round_of_fedcpf_with_five_clients_on_the_official_lists(tmp_path, make):
    """The experiment at paper size in a small form: every listed clip is a sample, or in a gap."""
    root, listed, sizes = make(tmp_path)
    name = make.__name__.removeprefix("official_")
    file = tmp_path / "small.toml"
    file.write_text(PAPER.format(file=ROOT / "experiments" / f"{name}_paper.toml", root=root))
    dataset = load(file).dataset
    assert isinstance(dataset, Egtea | Ego4d)
    lines = {c.what: c for c in dataset.check(root)}
    unit = "subjects" if name == "egtea" else "videos"
    assert lines[f"{unit} in clients"].actual == ", ".join(map(str, sizes))

    said = vergence("run", file, "--out", tmp_path / "out")
    assert said.code == 0, said.out + said.err
    flat = " ".join(said.out.split())
    assert f"Clients: 5, each with the data of several {unit} (dealt by deal_seed 0)" in flat
    (told,) = (tmp_path / "out").rglob("provenance.json")
    data = json.loads(told.read_text())["data"]
    for part, count in listed.items():
        form = rf"{part}_\w+\.csv \(samples of (\d+) of (\d+) clips\)"
        ((used, of),) = re.findall(form, data["split"])
        assert int(of) == count
        assert int(used) == count if part == "test" else 0.7 * count < int(used) < count
    assert [int(n) for n in re.findall(r"group\d \((\d+)\)", data["groups"])] == sizes
    with (told.parent / "people.csv").open() as table:
        rows = list(csv.DictReader(table))
    assert {row["person"] for row in rows} == {f"group{i}" for i in range(1, 6)}
    assert {row["metric"] for row in rows} >= {"f1_hit", "recall_hit", "precision_hit", "nss"}
    assert finite(rows)


@pytest.mark.parametrize("name", ["egtea", "ego4d"])
def test_explain_says_without_data_that_a_client_is_no_single_person(tmp_path, name):
    file = tmp_path / "small.toml"
    paper = ROOT / "experiments" / f"{name}_paper.toml"
    file.write_text(PAPER.format(file=paper, root=tmp_path))
    said = vergence("explain", file)
    assert said.code == 0, said.out + said.err
    assert "\nclients: 5, each with the data of several " in said.out


def test_paper_sized_experiments_are_the_data_sets_of_the_tables():
    """What `vergence reproduce fedcpf/table1 --on egtea_paper` runs is what the file runs."""
    for name in ("egtea_paper", "ego4d_paper"):
        own, ground = load(ROOT / "experiments" / f"{name}.toml").table, GROUNDS[name]
        federation = {k: v for k, v in own["federation"].items() if k != "root"}
        assert federation == ground.table["federation"]
        assert own["local"] == ground.table["local"]
        assert own["model"] == ground.table["model"]
        assert own["run"]["rounds"] == ground.rounds
        limits = {m["limit"] for m in own["methods"] if isinstance(m, dict)}
        assert limits == {ground.values["rho"]}


def test_a_damaged_table_is_named_by_the_check_and_by_the_run(tmp_path):
    root, names = ego4d_tree(tmp_path, people=3)
    path = root / "gaze" / f"{names[1]}.csv"
    lines = path.read_text().splitlines()
    lines[99] = lines[99].replace(lines[99].split(",")[5], "inf")
    path.write_text("\n".join([*lines, ""]))
    said, found = check("ego4d", root)
    said.complains(3, "ego4d: 4 checks failed, see above")
    assert found["gaze files read to the end"] == "6"
    assert advises(said, f"{path}: row 100: 'norm_pos_x' is 'inf', not a place")
    said, rows = train(tmp_path, "ego4d", root)
    said.complains(3, f"{path}: row 100: 'norm_pos_x' is 'inf', not a place")
    assert rows == []


@pytest.mark.parametrize("version", [1, 2])
def test_a_cut_export_is_named_by_the_check_and_by_the_run(tmp_path, version):
    root = egtea_tree(
        tmp_path / "egtea", {"OP01-R01-PastaSalad": 1, "P16-R03-BaconAndEggs": version}
    )
    path = root / "gaze_data" / "P16-R03-BaconAndEggs.txt"
    path.write_bytes(path.read_bytes()[:-9])
    said, found = check("egtea", root)
    assert said.code == 3
    assert found["gaze files read to the end"] == "1"
    assert advises(said, f"{path}: row 1474 is cut, the file ends in it")
    said, rows = train(tmp_path, "egtea", root)
    said.complains(3, f"{path}: row 1474 is cut, the file ends in it")
    assert rows == []
