"""Arithmetic of the adaptive-FL paper's numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vergence.reproduce.checks.finding import Finding
from vergence.reproduce.claims import LEFT_OUT, OTHERS
from vergence.reproduce.printed import numbers, paper

SEED = "fedadam_seed"
"""The row of adaptive FL as printed."""


@dataclass(frozen=True)
class AdaptivePaper:
    """Numbers that the adaptive-FL paper prints: errors in degrees, `gained` in percent.

    `fedavg`, `adaptive` and `single` (individual training) are means over people, `central` that
    of the network trained centrally; at most `parity` worse than it counts as little. `ranges`
    holds each method's best and worst person.
    """

    fedavg: float
    adaptive: float
    single: float
    gained: float
    central: float
    parity: float
    mean_gaze: float
    ranges: Mapping[str, tuple[float, float]]

    @classmethod
    def printed(cls) -> AdaptivePaper:
        """The numbers as they are printed."""
        told, by_id = numbers("adaptive"), paper("adaptive").tables
        means, curves = (
            by_id[f"adaptive/{name}"].printed["MPIIGaze"] for name in ("headline", "fig3")
        )
        fedavg, adaptive, single = (
            means[row][0] for row in (f"fedavg{LEFT_OUT}", SEED + LEFT_OUT, OTHERS)
        )
        return cls(
            fedavg,
            adaptive,
            single,
            gained=told["gain"],
            central=told["central_lenet"],
            parity=max(claim.margin for claim in by_id["adaptive/fig3"].claims),
            mean_gaze=told["mean_gaze"],
            ranges={row: (curves[row][1], curves[row][2]) for row in ("fedavg", SEED)},
        )


def check_adaptive(mean_gaze: float | None = None, people: int = 0) -> list[Finding]:
    """Findings about the numbers of the adaptive-FL paper.

    `mean_gaze` is the error, in degrees, of always predicting the others' mean gaze, measured on
    so many `people`; without it, the published one of the evaluation subset is used.
    """
    paper = AdaptivePaper.printed()
    constant = paper.mean_gaze if mean_gaze is None else mean_gaze
    source = (
        "evaluation subset, 15 people"
        if mean_gaze is None
        else f"measured here on {people} people of the 9x15 crops"
    )
    return [
        _gain(paper),
        *_against_constant(paper, constant, source),
        *_against_single(paper),
        _against_central(paper),
        _best_and_worst(paper),
    ]


def _gain(paper: AdaptivePaper) -> Finding:
    """Gain over FedAvg."""
    fedavg, best = paper.fedavg, paper.adaptive
    gain = 100 * (fedavg - best) / fedavg
    return Finding(
        f"adaptive FL beats FedAvg by {paper.gained} % ({fedavg} to {best} degrees)",
        f"({fedavg} - {best}) / {fedavg} = {gain:.1f} %; no spread, test or number of runs is "
        "printed",
        abs(gain - paper.gained) < 0.05,
    )


def _against_constant(paper: AdaptivePaper, constant: float, source: str) -> list[Finding]:
    """Both methods against a constant prediction, whose error comes from `source`."""
    fedavg, best = paper.fedavg, paper.adaptive
    return [
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
    ]


def _against_single(paper: AdaptivePaper) -> list[Finding]:
    """Both methods against individual training."""
    fedavg, best, single = paper.fedavg, paper.adaptive, paper.single
    return [
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
    ]


def _against_central(paper: AdaptivePaper) -> Finding:
    """Loss to the data centre."""
    best, central = paper.adaptive, paper.central
    return Finding(
        "adaptive FL loses little to the data centre (10 % at most)",
        f"the data centre's error is drawn only; the same network trained centrally, published "
        f"elsewhere, has {central}: adaptive FL is "
        f"{100 * (best / central - 1):.0f} % above it",
        best <= (1 + paper.parity) * central,
    )


def _best_and_worst(paper: AdaptivePaper) -> Finding:
    """Change of the best and of the worst person."""
    (low, high), (mine_low, mine_high) = paper.ranges["fedavg"], paper.ranges[SEED]
    return Finding(
        f"best and worst person improve ({low} / {high} to {mine_low} / {mine_high})",
        f"by {100 * (low - mine_low) / low:.1f} % and {100 * (high - mine_high) / high:.1f} %, "
        f"the range from {high - low:.1f} to {mine_high - mine_low:.1f} degrees",
        mine_low < low and mine_high < high,
    )
