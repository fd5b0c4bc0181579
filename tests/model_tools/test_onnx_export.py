"""`vergence export`: the file says what torch says, for everybody's model; and what it is."""

import io
import subprocess
import sys
import tomllib
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from rich.console import Console

from tests.cli.commands import TOY, run
from tests.refusals import refuses
from vergence.core.data import Samples, SharedRows, Splits
from vergence.core.federation import Federation
from vergence.core.params import Params
from vergence.data.gaze_video.gaze_table import GazeTable
from vergence.data.gaze_video.gazecom import Gazecom
from vergence.data.saliency.stimuli import Stimuli
from vergence.data.synthetic.ego.ego_synthetic import EgoSynthetic
from vergence.data.synthetic.toy import Toy
from vergence.errors import ConfigError, DataError, StateError
from vergence.experiment.run import start
from vergence.experiment.schema import check
from vergence.experiment.trained_run import one_run, read_run
from vergence.experiment.trust import trust_in_own_file, under
from vergence.experiment.validation import validate
from vergence.methods.fedavg import FedAvg
from vergence.methods.fedridge import FedRidge
from vergence.model_tools import onnx_export as exporting
from vergence.model_tools.onnx_export import (
    TOLERANCE,
    CallShape,
    assembled,
    check_reducible,
    check_shape,
    converted,
    export,
    opened_again,
    pace,
    parity,
    shaped,
    singles,
    timed,
)
from vergence.model_tools.reduced_precision import precision_of
from vergence.models.glc import glc_vit
from vergence.models.glc.glc_causal import GlcCausal
from vergence.models.glc.glc_features import GlcFeatures
from vergence.models.glc.glc_vit import GlcVit
from vergence.models.kernel_eye import KernelEye
from vergence.models.lenet import LeNet
from vergence.models.personal_eye import PersonalEye
from vergence.models.resnet18 import ResNet18
from vergence.models.resnet_preact import ResNetPreact
from vergence.models.small_eye import SmallEye
from vergence.models.softmax import Softmax
from vergence.results.read import read
from vergence.tasks.gaze_angle import GazeAngle
from vergence.tasks.gaze_map import GazeMap
from vergence.tasks.images import Images
from vergence.training.sequential import Solver

ROOT = Path(__file__).parents[2]
EYES = """
task       = { name = "gaze_angle" }
model      = { name = "small_eye", channels = [4, 4], hidden = 8 }
federation = { name = "eye_synthetic", people = 3, samples = 40, days = [3, 3], size = "9x15" }
methods    = ["fedavg", "fedper", "local_only"]
local      = { optimizer = "sgd", epochs = 1, batch = 16, lr = 0.05 }
run        = { rounds = 1, evaluate_every = 0, workers = 1 }
"""


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    """Time every file three times instead of as often as fits into seconds."""
    monkeypatch.setattr(exporting, "medians", partial(exporting.medians, rounds=3))


def quiet():
    return Console(file=io.StringIO(), width=120)


def eyes(height, width, n=3):
    drawn = torch.Generator().manual_seed(0)
    return Samples(
        {
            "image": torch.randint(256, (n, 1, height, width), dtype=torch.uint8, generator=drawn),
            "pose": torch.randn(n, 2, generator=drawn) / 10,
            "gaze": torch.randn(n, 2, generator=drawn) / 10,
        }
    )


def clips(window, height, width, n=2):
    drawn = torch.Generator().manual_seed(0)
    shape = (n * window, height, width, 3)
    frames = torch.randint(256, shape, dtype=torch.uint8, generator=drawn)
    columns = {
        "ids": torch.arange(n * window).view(n, window),
        "points": torch.full((n, window, 1, 2), 0.5),
    }
    return Samples(columns, {"frames": SharedRows(frames, "ids")})


def trained(task, scale=0.05):
    """Initial parameters and some noise, so that no bias is zero and maps are not flat."""
    start = task.init()
    noise = torch.randn(start.layout.n, generator=torch.Generator().manual_seed(2))
    return start + start.like(noise * scale)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "data"),
    [
        (GazeAngle(LeNet((4, 8))), eyes(36, 60)),
        (GazeAngle(SmallEye()), eyes(9, 15)),
        (GazeAngle(ResNetPreact(4, 2)), eyes(9, 15)),
        (GazeAngle(ResNet18(8, 4)), eyes(36, 60)),
        (GazeMap(GlcVit("tiny64"), temperature=2.0), clips(4, 64, 64)),
        (Images(Softmax((1, 8, 8), 5)), eyes(8, 8)),
    ],
    ids=lambda value: type(value.network).__name__ if hasattr(value, "network") else "",
)
def test_the_file_says_what_torch_says(task, data, monkeypatch):
    monkeypatch.setattr(glc_vit, "BLOCKS", 2)  # of eight that are alike
    params = trained(task)
    first = data.take(slice(0, 1))
    whole = assembled(task, params, first)
    file = converted(whole, first, {})
    onnx.checker.check_model(onnx.load_from_string(file), full_check=True)
    session = opened_again(file)
    assert parity(whole, session, singles(data)) <= TOLERANCE
    assert all(type(size) is int for value in session.get_inputs() for size in value.shape)
    assert all(time > 0 for time in timed(whole, session, first))
    assert session.get_inputs()[0].type == "tensor(uint8)"
    if isinstance(task, GazeMap):
        (heat,) = session.run(None, {"frames": first["frames"].numpy()})
        np.testing.assert_allclose(heat.sum((2, 3)), np.ones((1, 4)), rtol=1e-5)
    other = whole.network.load_state_dict  # parity must be able to fail
    other({n: 1.1 * t for n, t in whole.network.state_dict().items()})
    assert parity(whole, session, singles(data)) > TOLERANCE


@pytest.mark.slow
def test_frozen_features_are_computed_inside(monkeypatch, tmp_path):
    """From uint8 frames on; the run's own features are rounded to half precision."""
    monkeypatch.setenv("VERGENCE_CACHE", str(tmp_path))
    task, data = GazeMap(GlcFeatures(16, 2, 1, (6, 8))), clips(2, 48, 64, 1)
    params = trained(task, 0.02)
    first = data.take(slice(0, 1))
    whole = assembled(task, params, first)
    session = opened_again(converted(whole, first, {}))
    assert parity(whole, session, singles(data)) <= TOLERANCE
    (heat,) = session.run(None, {"frames": first["frames"].numpy()})
    ready = task.network.prepare(Federation("one", {"a": Splits(data, data, data)}))
    logits = Solver(task).outputs(params, ready.people["a"].test)
    run_s = logits.flatten(2).softmax(-1).view(logits.shape).numpy()
    assert np.abs(heat - run_s).max() / run_s.max() < 0.01


@pytest.mark.slow
@pytest.mark.parametrize(
    ("blocks", "inputs"),
    [
        (0, {"motion": True}),
        pytest.param(1, {"motion": True}, marks=pytest.mark.nightly),
        pytest.param(0, {"reference": "motion"}, marks=pytest.mark.nightly),
        (0, {"motion": True, "reference": "motion"}),
    ],
)
def test_a_stream_s_file_takes_a_frame_and_the_state(monkeypatch, tmp_path, blocks, inputs):
    """Seven frames one by one, each with the state that the file gave: torch's maps of the clip.

    The run's own features are rounded to half precision.
    """
    monkeypatch.setenv("VERGENCE_CACHE", str(tmp_path))
    task, data = GazeMap(GlcCausal(16, 2, blocks, (6, 8), context=3, **inputs)), clips(7, 48, 64, 1)
    params = trained(task)
    first = data.take(slice(0, 1))
    whole = assembled(task, params, first)
    session = opened_again(converted(whole, first, {}))
    taken = ["frame", "last_maps", "last_summaries", "last_mean", "last_seen"]
    assert [value.name for value in session.get_inputs()] == taken
    assert [value.name for value in session.get_outputs()] == [
        "map",
        *(name.replace("last", "next") for name in taken[1:]),
    ]
    assert parity(whole, session, singles(data)) <= TOLERANCE
    state = [value.numpy() for value in whole.arguments(first)[1:]]
    heats = []
    for frame in first["frames"].unbind(1):
        heat, *state = session.run(None, dict(zip(taken, (frame.numpy(), *state), strict=True)))
        heats.append(heat[0])
    ready = task.network.prepare(Federation("one", {"a": Splits(data, data, data)}))
    logits = Solver(task).outputs(params, ready.people["a"].test)[0]
    run_s = logits.flatten(1).softmax(-1).view(logits.shape).numpy()
    assert np.abs(np.stack(heats) - run_s).max() / run_s.max() < 0.01
    assert np.abs(np.diff(run_s, axis=0)).max() / run_s.max() > 0.01
    with torch.no_grad():
        whole.network.past.weight.mul_(1.5)  # parity must be able to fail
    assert parity(whole, session, singles(data)) > TOLERANCE


@pytest.mark.nightly
def test_a_windowed_file_with_motion_is_given_frames_alone(monkeypatch, tmp_path):
    monkeypatch.setenv("VERGENCE_CACHE", str(tmp_path))
    options = GlcFeatures(16, 2, 1, (6, 8), standardise=False, motion=True)
    task, data = GazeMap(options), clips(3, 48, 64, 1)
    params = trained(task, 0.02)
    first = data.take(slice(0, 1))
    whole = assembled(task, params, first)
    session = opened_again(converted(whole, first, {}))
    assert parity(whole, session, singles(data)) <= TOLERANCE
    (heat,) = session.run(None, {"frames": first["frames"].numpy()})
    ready = task.network.prepare(Federation("one", {"a": Splits(data, data, data)}))
    logits = Solver(task).outputs(params, ready.people["a"].test)
    run_s = logits.flatten(2).softmax(-1).view(logits.shape).numpy()
    assert np.abs(heat - run_s).max() / run_s.max() < 0.01


@pytest.mark.nightly
def test_windows_of_any_length_and_batches_of_any_size(monkeypatch, tmp_path):
    """Sizes that the file was not made with answer as torch does, each with its own frames."""
    monkeypatch.setenv("VERGENCE_CACHE", str(tmp_path))
    task, data = GazeMap(GlcFeatures(16, 2, 1, (6, 8))), clips(3, 48, 64)
    shape = CallShape("dynamic", "dynamic")
    whole = assembled(task, trained(task, 0.02), data.take(slice(0, 1)))
    assert check_shape(whole, data, shape) == 3
    cases = list(shaped(whole, data, shape))
    sizes = {tuple(batch["frames"].shape[:2]) for batch in cases}
    assert sizes == {(count, length) for count in (1, 2, 3) for length in (1, 3, 6)}
    session = opened_again(converted(whole, cases[-1], {}, shape))
    assert session.get_inputs()[0].shape[:2] == ["batch", "frames"]
    other = {"frames": torch.cat([cases[-1]["frames"], cases[-1]["frames"][:2]])[:, :5]}
    assert parity(whole, session, [*cases, other]) <= TOLERANCE
    fixed = CallShape(5)
    cases = list(shaped(whole, data, fixed))
    session = opened_again(converted(whole, cases[-1], {}, fixed))
    assert session.get_inputs()[0].shape == [1, 5, 48, 64, 3]
    assert parity(whole, session, cases) <= TOLERANCE


EGO = """
task       = { name = "gaze_map", criterion = "kl" }
model      = { name = "glc_vit", preset = "tiny64" }
federation = { name = "ego_synthetic", people = 1, clips = 10, windows = 1, span = "glc" }
method     = { name = "local_only" }
local      = { optimizer = "sgd", steps = 1, batch = 2 }
run        = { rounds = 1, evaluate_every = 0, workers = 1 }
"""
PACES = [
    (GazeTable(), "0.25"),
    (GazeTable(clip_s=5.0, window=8), "0.625"),
    (Stimuli(preset="tobii_pro_lab", step_s=0.5), "0.5"),
    (Gazecom(every_s=0.4), "0.4"),
    (EgoSynthetic(window=4, seconds=5, fps=24), "1.25"),
    (EgoSynthetic(window=8, span="glc", fps=32), "0.25"),
    (Toy(), None),
]


@pytest.mark.parametrize(("data", "step_s"), PACES)
def test_the_pace_of_frames_is_that_of_the_data(data, step_s):
    assert pace(data, clips(4, 8, 8)).get("step_s") == step_s
    assert not pace(data, clips(1, 8, 8)), "a picture has no pace"
    assert not pace(data, eyes(8, 8))


def test_the_pace_of_generated_video_is_that_of_the_frames_taken():
    data = EgoSynthetic(window=8, span="glc", fps=32)
    steps = np.diff(data._windows(160)) / data.fps
    assert data.frame_step_s is not None
    assert np.abs(steps - data.frame_step_s).max() <= 1 / data.fps


@pytest.mark.slow
def test_a_file_of_video_says_its_pace(monkeypatch, tmp_path):
    monkeypatch.setattr(glc_vit, "BLOCKS", 1)
    folder = run(tmp_path, EGO)
    export(folder, tmp_path / "ego.onnx", quiet(), "p00")
    told = {p.key: p.value for p in onnx.load(tmp_path / "ego.onnx").metadata_props}
    assert (told["window"], float(told["step_s"])) == ("4", pytest.approx(64 / 24 / 4, rel=1e-5))


@pytest.mark.parametrize(
    ("task", "data"),
    [
        (GazeAngle(LeNet((4, 8))), eyes(36, 60)),
        (GazeMap(GlcVit("tiny64")), clips(4, 64, 64)),
        (Images(Softmax((1, 8, 8), 5)), eyes(8, 8)),
    ],
    ids=["lenet", "glc_vit", "softmax"],
)
@pytest.mark.slow
def test_batches_of_any_size(task, data, monkeypatch):
    monkeypatch.setattr(glc_vit, "BLOCKS", 2)
    shape = CallShape(batch="dynamic")
    whole = assembled(task, trained(task), data.take(slice(0, 1)))
    cases = list(shaped(whole, data, shape))
    file = converted(whole, cases[-1], {}, shape)
    assert {len(batch[whole.columns[0]]) for batch in cases} == {1, 2, 3}
    assert parity(whole, opened_again(file), cases) <= TOLERANCE
    told = {p.key: p.value for p in onnx.load_from_string(file).metadata_props}
    assert "shape [batch, " in told[f"input {whole.columns[0]}"]


def test_shapes_that_a_network_cannot_be_called_in(monkeypatch):
    eye, data = GazeAngle(LeNet((2, 4))), eyes(36, 60)
    whole = assembled(eye, trained(eye), data.take(slice(0, 1)))
    with pytest.raises(ConfigError, match="lenet is given single images: leave out --frames"):
        check_shape(whole, data, CallShape(4))
    with pytest.raises(ConfigError, match="--batch must be 1 or more, or dynamic, got 0"):
        check_shape(whole, data, CallShape(batch=0))
    monkeypatch.setattr(glc_vit, "BLOCKS", 1)
    vit, data = GazeMap(GlcVit("tiny64")), clips(4, 64, 64)
    whole = assembled(vit, trained(vit), data.take(slice(0, 1)))
    with pytest.raises(ConfigError, match="glc_vit takes windows of 4 frames and no others"):
        check_shape(whole, data, CallShape(8))
    assert check_shape(whole, data, CallShape(4)) == 4


def test_a_stream_keeps_its_state_form_and_motion_its_number_of_frames():
    causal, data = GazeMap(GlcCausal(16, 2, 0, (6, 8), context=3)), clips(2, 48, 64, 1)
    whole = assembled(causal, trained(causal), data.take(slice(0, 1)))
    with pytest.raises(ConfigError, match="glc_causal is given one frame after the other"):
        check_shape(whole, data, CallShape("dynamic"))
    moving = GazeMap(GlcFeatures(16, 2, 0, (6, 8), motion=True))
    whole = assembled(moving, trained(moving), data.take(slice(0, 1)))
    with pytest.raises(ConfigError, match="with motion follows a window frame by frame"):
        check_shape(whole, data, CallShape("dynamic"))


@pytest.mark.slow
def test_a_column_that_the_network_leaves_alone_is_not_asked_for():
    task, data = GazeAngle(SmallEye(pose=False)), eyes(9, 15)
    first = data.take(slice(0, 1))
    whole = assembled(task, trained(task), first)
    session = opened_again(converted(whole, first, {}))
    assert [value.name for value in session.get_inputs()] == ["image"]
    assert parity(whole, session, singles(data)) <= TOLERANCE


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return run(tmp_path_factory.mktemp("export"), EYES)


def test_a_person_s_file_is_what_that_person_predicts_with(folder, tmp_path):
    """FedPer's heads are personal: the file must give the outputs the run's tables are made of."""
    said, out = io.StringIO(), tmp_path / "ann.onnx"
    made = export(folder / "fedper", out, Console(file=said, width=120), "p01")
    assert made.difference <= TOLERANCE
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    loaded = validate(one_run(folder / "fedper"))
    trained = read_run(folder / "fedper").on_data(loaded.ready)
    test = loaded.ready.people["p01"].test
    each = [test.take(slice(i, i + 1)) for i in range(len(test))]
    asked = [{name: batch[name].numpy() for name in ("image", "pose")} for batch in each]
    gaze = [session.run(None, one)[0] for one in asked]
    own = trained.outputs(trained.model("p01"), test).numpy()
    other = trained.outputs(trained.model("p02"), test).numpy()
    assert np.abs(np.concatenate(gaze) - own).max() <= TOLERANCE
    assert np.abs(np.concatenate(gaze) - other).max() > 1e-3
    assert "onnxruntime" in said.getvalue()
    assert f"model: {out}" in said.getvalue()


@pytest.mark.slow
def test_the_file_says_what_it_is(folder, tmp_path):
    out = tmp_path / "new.onnx"
    export(folder / "fedavg", out, quiet())
    told = {p.key: p.value for p in onnx.load(out).metadata_props}
    assert "radians" in told["output gaze"]
    assert "-cos p sin y, -sin p, -cos p cos y" in told["output gaze"]
    assert told["input image"].startswith("uint8")
    assert told["input image"].endswith("[1, 1, 9, 15]")
    assert told["person"] == "newcomer"
    assert told["method"] == "fedavg"
    saved = read_run(folder / "fedavg")
    assert told["fingerprint"] == saved.fingerprint
    assert told["data_licence"] == validate(saved.experiment).raw.about["licence"]


def test_who_and_what_cannot_be_exported_is_said(folder, tmp_path):
    out = tmp_path / "x.onnx"
    with pytest.raises(ConfigError, match=r"no person 'p0'.*did you mean"):
        export(folder / "fedavg", out, quiet(), "p0")
    with pytest.raises(ConfigError, match=r"no whole model for a newcomer.*p00, p01, p02"):
        export(folder / "local_only", out, quiet())
    with pytest.raises(ConfigError, match="no whole model for a newcomer"):
        export(folder / "fedper", out, quiet())
    with pytest.raises(StateError, match="several methods"):
        export(folder, out, quiet())
    with pytest.raises(StateError, match="seed 7 is not finished"):
        export(folder / "fedavg", out, quiet(), seed=7)
    toys = run(tmp_path, TOY.replace("METHODS", 'method = "fedavg"'))
    with pytest.raises(ConfigError, match="task 'toy'; export takes gaze_angle, gaze_map, images"):
        export(toys, out, quiet())
    (toys / "results.json").unlink()
    with pytest.raises(StateError, match="holds no results"):
        export(toys, out, quiet())
    assert not out.exists()


@pytest.mark.slow
def test_a_file_that_differs_is_not_written(folder, tmp_path):
    out = tmp_path / "x.onnx"
    with (
        patch.object(exporting, "parity", lambda *_: 2e-5),
        pytest.raises(DataError, match=r"differs from torch by 2\.0e-05"),
    ):
        export(folder / "fedavg", out, quiet())
    assert not out.exists()


def test_without_the_extra_its_name_is_said(folder, tmp_path):
    with (
        patch.dict(sys.modules, {"onnxruntime": None}),
        pytest.raises(ConfigError, match=r"onnxruntime: pip install 'vergence\[export\]'"),
    ):
        export(folder / "fedavg", tmp_path / "x.onnx", quiet())


def test_parameters_are_those_given():
    """`built` must not leave the initial parameters in the network."""
    task = GazeAngle(SmallEye())
    params = trained(task)
    whole = assembled(task, params, eyes(9, 15).take(slice(0, 1)))
    assert torch.equal(Params.of(whole.network.requires_grad_(True)).flat, params.flat)


@pytest.mark.parametrize("kept", ["statistics", "layers"])
def test_a_person_s_file_holds_the_statistics_of_that_person(kept, tmp_path):
    """BatchNorm counts at home; in the file it is what torch predicts with, for each person."""
    table = tomllib.loads((ROOT / "experiments" / "batch_norm_eyes.toml").read_text())
    table["model"]["name"] = str(ROOT / "experiments" / "batch_norm_eyes.py")
    table["federation"] |= {"people": 2, "samples": 40, "days": [3, 3]}
    del table["methods"]
    changed = {"method": {"name": "fedbn", "at_home": kept}, "run": {"rounds": 2}}
    with under(trust_in_own_file()):
        start(check({**table, **changed}), tmp_path / "out")
    with under(replace(trust_in_own_file(), trust_code=True)):
        loaded = validate(one_run(tmp_path / "out"))
        trained = read_run(tmp_path / "out").on_data(loaded.ready)
        for person, other in (("p00", "p01"), ("p01", "p00")):
            out = tmp_path / f"{person}.onnx"
            made = export(tmp_path / "out", out, quiet(), person)
            assert made.difference <= TOLERANCE
            session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
            test = loaded.ready.people[person].test
            each = [test.take(slice(i, i + 1)) for i in range(len(test))]
            asked = [{name: batch[name].numpy() for name in ("image", "pose")} for batch in each]
            gaze = np.concatenate([session.run(None, one)[0] for one in asked])
            own, others = (
                trained.outputs(trained.model(who), test).numpy() for who in (person, other)
            )
            assert np.abs(gaze - own).max() <= TOLERANCE
            assert np.abs(gaze - others).max() > 1e-3


@pytest.mark.parametrize(
    ("method", "network", "inside"),
    [
        (FedRidge(), KernelEye(features=4, own_centres=3), True),
        (FedRidge(), KernelEye(features=4, own_centres=0), False),
        (FedRidge(), SmallEye(channels=(2, 2), hidden=2), False),
        # Gradient steps move centres that begin at zero: they are no samples.
        (FedAvg(), KernelEye(features=4, own_centres=3), False),
        (FedAvg(), PersonalEye(), True),
    ],
)
def test_whether_a_file_has_a_persons_samples_inside(method, network, inside):
    trained = SimpleNamespace(method=method, task=GazeAngle(network))
    assert exporting.has_samples(trained) == inside


@pytest.mark.slow
def test_somebody_elses_script_makes_eight_bits_of_the_file(tmp_path):
    """The first lines of onnxruntime's own page on dynamic quantization, in another process."""
    out, task, data = tmp_path / "new.onnx", GazeAngle(SmallEye()), eyes(9, 15)
    first = data.take(slice(0, 1))
    out.write_bytes(converted(assembled(task, trained(task), first), first, {}))
    script = (
        "import sys, onnxruntime\n"
        "from onnxruntime.quantization import quantize_dynamic\n"
        "quantize_dynamic(sys.argv[1], sys.argv[2])\n"
        "onnxruntime.InferenceSession(sys.argv[2])\n"
    )
    command = [sys.executable, "-c", script, str(out), str(tmp_path / "q.onnx")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "q.onnx").stat().st_size < out.stat().st_size


def test_no_constant_has_a_second_shape(folder, tmp_path):
    out = tmp_path / "new.onnx"
    export(folder / "fedavg", out, quiet())
    graph = onnx.load(out).graph
    assert graph.value_info, "the shapes of other values stay"
    constants = {value.name for value in graph.initializer}
    assert constants.isdisjoint(value.name for value in graph.value_info)


def test_inputs_have_units_and_ranges(folder, tmp_path):
    out = tmp_path / "new.onnx"
    export(folder / "fedavg", out, quiet())
    model = onnx.load(out)
    about = {p.key: p.value for p in model.metadata_props}
    for value in model.graph.input:
        assert about[f"input {value.name}"]
        assert about[f"unit {value.name}"]
        assert about[f"range {value.name}"]
    assert (about["unit pose"], about["unit gaze"]) == ("radian", "radian")
    assert about["range image"] == "0 to 255"
    assert about["opset"] == str(model.opset_import[0].version)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float16", "int8 static", "int8 dynamic"])
def test_smaller_numbers_are_compared_with_float32(folder, tmp_path, precision):
    full, out, screen = tmp_path / "full.onnx", tmp_path / "small.onnx", io.StringIO()
    export(folder / "fedavg", full, quiet())
    made = export(folder / "fedavg", out, Console(file=screen, width=120), precision=precision)
    reduction = made.reduction
    assert reduction is not None
    assert reduction.people == 3
    assert out.stat().st_size == reduction.sizes[1]
    # What the table says of float32 is what the run says of its people.
    scores = read(folder / "fedavg").runs[0].scores("angle_error_deg")
    assert reduction.errors[0] == pytest.approx(np.mean([*scores.values()]), abs=1e-4)
    assert reduction.errors[1] == pytest.approx(reduction.errors[0], abs=0.5)
    assert 0 < made.difference < 0.05
    assert f"{reduction.errors[1]:.3f}" in screen.getvalue()
    old, new = ({p.key: p.value for p in onnx.load(path).metadata_props} for path in (full, out))
    assert new == {**old, "precision": precision}
    sessions = [onnxruntime.InferenceSession(path) for path in (full, out)]
    kinds = [[(v.name, v.type, v.shape) for v in each.get_inputs()] for each in sessions]
    assert kinds[0] == kinds[1]


@pytest.mark.slow
def test_ranges_are_of_training_samples_of_people_who_took_part(folder, tmp_path, monkeypatch):
    asked = []

    def noted(data, precision, feeds):
        asked.extend(feeds)
        return exporting_reduced(data, precision, feeds)

    exporting_reduced = exporting.reduced
    monkeypatch.setattr(exporting, "reduced", noted)
    export(folder / "fedavg", tmp_path / "x.onnx", quiet(), precision="int8 static")
    people = read_run(folder / "fedavg").loaded.raw.people.values()
    train = {row.tobytes() for who in people for row in who.train.columns["image"].numpy()}
    shown = {feed["image"][0].tobytes() for feed in asked}
    assert len(shown) > 20
    assert shown <= train


def test_smaller_numbers_that_are_refused(folder, tmp_path):
    out = tmp_path / "x.onnx"
    with refuses("setting", "--int8", "--float16", kind=ConfigError):
        precision_of("static", True)
    shape = CallShape(batch=4)
    with refuses("setting", "--batch", kind=ConfigError):
        export(folder / "fedavg", out, quiet(), shape=shape, precision="float16")
    results = {"privacy": {"person": {"epsilon": 8.0}}}
    private = SimpleNamespace(folder=out, results=results)
    with refuses("setting", "privacy budget", "--int8 dynamic", kind=ConfigError):
        check_reducible(private, CallShape(), "int8 static")
    check_reducible(private, CallShape(), "int8 dynamic")
    assert not out.exists()
