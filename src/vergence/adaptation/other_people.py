"""Priors of corrections, made of the people of a run whose leave-one-out evaluation is at hand."""

from __future__ import annotations

from collections.abc import Sequence

from vergence.experiment.newcomers import HeldOut
from vergence.metrics.calibration import FittedCalibration

FITTED_KINDS = {"fitted offset": (), "fitted affine": ("slopes",), "fitted eyes": ("eye", "slopes")}
"""Corrections with priors of the run's own people, and what is fitted beside the offset."""


def own_priors(
    everybody: HeldOut, people: Sequence[str], seed: int
) -> dict[str, dict[str, FittedCalibration]]:
    """Priors for each stranger, of the people who took part in the run without that stranger.

    Each of these is a stranger too, to a run of their own: so there are none where one run left
    several people out.
    """
    wanted = {person: everybody.known(person) for person in people}
    seen = {}
    for person in {who for others in wanted.values() for who in others}:
        run = everybody.run(person, seed)
        train = run.ready.people[person].train
        outputs = run.outputs(run.newcomer(person), train).double()
        seen[person] = (outputs, train.columns["gaze"].double(), train.columns.get("side"))
    return {
        person: {
            kind: FittedCalibration.of([seen[who] for who in others], *terms)
            for kind, terms in FITTED_KINDS.items()
            if "eye" not in terms or all(seen[who][2] is not None for who in others)
        }
        for person, others in wanted.items()
        if len(others) > 1
    }
