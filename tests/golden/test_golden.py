"""One small seeded run per experiment family against a stored table.

A change of numbers needs a reason and a before/after table in the changelog; then
`VERGENCE_GOLDEN=write python -m pytest tests/golden` stores the new ones.
"""

import json
import os
from pathlib import Path

import pytest

from vergence.experiment.run import start
from vergence.experiment.schema import check
from vergence.results.write import person_means

STORED = Path(__file__).parent / "tables.json"
METHODS = ["local_only", "fedavg", {"name": "fedcpf", "rate": 0.2}]
FAMILIES = {
    "toy": {
        "task": {"name": "toy"},
        "model": {"name": "linear"},
        "federation": {"name": "toy"},
        "local": {"optimizer": "sgd", "epochs": 1, "batch": 8},
    },
    "gaze_map": {
        # Without the own prior: these numbers are older than that default.
        "task": {"name": "gaze_map", "personal_prior": 0.0},
        "model": {"name": "glc_vit", "preset": "tiny64"},
        "federation": {"name": "ego_synthetic", "people": 2, "clips": 10, "windows": 1},
        "local": {"steps": 2, "batch": 4, "optimizer": "adamw", "lr": 1e-3},
    },
    "gaze_angle": {
        "task": {"name": "gaze_angle"},
        "model": {"name": "small_eye"},
        "federation": {"name": "eye_synthetic", "people": 3, "samples": 60, "size": "9x15"},
        "local": {"epochs": 2, "batch": 16, "optimizer": "adamw", "lr": 2e-3},
    },
}


@pytest.mark.parametrize("family", FAMILIES)
def test_numbers_stay(family, tmp_path, monkeypatch):
    monkeypatch.setenv("VERGENCE_CACHE", str(tmp_path / "cache"))
    table = {
        **FAMILIES[family],
        "methods": METHODS,
        "run": {"rounds": 3, "evaluate_every": 0, "workers": 1},
    }
    experiment = check(table)
    start(experiment, tmp_path / "out")
    found = {label: person_means(tmp_path / "out" / label) for label in experiment.methods}
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    if os.environ.get("VERGENCE_GOLDEN") == "write":
        stored = {**stored, family: found}
        STORED.write_text(json.dumps(stored, indent=1) + "\n")
    expected = stored[family]
    for label, metrics in expected.items():
        for metric, people in metrics.items():
            assert found[label][metric] == pytest.approx(people, rel=2e-3, abs=2e-3), metric
