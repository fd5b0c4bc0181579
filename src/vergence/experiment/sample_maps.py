"""A few fixed test samples with everybody's heat maps, for pictures in reports."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import torch

from vergence.core.federation import Federation
from vergence.core.messages import Message
from vergence.engine.client_executor import ClientExecutor, ClientTask
from vergence.experiment.saved_run import SavedRun
from vergence.metrics.gaze_maps import label_maps
from vergence.results.write import save_whole
from vergence.tasks.gaze_map import GazeMap

SHOWN = 6
"""Samples per run; the same ones for every method."""


def write_maps(path: Path, worker: ClientExecutor, saved: SavedRun, raw: Federation) -> None:
    """Write maps.npz for a gaze-map task: frames, true maps, predicted maps and gaze points."""
    if not isinstance(worker.task, GazeMap):
        return
    people = raw.clients
    chosen = [people[i * len(people) // SHOWN] for i in range(min(SHOWN, len(people)))]
    parts: dict[str, list[np.ndarray]] = {"frames": [], "truth": [], "pred": [], "points": []}
    for number, person in enumerate(chosen):
        row = number % len(raw.people[person].test)
        test = raw.people[person].test.subset(torch.tensor([row]))
        batch = test.take(torch.tensor([0]))
        offered = worker.method.predicting(saved.server, person)
        message = Message("evaluate", offered, round=saved.experiment.plan.rounds)
        order = ClientTask("evaluate", person, message, saved.clients.get(person), show=(row,))
        logits = worker.do(order).outputs
        assert logits is not None
        frame = logits.shape[1] // 2
        points = batch["points"][0, frame]
        truth = label_maps(batch["points"], *logits.shape[2:])
        parts["frames"].append(batch["frames"][0, frame].numpy())
        parts["truth"].append(truth[0, frame].numpy())
        heat = (logits[0, frame] / worker.task.temperature).flatten().softmax(0)
        parts["pred"].append(heat.view(logits.shape[2:]).numpy())
        parts["points"].append(points.numpy())
    body = io.BytesIO()
    np.savez_compressed(
        body,
        person=np.array(chosen),
        frames=np.stack(parts["frames"]),
        truth=np.stack(parts["truth"]),
        pred=np.stack(parts["pred"]),
        points=np.stack(parts["points"]),
    )
    save_whole(path, body.getvalue())
