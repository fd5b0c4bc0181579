"""SumMe and TVSum as people: whole videos per part, classes per person, what is refused."""

from dataclasses import replace

import numpy as np
import pytest

from tests.conftest import research_data
from tests.data.video_summaries.test_h5_files import write
from vergence.data.video_summaries.clients import FOLDS, Deal, clip_of
from vergence.data.video_summaries.fragments import PARTS, RatedClip
from vergence.data.video_summaries.h5_files import Summarised
from vergence.data.video_summaries.summe import CLASSES, SumMe, class_of
from vergence.data.video_summaries.tvsum import CATEGORIES, TVSum, category, group_of
from vergence.errors import ConfigError, DataError

STEPS = 24


def video(number):
    """One video whose features tell its number, its steps their place; shots of 40 frames."""
    frames = 15 * STEPS
    features = np.stack([np.full(STEPS, number), np.arange(STEPS)], 1)
    ends = np.arange(40, frames + 1, 40)
    return {
        "n_frames": np.array(frames),
        "picks": np.arange(0, frames, 15),
        "gtscore": np.linspace(0, 1, STEPS),
        "features": features.astype(np.float32),
        "user_summary": np.arange(frames)[None] % 7 == np.arange(2)[:, None],
        "change_points": np.stack([ends - 40, ends - 1], 1),
    }


@pytest.fixture(scope="module")
def tvsum(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tvsum")
    groups = {f"video_{i}": video(i) for i in range(1, 51)}
    write(folder / "eccv16_dataset_tvsum_google_pool5.h5", groups)
    return str(folder)


def seen(splits, part):
    """Return the numbers of the videos of a part, and how many fragments it has."""
    samples = getattr(splits, part)
    rows = samples.banks["features"].rows
    return {int(v) for v in rows[:, 0].unique()}, len(samples)


@pytest.mark.parametrize("classes", [1, 4])
def test_every_fragment_is_dealt_once_and_no_video_is_in_two_parts(tvsum, classes):
    people = TVSum(classes=classes, least=2).load(tvsum).people
    assert len(people) == 10
    videos = {part: set() for part in PARTS}
    fragments, steps, frames = 0, 0, 0
    for splits in people.values():
        kinds = set()
        for part in PARTS:
            numbers, count = seen(splits, part)
            videos[part] |= numbers
            fragments += count
            steps += len(getattr(splits, part).banks["features"].rows)
            frames += int((getattr(splits, part).columns["shots"].max(1).values[:, 1] + 1).sum())
            kinds |= {(number - 1) // 5 for number in numbers}
        assert len(kinds) <= classes
    assert (fragments, steps, frames) == (150, 50 * STEPS, 50 * STEPS * 15)
    assert [len(videos[part]) for part in PARTS] == [30, 10, 10]
    assert len(set().union(*videos.values())) == 50


def test_every_video_is_tested_in_one_fold_whatever_the_seed():
    videos = {str(i): (clip(i), "ab"[i % 2]) for i in range(12)}

    def parts(fold, seed=0):
        deal = Deal("x", 36, 4, 1, 2, seed, fold, whole=True)
        people = deal.splits(videos).values()
        return [
            {float(x) for s in people for x in getattr(s, part).banks["features"].rows.unique()}
            for part in PARTS
        ]

    tested = [parts(fold)[2] for fold in range(FOLDS)]
    assert sorted(x for own in tested for x in own) == list(range(12))
    for fold in range(FOLDS):
        train, val, test = parts(fold)
        assert parts(fold, seed=1)[1:] == [val, test]
        assert val == tested[(fold + 1) % FOLDS]
        assert not train & (val | test)


def test_whole_videos_are_tested_by_everybody_who_has_their_class():
    videos = {str(i): (clip(i), "ab"[i % 2]) for i in range(12)}
    people = Deal("x", 36, 4, 1, 2, 0, 0, whole=True).splits(videos)
    for splits in people.values():
        kinds = {int(x) % 2 for x in splits.test.banks["features"].rows.unique()}
        assert len(kinds) == 1
        assert splits.test.columns["steps"].tolist() == [STEPS] * len(splits.test)
        assert max(splits.train.columns["steps"]) < STEPS
    # Of each class of six videos two are in part 0 and one in part 1; three are for training.
    assert sum(len(s.train) for s in people.values()) == 2 * 3 * 3


def test_the_seed_alone_decides_who_gets_what():
    def deal(seed):
        videos = {str(i): (clip(), "ab"[i % 2]) for i in range(10)}
        people = Deal("x", 40, 2, 1, 2, seed).splits(videos)
        return [s.train.columns["steps"].tolist() for s in people.values()]

    assert deal(0) == deal(0)
    assert deal(0) != deal(1)


def test_categories_are_the_files_or_follow_from_the_number():
    plain = Summarised("a", *[np.zeros(0)] * 3, False, None, None, "")
    found = [category(f"video_{i}", plain, "x.h5") for i in range(1, 51)]
    assert found == [kind for kind in CATEGORIES for _ in range(5)]
    for key in ("video_1", "abc", "video_0", "video_²"):
        assert category(key, replace(plain, category="DS"), "x.h5") == "DS"
    for key in ("abc", "video_", "video_²", "video_0", "video_51"):
        with pytest.raises(DataError, match=rf"x\.h5: {key} has no category.* video_1 to video_50"):
            category(key, plain, "x.h5")


def test_keys_of_any_name_are_read_where_the_file_has_categories(tmp_path):
    groups = {f"clip²{i}": {**video(i), "category": np.bytes_("DS")} for i in range(1, 4)}
    groups["²"] = groups["abc"] = groups["clip²1"]
    write(tmp_path / "eccv16_dataset_tvsum_google_pool5.h5", groups)
    people = TVSum(people=1, samples=5, least=2).load(str(tmp_path)).people
    assert sum(seen(people["p00"], part)[1] for part in PARTS) == 5


def test_summe_has_classes_of_ours(tmp_path):
    names = [name for kind in CLASSES.values() for name in kind]
    assert len(names) == 25
    groups = {
        f"video_{i + 1}": {**video(i), "video_name": np.bytes_(name.replace(" ", "_"))}
        for i, name in enumerate(names)
    }
    write(tmp_path / "summe_annotations.h5", groups)
    federation = SumMe(least=2).load(str(tmp_path))
    assert federation.about["judged"] == "summe"
    parts = [seen(s, part)[1] for s in federation.people.values() for part in PARTS]
    assert sum(parts) == 100
    with pytest.raises(DataError, match="SumMe has no video 'Walk'"):
        class_of("Walk")


def clip(number=1):
    """One clip with a feature that tells its number."""
    steps = np.arange(STEPS)
    shots = np.array([[0, STEPS - 1]])
    ones = np.ones((1, STEPS))
    return RatedClip(number * ones.T, steps, steps / STEPS, ones, ones > 0, shots)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"classes": 3}, "3 classes for each person, there are 2; set classes to fewer"),
        ({"samples": 5}, "6 videos make that many samples at least, got samples = 5"),
        ({"people": 3}, "person 2 gets nothing for train of 2 fragments; set people to fewer"),
        ({"samples": 60, "least": 3}, "24 steps cannot be cut into 10 fragments of at least 3"),
    ],
)
def test_what_cannot_be_dealt_is_refused(options, says):
    videos = {str(i): (clip(), "ab"[i % 2]) for i in range(6)}
    usual = {"name": "x", "samples": 6, "people": 2, "classes": 1, "least": 2, "seed": 0}
    with pytest.raises(ConfigError, match=says):
        Deal(**{**usual, **options}).splits(videos)
    with pytest.raises(ConfigError, match="class 'b' has fewer than 3 videos"):
        Deal(**usual).splits({**dict(list(videos.items())[:5])})


def test_a_video_without_features_or_summaries_is_refused_and_without_shots_is_cut():
    steps = 60
    features = np.repeat(np.eye(6), 10, axis=0).astype(np.float32)
    users = np.zeros((2, 900), np.uint8)
    whole = Summarised(
        "a", np.arange(0, 900, 15), np.zeros(steps), users, False, None, features, ""
    )
    assert clip_of(whole, "x.h5").shots[:, 0].tolist() == list(range(0, 900, 150))
    for change, says in (({"features": None}, "a has no features"), ({"rated": True}, "user_anno")):
        with pytest.raises(DataError, match=says):
            clip_of(Summarised(**{**vars(whole), **change}), "x.h5")


@pytest.mark.data
def test_key_frames_of_tvsum():
    root = str(research_data("video_summarisation"))
    people = TVSum(people=4, keyframes=True).load(root).people
    parts = {part: [len(getattr(s, part)) for s in people.values()] for part in PARTS}
    assert parts == {"train": [3] * 4, "val": [1] * 4, "test": [1] * 4}
    rows = sum(len(getattr(s, part).banks["pick"].rows) for s in people.values() for part in PARTS)
    assert rows == 329
    grouped = TVSum(people=6, samples=60, keyframes=True, grouped=True, fold=0).load(root).people
    assert min(len(s.test) for s in grouped.values()) == 2
    with pytest.raises(ConfigError, match="grouped = true is for key frames"):
        TVSum(grouped=True).load(root)
    with pytest.raises(DataError, match="video 'x' is none of the 20 whose class is known"):
        group_of("x")
    with pytest.raises(DataError, match="has no features"):
        TVSum().load(root)
