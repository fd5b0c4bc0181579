"""`examples/predict.cpp` answers as Python does, with an exported file and ONNX Runtime alone."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from vergence.core.params import Params
from vergence.model_tools.onnx_export import assembled, converted
from vergence.models.small_eye import SmallEye
from vergence.tasks.gaze_angle import GazeAngle

SAMPLE = Path(__file__).parents[2] / "examples" / "predict.cpp"
COUNT = 1000


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The compiled program; skipped where there is no compiler, or no library to link with."""
    compiler = shutil.which("c++")
    library = next((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*"), None)
    if compiler is None or library is None:
        pytest.skip("no C++ compiler" if compiler is None else "onnxruntime has no shared library")
    folder = tmp_path_factory.mktemp("cpp")
    # The name that the library calls itself, by which the program finds it.
    (folder / "libonnxruntime.so.1").symlink_to(library)
    command = [compiler, "-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", str(SAMPLE)]
    command += [str(folder / "libonnxruntime.so.1"), f"-Wl,-rpath,{folder}"]
    built = subprocess.run(
        [*command, "-o", str(folder / "predict")], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    return folder / "predict"


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    """A folder with a model of eyes and the pictures and head poses of a thousand samples."""
    folder, rng = tmp_path_factory.mktemp("samples"), np.random.default_rng(0)
    image = rng.integers(0, 256, (COUNT, 1, 9, 15), dtype=np.uint8)
    pose = rng.normal(0, 0.2, (COUNT, 2)).astype(np.float32)
    np.save(folder / "image.npy", image)
    np.save(folder / "pose.npy", pose)
    task = GazeAngle(SmallEye())
    start = task.init()
    noise = torch.randn(start.layout.n, generator=torch.Generator().manual_seed(2))
    params: Params = start + start.like(noise * 0.05)
    first = {"image": torch.from_numpy(image[:1]), "pose": torch.from_numpy(pose[:1])}
    file = converted(assembled(task, params, {**first, "gaze": torch.zeros(1, 2)}), first, {})
    (folder / "eye.onnx").write_bytes(file)
    return folder


def answered(program, *arguments):
    command = [str(program), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_thousand_pictures_have_python_s_answers(program, samples):
    ended = answered(program, samples / "eye.onnx", samples)
    assert ended.returncode == 0, ended.stderr
    lines = [line.split(",") for line in ended.stdout.splitlines()]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(samples / "eye.onnx", options)
    image, pose = np.load(samples / "image.npy"), np.load(samples / "pose.npy")
    rows = [slice(at, at + 1) for at in range(COUNT)]
    asked = [{"image": image[row], "pose": pose[row]} for row in rows]
    python = np.concatenate([session.run(None, each)[0] for each in asked])
    assert np.std(python) > 0.01, "answers differ between pictures"
    assert np.abs(np.array(lines, np.float32) - python).max() <= 1e-7
    assert "1000 samples, median" in ended.stderr


@pytest.mark.slow
def test_what_is_no_input_of_the_model_is_refused(program, samples, tmp_path):
    for name in ("image", "pose"):
        shutil.copy(samples / f"{name}.npy", tmp_path)
    np.save(tmp_path / "pose.npy", np.load(samples / "pose.npy").astype(np.float64))
    ended = answered(program, samples / "eye.onnx", tmp_path)
    assert ended.returncode == 2
    assert "pose.npy has other numbers than the model takes, <f4" in ended.stderr
    np.save(tmp_path / "pose.npy", np.load(samples / "pose.npy")[:-1])
    ended = answered(program, samples / "eye.onnx", tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "pose.npy has rows of another shape or number" in ended.stderr
    (tmp_path / "pose.npy").unlink()
    assert "pose.npy is no .npy file" in answered(program, samples / "eye.onnx", tmp_path).stderr
