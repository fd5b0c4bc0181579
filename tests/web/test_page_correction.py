"""The page's correction is that of `vergence adapt`: the same way, errors and angles to 1e-4."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import norm, t

from tests.cli.commands import run
from vergence.adaptation.adapted_run import open_source
from vergence.adaptation.choice import AGAINST_OTHERS, choose, units
from vergence.adaptation.fine_tuning import SHARED, Adapter
from vergence.adaptation.other_people import RESIDUAL
from vergence.adaptation.own_data import OwnData, prepare_person
from vergence.core.data import Samples
from vergence.core.randomness import RandomStream
from vergence.data.synthetic.eyes.eye_synthetic import EyeSynthetic
from vergence.training.residual_kernel import DEFAULT

PAGE = Path(__file__).parents[2] / "src" / "vergence" / "web"
PORTABLE = ["shrunk offset", "shrunk affine", RESIDUAL]
EYES = """
task       = { name = "gaze_angle" }
model      = { name = "small_eye", channels = [4, 4], hidden = 8 }
federation = { name = "eye_synthetic", people = 3, samples = 60, days = [3, 3], size = "9x15" }
method     = "fedavg"
local      = { optimizer = "adamw", epochs = 1, batch = 16, lr = 3e-3 }
run        = { rounds = 3, evaluate_every = 0, workers = 1 }
"""
SCRIPT = """
import { readFileSync } from "node:fs";
const page = await import(process.argv[2]);
const { samples, others, variances, wide } = JSON.parse(readFileSync(0));
const ready = (each) => ({ ...each, inputs: page.personInputs(each.pixels, each.pose, each.side) });
const known = samples.map(ready), rest = others.map(ready);
const chosen = page.choose(known, variances, wide, page.RESIDUAL);
const angles = {};
for (const way of ["shared model", ...Object.keys(page.WAYS)]) {
  const made = page.fit(way, known, variances);
  angles[way] = rest.map((each) => page.corrected(made, each.predicted, each.inputs));
}
const first = page.fit(chosen.way, known, variances);
const degrees = rest.map((each) => page.errorDegrees(
  page.corrected(first, each.predicted, each.inputs), each.gaze));
console.log(JSON.stringify({ ...chosen, angles, degrees }));
"""


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    """Nine dots, with four pictures each, of two newcomers with a gaze of their own."""
    folder = run(tmp_path_factory.mktemp("page"), EYES)
    trained, made = open_source(folder, None).trained, []
    for person, shift in (("p03", [0.2, -0.1]), ("p04", [0.0, 0.0])):
        people = EyeSynthetic(people=5, samples=60, days=(3, 3), size="9x15").load().people
        parts = people[person]
        every = Samples.concatenate([parts.train, parts.val, parts.test])
        gaze = every.columns["gaze"] + torch.tensor(shift)
        target = torch.arange(len(every)) // 4
        own = OwnData(person, Samples({**every.columns, "gaze": gaze, "target": target}), "made")
        ready = prepare_person(trained.experiment, 0, own, torch.arange(36))
        here = trained.on_data(ready, stream=RandomStream("page"))
        made.append(Adapter(here, person, fitted={RESIDUAL: DEFAULT}))
    return made


def rows_of(samples, outputs):
    columns = {name: column.numpy() for name, column in samples.columns.items()}
    unit = units(samples)
    return [
        {
            "pixels": columns["image"][row].ravel().tolist(),
            "pose": columns["pose"][row].tolist(),
            "side": int(columns["side"][row]) if "side" in columns else None,
            "gaze": columns["gaze"][row].tolist(),
            "predicted": outputs[row].tolist(),
            "unit": int(unit[row]),
        }
        for row in range(len(samples))
    ]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("node") is None, reason="node runs the page's code in this test")
def test_the_page_computes_what_python_does(adapters, tmp_path):
    script = tmp_path / "run.mjs"
    script.write_text(SCRIPT, encoding="utf-8")
    for name in ("correction", "linear_algebra"):
        shutil.copy(PAGE / f"{name}.js", tmp_path)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    wide = [float(t.ppf(norm.cdf(AGAINST_OTHERS), n)) for n in range(1, 100)]
    ways = []
    for adapter in adapters:
        test = adapter.trained.ready.people[adapter.person].test
        asked = {
            "samples": rows_of(adapter.labelled, adapter.labelled_outputs),
            "others": rows_of(test, adapter.test_outputs),
            "variances": DEFAULT.variances.tolist(),
            "wide": wide,
        }
        command = ["node", str(script), str(tmp_path / "correction.js")]
        ended = subprocess.run(
            command, input=json.dumps(asked), capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stderr
        page, rows, stream = json.loads(ended.stdout), torch.arange(36), RandomStream("page")
        choice = choose(adapter, PORTABLE, rows, stream)
        assert page["way"] == choice.way
        assert page["errors"] == pytest.approx(dict(choice.errors), abs=1e-4)
        for way in (SHARED, *PORTABLE):
            model = adapter.fit(way, rows, stream)
            python = adapter.outputs(model, test, adapter.test_outputs).numpy()
            assert np.abs(np.array(page["angles"][way]) - python).max() < 1e-4
        error = adapter.error(adapter.fit(choice.way, rows, stream))
        assert np.mean(page["degrees"]) == pytest.approx(error, abs=1e-4)
        ways.append(choice.way)
    assert len(set(ways)) > 1 or RESIDUAL in ways
