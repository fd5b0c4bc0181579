"""What one sample of DP-SGD is: counted from the data, refused where a frame is in several."""

import numpy as np
import pytest
import torch

import vergence as vg
from vergence.core.data import Samples, SharedRows, Splits
from vergence.core.federation import Federation
from vergence.engine.plan import Plan
from vergence.engine.protections.dp_sgd import refuse_overlap
from vergence.engine.protections.setup import check_privacy, protections
from vergence.errors import ConfigError
from vergence.methods.fedavg import FedAvg
from vergence.methods.split.splitfed import SplitFed
from vergence.models.small_eye import SmallEye
from vergence.privacy.config import DpSgd, Privacy
from vergence.privacy.hooks import ProtectedRun
from vergence.reports.ethics.subjects import subject
from vergence.tasks.gaze_angle import GazeAngle

PLAN = Plan(rounds=1, workers=1, privacy=Privacy(solver=DpSgd(noise=2.0, delta=1e-3)))
PIXELS = torch.randint(0, 256, (90, 1, 9, 15), generator=torch.Generator().manual_seed(0))
SIGNAL = np.random.default_rng(0).normal(size=(200, 3)).astype("float32")


def in_bank(window, hop, count=20):
    """Windows of frames, of whose first a picture is learned, from one recording."""
    ids = torch.arange(count)[:, None] * hop + torch.arange(window)
    columns = {"ids": ids, "gaze": torch.zeros(count, 2), "pose": torch.zeros(count, 2)}
    return Samples(columns, {"frames": SharedRows(PIXELS.to(torch.uint8), "ids")})


def cut(window, hop, count=30):
    return torch.from_numpy(np.stack([SIGNAL[i * hop :][:window] for i in range(count)]))


def people(samples):
    part = Splits(samples, samples, samples)
    return Federation("own", {"a": part, "b": part})


OVERLAPPING = {
    "bank, hop 1": (in_bank(4, 1), 4),
    "bank, hop 3": (in_bank(4, 3), 2),
    "arrays, hop 1": (Samples({"x": cut(8, 1)}), 8),
    "arrays, hop 2": (Samples({"x": cut(8, 2)}), 4),
    "arrays, steps last": (Samples({"x": cut(8, 4).transpose(1, 2)}), 2),
    "one channel": (Samples({"x": cut(8, 2)[..., 0]}), 4),
    "labels overlap too": (Samples({"x": torch.rand(30, 3), "y": cut(8, 2)[..., 0]}), 4),
}
APART = {
    "bank": (in_bank(4, 4), "window of 4 frames"),
    "arrays": (Samples({"x": cut(6, 6)}), "sample"),
    "a picture each": (in_bank(1, 1), "picture"),
    "the same picture again": (
        Samples({"row": torch.zeros(9, dtype=torch.int64)}, {"frames": SharedRows(PIXELS, "row")}),
        "sample",
    ),
    "one picture, several gazes": (
        Samples(
            {"row": torch.arange(9)[:, None].expand(9, 4) // 3},
            {"frames": SharedRows(PIXELS, "row")},
        ),
        "window of 4 frames",
    ),
    "pictures": (Samples({"image": PIXELS}), "picture"),
    "pictures alike": (Samples({"image": torch.zeros(30, 28, 28)}), "picture"),
    "features": (Samples({"x": torch.rand(30, 40)}), "sample"),
    "classes": (Samples({"x": torch.eye(4)[torch.arange(40) % 4]}), "sample"),
    "bits": (Samples({"x": (torch.arange(240).view(40, 6) * 7 % 3) // 2}), "sample"),
    "nobody's": (Samples({"absent": torch.empty(0, 0)}), "sample"),
}


@pytest.mark.parametrize("name", OVERLAPPING)
def test_windows_that_overlap_are_refused_with_the_numbers(name):
    samples, most = OVERLAPPING[name]
    assert samples.overlap() == most
    with pytest.raises(ConfigError, match=f"one frame of 'a' is in {most} of them .*hop = window"):
        refuse_overlap(people(samples))


@pytest.mark.parametrize("name", APART)
def test_samples_that_share_no_frame_in_part_are_taken_and_called_what_they_are(name):
    samples, kind = APART[name]
    assert (samples.overlap(), samples.kind) == (1, kind)
    refuse_overlap(people(samples))


@pytest.mark.parametrize("method", [FedAvg(), SplitFed()])
def test_every_door_refuses_them(method):
    task, data = GazeAngle(SmallEye()), people(in_bank(4, 1))
    run = ProtectedRun(method, task, data, 1)
    solver = protections(PLAN)[0]
    for door in (lambda: solver.forecast(run), lambda: check_privacy(method, task, data, PLAN)):
        with pytest.raises(ConfigError, match="is in 4 of them"):
            door()


def test_own_arrays_are_refused_before_they_train():
    windows = np.stack([SIGNAL[i : i + 8] for i in range(150)])
    own = vg.Federation.from_arrays({"a": (windows, windows[:, -1, 0])})
    task = vg.task_from(
        lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(24, 1)),
        torch.nn.functional.mse_loss,
    )
    privacy = {"solver": {"name": "dp_sgd", "noise": 2.0, "delta": 1e-3}}
    with pytest.raises(ConfigError, match="is in 8 of them"):
        vg.train(FedAvg(), task, own, rounds=1, privacy=privacy)


def test_the_promise_and_the_page_say_what_the_data_are():
    task, data, kind = GazeAngle(SmallEye()), people(in_bank(4, 4)), "window of 4 frames"
    (promise, *_) = protections(PLAN)[0].forecast(ProtectedRun(FedAvg(), task, data, 1))
    assert f"for one {kind}, not for the person" in promise.text
    words = subject(task, data)
    assert (words.sample, words.samples) == (kind, "windows of 4 frames")
    assert f"one person or {kind}" in dict(words.glossary)["epsilon"]
    assert subject(task, people(APART["pictures"][0])).sample == "picture"
