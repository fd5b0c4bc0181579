"""`vergence adapt` on a run directory and samples that somebody sent: no code, no NaN, one line."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tests.adaptation.test_adapted_run import EYES
from tests.cli.commands import run, vergence
from vergence.adaptation.choice import choose
from vergence.adaptation.fine_tuning import SHARED
from vergence.core.randomness import RandomStream
from vergence.data.own_samples import read_samples
from vergence.data.synthetic.eyes.eye_synthetic import EyeSynthetic
from vergence.engine.storage.run_directory import sealed_manifest
from vergence.experiment import checksums
from vergence.experiment.trained_run import read_run

SERVER = "state/seed0.server.1.safetensors"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return run(tmp_path_factory.mktemp("eyes"), EYES)


@pytest.fixture(scope="module")
def columns():
    """A fourth person's samples."""
    people = EyeSynthetic(people=4, samples=60, days=(3, 3), size="9x15").load().people
    return {name: rows.numpy() for name, rows in people["p03"].train.columns.items()}


@pytest.fixture
def received(trained, tmp_path):
    return Path(shutil.copytree(trained, tmp_path / "received"))


def written(path: Path, columns, **more) -> Path:
    np.savez(path, allow_pickle=True, **{**columns, **more})
    return path


def adapted(received: Path, data: Path, samples: int = 6):
    """The command on a folder whose maker sealed it anew."""
    (received / checksums.NAME).unlink(missing_ok=True)
    checksums.seal(received)
    out = data.parent / "me"
    return vergence("adapt", received, "--data", data, "--out", out, "--samples", samples), out


def changed(received: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Change the model that the server ended with, and every digest of it."""
    path, manifest = received / SERVER, received / "state" / "checkpoint.json"
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    with safe_open(path, "pt") as file:
        about = file.metadata()
    save_file({n: change(t) for n, t in load_file(path).items()}, path, about)
    text = manifest.read_text().replace(before, hashlib.sha256(path.read_bytes()).hexdigest())
    told = json.loads(text)
    del told["sha256"]
    manifest.write_bytes(sealed_manifest(told))


def spoiled(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """The last number of a model, its last bias, becomes another."""

    def change(rows: torch.Tensor) -> torch.Tensor:
        rows = rows.clone()
        if rows.is_floating_point():
            rows.view(-1)[-1] = value
        return rows

    return change


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("samples", [0, 6])
def test_a_model_that_answers_nan_is_given_to_nobody(received, columns, tmp_path, value, samples):
    changed(received, spoiled(value))
    data = written(tmp_path / "mine.npz", columns)
    said, out = adapted(received, data, samples)
    said.complains(2, "the shared model answers NaN or infinity")
    assert not (out / "config.toml").exists()


class Diverging:
    """Stands for an `Adapter` one of whose ways is NaN on the samples that it is bad at."""

    fitted = ()
    ways = ()

    def __init__(self, trained) -> None:
        self.trained = trained
        self.labelled = trained.ready.people["p00"].train

    def fit(self, way, rows, stream):
        return way

    def outputs_at(self, way, rows):
        gaze = self.labelled.columns["gaze"][rows].double()
        if way == SHARED:
            return gaze + 0.01
        return torch.where((rows < 4)[:, None], gaze, torch.full_like(gaze, torch.nan))


def test_a_way_that_diverges_on_half_of_the_samples_is_not_chosen(trained):
    """Judged on those samples alone on which it is finite, it would be the best of all."""
    adapter = Diverging(read_run(trained))
    choice = choose(adapter, ["last layer"], torch.arange(8), RandomStream("x"))  # type: ignore[arg-type]
    assert choice.way == SHARED
    assert np.isnan(choice.errors["last layer"])


@pytest.mark.parametrize("part", ["task", "model", "federation", "method"])
def test_no_code_of_a_received_run_is_run(received, columns, tmp_path, part):
    (received / "x.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    config = received / "config.toml"
    lines = config.read_text().splitlines()
    lines[lines.index(f"[{part}]") + 1] = f'name = "{received / "x.py"}"'
    config.write_text("\n".join(lines))
    said, out = adapted(received, written(tmp_path / "mine.npz", columns))
    said.complains(2, "is Python code and would run here")
    assert not (tmp_path / "ran").exists()
    assert not out.exists()


def test_samples_run_no_code_either(received, columns, tmp_path):
    class Evil:
        def __reduce__(self):
            return open, (str(tmp_path / "ran"), "w")

    rows = np.empty(len(columns["gaze"]), object)
    rows[:] = Evil()
    said, _ = adapted(received, written(tmp_path / "mine.npz", columns, gaze=rows))
    said.complains(3, "cannot be loaded when allow_pickle=False")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("kind", [">f4", ">f8", "longdouble", "uint16", ">i4", "uint64"])
def test_numbers_of_any_size_and_order_are_read(columns, tmp_path, kind):
    """torch has no such types, or does not compute with them."""
    gaze = np.arange(len(columns["gaze"]))[:, None].repeat(2, 1)
    path = written(tmp_path / "mine.npz", columns, gaze=gaze.astype(kind))
    found = read_samples(path).columns["gaze"]
    assert found.abs().max() == len(gaze) - 1
    assert found.dtype in (torch.float32, torch.int32, torch.int64)
