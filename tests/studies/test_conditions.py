"""Conditions of a lab's own tables: from columns and file names to scores, tests and folds."""

import csv
import tomllib

import numpy as np
import pytest

from tests.cli.commands import vergence
from tests.data.fabricated_exports import pictures
from tests.data.footage import write_video
from vergence.core.federation import Federation
from vergence.data.few_data import FewSamples
from vergence.data.gaze_video.gaze_table import GazeTable
from vergence.data.saliency.stimuli import Stimuli
from vergence.errors import ConfigError, DataError

COLUMNS = {"t": "time_ms", "x": "gaze_x", "y": "gaze_y", "unit": "px", "t_unit": "ms"}
ON_PICTURES = {**COLUMNS, "stimulus": "image", "person": "participant"}


def lab(root, people=3, shown=10, sessions=("1", "2"), samples=8):
    """A lab's folder: a table of everybody, who see each picture in two sessions.

    In session 1 gaze stays near the upper left corner; in session 2 it goes anywhere.
    """
    names = pictures(root / "stimuli", shown)
    rng = np.random.default_rng(0)
    lines = ["participant,time_ms,gaze_x,gaze_y,image,session,task"]
    for p in range(people):
        for session in sessions:
            for name in names:
                for k in range(samples):
                    wide = session == sessions[-1]
                    x, y = rng.uniform(0, (639, 479)) if wide else rng.normal(120, 8, 2)
                    lines.append(f"S{p},{50 * k},{x:.1f},{y:.1f},{name},{session},free viewing")
    (root / "gaze.csv").write_text("\n".join(lines) + "\n")
    return root


def test_columns_of_a_table_become_conditions_of_samples(tmp_path):
    columns = {**ON_PICTURES, "conditions": ["session", "task"]}
    made = Stimuli(columns=columns, place="picture").load(str(lab(tmp_path)))
    assert made.conditions == {"session": ("1", "2"), "task": ("free viewing",)}
    plain = Stimuli(columns=ON_PICTURES, place="picture").load(str(tmp_path))
    assert plain.conditions == {}
    for person, splits in made.people.items():
        for part, samples in vars(splits).items():
            session = samples.columns["conditions"][:, 0]
            x = samples.columns["points"][:, 0, :, 0].nanmean(1)
            # The corner is at 120 of 640 pixels; the mean of any places is near the middle.
            assert ((x < 0.25) == (session == 0)).all()
            assert (samples.columns["conditions"][:, 1] == 0).all()
            # A picture of two sessions is two samples, with the gaze that one sample had before.
            before = getattr(plain.people[person], part).columns
            assert len(samples) == 2 * len(before["scene"])
            assert "conditions" not in before


def test_a_condition_in_the_names_of_files(tmp_path):
    names = pictures(tmp_path / "stimuli", 10)
    for who in ("S01", "S02"):
        for place, condition in enumerate(("free", "search")):
            rows = [f"{i * 50},{100 + 300 * place},200,{n}" for n in names for i in range(4)]
            text = "time_ms,gaze_x,gaze_y,image\n" + "\n".join(rows)
            (tmp_path / f"{who}_{condition}.csv").write_text(text)
    columns = {k: v for k, v in ON_PICTURES.items() if k != "person"}
    options = {"place": "picture", "files": "{person}_{condition}.csv"}
    made = Stimuli(columns=columns, **options).load(str(tmp_path))
    assert made.conditions == {"condition": ("free", "search")}
    train = made.people["S02"].train.columns
    right = train["points"][:, 0, 0, 0] > 0.5
    assert (right == (train["conditions"][:, 0] == 1)).all()
    with pytest.raises(ConfigError, match=r"\'condition\' is both in columns\.conditions and"):
        Stimuli(columns={**columns, "conditions": ["condition"]}, **options)


def test_a_condition_that_changes_while_a_video_runs(tmp_path):
    """A window has the condition of its first frame; the video is one recording."""
    for who in ("p1", "p2"):
        folder = tmp_path / who
        folder.mkdir()
        write_video(folder / "scene.mp4", np.arange(80 * 5) / 5)
        rows = [f"{50 * i},{0.2 + 0.6 * (i >= 800)},0.5,{i // 800}" for i in range(1600)]
        (folder / "gaze.csv").write_text("time_ms,gaze_x,gaze_y,block\n" + "\n".join(rows))
    columns = {**COLUMNS, "unit": "fraction", "conditions": ["block"]}
    made = GazeTable(columns=columns, max_gap_ms=60).load(str(tmp_path))
    assert made.conditions == {"block": ("0", "1")}
    seen = set()
    for splits in made.people.values():
        for samples in vars(splits).values():
            second = samples.columns["points"][:, 0, 0, 0] > 0.5
            assert (second == (samples.columns["conditions"][:, 0] == 1)).all()
            seen |= {*samples.columns["conditions"].flatten().tolist()}
    assert seen == {0, 1}


def test_a_session_in_names_and_in_a_column_is_one_condition(tmp_path):
    """`data import` writes it once, and its own file is no error."""
    study = tmp_path / "study"
    names = pictures(study / "stimuli", 10)
    for who in ("P01", "P02", "P03"):
        for number in "12":
            rows = [
                f"{i * 50},{100 * int(number) + i},200,{n},{number}"
                for n in names
                for i in range(4)
            ]
            text = "time_ms,gaze_x,gaze_y,image,session\n" + "\n".join(rows)
            (study / f"{who}_ses{number}.csv").write_text(text)
    said = vergence("data", "import", study, "--out", tmp_path / "lab.toml")
    assert said.code == 0, said.err
    options = tomllib.loads((tmp_path / "lab.toml").read_text())["federation"]
    assert options["files"] == "{person}_{session}.csv"
    assert not options["columns"].get("conditions")
    made = Stimuli(**{k: v for k, v in options.items() if k not in ("name", "root", "size")})
    assert made.load(str(study)).conditions == {"session": ("ses1", "ses2")}


def test_what_is_no_condition_is_refused(tmp_path, monkeypatch):
    root = lab(tmp_path)
    misspelt = Stimuli(columns={**ON_PICTURES, "conditions": ["sesion"]}, place="picture")
    with pytest.raises(DataError, match=r"no column 'sesion' .columns\.conditions. .did you mean"):
        misspelt.load(str(root))
    monkeypatch.setattr("vergence.data.gaze_video.conditions.MOST_LEVELS", 5)
    # The time would make every sample a trial of its own.
    with pytest.raises(DataError, match=r"'gaze_x' has \d+ levels, such as"):
        Stimuli(columns={**ON_PICTURES, "conditions": ["gaze_x"]}, place="picture").load(str(root))


def test_one_level_is_tested_alone(tmp_path):
    columns = {**ON_PICTURES, "conditions": ["session"]}
    made = Stimuli(columns=columns, place="picture").load(str(lab(tmp_path)))
    few = FewSamples(tested_on=("session", "2"))
    assert few.sentence() == "tested on session 2 alone, trained on all else"
    both = FewSamples(samples_per_person=5, tested_on=("session", "2")).sentence()
    assert both.endswith("drawn with seed 0; tested on session 2 alone, trained on all else")
    for splits in few.apply(made).people.values():
        for part, samples in vars(splits).items():
            assert (samples.columns["conditions"] == (part == "test")).all()
            assert len(samples)
    with pytest.raises(ConfigError, match=r"tested_on = \['session', '3'\] .* session: 1, 2"):
        FewSamples(tested_on=("session", "3")).apply(made)
    with pytest.raises(ConfigError, match=r"name columns in federation\.columns\.conditions"):
        few.apply(Federation.from_arrays({"a": {"x": np.zeros((9, 1)), "y": np.zeros(9)}}))
    with pytest.raises(ConfigError, match=r"tested_on must be \(condition, level\)"):
        FewSamples(tested_on=("session",))


def test_whoever_lacks_a_level_is_named(tmp_path):
    root = lab(tmp_path)
    text = (root / "gaze.csv").read_text().splitlines()
    kept = [line for line in text if not (line.startswith("S1") and ",1,free" in line)]
    (root / "gaze.csv").write_text("\n".join(kept))
    columns = {**ON_PICTURES, "conditions": ["session"]}
    made = Stimuli(columns=columns, place="picture").load(str(root))
    with pytest.raises(DataError, match="'S1' has no test sample with session 1"):
        FewSamples(tested_on=("session", "1")).apply(made)
    with pytest.raises(DataError, match="'S1' has no train sample of other levels"):
        FewSamples(tested_on=("session", "2")).apply(made)


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """The experiment that `vergence data import` writes for the lab's folder."""
    folder = tmp_path_factory.mktemp("lab")
    lab(folder / "study", people=6, shown=24, samples=6)
    said = vergence("data", "import", folder / "study", "--out", folder / "lab.toml")
    assert said.code == 0, said.err
    return folder / "lab.toml", said.out + said.err


SETS = [
    *("--set", "run.rounds=3", "--set", "run.evaluate_every=0", "--set", "run.workers=1"),
    *("--set", "federation.size=[32,24]", "--set", "model.grid=[4,4]"),
    *("--set", 'methods=["fedavg"]'),
    *("--set", "local.epochs=4", "--set", "local.lr=0.01"),
]


@pytest.mark.slow
def test_the_difference_that_was_made_is_found_from_import_to_test(imported):
    path, said = imported
    assert "scores can be compared by session, task" in " ".join(said.split())
    settings = tomllib.loads(path.read_text())["federation"]
    assert settings["columns"]["conditions"] == ["session", "task"]
    out = path.parent / "protocols"
    ran = vergence("study", "evaluate", "conditions", path, "--out", out, *SETS)
    assert ran.code == 0, ran.err
    with (out / "effects.csv").open(newline="") as file:
        (effect,) = csv.DictReader(file)
    named = [effect[key] for key in ("label", "condition", "level", "against", "people")]
    assert named == ["fedavg", "session", "2", "1", "6"]
    assert float(effect["high"]) < 0
    assert float(effect["p_holm"]) < 0.05
    assert "session 2 - 1" in ran.out
    with (out / "conditions.csv").open(newline="") as file:
        means = list(csv.DictReader(file))
    by_level = {
        level: np.mean([float(r["value"]) for r in means if r["level"] == level]) for level in "12"
    }
    # Everybody has as many pictures: the effect is the difference of the two means.
    assert float(effect["difference"]) == pytest.approx(by_level["2"] - by_level["1"], rel=0.05)


@pytest.mark.slow
def test_each_session_is_left_out_in_turn(imported):
    path, _ = imported
    out = path.parent / "left_out"
    ran = vergence("study", "evaluate", "leave-condition-out", path, "--out", out, *SETS)
    assert ran.code == 0, ran.err
    assert "without session 2 (2 of 2)" in ran.out
    with (out / "leave-condition-out" / "levels.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6 * 2
    text = (out / "leave-condition-out" / "folds" / "001" / "config.toml").read_text()
    assert tomllib.loads(text)["few_data"] == {"tested_on": ["session", "1"]}
    plain = vergence("study", "evaluate", "leave-condition-out", "toy", "--out", out / "toy")
    plain.complains(2, "no condition with two levels", "federation.columns.conditions")
