"""`vergence adapt`: the run directory that it writes, what it holds, and what is refused."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import vergence as vg
from tests.cli.commands import ONE, run, vergence
from vergence.adaptation.adapted_run import adapt, adapt_to, choice_sentence, open_source
from vergence.adaptation.choice import choose
from vergence.adaptation.fine_tuning import SHARED, WHOLE, Adapter, FineTuning
from vergence.adaptation.other_people import RESIDUAL
from vergence.adaptation.own_data import OwnData, prepare_person, read_own_data
from vergence.core.data import Samples, SharedRows
from vergence.core.randomness import RandomStream
from vergence.data import own_samples
from vergence.data.own_samples import pack_samples, read_samples
from vergence.data.synthetic.eyes.eye_synthetic import EyeSynthetic
from vergence.errors import ConfigError, DataError
from vergence.experiment.trained_run import read_run
from vergence.metrics.calibration import AngleCorrection
from vergence.model_tools.onnx_export import opened_again
from vergence.models.small_eye import SmallEye
from vergence.tasks.gaze_angle import GazeAngle

EYES = """
task       = { name = "gaze_angle" }
model      = { name = "small_eye", channels = [4, 4], hidden = 8 }
federation = { name = "eye_synthetic", people = 3, samples = 60, days = [3, 3], size = "9x15" }
method     = "fedavg"
local      = { optimizer = "sgd", epochs = 1, batch = 16, lr = 0.05 }
run        = { rounds = 1, evaluate_every = 0, workers = 1 }
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return run(tmp_path_factory.mktemp("eyes"), EYES)


@pytest.fixture(scope="module")
def newcomer():
    """Samples of a fourth person, whose gaze is turned by 0.3 radians in pitch."""
    people = EyeSynthetic(people=4, samples=60, days=(3, 3), size="9x15").load().people
    parts = people["p03"]
    every = Samples.concatenate([parts.train, parts.val, parts.test])
    gaze = every.columns["gaze"] + torch.tensor([0.3, 0.0])
    return Samples({**every.columns, "gaze": gaze})


@pytest.fixture(scope="module")
def file(newcomer, tmp_path_factory):
    path = tmp_path_factory.mktemp("mine") / "mine.npz"
    path.write_bytes(pack_samples(newcomer))
    return path


@pytest.fixture(scope="module")
def mine(trained, file, tmp_path_factory):
    out = tmp_path_factory.mktemp("adapted") / "me"
    return adapt(trained, file, out, samples=9)


@pytest.fixture(scope="module")
def learned(trained, file, tmp_path_factory):
    """Adapted to all samples: none is left to test on."""
    return adapt(trained, file, tmp_path_factory.mktemp("learned") / "me")


def told(folder: Path) -> dict:
    return json.loads((folder / "provenance.json").read_text())["adapted"]


def test_a_shifted_gaze_is_corrected_from_nine_samples(mine, trained, newcomer):
    assert mine.choice.way != SHARED
    assert mine.choice.errors[mine.choice.way] < mine.choice.errors[SHARED] - 1
    shared = vg.open_run(trained).predict(None, newcomer)
    corrected = vg.open_run(mine.folder).predict(None, newcomer)
    gaze = newcomer.columns["gaze"]
    assert (corrected - gaze).abs()[:, 0].mean() < 0.8 * (shared - gaze).abs()[:, 0].mean()


def test_eye_images_without_what_the_correction_compares_are_refused(mine, newcomer, tmp_path):
    columns = {n: c for n, c in newcomer.columns.items() if n in ("image", "pose")}
    (tmp_path / "eyes.npz").write_bytes(pack_samples(Samples(columns)))
    Image.fromarray(columns["image"][0, 0].numpy()).save(tmp_path / "eye.png")
    for name in ("eyes.npz", "eye.png"):
        said = vergence("predict", mine.folder, tmp_path / name, "--out", tmp_path / "gaze.csv")
        said.complains(3, name, "no column side", "0 left, 1 right")


def test_the_network_of_a_kernel_correction_contains_the_persons_crops(mine):
    assert mine.choice.way == RESIDUAL
    network = mine.experiment.model
    assert (network.samples, network.inputs, network.side) == (9, 138, True)
    params = read_run(mine.folder).newcomer()
    crops = mine.experiment.task(0).kernel_inputs(read_samples(mine.folder / own_samples.FILE))
    assert torch.equal(params["centres"], crops[:9].float())


def test_provenance_names_the_run_by_digest_and_the_way(mine, trained):
    about = told(mine.folder)
    assert about["way"] == mine.choice.way
    assert (about["samples"], about["folds"], about["person"]) == (9, 9, "me")
    assert about["fingerprint"] == read_run(trained).fingerprint
    assert about["errors"] == dict(mine.choice.errors)
    assert about["sha256"] == hashlib.sha256((trained / "SHA256SUMS").read_bytes()).hexdigest()


def test_it_is_a_run_that_verify_status_report_and_compare_take(mine):
    assert "ok" in vergence("verify", mine.folder).out
    for command in ("verify", "status", "compare", "report"):
        said = vergence(command, mine.folder)
        assert said.code == 0, said.err


def test_tables_say_where_scores_are_of_samples_that_were_learned_from(mine, learned):
    assert learned.choice.way != SHARED
    for command in ("compare", "status"):
        said = [vergence(command, run.folder).out.replace("_", " ") for run in (learned, mine)]
        assert "adapted training scores" in said[0]
        assert "training scores" not in said[1]
    vergence("report", learned.folder)
    assert "adapted training scores" in (learned.folder / "report.html").read_text()


def test_only_its_owner_may_look_into_the_folder(mine):
    assert mine.folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 9 bytes"), None),
        (NotImplementedError("no kernel"), None),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), "is no data of the run's task"),
    ],
)
def test_faults_of_the_machine_are_no_faults_of_the_samples(
    trained, newcomer, monkeypatch, fault, told
):
    run = read_run(trained)
    own = OwnData("me", newcomer, "mine.npz")

    def failing(*_):
        raise fault

    monkeypatch.setattr(type(run.task), "loss", failing)
    with pytest.raises(DataError if told else type(fault), match=told or str(fault)[:20]):
        prepare_person(run.experiment, run.task.seed, own, torch.arange(3))


def test_a_flipped_byte_of_the_samples_is_found(trained, file, tmp_path):
    made = adapt(trained, file, tmp_path / "me", samples=2)
    path = made.folder / own_samples.FILE
    data = bytearray(path.read_bytes())
    data[-30] ^= 1
    path.write_bytes(data)
    vergence("verify", made.folder).complains(2, own_samples.FILE)


def test_it_is_moved_and_the_run_may_be_gone(trained, file, tmp_path):
    made = adapt(trained, file, tmp_path / "here" / "me", samples=3)
    moved = made.folder.rename(tmp_path / "me")
    assert vergence("verify", moved).code == 0
    assert list(vg.open_run(moved).people) == ["me"]


def test_the_onnx_file_has_the_correction_inside(mine, newcomer, tmp_path):
    said = vergence("export", mine.folder, "--out", tmp_path / "me.onnx")
    assert said.code == 0, said.err
    assert "adapted to 'me', and tells of them: give it to nobody else" in said.out
    data = (tmp_path / "me.onnx").read_bytes()
    session = opened_again(data)
    # torch notes the file of this machine that each node is from: its folder names an account.
    assert str(Path(str(vg.__file__)).parent).encode() not in data
    wanted = vg.open_run(mine.folder).predict(None, newcomer)
    for row in range(3):
        columns = {n: c[row : row + 1].numpy() for n, c in newcomer.columns.items()}
        given = {value.name: columns[value.name] for value in session.get_inputs()}
        assert np.abs(session.run(None, given)[0] - wanted[row : row + 1].numpy()).max() < 1e-5


def test_a_correction_of_eyes_reaches_the_onnx_file(newcomer, tmp_path):
    """q' = q + offset + (q - centre) slope, and +- eye by the side, which the file asks for."""
    numbers = (
        "centre = [0.1, 0], offset = [0.1, 0], slope = [0.1, 0, 0.2, 0.1], eye = [0.05, -0.04]"
    )
    text = EYES.replace('"gaze_angle"', f'"gaze_angle", correction = {{ {numbers} }}')
    out = run(tmp_path, text)
    said = vergence("export", out, "--out", tmp_path / "eyes.onnx")
    assert said.code == 0, said.err
    session = opened_again((tmp_path / "eyes.onnx").read_bytes())
    columns = {n: c[:1].numpy() for n, c in newcomer.columns.items()}
    names = [value.name for value in session.get_inputs()]
    left, right = (
        session.run(None, {n: {**columns, "side": np.array([side])}[n] for n in names})[0]
        for side in (0, 1)
    )
    assert right - left == pytest.approx(np.array([[0.1, -0.08]]), abs=1e-6)
    plain = replace(read_run(out).task, correction=AngleCorrection())
    with torch.no_grad():
        network = vg.open_run(out).model()
        p, y = plain.forward(network, newcomer.take(slice(0, 1)))[0].tolist()
    by_hand = [p + 0.1 + (p - 0.1) * 0.1 + y * 0.2, y + (p - 0.1) * 0 + y * 0.1]
    assert left[0] == pytest.approx([by_hand[0] - 0.05, by_hand[1] + 0.04], abs=1e-5)


def test_a_correction_of_eyes_needs_their_sides(newcomer):
    task = GazeAngle(SmallEye(), correction=AngleCorrection(eye=(0.1, 0.0)))
    batch = newcomer.take(slice(0, 2))
    del batch["side"]
    with pytest.raises(ConfigError, match="no column side"):
        task.forward(task.module(), batch)
    with pytest.raises(ConfigError, match=r"task\.correction stands behind"):
        task.inputs(batch)


def test_a_run_with_a_correction_is_not_adapted_again(tmp_path):
    """The new correction is of corrected angles, and would stand where the first one does."""
    text = EYES.replace('"gaze_angle"', '"gaze_angle", correction = { offset = [0.1, 0] }')
    with pytest.raises(ConfigError, match=r"its correction is one person's.*adapted from"):
        open_source(run(tmp_path, text), None)


def test_a_correction_and_a_chosen_prior_are_refused_together():
    with pytest.raises(ConfigError, match="set personal_prior to a number, or leave"):
        GazeAngle(SmallEye(), personal_prior="auto", correction=AngleCorrection(offset=(0.1, 0)))


def test_a_way_that_diverges_is_not_chosen(trained, newcomer):
    own = OwnData("me", newcomer, "samples")
    rows = torch.arange(6)
    source = open_source(trained, None).trained
    ready = prepare_person(source.experiment, source.task.seed, own, rows)
    stream = RandomStream("adapt", 0)
    adapter = Adapter(source.on_data(ready, stream=stream), "me", FineTuning(lr=1e30))
    found = choose(adapter, ["shrunk offset", WHOLE], rows, stream)
    assert np.isnan(found.errors[WHOLE])
    without = choose(adapter, ["shrunk offset"], rows, stream)
    assert found.way == without.way
    assert {way: found.errors[way] for way in without.errors} == without.errors


def test_samples_of_one_target_are_left_out_together(trained, newcomer):
    """Nine samples, each there twice: without targets some are tested by who saw their twin."""
    twice = newcomer.subset(torch.arange(9).repeat_interleave(2))
    apart = twice.columns["gaze"] + 1e-6 * torch.arange(18)[:, None]  # else they are one frame's
    twice = Samples({**twice.columns, "gaze": apart}, dict(twice.banks))
    target = torch.arange(9).repeat_interleave(2)
    named = Samples({**twice.columns, "target": target}, dict(twice.banks))
    source = open_source(trained, None).trained
    stream, found = RandomStream("adapt", 0), {}
    for label, samples in (("alone", newcomer), ("leaky", twice), ("named", named)):
        rows = torch.arange(9 if label == "alone" else 18)
        own = OwnData("me", samples, "samples")
        ready = prepare_person(source.experiment, source.task.seed, own, rows)
        adapter = Adapter(source.on_data(ready, stream=stream), "me", FineTuning(steps=100))
        found[label] = choose(adapter, [WHOLE], rows, stream)
    assert (found["named"].folds, found["leaky"].folds) == (9, 5)
    assert found["named"].errors[SHARED] == pytest.approx(found["alone"].errors[SHARED], rel=1e-4)
    assert found["leaky"].errors[WHOLE] < found["named"].errors[WHOLE]


def test_samples_are_its_owner_s_alone(mine):
    assert (mine.folder / own_samples.FILE).stat().st_mode & 0o077 == 0


def test_scores_of_what_was_learned_from_are_not_called_test_scores(mine, learned):
    texts = ("9 samples were learned from", "every part holds all samples")
    for made, said in zip((mine, learned), texts, strict=True):
        about = made.experiment.dataset.load(str(made.folder)).about
        assert about["split"].startswith(said)


def test_without_samples_or_with_one_the_shared_model_is_kept(trained, file, newcomer, tmp_path):
    shared = vg.open_run(trained).predict(None, newcomer)
    for count in (0, 1):
        made = adapt(trained, file, tmp_path / f"me{count}", samples=count)
        assert made.choice.way == SHARED
        assert "too few to hold one out" in choice_sentence(made)
        assert torch.equal(vg.open_run(made.folder).predict(None, newcomer), shared)


def test_people_of_a_leave_one_out_evaluation_give_priors(tmp_path, newcomer):
    (tmp_path / "eyes.toml").write_text(EYES)
    said = vergence(
        "study", "evaluate", "leave-one-out", tmp_path / "eyes.toml", "--out", tmp_path / "loo"
    )
    assert said.code == 0, said.err
    (folder,) = {
        p.parent for p in (tmp_path / "loo").rglob("results.json") if "folds" not in p.parts
    }
    data = tmp_path / "mine.npz"
    data.write_bytes(pack_samples(newcomer))
    made = adapt(folder, data, tmp_path / "me", samples=4)
    assert {"fitted offset", "fitted affine", "fitted eyes"} <= set(made.choice.errors)
    made = adapt(folder, data, tmp_path / "me1", samples=1)
    assert made.choice.way == RESIDUAL, "one sample cannot speak against the others"
    assert "Chose residual kernel, whose priors are of the run's own people" in choice_sentence(
        made
    )
    assert adapt(folder, data, tmp_path / "me0", samples=0).choice.way == SHARED


def test_from_python(trained, newcomer, tmp_path):
    three = newcomer.subset(torch.arange(3))
    made = vg.open_run(trained).adapt(three, out=tmp_path / "me")
    assert told(tmp_path / "me")["samples"] == 3
    assert made.people == ["me"]
    assert made.verify()


def test_the_toy_run_of_a_method_with_personal_entries(tmp_path):
    out = run(tmp_path, ONE, "run.rounds=2")
    x = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
    np.savez(tmp_path / "mine.npz", x=x.numpy(), y=(x @ torch.full((4,), 3.0)).numpy())
    made = adapt(out, tmp_path / "mine.npz", tmp_path / "me")
    assert {"last layer", "whole model", "the method's own"} <= set(made.choice.errors)
    assert made.choice.errors[made.choice.way] < made.choice.errors[SHARED]


def refused(*words: str, args: list, code: int = 3) -> None:
    vergence("adapt", *args).complains(code, *words)


@pytest.mark.parametrize("dataset", [vg.data.Columbia(), vg.data.Aria(), vg.data.Pupil()])
def test_a_table_in_place_of_a_folder_is_called_a_file(dataset, tmp_path):
    table = tmp_path / "x.csv"
    table.write_text("a,b\n1,2\n")
    experiment = SimpleNamespace(dataset=dataset, table={})
    with pytest.raises(DataError, match=r"x\.csv is a file, and no folder.*; or give an npz with"):
        read_own_data(table, experiment, None)


def test_what_cannot_be_used_is_one_line(trained, file, newcomer, tmp_path):
    out = ["--out", tmp_path / "me"]
    refused("there is no", args=[trained, "--data", tmp_path / "none", *out])
    refused("not read from files", args=[trained, "--data", tmp_path, *out], code=2)
    refused("0 to 60", "got 61", args=[trained, "--data", file, "--samples", 61, *out], code=2)
    bad = tmp_path / "bad.npz"
    columns = {name: column.numpy() for name, column in newcomer.columns.items()}
    np.savez(bad, **{n: c for n, c in columns.items() if n != "pose"})
    refused("lacks 'pose'", "gaze_angle", args=[trained, "--data", bad, *out])
    np.savez(bad, **{**columns, "image": np.zeros((60, 1, 36, 60), np.uint8)})
    refused("no data of the run's task", "9, 15", args=[trained, "--data", bad, *out])
    np.savez(bad, **{**columns, "gaze": np.rad2deg(columns["gaze"])})
    refused("gaze reaches", "radians", args=[trained, "--data", bad, *out])
    np.savez(bad, **{**columns, "pose": np.rad2deg(columns["pose"])})
    refused("pose reaches", "radians", args=[trained, "--data", bad, *out])
    np.savez(bad, **{**columns, "side": columns["side"] + 1})
    refused("side is 2", "1 for a right eye", args=[trained, "--data", bad, *out])
    np.savez(bad, **{**columns, "gaze": np.full((60, 2), np.nan, np.float32)})
    refused("nan in row 0", args=[trained, "--data", bad, *out])
    np.savez(bad, image=columns["image"][:0])
    refused("holds no sample", args=[trained, "--data", bad, *out])
    np.savez(bad, **{**columns, "pose": columns["pose"][:5]})
    refused("a row per sample", args=[trained, "--data", bad, *out])
    assert not (tmp_path / "me" / "config.toml").exists()
    (tmp_path / "me").mkdir(exist_ok=True)
    (tmp_path / "me" / "diary.txt").write_text("mine")
    refused("diary.txt", args=[trained, "--data", file, *out], code=2)


def test_an_adapted_run_is_not_written_over(mine, trained, file):
    before = {path: path.read_bytes() for path in mine.folder.iterdir() if path.is_file()}
    args = [trained, "--data", file, "--samples", 3, "--out", mine.folder]
    refused("holds a run already", args=args, code=2)
    assert {path: path.read_bytes() for path in before} == before


def test_a_damaged_run_is_refused(file, tmp_path):
    out = run(tmp_path, EYES)
    table = out / "people.csv"
    table.write_text(table.read_text().replace("0.", "1.", 1))
    vergence("adapt", out, "--data", file, "--out", tmp_path / "me").complains(2, "people.csv")
    (tmp_path / "empty").mkdir()
    vergence("adapt", tmp_path / "empty", "--data", file).complains(2)


def test_a_late_client_needs_the_server_s_states_alone(tmp_path):
    """As in a copy of a deployment's run, whose clients keep their states to themselves."""
    out = run(tmp_path, ONE, "run.rounds=2")
    states = [path for path in (out / "state").iterdir() if "p00" in path.name]
    assert states
    for path in states:
        path.unlink()
    vergence("verify", out).complains(2, "p00")
    x = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    np.savez(tmp_path / "mine.npz", x=x, y=x.sum(1))
    assert adapt(out, tmp_path / "mine.npz", tmp_path / "me").samples == 4


def test_a_deployment_s_folder_is_no_run(file, tmp_path):
    (tmp_path / "anna").mkdir()
    (tmp_path / "anna" / "deploy.toml").write_text("")
    args = [tmp_path / "anna", "--data", file, "--out", tmp_path / "me"]
    refused("keeps no final model", args=args, code=2)


def test_who_took_part_has_a_model_already(trained, newcomer, tmp_path):
    with pytest.raises(ConfigError, match=r"'p01' of eye_synthetic took part .* --person p01"):
        adapt_to(
            open_source(trained, None),
            OwnData("p01", newcomer, "samples", "eye_synthetic"),
            tmp_path / "me",
        )


def test_a_run_of_no_rounds_needs_a_model_to_start_from(tmp_path):
    with pytest.raises(ConfigError, match=r"rounds must be >= 1; got 0"):
        run(tmp_path, EYES, "run.rounds=0")


def test_local_only_shares_nothing(file, tmp_path):
    out = run(tmp_path, EYES.replace('"fedavg"', '"local_only"'))
    said = vergence("adapt", out, "--data", file, "--out", tmp_path / "me")
    said.complains(2, "shares no model")


def test_samples_with_shared_rows_come_back_from_their_file(tmp_path):
    rows = torch.arange(40, dtype=torch.uint8).view(10, 2, 2)
    given = Samples(
        {"frame_ids": torch.tensor([[7], [3]]), "points": torch.rand(2, 1, 1, 2)},
        {"frames": SharedRows(rows, "frame_ids")},
    )
    path = tmp_path / "file.npz"
    path.write_bytes(pack_samples(given))
    back = read_samples(path)
    assert torch.equal(back.take(slice(0, 2))["frames"], given.take(slice(0, 2))["frames"])
    assert len(back.banks["frames"].rows) == 2
