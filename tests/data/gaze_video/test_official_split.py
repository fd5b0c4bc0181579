"""GLC's lists as a split, and subjects or videos dealt to clients."""

from dataclasses import replace

import numpy as np
import pytest

from tests.conftest import research_data
from tests.data.originals import ego4d_lists, ego4d_tree, egtea_lists, egtea_tree
from vergence.data.gaze_video import ego4d, egtea
from vergence.data.gaze_video.ego4d import Ego4d
from vergence.data.gaze_video.egtea import Egtea
from vergence.data.gaze_video.official_split import ListedClip, OfficialClips, check_clients
from vergence.data.gaze_video.temporal_splits import DROPPED, TEST, TRAIN, VAL, hold_out
from vergence.errors import DataError

FOUR = {
    "OP01-R01-PastaSalad": 1,
    "P02-R02-Pizza": 2,
    "P16-R03-TurkeySandwich": 2,
    "P21-R01-Pizza": 1,
}
OFFICIAL = Egtea(split="official", clip_s=3, size=(16, 16))


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VERGENCE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def kitchen(tmp_path):
    """Twelve clips of 3 s, one second apart, of four subjects; P21 has none in the test list."""
    root = egtea_tree(tmp_path / "egtea", FOUR, length=72, gap=24)
    egtea_lists(root, without_test=["P21"])
    return root


def sizes(federation):
    return {who: [len(part) for part in vars(s).values()] for who, s in federation.people.items()}


def test_the_lists_decide_what_trains_and_what_tests(kitchen):
    """Clips 4, 8 and 12 of a session test: at 12, 28 and 44 s. Nine train: at 0, 4, 8, 16, ..., 40.

    A share of 15 / 85 = 0.176 validates, 5 s behind the others. Behind seven, of which the last
    (at 32) ends at 34.25, only that at 40 does: 1 of 8 = 0.125; behind six, three: 3 of 9.
    """
    made = replace(OFFICIAL, people=("OP01", "P02", "P16")).load(str(kitchen))
    assert sizes(made) == {who: [7, 1, 3] for who in ("OP01", "P02", "P16")}
    told = made.about["split"]
    assert "train_gaze_official.csv (samples of 24 of 39 clips)" in told
    assert "test_gaze_official.csv (samples of 9 of 9 clips)" in told
    assert "the last 18% of each person's training windows validate" in told
    assert "3 windows in no listed clip or in gaps" in made.about["left_out"]


def test_a_clip_in_neither_list_is_left_out(kitchen):
    path = kitchen / "test_gaze_official.csv"
    path.write_text("\n".join(path.read_text().splitlines()[1:]) + "\n")
    made = replace(OFFICIAL, people=("OP01", "P02")).load(str(kitchen))
    assert sizes(made) == {"OP01": [7, 1, 2], "P02": [7, 1, 3]}


def test_a_subject_without_a_test_clip_is_an_error_or_in_a_group(kitchen):
    with pytest.raises(
        DataError, match=r"^P21: no clip for testing in the official lists.*clients"
    ):
        OFFICIAL.load(str(kitchen))
    made = replace(OFFICIAL, clients=2).load(str(kitchen))
    assert list(made.people) == ["group1", "group2"]
    assert sorted(map(tuple, sizes(made).values())) == [(14, 2, 6), (16, 3, 3)]
    assert made.about["clients"].startswith("2, each with the data of several subjects")
    assert made.about["groups"].count("P21") == 1


@pytest.mark.parametrize("name", ["train_gaze_official.csv", "test_gaze_official.csv"])
def test_a_missing_list_names_the_file_and_its_source(kitchen, name):
    (kitchen / name).unlink()
    with pytest.raises(DataError, match=rf"missing file .*{name}: .*BolinLai/GLC"):
        OFFICIAL.load(str(kitchen))
    lines = {c.what: c for c in OFFICIAL.check(kitchen)}
    assert name in lines["clients"].hint
    assert not lines["clients"].ok


def test_a_clip_in_both_lists_is_refused(kitchen):
    train, test = (kitchen / name for name in egtea.LISTS)
    train.write_text(train.read_text() + test.read_text().splitlines()[0] + "\n")
    with pytest.raises(DataError, match=r"clip OP01-.* is twice in train_gaze_official.csv and"):
        OFFICIAL.load(str(kitchen))


def test_a_window_belongs_to_the_clip_that_all_of_it_lies_in(tmp_path):
    """30 s of every video, the clip at 5 s in no list; samples of 0.75 s a second apart.

    A clip at 0, 10, ... holds samples that start at 0, 1, 2, 3, 4 of it: 25 a video.
    """
    root, names = ego4d_tree(tmp_path, people=3)
    ego4d_lists(root, names, 30, tested=1)
    made = Ego4d(split="official", size=(16, 16), clients=1).load(str(root))
    train, val, test = sizes(made)["group1"]
    assert test == 25
    assert 35 < train + val < 50  # the rest lies in the gap before what validates
    clips = ego4d.read_official(root)
    assert clips.people(TRAIN) == {names[0]: 5, names[1]: 5}
    assert clips.people(TEST) == {names[2]: 5}


def test_ego4d_by_video_cannot_be_tested_on_its_own_wearers(tmp_path):
    root, names = ego4d_tree(tmp_path, people=3)
    ego4d_lists(root, names, 30, tested=1)
    with pytest.raises(DataError, match=r"no clip for testing .* deal the videos to fewer clients"):
        Ego4d(split="official", size=(16, 16)).load(str(root))


def test_dealing_is_by_the_seed_alone_and_near_equal():
    people = [f"P{i:02d}" for i in range(32)]
    tested = set(people[:26])
    five = Egtea(clients=5)
    groups = five.deal(people, tested)
    assert [len(g) for g in groups.values()] == [7, 7, 6, 6, 6]
    assert sorted(p for g in groups.values() for p in g) == people
    assert groups == five.deal(people[::-1], tested)
    assert groups != replace(five, deal_seed=1).deal(people, tested)
    having = [len(tested.intersection(g)) for g in groups.values()]
    assert max(having) - min(having) <= 1
    with pytest.raises(DataError, match="clients = 5 are more than the 4 subjects"):
        five.deal(people[:4], tested)


def test_without_clients_everybody_is_one(kitchen):
    assert Egtea().grouping == ""
    made = Egtea(clip_s=3, size=(16, 16)).load(str(kitchen))
    assert list(made.people) == ["OP01", "P02", "P16", "P21"]
    assert {"clients", "groups"}.isdisjoint(made.about)


def test_hold_out_by_hand():
    """Ten windows of 1 s every 2 s, gap 5: behind the k-th, which ends at 2k - 1, the next ones
    start at 2k + 4 or later, the (k + 3)rd. A fifth: 6 train, 2 dropped, 2 validate (2 of 8),
    or 7 and 1 (0.125): 0.05 off against 0.075.
    """
    start = np.arange(10) * 2.0
    parts = hold_out("p", start[::-1], start[::-1] + 1, 5.0, 0.2)
    assert parts[::-1].tolist() == [TRAIN] * 6 + [DROPPED] * 2 + [VAL] * 2
    with pytest.raises(DataError, match=r"3 windows over 5.0 s do not fill train and validation"):
        hold_out("p", start[:3], start[:3] + 1, 5.0, 0.2)


def test_listed_clips_of_a_source_in_any_order():
    clips = [ListedClip(f"v_t{s}", "v", "v", s, s + 5.0, TRAIN) for s in (10.0, 0.0, 5.0)]
    assert [c.start_s for c in OfficialClips(("a", "b"), clips).by_source["v"]] == [0, 5, 10]


@pytest.mark.data
def test_clients_of_the_published_lists():
    """32 subjects of whom 26 have test clips; 27 videos of which 7 are for testing."""
    root = research_data("egtea")
    lines = {c.what: c for c in Egtea(split="official", clients=5).check(root)}
    assert lines["subjects in clients"].actual == "7, 7, 6, 6, 6"
    assert all(lines[f"group{i}"].ok for i in range(1, 6))
    lines = {c.what: c for c in Ego4d(split="official", clients=5).check(research_data("ego4d"))}
    assert lines["videos in clients"].actual == "6, 6, 5, 5, 5"
    assert all(lines[f"group{i}"].ok for i in range(1, 6))


@pytest.mark.data
def test_a_quarter_of_the_published_test_clips_show_trained_frames():
    lines = {c.what: c for c in egtea.check(research_data("egtea"))}
    assert lines["test clips that share frames with training clips"].actual == "559"


def test_clients_are_of_the_people_that_are_there_and_of_the_lists_before_there_are_any():
    """Lists name P01 and P02; with clips of P01 alone on disk, P01 is all there is to deal."""
    clips = [
        ListedClip(f"{person}-{start:g}", person, "v", start, start + 5, part)
        for person, start, part in (
            ("P01", 0.0, TRAIN),
            ("P01", 5.0, TEST),
            ("P02", 0.0, TRAIN),
            ("P02", 5.0, TEST),
            ("P02", 9.0, TEST),
        )
    ]
    lists, one = OfficialClips(("a", "b"), clips), Egtea(split="official", clients=1)

    def told(people):
        return {c.what: (c.actual, c.ok) for c in check_clients(one, people, lambda: lists)}

    assert told(["P01"]) == {
        "subjects in clients": ("1", True),
        "group1": ("P01: 1 clips to train, 1 to test", True),
    }
    assert told([])["group1"] == ("P01, P02: 2 clips to train, 3 to test", True)
    assert told([])["subjects in clients"] == ("2", True)
    each = Egtea(split="official")
    found = {c.what: c.actual for c in check_clients(each, ["P02"], lambda: lists)}
    assert found == {"P02": "P02: 1 clips to train, 2 to test"}
    apart = Egtea(clients=2)
    lines = check_clients(apart, ["P01", "P02"], lambda: pytest.fail("lists were read"))
    assert [c.what for c in lines] == ["subjects in clients", "group1", "group2"]
    assert all(c.ok for c in lines)


def test_a_client_without_clips_to_test_is_told():
    clips = [
        ListedClip("a", "P01", "v", 0.0, 5.0, TRAIN),
        ListedClip("b", "P02", "v", 9.0, 14, TEST),
    ]
    lists = OfficialClips(("a", "b"), clips)
    lines = check_clients(Egtea(split="official"), [], lambda: lists)
    assert [(c.what, c.ok, "deal people" in c.hint) for c in lines] == [
        ("P01", False, True),
        ("P02", False, True),
    ]
