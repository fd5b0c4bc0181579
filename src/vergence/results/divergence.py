"""Notes on a finished run: an early end, undefined metrics, and training that diverged.

Used by `api.comparison`, `api.finished_run`, `cli.runs` and `studies.trials`.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping

from vergence.core.naming import by_key, plural
from vergence.results.read import Run

NOT_FINITE = "quarantined: finite"
"""First words of a turn's status in turns.csv if its reply held NaN or infinity."""
SHOWN = 5
"""Largest number of people that a line names."""


WORSE = 10.0
"""Training has diverged where the loss of the last round is so many times that of the first."""


def run_notes(run: Run) -> list[str]:
    """Return the lines to print with a finished run: where it ended early, and what went wrong."""
    return [*early_end_notes(run), *divergence_notes(run)]


def early_end_notes(run: Run) -> list[str]:
    """Return lines that say after which round a run ended early, and why; a line per reason.

    Where early stopping went back to the best evaluation, they name its round.
    """
    ends, best = run.results.get("stopped", {}), run.results.get("best_round", {})
    seeds = by_key((end["reason"], seed) for seed, end in ends.items())

    def listed(rounds: Mapping[str, int]) -> str:
        """Return rounds as text, with their seeds if there are several."""
        several = len(run.seeds) > 1
        return ", ".join(f"{at} (seed {s})" if several else str(at) for s, at in rounds.items())

    def stay(of: Iterable[str]) -> str:
        """Return a last part of a line, on the models that stay; "" if they are the last ones."""
        back = {seed: best[seed] for seed in of if seed in best}
        return f"; the models of round {listed(back)} stay" if back else ""

    planned = run.results.get("rounds", 0)
    # Methods that stop by one rule take other numbers of steps: whoever compares them must see it.
    steps = f" ({plural(round(run.steps), 'step')} a person)" if run.steps > 0 else ""
    lines = [
        f"{run.label} ended after round {listed({s: ends[s]['round'] for s in of})} of "
        f"{planned}{steps}: {reason}{stay(of)}"
        for reason, of in seeds.items()
    ]
    rule = tomllib.loads(run.config).get("early_stopping", {})
    if rule.get("patience") and len(ends) < len(run.seeds):
        lines.append(
            f"{run.label} trained all {planned} rounds{steps} before validation had been without a "
            f"gain for {plural(rule['patience'], 'evaluation')}: more rounds, or more local.epochs "
            "a round, may help"
            f"{stay(s for s in map(str, run.seeds) if s not in ends)}"
        )
    return lines


def divergence_notes(run: Run) -> list[str]:
    """Return lines on people whose final metrics are infinite (diverged) or NaN (undefined).

    Lines on a training loss that rose, and on replies with NaN or infinity, come before them.
    """
    # A metric is NaN where it is undefined for somebody's samples; infinite means diverged.
    scores, lines = run.scores(run.headline), [*_training_notes(run)]
    if count := sum(map(math.isinf, scores.values())):
        lines.append(
            f"{run.label} diverged: the {run.headline} of {count} of "
            f"{plural(len(scores), 'person')} is not finite at the end; lower local.lr"
        )
    for metric in run.estimates:
        without = [p for p, value in run.scores(metric).items() if math.isnan(value)]
        # The score is NaN exactly where the headline is, and needs no line of its own.
        if without and metric != "score":
            who = [*without[:SHOWN], *([f"{len(without) - SHOWN} more"] if without[SHOWN:] else [])]
            lines.append(f"{', '.join(who)}: no {metric} (NaN), left out of it")
    return lines


def _training_notes(run: Run) -> Iterator[str]:
    """Yield lines on a training that diverged though its final models have finite scores."""
    if not (run.folder / "rounds.csv").exists():
        return
    rounds, losses = run.curve("loss", "train")
    means = losses.mean(axis=0) if losses.size else losses
    if len(rounds) > 1 and 0 < means[0] * WORSE < means[-1]:
        yield (
            f"{run.label} diverged: the training loss was {means[0]:.3g} in round {rounds[0]} and "
            f"{means[-1]:.3g} in round {rounds[-1]}; lower local.lr"
        )
    if count := int(run.turns.status.str.startswith(NOT_FINITE).sum()):
        yield (
            f"{run.label}: {plural(count, 'reply')} held NaN or infinity and did not count; lower "
            "local.lr"
        )
