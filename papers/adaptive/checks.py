"""Arithmetic of the adaptive-FL paper's numbers."""

from __future__ import annotations

import torch

from vergence.data.eye_images.mpiigaze_crops import MpiigazeCrops
from vergence.errors import DataError
from vergence.experiment.schema import data_root
from vergence.metrics.angles import angular_error_deg, mean_direction
from vergence_papers.claims import LEFT_OUT, OTHERS
from vergence_papers.data_sets import GROUNDS, at_hand
from vergence_papers.finding import Finding
from vergence_papers.printed import numbers, paper

SEED = "fedadam_seed"
"""The row of adaptive FL as printed."""
CROPS = "mpiigaze_crops"


def findings() -> list[Finding]:
    """Findings about the numbers of the paper, beside what a constant answer has here."""
    return check_adaptive(*mean_gaze())


def check_adaptive(mean_gaze: float | None = None, people: int = 0) -> list[Finding]:
    """Findings about the numbers of the adaptive-FL paper.

    `mean_gaze` is the error, in degrees, of always predicting the others' mean gaze, measured on
    so many `people`; without it, the published one of the evaluation subset is used.
    """
    told, tables = numbers("adaptive"), paper("adaptive").tables
    if mean_gaze is None:
        constant, source = told["mean_gaze"], "evaluation subset, 15 people"
    else:
        constant, source = mean_gaze, f"measured here on {people} people of the 9x15 crops"
    rows = tables["adaptive/headline"].printed["MPIIGaze"]
    fedavg, best, single = (rows[r][0] for r in (f"fedavg{LEFT_OUT}", SEED + LEFT_OUT, OTHERS))
    gain, central = 100 * (fedavg - best) / fedavg, told["central_lenet"]
    parity = max(claim.margin for claim in tables["adaptive/fig3"].claims)
    curves = tables["adaptive/fig3"].printed["MPIIGaze"]
    (_, low, high), (_, mine_low, mine_high) = curves["fedavg"], curves[SEED]
    return [
        Finding(
            f"adaptive FL beats FedAvg by {told['gain']} % ({fedavg} to {best} degrees)",
            f"({fedavg} - {best}) / {fedavg} = {gain:.1f} %; no spread, test or number of runs is "
            "printed",
            abs(gain - told["gain"]) < 0.05,
        ),
        Finding(
            f"FedAvg ({fedavg}) is better than a constant",
            f"predicting the mean gaze gives {constant:.2f} ({source}): "
            f"{fedavg - constant:+.2f} degrees for FedAvg",
            fedavg < constant,
        ),
        Finding(
            f"adaptive FL ({best}) is better than a constant",
            f"{constant - best:.2f} degrees ({100 * (constant - best) / constant:.1f} %) below the "
            "mean gaze",
            best < constant,
        ),
        Finding(
            "individual training generalises poorly, federated learning better",
            f"individual {single} against FedAvg {fedavg}: {single - fedavg:+.2f} degrees",
            fedavg < single,
        ),
        Finding(
            f"adaptive FL beats individual training ({single} to {best})",
            f"{single - best:.2f} degrees, {100 * (single - best) / single:.1f} %; without a "
            "spread this cannot be told from chance",
            best < single,
        ),
        Finding(
            "adaptive FL loses little to the data centre (10 % at most)",
            f"the data centre's error is drawn only; the same network trained centrally, published "
            f"elsewhere, has {central}: adaptive FL is {100 * (best / central - 1):.0f} % above it",
            best <= (1 + parity) * central,
        ),
        Finding(
            f"best and worst person improve ({low} / {high} to {mine_low} / {mine_high})",
            f"by {100 * (low - mine_low) / low:.1f} % and {100 * (high - mine_high) / high:.1f} %, "
            f"the range from {high - low:.1f} to {mine_high - mine_low:.1f} degrees",
            mine_low < low and mine_high < high,
        ),
    ]


def mean_gaze() -> tuple[float | None, int]:
    """Return the error of predicting the others' mean gaze, and of how many people.

    Measured on the MPIIGaze crops where they are at hand: each person against the mean direction
    of everybody else's samples. Without them (None, 0).
    """
    where = GROUNDS[CROPS]
    if not at_hand(where):
        return None, 0
    try:
        people = MpiigazeCrops().load(data_root(where.root)).people
    except DataError:
        return None, 0
    gaze = {
        p: torch.cat([part.columns["gaze"] for part in (s.train, s.val, s.test)])
        for p, s in people.items()
    }
    errors = []
    for person, own in gaze.items():
        others = torch.cat([g for p, g in gaze.items() if p != person])
        mean = mean_direction(others).expand_as(own)
        errors.append(float(angular_error_deg(own, mean).mean()))
    return sum(errors) / len(errors), len(errors)
