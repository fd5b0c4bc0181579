"""Priors of corrections, fitted to the other people of a run or of a leave-one-out evaluation.

Used by `adaptation.adapted_run` and `studies.calibration`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vergence.console import note
from vergence.experiment.newcomers import HeldOut, guards_people, read_residuals
from vergence.experiment.trained_run import TrainedRun
from vergence.metrics.calibration import FittedCalibration
from vergence.tasks.gaze_angle import GazeAngle
from vergence.training.residual_kernel import ResidualKernel

FITTED_KINDS = {"fitted offset": (), "fitted affine": ("slopes",), "fitted eyes": ("eye", "slopes")}
"""Corrections whose priors are fitted to other people, and the terms besides the offset."""
RESIDUAL = "residual kernel"
"""Name of the Gaussian process on residuals."""


def priors_of_run(run: TrainedRun) -> dict[str, ResidualKernel]:
    """Return the priors that a run's own folder has, by name of the way: at most one."""
    kernel = read_residuals(run.folder, run.task.seed)
    return {} if kernel is None else {RESIDUAL: kernel}


def residual_prior(evidences: Sequence[Tensor]) -> dict[str, ResidualKernel]:
    """Return the residual kernel of people's `evidence`; none if their models all diverged."""
    finite = [each for each in evidences if each.isfinite().all()]
    return {RESIDUAL: ResidualKernel.of(torch.stack(finite).sum(0))} if finite else {}


def own_priors(
    everybody: HeldOut, people: Sequence[str], seed: int
) -> dict[str, dict[str, FittedCalibration | ResidualKernel]]:
    """Fit priors for each unseen client to the people who took part in the run without that client.

    Each of these people is an unseen client of another fold, whose predictions the priors are
    fitted to. So there are no priors where one fold left out several people, and none under
    protections, whose accounts do not cover these people's residuals.
    """
    if people and guards_people(everybody.run(people[0], seed).experiment.plan):
        note(
            f"{everybody.folders[people[0]]}: no way to adapt is fitted to other people, as no "
            "protection of this run covers their residuals"
        )
        return {}
    wanted = {person: everybody.others_in_training(person) for person in people}
    # Predictions of a model that was trained on a person would understate that person's errors.
    seen, evidences = {}, {}
    for person in {who for others in wanted.values() for who in others}:
        run = everybody.run(person, seed)
        train = run.ready.people[person].train
        outputs = run.outputs(run.newcomer(person), train).double()
        assert isinstance(run.task, GazeAngle)
        if run.task.has_kernel_inputs(train):
            evidences[person] = run.task.residual_evidence(outputs, train)
        seen[person] = (outputs, train.columns["gaze"].double(), train.columns.get("side"))
    return {
        person: {
            kind: FittedCalibration.of([seen[who] for who in others], *terms)
            for kind, terms in FITTED_KINDS.items()
            if "eye" not in terms or all(seen[who][2] is not None for who in others)
        }
        | residual_prior([evidences[who] for who in others if who in evidences])
        for person, others in wanted.items()
        if len(others) > 1
    }
