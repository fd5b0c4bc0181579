"""`examples/live.py` needs numpy, onnxruntime and av alone."""

import numpy as np
import pytest

from tests.conftest import ROOT
from tests.live.fabricated import STREAM, WINDOWS, dots, places, without, write_model

BLOCKED = {"torch", "vergence", "PIL", "matplotlib", "scipy", "pandas", "onnx", "cv2"}
RUN = f"import runpy; runpy.run_path({str(ROOT / 'examples' / 'live.py')!r}, run_name='__main__')"


def points(text):
    return np.array([[float(word) for word in line.split()[2:5:2]] for line in text.splitlines()])


@pytest.mark.parametrize("frames", [None, "frames", 3])
def test_it_prints_a_point_for_every_frame(tmp_path, frames):
    text = STREAM if frames is None else WINDOWS.format(frames=frames)
    model = write_model(tmp_path / "m.onnx", text, window="3")
    done = without(BLOCKED, RUN, model, dots(tmp_path / "a.mp4", 6))
    assert done.returncode == 0, done.stderr
    true, first = places(6), 2 if frames == 3 else 0
    if frames is not None:
        true = np.stack([true[max(0, n - 2) : n + 1].mean(0) for n in range(6)])
    np.testing.assert_allclose(points(done.stdout), true[first:], atol=0.02)
    assert done.stdout.splitlines()[0].startswith(f"{first} x ")


def test_too_few_frames_are_said(tmp_path):
    model = write_model(tmp_path / "m.onnx", WINDOWS.format(frames=8))
    done = without(BLOCKED, RUN, model, dots(tmp_path / "a.mp4", 6))
    assert done.returncode == 1
    assert "fewer frames than the model's window" in done.stderr
