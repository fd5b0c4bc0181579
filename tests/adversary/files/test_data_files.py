"""41 data files that nobody meant to send: one line each, exit code 3, and no traceback."""

import ast
import io
from pathlib import Path

import pytest
from PIL import Image

import vergence
from tests.adversary.files.data_files import CHANGES, EPS, ended, spoil, twin
from tests.cli.commands import write
from tests.data.eye_images.test_mpiigaze_crops import write_crops
from vergence.data.images.image_folder import squares
from vergence.data.saliency.osie import SAMPLE
from vergence.errors import DataError
from vergence.experiment.schema import load

EXPERIMENTS = {
    "crops": """
task       = { name = "gaze_angle" }
model      = { name = "small_eye" }
federation = { name = "mpiigaze_crops", root = "ROOT" , people = 2 }
""",
    "osie": """
task       = { name = "gaze_map" }
model      = { name = "glc_vit", preset = "tiny64" }
federation = { name = "osie", root = "ROOT", size = [64, 64] }
""",
}
METHOD = """
method     = "fedavg"
local      = { optimizer = "sgd", steps = 1, batch = 2 }
run        = { rounds = 1, workers = 1, evaluate_every = 0 }
"""


def run_on(folder, kind):
    text = EXPERIMENTS[kind].replace("ROOT", str(folder)) + METHOD
    return ended("run", write(folder, text), "--out", folder / "out")


@pytest.mark.parametrize("case", CHANGES)
def test_a_changed_file_is_one_line(tmp_path, case):
    kind = case.partition(":")[0]
    write_crops(tmp_path) if kind == "crops" else twin(SAMPLE, tmp_path)
    name, change, words = CHANGES[case]
    spoil(tmp_path, name, change)
    said = run_on(tmp_path, kind)
    said.complains(3, words)
    assert said.err.strip().isprintable()
    assert not (tmp_path / "out" / "config.toml").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "people"), [("crops", 2), ("osie", 15)])
def test_the_files_that_were_changed_can_be_read(tmp_path, kind, people):
    write_crops(tmp_path) if kind == "crops" else twin(SAMPLE, tmp_path)
    text = EXPERIMENTS[kind].replace("ROOT", str(tmp_path)) + METHOD
    assert len(load(write(tmp_path, text)).federation().people) == people


def test_an_eps_called_jpg_never_reaches_its_interpreter(tmp_path, monkeypatch):
    """Pillow starts Ghostscript, if there is one, where it decodes: so far it may not come."""
    asked = []

    def run(*_, **__):
        asked.append("run")
        raise OSError("it ran")

    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", run)
    Image.init()
    with Image.open(io.BytesIO(EPS)) as picture:  # as everybody opens pictures
        assert picture.format == "EPS"
    path = tmp_path / "a.jpg"
    path.write_bytes(EPS)
    with pytest.raises(DataError, match="no JPEG, PNG, BMP, WEBP or TIFF"):
        squares([path], 32)
    assert not asked


def test_no_picture_is_opened_without_saying_of_which_formats():
    home, found = Path(vergence.__file__).parent, []
    for path in sorted(home.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            named = isinstance(node, ast.Call) and ast.unparse(node.func) == "Image.open"
            if named and "formats" not in [key.arg for key in node.keywords]:
                found.append(f"{path.relative_to(home)}:{node.lineno}")
    assert not found
