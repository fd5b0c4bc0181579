"""Bad input through the real command line: one clear line, the documented exit code, nothing lost.

Taken, full and interrupted run directories are in test_interrupted.py, damaged ones in
tests/engine/storage/test_damage.py.
"""

import csv
import shutil
from typing import Literal

import numpy as np
import pytest

from tests.cli.commands import ONE, SEVERAL, TOY, run, vergence, write
from vergence.core.local_training import LocalTraining
from vergence.data.gaze_video.aria import SAMPLE as ARIA
from vergence.data.saliency.osie import SAMPLE as OSIE
from vergence.engine.asynchronous_aggregation import Delivery
from vergence.engine.participation import Participation
from vergence.engine.plan import Plan
from vergence.errors import ConfigError
from vergence.experiment.schema import load
from vergence.experiment.table_binding import fitting

PICTURES = """
task       = { name = "gaze_map" }
model      = { name = "glc_vit", preset = "tiny64" }
federation = { name = "DATA", root = "ROOT", size = [64, 64]OPTIONS }
method     = "fedavg"
local      = { optimizer = "sgd", steps = 1, batch = 2 }
run        = { rounds = 1, workers = 1, evaluate_every = 0 }
"""


# --- experiment files


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("locl.lr=0.1", ["'locl'", "did you mean 'local'?"]),
        ("local.learning=0.1", ["local", "'learning'", "known", "lr"]),
        ("local.momentun=0.1", ["'momentun'", "did you mean 'momentum'?"]),
        ("run.round=3", ["run", "'round'", "did you mean 'rounds'?"]),
        ("presence.cohorts=1", ["presence", "'cohorts'", "did you mean 'cohort'?"]),
        ("model.input=4", ["model (linear)", "'input'", "did you mean 'inputs'?"]),
        ("federation.persons=4", ["federation (toy)", "'persons'", "people"]),
        ("task.name=tox", ["task", "'tox'", "did you mean 'toy'?"]),
        ("model.name=liner", ["model", "'liner'", "did you mean 'linear'?"]),
        ("federation.name=osi", ["data set", "'osi'", "did you mean 'osie'?"]),
        ('methods=["fedcfp"]', ["method", "'fedcfp'", "did you mean 'fedcpf'?"]),
        ('methods=["no/such.py"]', ["no file at no/such.py"]),
        ('methods=[{name="fedcpf", rte=0.1}]', ["fedcpf", "'rte'", "did you mean 'rate'?"]),
        ('methods=[{name="fedcpf", rate=1.4}]', ["rate", ">= 0 and <= 1", "1.4"]),
        ('methods=[{name="fedcpf", select="rand"}]', ["select", "'random'", "'rand'"]),
        ('methods=["fedavg", "fedavg"]', ["two methods", "'fedavg'", "label"]),
        (
            'methods=[{name="fedavg", label="CON"}, {name="fedavg", label="con"}]',
            ["'CON' and 'con'", "share a folder", "label one"],
        ),
        ("methods=[]", ["at least one method"]),
        ("methods=[1]", ["a method is a name", "1"]),
        ('methods=[{name="fedavg", label=3}]', ["label 3", "letters"]),
        ('methods=[{name="fedavg", label="../x"}]', ["label '../x'", "letters"]),
        ('methods=[{name="fedavg", local=3}]', ["local must be a table", "3"]),
        ("method.rate=0.1", ["either method", "or methods", "both"]),
        ("local=3", ["local must be a table", "3"]),
        ("run=3", ["run must be a table", "3"]),
        ("task.name=3", ["name must be text", "3"]),
        ("federation.root=3", ["root must be the name of a folder", "3"]),
        ("extends=x", ["extends", "not with --set"]),
        ("methods.0.rate=3", ["--set methods.0.rate=3", "'methods' is not a table"]),
        ("run.rounds", ["--set takes key=value", "'run.rounds'"]),
        ("run.rounds=0", ["run", "rounds must be >= 1", "got 0"]),
        ("run.rounds=many", ["rounds", "a whole number", "'many'"]),
        ("run.seeds=[0, 0]", ["seeds must be different", "(0, 0)"]),
        ("run.seeds=[]", ["seeds", "at least one"]),
        ('run.points=["P1"]', ["points must hold P0", "P1"]),
        ("run.engine=cluster", ["engine", "'simulator'", "'bytes'", "'cluster'"]),
        ("run.workers=-1", ["workers must be >= 0", "-1"]),
        ("local.lr=-1", ["local", "lr must be > 0", "-1"]),
        ("local.lr=nan", ["lr must be finite", "nan"]),
        ("local.batch=0", ["batch must be >= 1", "0"]),
        ("presence.cohort=1.5", ["cohort must be a share in (0, 1] or a whole number", "1.5"]),
        ("presence.cohort=0", ["cohort must be > 0", "0"]),
        ("presence.lost=2", ["lost must be", "<= 1", "2"]),
        ("presence.gone={p00=-1}", ["gone.p00", "0 or more", "-1"]),
        ("presence.gone={p0=1}", ["gone", "'p0'", "did you mean 'p0"]),
        ("federation.people=0", ["people must be >= 1", "0"]),
        ("model.inputs=7", ["model 'linear'", "federation 'toy'", "do not fit together"]),
        ("task.name=gaze_map", ["has no column 'frames' (it has x, y); task 'gaze_map' reads"]),
    ],
)
def test_settings_that_cannot_be_used(tmp_path, change, words):
    said = vergence("run", write(tmp_path), "--out", tmp_path / "out", "--set", change)
    said.complains(2, *words)
    assert not (tmp_path / "out" / "config.toml").exists()
    assert vergence("explain", write(tmp_path)).code == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (".".join("a" * 3000) + "=1", ["--set", "no setting lies 2999 tables deep"]),
        ("a" * 10**6 + "=1", ["unknown key 'aaa", "aaa'", "known: "]),
        ("task.name=" + "x" * 10**5, ["no task named 'xxx", "xxx'", "toy"]),
        ("run.rounds=" + "9" * 5000, ["--set run.rounds", "4300 digits"]),
        ("run.rounds=" + "9" * 400, ["--set run.rounds", "below 2^63", "(1329 bits)"]),
        ("run.rounds=0x" + "f" * 6000, ["--set run.rounds", "below 2^63", "24000 bits"]),
        ("run.rounds=0b" + "1" * 20_000, ["--set run.rounds", "20000 bits"]),
        ("run.seeds=[1, 0o" + "7" * 9000 + "]", ["--set run.seeds", "27000 bits"]),
        ("methods=[0x" + "f" * 6000 + "]", ["--set methods", "24000 bits"]),
        ("local={lr=0x" + "f" * 6000 + "}", ["--set local, lr", "24000 bits"]),
        ("run.rounds=1000000000000000000", ["rounds must be >= 0 and <= 1e+07"]),
        ("local.epochs=1000000000000000000", ["epochs must be >= 1 and <= 1e+07"]),
        ("local.steps=1000000000000000000", ["steps must be >= 1 and <= 1e+07"]),
        ("run.rounds=" + "[" * 20_000, ["--set run.rounds", "recursion"]),
        ("run.rounds=" + "{ a = " * 5000, ["--set run.rounds", "recursion"]),
        ("method.label=" + "x" * 5000, ["label 'xxx", "1 to 100"]),
        ("sweep.space." + ".".join("a" * 3000) + "=[1]", ["tables deep"]),
    ],
)
def test_settings_that_nobody_means(tmp_path, change, words):
    """One line that can be read, at once."""
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, ONE), [change])
    said = str(caught.value)
    assert len(said.splitlines()) == 1
    assert len(said) < 1000 + len(str(tmp_path)) + 30
    for word in words:
        assert word in said


HUGE = int("f" * 6000, 16)


@pytest.mark.parametrize(
    "made",
    [
        lambda: Plan(rounds=HUGE),
        lambda: Plan(rounds=10**18),
        lambda: Plan(seeds=(0, -HUGE)),
        lambda: Participation(gone={"p00": -HUGE}),
        lambda: Participation(cohort=HUGE),
        lambda: Delivery("fedbuff", replies=HUGE),
        lambda: LocalTraining(epochs=HUGE),
        lambda: fitting(str, HUGE),
        lambda: fitting(int, [HUGE]),
    ],
)
def test_numbers_that_no_machine_holds_are_refused_in_python_too(made):
    """Python writes no number of more than 4300 digits, and so no message may have one."""
    with pytest.raises(ConfigError) as caught:
        made()
    assert len(str(caught.value)) < 200
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("hint", "value", "advice"),
    [
        (tuple[int, ...], 3, ": write [3]"),
        (tuple[str, ...], "sam", ': write ["sam"]'),
        # A list with it would be refused as well.
        (tuple[int, int] | None, "640x480", "got '640x480'"),
        (tuple[int, ...], "3", "got '3'"),
        (tuple[Literal["P0", "P1"], ...], "P7", "got 'P7'"),
    ],
)
def test_a_list_with_the_value_is_advised_where_it_would_do(hint, value, advice):
    with pytest.raises(ConfigError) as caught:
        fitting(hint, value)
    assert str(caught.value).endswith(advice)


def test_tables_in_tables_in_a_file(tmp_path):
    path = write(tmp_path, ONE + "[sweep.space." + ".".join("a" * 3000) + "]\nx = [1]\n")
    vergence("run", path, "--out", tmp_path / "out").complains(2, "toy.toml", "recursion")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("task = {", ["not valid TOML", "toy.toml"]),
        ("task = 1\ntask = 2", ["not valid TOML"]),
        ("\xff\xfe", ["not valid TOML"]),
        ("", ["task = { name = ... }"]),
        (f"{ONE}\n[sweep]\ntrials = 0x{'f' * 6000}", ["sweep, trials", "24000 bits"]),
        (ONE.replace("method = ", "methods = [] #"), ["at least one method"]),
        (ONE.replace("method = ", "# "), ["neither"]),
        ('extends = "base.toml"', ["extends must be a list", "'base.toml'"]),
        ('extends = ["base.toml"]', ["no experiment file at", "base.toml"]),
        (SEVERAL + "[extra]\n", ["unknown key 'extra'"]),
    ],
)
def test_files_that_are_no_experiment(tmp_path, text, words):
    path = tmp_path / "toy.toml"
    path.write_bytes(text.encode("latin-1"))
    vergence("run", path, "--out", tmp_path / "out").complains(2, *words)
    assert not (tmp_path / "out").exists()


def test_a_missing_experiment_file(tmp_path):
    said = vergence("run", tmp_path / "none.toml", "--out", tmp_path / "out")
    said.complains(2, "no experiment file at", "none.toml")


# --- data files


def pictures(tmp_path, data, root, options=""):
    text = PICTURES.replace("DATA", data).replace("ROOT", str(root)).replace("OPTIONS", options)
    said = vergence("run", write(tmp_path, text), "--out", tmp_path / "out")
    assert not (tmp_path / "out" / "config.toml").exists()  # the same --out may be used again
    return said


def missing_table(root):
    (root / "fixations.npz").unlink()


def truncated_table(root):
    data = (root / "fixations.npz").read_bytes()
    (root / "fixations.npz").write_bytes(data[: len(data) // 2])


def table_without_a_key(root):
    with np.load(root / "fixations.npz") as archive:
        kept = {name: archive[name] for name in archive.files if name != "order"}
    np.savez(root / "fixations.npz", **kept)


def nan_in_table(root):
    with np.load(root / "fixations.npz") as archive:
        kept = {name: archive[name] for name in archive.files}
    kept["x"][7] = np.nan
    np.savez(root / "fixations.npz", **kept)


def missing_picture(root):
    (root / "stimuli").unlink()
    (root / "stimuli").mkdir()


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (missing_table, ["neither fixations.npz nor fixations.mat", "NUS-VIP"]),
        (truncated_table, ["cannot read", "fixations.npz", "NUS-VIP"]),
        (table_without_a_key, ["another version", "lacks order"]),
        (nan_in_table, ["fixation x is NaN", "row 7"]),
        (missing_picture, ["missing file", ".jpg"]),
    ],
)
def test_osie_files(tmp_path, harm, words):
    root = tmp_path / "osie"
    root.mkdir()
    shutil.copy(OSIE / "fixations.npz", root)
    (root / "stimuli").symlink_to(OSIE / "stimuli")
    harm(root)
    pictures(tmp_path, "osie", root).complains(3, *words)


def test_osie_with_too_few_images_for_the_split(tmp_path):
    pictures(tmp_path, "osie", OSIE, ", images = 3").complains(3, "3 are too few for shares")


def test_a_folder_that_does_not_exist(tmp_path):
    pictures(tmp_path, "gazecom", tmp_path / "none").complains(3, "no folder", "gazecom", "root")


def no_gaze(folder):
    (folder / "gaze_2d.csv").unlink()


def no_video(folder):
    (folder / "rgb_upright.mp4").unlink()


def truncated_video(folder):
    video = folder / "rgb_upright.mp4"
    video.write_bytes(video.read_bytes()[:3000])


def edited(column, value):
    def edit(folder):
        rows = list(csv.DictReader((folder / "gaze_2d.csv").read_text().splitlines()))
        rows[2][column] = value
        with (folder / "gaze_2d.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)

    return edit


def other_version(folder):
    path = folder / "gaze_2d.csv"
    path.write_text(path.read_text().replace("gaze_timestamp_us", "tracking_timestamp_us"))


def unharmed(folder):
    pass


@pytest.mark.parametrize(
    ("harm", "options", "words"),
    [
        (no_gaze, "", ["video without gaze", "gaze_2d.csv"]),
        (no_video, "", ["gaze without video"]),
        (truncated_video, "", ["rgb_upright.mp4", "truncated"]),
        (edited("x", "inf"), "", ["gaze_2d.csv", "sample 3", "infinite"]),
        (edited("x", "abc"), "", ["gaze_2d.csv", "'abc'", "not a number"]),
        (other_version, "", ["missing columns gaze_timestamp_us"]),
        (unharmed, "", ["shorter than the window", "6 frames", "short = 'skip'"]),
        (
            unharmed,
            ", window = 1, stride_s = 0.05",
            ["person 'amy' has too few clips for the split"],
        ),
        (unharmed, ', short = "skip"', ["person 'amy' has too few clips for the split"]),
        (unharmed, ', people = ["ben"]', ["no recordings of ben", "amy"]),
    ],
)
def test_aria_recordings(tmp_path, harm, options, words):
    folder = tmp_path / "aria" / "amy"
    shutil.copytree(ARIA / "adt", folder)
    harm(folder)
    pictures(tmp_path, "aria", tmp_path / "aria", options).complains(3, *words)


# --- other commands


def test_folders_without_runs(tmp_path):
    for command in ("resume", "compare", "report", "verify"):
        vergence(command, tmp_path).complains(2, str(tmp_path), "vergence")
    vergence("predict", tmp_path, "x.mp4").complains(2, "no run directory")


def test_report_of_an_unknown_figure(tmp_path):
    out = run(tmp_path, ONE)
    vergence("report", out, "--figure", "mask").complains(2, "'mask'", "did you mean 'masks'?")


# --- predict

CLIP = ARIA / "adt" / "rgb_upright.mp4"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("maps")
    text = PICTURES.replace(
        'method     = "fedavg"', 'methods = ["local_only", "fedavg", "centralised"]'
    )
    text = text.replace('"DATA", root = "ROOT"', '"ego_synthetic", people = 2, clips = 10')
    text = text.replace(", size = [64, 64]OPTIONS", ", windows = 1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VERGENCE_CACHE", str(folder / "cache"))
        return run(folder, text)


@pytest.mark.parametrize("label", ["local_only", "fedavg", "centralised"])
def test_predict_for_a_person_that_does_not_exist(trained, tmp_path, label):
    said = vergence("predict", trained / label, CLIP, "--person", "x", "--out", tmp_path / "o.mp4")
    said.complains(2, "no person 'x'", "known: p")
    assert not (tmp_path / "o.mp4").exists()


@pytest.mark.slow
def test_predict_for_a_newcomer_needs_a_shared_model(trained, tmp_path):
    said = vergence("predict", trained / "local_only", CLIP, "--out", tmp_path / "o.mp4")
    said.complains(2, "no shared model", "--person")
    assert vergence("predict", trained / "fedavg", CLIP, "--out", tmp_path / "o.mp4").code == 0


def test_predict_with_a_run_of_another_task(tmp_path):
    vergence("predict", run(tmp_path, ONE), CLIP).complains(
        2, "the task 'toy'", "gaze_map and gaze_angle"
    )


def test_predict_with_a_folder_of_several_methods(trained):
    vergence("predict", trained, CLIP).complains(2, "several methods", f"{trained}/fedavg")


def test_predict_with_the_folder_above_that_of_the_only_method(tmp_path):
    folder = run(tmp_path, TOY.replace("METHODS", 'methods = ["fedavg"]'))
    said = vergence("predict", folder, CLIP)
    said.complains(2, "holds the folder of its one method; name", f"{folder}/fedavg")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (CLIP.read_bytes()[:3000], ["video.mp4", "truncated"]),
        (CLIP.read_bytes()[:-3000], ["video.mp4", "truncated"]),
        (b"not a video", ["video.mp4", "not a video"]),
        (b"", ["video.mp4"]),
        (None, ["video.mp4 is missing"]),
    ],
)
def test_predict_on_a_video_that_cannot_be_read(trained, tmp_path, content, words):
    video = tmp_path / "video.mp4"
    if content is not None:
        video.write_bytes(content)
    said = vergence("predict", trained / "fedavg", video, "--out", tmp_path / "o.mp4")
    said.complains(3, *words)
    assert not list(tmp_path.glob("o.*"))
