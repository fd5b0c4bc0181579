"""Priors of corrections, fitted to the other people of a leave-one-out evaluation.

Used by `adaptation.adapted_run` and `studies.calibration`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vergence.adaptation.residual_kernel import ResidualKernel, evidence
from vergence.experiment.newcomers import HeldOut
from vergence.metrics.calibration import FittedCalibration
from vergence.tasks.gaze_angle import GazeAngle

FITTED_KINDS = {"fitted offset": (), "fitted affine": ("slopes",), "fitted eyes": ("eye", "slopes")}
"""Corrections whose priors are fitted to other people, and the terms besides the offset."""
RESIDUAL = "residual kernel"
"""Name of the Gaussian process on residuals."""


def own_priors(
    everybody: HeldOut, people: Sequence[str], seed: int
) -> dict[str, dict[str, FittedCalibration | ResidualKernel]]:
    """Fit priors for each unseen client to the people who took part in the run without that client.

    Each of these people is an unseen client of another fold, whose predictions the priors are
    fitted to. So there are no priors where one fold left out several people.
    """
    wanted = {person: everybody.others_in_training(person) for person in people}
    # Predictions of a model that was trained on a person would understate that person's errors.
    seen, evidences = {}, {}
    for person in {who for others in wanted.values() for who in others}:
        run = everybody.run(person, seed)
        train = run.ready.people[person].train
        outputs = run.outputs(run.newcomer(person), train).double()
        assert isinstance(run.task, GazeAngle)
        gaze = train.columns["gaze"].double()
        evidences[person] = evidence(outputs, gaze, run.task.kernel_inputs(train))
        seen[person] = (outputs, gaze, train.columns.get("side"))
    return {
        person: {
            kind: FittedCalibration.of([seen[who] for who in others], *terms)
            for kind, terms in FITTED_KINDS.items()
            if "eye" not in terms or all(seen[who][2] is not None for who in others)
        }
        | {RESIDUAL: ResidualKernel.of(torch.stack([evidences[who] for who in others]).sum(0))}
        for person, others in wanted.items()
        if len(others) > 1
    }
