"""Predicted heat maps of a few fixed test samples, for pictures in reports.

Used by `experiment.run`.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import torch

from vergence.core.federation import Federation
from vergence.experiment.trained_run import TrainedRun
from vergence.metrics.gaze_maps import label_maps
from vergence.results.write import save_whole
from vergence.tasks.gaze_map import GazeMap

SHOWN = 6
"""Number of samples per run, the same ones for every method."""


def write_maps(path: Path, run: TrainedRun, raw: Federation) -> None:
    """Write maps.npz for a gaze-map task; nothing is written for other tasks.

    It has the frames, true maps, predicted maps and gaze points of a few people's test samples.

    Args:
        path: the file.
        run: the finished run of one seed.
        raw: the data before they are prepared for the network.
    """
    if not isinstance(run.task, GazeMap):
        return
    people = list(raw.scored_people)
    examples = [people[i * len(people) // SHOWN] for i in range(min(SHOWN, len(people)))]
    parts: dict[str, list[np.ndarray]] = {"frames": [], "truth": [], "pred": [], "points": []}
    for number, person in enumerate(examples):
        row = number % len(raw.people[person].test)
        test = raw.people[person].test.subset(torch.tensor([row]))
        batch = test.take(torch.tensor([0]))
        params = run.model(person)
        shown = run.tune_prior(params, person).test.subset(torch.tensor([row]))
        logits = run.outputs(params, shown)
        frame = logits.shape[1] // 2
        points = batch["points"][0, frame]
        truth = label_maps(batch["points"], *logits.shape[2:])
        parts["frames"].append(batch["frames"][0, frame].numpy())
        parts["truth"].append(truth[0, frame].numpy())
        heat = (logits[0, frame] / run.task.temperature).flatten().softmax(0)
        parts["pred"].append(heat.view(logits.shape[2:]).numpy())
        parts["points"].append(points.numpy())
    body = io.BytesIO()
    np.savez_compressed(
        body,
        person=np.array(examples),
        frames=np.stack(parts["frames"]),
        truth=np.stack(parts["truth"]),
        pred=np.stack(parts["pred"]),
        points=np.stack(parts["points"]),
    )
    save_whole(path, body.getvalue())
